"""A kernel's file with its function written anew: what it imports, and which helpers nobody needs any more."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from nki_sim.loop_ir.source import KernelText

_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def replaced(source: KernelText, function: str, imports: Mapping[str, str]) -> str:
    """The file with `function` in place of the kernel's own. `imports`: by name, the statement that binds it.

    Functions and classes that only the old kernel used are left out.
    """
    definition = source.definition
    if definition is None:
        return "\n".join([*imports.values(), "", "", function.rstrip("\n")]) + "\n"
    text = source.text.splitlines()
    before, after = text[: first_line(definition) - 1], text[definition.end_lineno or definition.lineno :]
    missing = [line for name, line in imports.items() if not _binds(source.tree, name, line)]
    at = _place_of_imports(source.tree) if missing else 0
    lines = [*before[:at], *missing, *before[at:], *function.rstrip("\n").splitlines(), *after]
    return without_helpers(source, "\n".join(lines).rstrip("\n") + "\n")


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _binds(tree: ast.Module, name: str, statement: str) -> bool:
    """Is the name bound by an import of the same module?"""
    (wanted,) = ast.parse(statement).body
    assert isinstance(wanted, ast.Import)
    module = wanted.names[0].name
    for node in tree.body:
        if isinstance(node, ast.Import):
            for each in node.names:
                if (each.asname or each.name) == name and each.name == module:
                    return True
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for each in node.names:
                if (each.asname or each.name) == name and f"{node.module}.{each.name}" == module:
                    return True
    return False


def _place_of_imports(tree: ast.Module) -> int:
    """The number of lines before the one at which an import can be added."""
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            return node.lineno - 1
    last = 0
    for node in tree.body:
        if not (is_docstring(node) or isinstance(node, ast.ImportFrom)):
            break
        last = node.end_lineno or node.lineno
    return last


# --- helpers ----------------------------------------------------------------------------------------------------------


def without_helpers(source: KernelText, text: str) -> str:
    """The text without functions and classes that the source's kernel used and nothing uses now."""
    old = _definitions(source.tree)
    helpers = (
        {
            name
            for name in _reached(old, [source.function])
            if not any(node.decorator_list and isinstance(node, ast.FunctionDef) for node in old[name])
        }
        - {source.function}
        - source.kept
    )
    tree = ast.parse(text)
    definitions = _definitions(tree)
    roots = [name for name in definitions if name not in helpers]
    for node in tree.body:
        if not isinstance(node, _Definition):
            roots += _names(node)
    needed = _reached(definitions, roots)
    dropped = [node for name in helpers - needed for node in definitions.get(name, ())]
    lines = text.splitlines()
    for node in sorted(dropped, key=lambda node: -node.lineno):
        begin = first_line(node) - 1
        while begin and lines[begin - 1].startswith("#"):
            begin -= 1
        end = node.end_lineno or node.lineno
        while begin and end < len(lines) and not lines[begin - 1].strip() and not lines[end].strip():
            end += 1
        del lines[begin:end]
    return "\n".join(lines).rstrip("\n") + "\n"


_Definitions = Mapping[str, Sequence[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]


def _definitions(tree: ast.Module) -> _Definitions:
    """By name, at the top of the module."""
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]] = {}
    for node in tree.body:
        if isinstance(node, _Definition):
            found.setdefault(node.name, []).append(node)
    return found


def _reached(definitions: _Definitions, roots: Iterable[str]) -> set[str]:
    """Those that the roots name, and that these name, with the roots."""
    waiting, found = [name for name in roots if name in definitions], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [each for node in definitions[name] for each in _names(node) if each in definitions]
    return found


def _names(node: ast.AST) -> Iterable[str]:
    """Every name in it, and every text: what is exported or looked up by its name is used."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            yield each.value
