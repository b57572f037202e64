"""Change one declared tunable to another legal value.

A kernel declares what may be changed, and to what, at module level:

    TILE_N = 512
    TUNABLES = {"TILE_N": (128, 256, 512)}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import GlobalScope, MetadataWrapper, PositionProvider, ScopeProvider

from accelopt_core.evaluation import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotAKernel,
    NotOfItsKind,
    Site,
    SiteGone,
)
from accelopt_core.transforms.kernel_code import replace_nodes

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
        _, declared = _read(module.tree)
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
        copy, declared = _read(module.tree)
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


def _read(module: cst.Module) -> tuple[cst.Module, list[_Tunable | _Fixed]]:
    """The declared tunables, each usable or with the rule that forbids changing it."""
    wrapper = MetadataWrapper(module)
    positions = wrapper.resolve(PositionProvider)
    scopes = wrapper.resolve(ScopeProvider)
    declarations = [value for name, value in _assignments(wrapper.module) if name == DECLARATION]
    if not declarations:
        return wrapper.module, []
    if len(declarations) > 1 or not isinstance(declarations[0], cst.Dict):
        raise NotAKernel(f"{DECLARATION} must be one dictionary literal")
    found: list[_Tunable | _Fixed] = []
    scope = scopes[declarations[0]]
    assert isinstance(scope, GlobalScope)
    for element in declarations[0].elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        if not isinstance(key, cst.SimpleString) or not isinstance(key.evaluated_value, str):
            raise NotAKernel(f"{DECLARATION} must map names (string literals) to tuples of integers")
        assert isinstance(element, cst.DictElement)
        name = key.evaluated_value
        legal = _integers(element.value)
        values = [value for target, value in _assignments(wrapper.module) if target == name]
        literal = values[0] if len(values) == 1 else None
        if not legal:
            why = f"{name} has no literal tuple of integers as its legal values"
        elif not values:
            why = f"{name} is not assigned at module level"
        elif len(values) > 1 or len(scope[name]) > 1:
            why = f"{name} is assigned more than once"
        elif _shadowed(wrapper.module, name):
            why = f"{name} is bound again inside a function"
        elif isinstance(literal, cst.Integer):
            found.append(_Tunable(name, literal.evaluated_value, legal, literal, positions[literal].start.line))
            continue
        else:
            why = f"{name} is not a literal integer"
        found.append(_Fixed(name, positions[element].start.line, IllegalSite(why)))
    return wrapper.module, found


def _assignments(module: cst.Module) -> Iterator[tuple[str, cst.BaseExpression]]:
    for node in module.body:
        for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                for target in small.targets:
                    if isinstance(target.target, cst.Name):
                        yield target.target.value, small.value


def _integers(node: cst.BaseExpression) -> tuple[int, ...]:
    if not isinstance(node, (cst.Tuple, cst.List)):
        return ()
    values = [element.value for element in node.elements]
    return tuple(v.evaluated_value for v in values) if all(isinstance(v, cst.Integer) for v in values) else ()  # type: ignore[attr-defined]  # all() narrowed them


class _Bindings(cst.CSTVisitor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.found = False
        self.depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.depth -= 1

    def _target(self, node: cst.CSTNode) -> None:
        if self.depth and isinstance(node, cst.Name) and node.value == self.name:
            self.found = True

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._target(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._target(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._target(node.target)

    def visit_Param(self, node: cst.Param) -> None:
        self._target(node.name)


def _shadowed(module: cst.Module, name: str) -> bool:
    visitor = _Bindings(name)
    module.visit(visitor)
    return visitor.found
