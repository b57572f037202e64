"""Walking, copying and changing a syntax tree of libcst, without its visitors.

A visitor of libcst makes every node anew, and checks it; of one plan that took most of the time. Here only what has
something changed inside is checked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, TypeGuard, TypeVar

import libcst as cst

from accelopt_core.transforms.isa_effects import STATIC_ATTRIBUTES

Node = TypeVar("Node", bound=cst.CSTNode)
_Place = Callable[[cst.CSTNode, Any], None]

_SOURCE_ORDER: Mapping[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Arg: ("keyword", "value"),
    cst.ClassDef: ("leading_lines", "decorators", "name", "bases", "keywords", "body"),
    cst.ExceptHandler: ("type", "name", "body"),
    cst.FunctionDef: ("leading_lines", "decorators", "name", "params", "returns", "body"),
    cst.IfExp: ("body", "test", "orelse"),
}
"""Of the classes that list their fields in another order than source has them."""


@cache
def fields_of(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


_SPACE = (cst.BaseParenthesizableWhitespace, cst.Comment, cst.EmptyLine, cst.Newline, cst.TrailingWhitespace)
"""White space and comments: most of a tree, and nothing here looks for them. Two nodes may hold the same ones."""
_HOLDS_SPACE = ("whitespace", "leading_lines", "lines_after_decorators", "header", "footer", "trailing_whitespace")
"""How the fields begin that hold nothing else."""


@cache
def _values_in_order(kind: type[cst.CSTNode]) -> Callable[[cst.CSTNode], tuple[Any, ...]]:
    """What gives the fields of a node that may hold another one, in the order of the source."""
    first = _SOURCE_ORDER.get(kind, ())
    in_order = (*first, *(name for name in fields_of(kind) if name not in first))
    names = [name for name in in_order if not name.startswith(_HOLDS_SPACE)]
    return attrgetter(*names, "__class__", "__class__")  # of one name it would be no tuple; a class is no node


class _KindsOfNodes(dict[type, bool]):
    """Asked of types and remembered: `isinstance` with an abstract class costs more than all else here."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, cst.CSTNode) and not issubclass(kind, _SPACE)
        return self[kind]


_KINDS_OF_NODES = _KindsOfNodes()


def _is_node(value: object) -> TypeGuard[cst.CSTNode]:
    """One that is no white space."""
    return _KINDS_OF_NODES[type(value)]


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """In the order of the source, without white space and comments."""
    found: list[cst.CSTNode] = []
    for value in _values_in_order(type(node))(node):
        kind = type(value)
        if kind is tuple or kind is list:
            found += [each for each in value if _KINDS_OF_NODES[type(each)]]
        elif _KINDS_OF_NODES[kind]:
            found.append(value)
    return found


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything in it, each before what it holds, in the order of the source; no white space."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        inner = children(node)
        inner.reverse()
        stack += inner


def parents_in(root: cst.CSTNode) -> Mapping[cst.CSTNode, cst.CSTNode]:
    """Of every node in a tree in which none stands twice, the one that holds it; no white space."""
    return {inner: node for node in descendants(root) for inner in children(node)}


def replace_nodes(
    root: cst.CSTNode,
    changes: Mapping[cst.CSTNode, cst.CSTNode],
    parents: Mapping[cst.CSTNode, cst.CSTNode] | None = None,
) -> cst.CSTNode:
    """The tree with nodes, found by identity, replaced (whole, their insides with them).

    Without `parents` a copy throughout; with those of the tree, what holds nothing that changes is the same as before.
    """
    others = {id(node): changed for node, changed in changes.items()}
    around: set[int] | None = set() if parents is not None else None
    if parents is not None and around is not None:
        for changed in changes:
            while changed is not root and id(changed) not in around:
                around.add(id(changed))
                changed = parents[changed]

    def several(values: tuple[object, ...] | list[object]) -> tuple[list[object], bool]:
        """Those of a sequence, and whether one of them is another node now."""
        made: list[object] = []
        changed = False
        for value in values:
            if _is_node(value):
                other = others.get(id(value))
                if other is None:
                    made.append(of(value))
                else:
                    made.append(other)
                    changed = True
            elif isinstance(value, (tuple, list)):
                inner, within = several(value)
                made.append(type(value)(inner))
                changed = changed or within
            else:
                made.append(value)
        return made, changed

    def of(node: cst.CSTNode) -> cst.CSTNode:
        if around is not None and node is not root and id(node) not in around:
            return node
        kind = type(node)
        made = object.__new__(kind)
        changed = False
        values, places = _values_of(kind)
        for value, place in zip(values(node), places):
            inner = type(value)
            if _KINDS_OF_NODES[inner]:
                other = others.get(id(value))
                if other is None:
                    value = of(value)
                else:
                    value, changed = other, True
            elif inner is tuple or inner is list:
                if value:
                    new, within = several(value)
                    value = tuple(new) if inner is tuple else new
                    changed = changed or within
                elif inner is list:
                    value = []
            place(made, value)
        if changed:
            made.__post_init__()
        return made

    return changes[root] if root in changes else of(root)


@cache
def _values_of(kind: type[cst.CSTNode]) -> tuple[Callable[[cst.CSTNode], tuple[Any, ...]], tuple[_Place, ...]]:
    """What gives all of a node's fields, and what sets each of them in another one, in the same order."""
    names = fields_of(kind)
    given = attrgetter(*names, "__class__", "__class__")  # of one name it would be no tuple
    return given, tuple(_place(kind, name) for name in names)


def _place(kind: type[cst.CSTNode], name: str) -> _Place:
    """Sets a field of a node that is frozen already."""
    slot = getattr(kind, name, None)
    if isinstance(slot, MemberDescriptorType):
        return slot.__set__
    return lambda node, value: object.__setattr__(node, name, value)


@lru_cache(1 << 12)
def _expression(text: str) -> cst.BaseExpression:
    return cst.parse_expression(text)


@lru_cache(1 << 12)
def _statement(text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    return cst.parse_statement(text)


def parsed_expression(text: str) -> cst.BaseExpression:
    """New nodes; of a text that was read before a copy, which takes a fifth of that."""
    made = replace_nodes(_expression(text), {})
    assert isinstance(made, cst.BaseExpression)
    return made


def parsed_statement(text: str) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    """As `parsed_expression`."""
    made = replace_nodes(_statement(text), {})
    assert isinstance(made, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return made


def is_import(statement: cst.BaseStatement | cst.BaseSmallStatement) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, (cst.Import, cst.ImportFrom))


# --- names ----------------------------------------------------------------------------------------


_HAS_NAMES_OF_ITS_OWN = frozenset({cst.Name, cst.Attribute, cst.Arg, cst.AssignTarget, cst.For})


def name_nodes(node: cst.CSTNode, enters: Callable[[cst.Attribute], bool] = lambda attribute: True) -> list[cst.Name]:
    """Name nodes that load a variable: not attribute names, keywords, annotations or assignment targets."""
    found: list[cst.Name] = []
    stack = [node]
    while stack:
        node = stack.pop()
        inner: list[cst.CSTNode]
        if type(node) not in _HAS_NAMES_OF_ITS_OWN:
            inner = children(node)
        elif isinstance(node, cst.Name):
            found.append(node)
            continue
        elif isinstance(node, cst.Attribute):
            inner = [node.value] if enters(node) else []
        elif isinstance(node, cst.Arg):
            inner = [node.value]
        elif isinstance(node, cst.AssignTarget):
            inner = [] if isinstance(node.target, (cst.Name, cst.Tuple)) else [node.target]
        else:
            assert isinstance(node, cst.For)
            inner = [node.iter, node.body, *([node.orelse] if node.orelse is not None else [])]
        inner.reverse()
        stack += inner
    return found


_KEPT = 1 << 15
"""Nodes of which is remembered what was found in them: of a few kernels all."""


@lru_cache(_KEPT)
def loaded_names(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(name.value for name in name_nodes(node))


@lru_cache(_KEPT)
def content_names(node: cst.CSTNode) -> frozenset[str]:
    """Names whose contents matter, so not `x` in `x.shape`."""
    return frozenset(
        name.value for name in name_nodes(node, lambda attribute: attribute.attr.value not in STATIC_ATTRIBUTES)
    )


@lru_cache(_KEPT)
def text_of(expression: cst.BaseExpression) -> str:
    """As its author wrote it, without parentheses around it."""
    return cst.Module(()).code_for_node(expression.with_changes(lpar=(), rpar=()))


def bound_names(target: cst.CSTNode) -> frozenset[str]:
    """Names an assignment or loop target binds; empty for subscripts and attributes."""
    if isinstance(target, cst.AssignTarget):
        return bound_names(target.target)
    if isinstance(target, cst.Name):
        return frozenset({target.value})
    if isinstance(target, (cst.Tuple, cst.List)):
        return frozenset().union(*(bound_names(element.value) for element in target.elements))
    return frozenset()


# --- lines ----------------------------------------------------------------------------------------


def lines_of_statements(module: cst.Module, text: str) -> dict[cst.CSTNode, int]:
    """The line on which each statement begins, in loops and branches and functions too; empty where Python itself does
    not read the text. From Python's own parser: that libcst tells it, for every node there is, takes a hundred times
    as long."""
    found: dict[cst.CSTNode, int] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    waiting: list[tuple[Sequence[cst.CSTNode], Sequence[ast.stmt]]] = [(module.body, tree.body)]
    while waiting:
        nodes, statements = waiting.pop()
        at = 0
        for node in nodes:
            statement = statements[at]
            found[node] = statement.lineno
            if isinstance(node, cst.SimpleStatementLine):
                at += len(node.body)
                continue
            at += 1
            body, otherwise = getattr(node, "body", None), getattr(node, "orelse", None)
            if isinstance(body, cst.IndentedBlock):
                waiting.append((body.body, _inner(statement, "body")))
            if isinstance(otherwise, cst.If):
                waiting.append(((otherwise,), _inner(statement, "orelse")))
            elif isinstance(otherwise, cst.Else) and isinstance(otherwise.body, cst.IndentedBlock):
                waiting.append((otherwise.body.body, _inner(statement, "orelse")))
    return found


def _inner(statement: ast.stmt, branch: str) -> list[ast.stmt]:
    found: list[ast.stmt] = getattr(statement, branch)
    return found
