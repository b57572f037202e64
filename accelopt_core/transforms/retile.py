"""Change one declared tunable to another legal value.

A kernel declares what may be changed, and to what, at module level:

    TILE_N = 512
    TUNABLES = {"TILE_N": (128, 256, 512)}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotAKernel,
    NotOfItsKind,
    Site,
    SiteGone,
)
from accelopt_core.transforms.kernel_code import KernelCode, read_kernel
from accelopt_core.transforms.scopes import bound_by
from accelopt_core.transforms.syntax import children, descendants, replace_nodes

DECLARATION = "TUNABLES"


@dataclass(frozen=True)
class _Tunable:
    name: str
    value: int
    legal: tuple[int, ...]
    node: cst.BaseExpression
    """The literal to replace."""
    line: int


@dataclass(frozen=True)
class _Fixed:
    """Declared, but not in a form in which it can be changed."""

    name: str
    line: int
    why: IllegalSite


class Retile:
    name = "retile"
    addresses = frozenset(Cause) - {Cause.TABLE_SWITCHES}

    def describe(self) -> str:
        return "Change one tile size (or other constant) that the kernel declares in TUNABLES to another legal value."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        _, declared = _read(module)
        sites = []
        for entry in declared:
            if isinstance(entry, _Fixed):
                context.refuse(self.name, entry.name, entry.line, entry.why)
                continue
            for value in entry.legal:
                if value != entry.value:
                    sites.append(
                        Site(
                            self.name,
                            f"{entry.name}={value}",
                            f"change {entry.name} from {entry.value} to {value}",
                            entry.line,
                            f"{value} is among the values that TUNABLES declares legal for {entry.name}",
                            "wider tiles mean fewer instructions, and longer rows of transfers"
                            if value > entry.value
                            else "narrower tiles start sooner and overlap better, for more instructions and transfers",
                        )
                    )
        return tuple(sites)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        name, _, text = key.partition("=")
        copy, declared = _read(module)
        for entry in declared:
            if entry.name == name:
                if isinstance(entry, _Fixed):
                    raise entry.why
                if not text.isdecimal() or int(text) not in entry.legal:
                    raise NotOfItsKind(f"{name} = {text} is not among the declared values {entry.legal}")
                if int(text) == entry.value:
                    raise NotOfItsKind(f"{name} is {text} already")
                result = replace_nodes(copy, {entry.node: cst.Integer(text)})
                assert isinstance(result, cst.Module)
                return result
        raise SiteGone(f"{key}: the kernel declares no tunable {name}")


def _read(module: KernelModule) -> tuple[cst.Module, list[_Tunable | _Fixed]]:
    """The declared tunables, each usable or with the rule that forbids changing it. Raises NotAKernel."""
    return read_kernel(module).found_once(_read_anew)


def _read_anew(code: KernelCode) -> tuple[cst.Module, list[_Tunable | _Fixed]]:
    tree = code.module
    declarations = [value for name, value, _ in _assignments(tree) if name == DECLARATION]
    if not declarations:
        return tree, []
    if len(declarations) > 1 or not isinstance(declarations[0], cst.Dict):
        raise NotAKernel(f"{DECLARATION} must be one dictionary literal")
    bound_outside, bound_inside = _bindings(tree)
    found: list[_Tunable | _Fixed] = []
    for element in declarations[0].elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        if not isinstance(key, cst.SimpleString) or not isinstance(key.evaluated_value, str):
            raise NotAKernel(f"{DECLARATION} must map names (string literals) to tuples of integers")
        assert isinstance(element, cst.DictElement)
        name = key.evaluated_value
        legal = _integers(element.value)
        values = [(value, line) for target, value, line in _assignments(tree) if target == name]
        literal, line = values[0] if len(values) == 1 else (None, None)
        if not legal:
            why = f"{name} has no literal tuple of integers as its legal values"
        elif not values:
            why = f"{name} is not assigned at module level"
        elif len(values) > 1 or bound_outside[name] > 1:
            why = f"{name} is assigned more than once"
        elif name in bound_inside:
            why = f"{name} is bound again inside a function"
        elif isinstance(literal, cst.Integer) and line is not None:
            found.append(_Tunable(name, literal.evaluated_value, legal, literal, code.line_of(line)))
            continue
        else:
            why = f"{name} is not a literal integer"
        found.append(_Fixed(name, code.line_of(element), IllegalSite(why)))
    return tree, found


def _assignments(module: cst.Module) -> Iterator[tuple[str, cst.BaseExpression, cst.BaseStatement]]:
    """Of the module's own: name, value, and the line that it stands on."""
    for node in module.body:
        for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                for target in small.targets:
                    if isinstance(target.target, cst.Name):
                        yield target.target.value, small.value, node


def _integers(node: cst.BaseExpression) -> tuple[int, ...]:
    if not isinstance(node, (cst.Tuple, cst.List)):
        return ()
    values = [element.value for element in node.elements if isinstance(element.value, cst.Integer)]
    return tuple(value.evaluated_value for value in values) if len(values) == len(node.elements) else ()


def _bindings(module: cst.Module) -> tuple[Counter[str], frozenset[str]]:
    """How often each name is bound at module level, and the names that are bound inside functions."""
    outside, inside = Counter[str](), set[str]()
    for node in descendants(module):
        if isinstance(node, cst.FunctionDef):
            inside.update(
                name for inner in (node.params, node.body) for each in descendants(inner) for name in bound_by(each)
            )
    for node in module.body:
        pending: list[cst.CSTNode] = [node]
        while pending:
            each = pending.pop()
            outside.update(bound_by(each))
            if not isinstance(each, cst.FunctionDef):
                pending += children(each)
    return outside, frozenset(inside)
