"""Every name bound once: a name that is bound again for something else gets a number.

    for k in range(A):                         for k in range(A):
        start = k * T                              start = k * T
        ...                            ->          ...
    for k in range(B):                         for k_2 in range(B):
        start = k * T                              start_2 = k_2 * T

A use that may see several bindings (of two branches, or of this and the last iteration) keeps them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from accelopt_core.transforms.data_flow import (
    Define,
    Either,
    Flow,
    Leave,
    Repeat,
    Use,
    definitions_of,
    reaching_definitions,
)
from accelopt_core.transforms.syntax import descendants, name_nodes, replace_nodes

_LEAVES = {cst.Break: "break", cst.Continue: "continue", cst.Return: "return", cst.Raise: "return"}


def with_names_bound_once(function: cst.FunctionDef, taken: frozenset[str]) -> cst.FunctionDef:
    """`taken`: names that mean something already, anywhere in the module."""
    reader = _Reader()
    flow = [*reader.parameters(function), *reader.statements(function.body.body)]
    reaching = reaching_definitions(flow)
    definitions: dict[str, list[cst.Name]] = {}
    for define in definitions_of(flow):
        assert isinstance(define.key, cst.Name)
        definitions.setdefault(define.variable, []).append(define.key)
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    used = set(taken)
    for name, nodes in definitions.items():
        if name in reader.fixed or len(nodes) < 2:
            continue
        for web in reaching.webs(name, nodes)[1:]:
            fresh = fresh_name(name, used)
            used.add(fresh)
            uses = [key for (variable, key), seen in reaching.of.items() if variable == name and seen & web]
            for node in (*web, *uses):
                assert isinstance(node, cst.Name)
                changes[node] = node.with_changes(value=fresh)
    if not changes:
        return function
    renamed = replace_nodes(function, changes)
    assert isinstance(renamed, cst.FunctionDef)
    return renamed


def fresh_name(wanted: str, used: set[str] | frozenset[str]) -> str:
    number = 2
    while f"{wanted}_{number}" in used:
        number += 1
    return f"{wanted}_{number}"


class _Reader:
    """A function's flow of names. `fixed` are names that cannot be renamed: other scopes see them, or Python's text
    does something with them that is not followed here."""

    def __init__(self) -> None:
        self.fixed: set[str] = set()

    def parameters(self, function: cst.FunctionDef) -> Iterator[Define]:
        params = function.params
        stars = [param for param in (params.star_arg, params.star_kwarg) if isinstance(param, cst.Param)]
        for param in (*params.posonly_params, *params.params, *params.kwonly_params, *stars):
            yield Define(param.name.value, param.name)

    def statements(self, body: Sequence[cst.CSTNode]) -> list[Define | Use | Repeat | Either | Leave]:
        return [item for statement in body for item in self._statement(statement)]

    def _statement(self, node: cst.CSTNode) -> Flow:
        if isinstance(node, cst.SimpleStatementLine):
            return [item for small in node.body for item in self._small(small)]
        if isinstance(node, cst.For):
            looped = [*self._bound(node.target), *self.statements(node.body.body)]
            after = self.statements(node.orelse.body.body) if node.orelse is not None else []
            return [*self._loads(node.iter), Repeat(looped), *after]
        if isinstance(node, cst.While):
            test = self._loads(node.test)
            after = self.statements(node.orelse.body.body) if node.orelse is not None else []
            return [*test, Repeat([*self.statements(node.body.body), *self._loads(node.test)]), *after]
        if isinstance(node, cst.If):
            otherwise: Flow = []
            if isinstance(node.orelse, cst.If):
                otherwise = self._statement(node.orelse)
            elif node.orelse is not None:
                otherwise = self.statements(node.orelse.body.body)
            return [*self._loads(node.test), Either((self.statements(node.body.body), otherwise))]
        if isinstance(node, cst.With):
            items: list[Define | Use | Repeat | Either | Leave] = []
            for item in node.items:
                items += self._loads(item.item)
                items += self._bound(item.asname.name) if item.asname is not None else []
            return [*items, *self.statements(node.body.body)]
        self._fix(node)  # try, match, nested functions and classes
        return []

    def _small(self, node: cst.BaseSmallStatement) -> Flow:
        if isinstance(node, cst.Assign):
            targets = [item for target in node.targets for item in self._bound(target.target)]
            return [*self._loads(node.value), *targets]
        if isinstance(node, cst.AnnAssign):
            value = self._loads(node.value) if node.value is not None else []
            return [*value, *(self._bound(node.target) if node.value is not None else [])]
        if isinstance(node, cst.AugAssign):
            bound = self._bound(node.target)
            again = [Use(item.variable, item.key) for item in bound if isinstance(item, Define)]
            return [*again, *self._loads(node.value), *bound]
        if isinstance(node, (cst.Global, cst.Nonlocal, cst.Del, cst.Import, cst.ImportFrom)):
            self._fix(node)
            return []
        loads = self._loads(node)
        how = _LEAVES.get(type(node))
        return [*loads, Leave(how)] if how else loads

    def _bound(self, target: cst.CSTNode) -> Flow:
        if isinstance(target, cst.Name):
            return [Define(target.value, target)]
        if isinstance(target, (cst.Tuple, cst.List)):
            return [item for element in target.elements for item in self._bound(element.value)]
        return self._loads(target)  # a subscript or an attribute

    def _loads(self, node: cst.CSTNode) -> list[Define | Use | Repeat | Either | Leave]:
        for inner in descendants(node):
            if isinstance(inner, cst.Lambda):
                self._fix(inner)
            elif isinstance(inner, (cst.CompFor, cst.NamedExpr)):
                self._fix(inner.target)
        return [Use(name.value, name) for name in name_nodes(node)]

    def _fix(self, node: cst.CSTNode) -> None:
        self.fixed |= {inner.value for inner in descendants(node) if isinstance(inner, cst.Name)}
