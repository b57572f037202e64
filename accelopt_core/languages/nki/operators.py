"""What a kernel computes with, read from its syntax tree: the words by which memory finds kin."""

from __future__ import annotations

import ast

from accelopt_core.candidate import parsed

_OPERATOR_ARGUMENTS = frozenset({"op", "op0", "op1", "reduce_op", "comp_op0", "comp_op1", "cmp_op"})
_ISA_MODULE = "nki.isa"
_LANGUAGE_MODULE = "nki.language"


def kernel_operators(source: str) -> tuple[str, ...]:
    """Instructions and their operators, sorted, e.g. `("activation:rsqrt", "dma_copy", "nc_matmul")`.

    An instruction that takes an operator is named with each of its operators, and alone when it has none.
    Empty for a source that does not parse.
    """
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    isa, language = _module_names(tree, _ISA_MODULE), _module_names(tree, _LANGUAGE_MODULE)
    direct = _names_from(tree, _ISA_MODULE)
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _attribute_of(node.func, isa)
        if name is None and isinstance(node.func, ast.Name):
            name = direct.get(node.func.id)
        if name is None:
            continue
        operators = [
            operator
            for keyword in node.keywords
            if keyword.arg in _OPERATOR_ARGUMENTS and (operator := _attribute_of(keyword.value, language))
        ]
        operators += [operator for value in node.args if (operator := _attribute_of(value, language))]
        found.update(f"{name}:{operator}" for operator in operators)
        if not operators:
            found.add(name)
    return tuple(sorted(found))


def _module_names(tree: ast.Module, module: str) -> set[str]:
    """Every dotted name under which the file reaches a module."""
    parent, _, leaf = module.rpartition(".")
    names = {module}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.asname for alias in node.names if alias.asname and alias.name == module)
            names.update(f"{alias.asname}.{leaf}" for alias in node.names if alias.asname and alias.name == parent)
        elif isinstance(node, ast.ImportFrom) and node.module == parent:
            names.update(alias.asname or alias.name for alias in node.names if alias.name == leaf)
    return names


def _names_from(tree: ast.Module, module: str) -> dict[str, str]:
    """Local name -> original name of everything imported straight from a module."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def _attribute_of(node: ast.expr, modules: set[str]) -> str | None:
    if isinstance(node, ast.Attribute) and _dotted(node.value) in modules:
        return node.attr
    return None


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""
