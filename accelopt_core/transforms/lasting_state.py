"""What a kernel's Python changes beside its variables: lists, attributes, globals, and what nested functions bind.

The same text then means another thing later on. What outlives the call makes the file none that can be rewritten; what
changes within the kernel makes every statement that depends on it one that is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.transforms.isa_effects import PURE_FUNCTIONS, VIEW_METHODS
from accelopt_core.transforms.scopes import bound_by
from accelopt_core.transforms.syntax import children, descendants, loaded_names

_CHANGING_METHODS = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"),
        *("remove", "reverse", "setdefault", "sort", "update"),
    }
)
"""Of Python's containers."""

_LOOKING_ON = frozenset(
    {
        *("all", "any", "callable", "dict", "enumerate", "hasattr", "isinstance", "issubclass", "list", "print"),
        *("repr", "reversed", "set", "sorted", "str", "type", "zip"),
    }
)
"""Of Python's functions, those that change nothing they are given."""

_NUMBERS = frozenset({"int", "min", "round", "sum"})
_CONTAINERS = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)
_SCOPES = frozenset({cst.FunctionDef, cst.Lambda, cst.ClassDef})
_TOLD = frozenset(
    {
        *(cst.AnnAssign, cst.AsName, cst.Assign, cst.AssignTarget, cst.AugAssign, cst.Call, cst.ClassDef, cst.CompFor),
        *(cst.Del, cst.For, cst.FunctionDef, cst.Global, cst.ImportAlias, cst.Lambda, cst.MatchAs, cst.MatchStar),
        *(cst.Minus, cst.Name, cst.NamedExpr, cst.Nonlocal),
    }
)
"""Nodes that say something here."""


class Reach:
    """A kernel, and the functions of its file that it may call."""

    def __init__(self, module: cst.Module, function: cst.FunctionDef, imported: frozenset[str]) -> None:
        self._module, self._function, self._imported = module, function, imported
        self._defined = {n.name.value: n for n in module.body if isinstance(n, (cst.FunctionDef, cst.ClassDef))}
        self._own = list(_own_nodes(function))

    def outliving(self) -> str:
        """A name that one of them changes and that is not its own; empty where there is none."""
        waiting: list[cst.CSTNode] = [self._function]
        seen: set[cst.CSTNode] = set()
        while waiting:
            scope = waiting.pop()
            if scope in seen:
                continue
            seen.add(scope)
            own = self._own if scope is self._function else list(_own_nodes(scope))
            waiting += [node for node in own if type(node) in _SCOPES]
            waiting += [self._defined[n.value] for n in own if isinstance(n, cst.Name) and n.value in self._defined]
            elsewhere = [node for node in own if isinstance(node, (cst.Global, cst.Nonlocal))]
            declared = {item.name.value for node in elsewhere for item in node.names}
            bound = frozenset[str]().union(_parameters(scope), *(bound_by(node) for node in own))
            touched = frozenset[str]().union(*map(_changed_in_place, own)) - self._imported
            names = bound & declared | (touched - (bound - declared))
            if names and not isinstance(scope, cst.ClassDef):
                return min(names)
        return ""

    def unsteady(self, qualified: Callable[[cst.CSTNode], str]) -> Unsteady:
        """What in the kernel itself changes under its name."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for assignment in (node for node in self._own if isinstance(node, cst.Assign)):
            for target in assignment.targets:
                for name in bound_by(target):
                    values.setdefault(name, []).append(assignment.value)
        tiles = _parameters(self._function) - values.keys() | {
            name
            for name, given in values.items()
            if all(isinstance(v, cst.Call) and qualified(v.func).startswith("nki.") for v in given)
        }
        calls = [node for node in self._own if isinstance(node, cst.Call)]
        makes_negative = any(map(_makes_negative, calls))
        growing = frozenset(_receiver(call) for call in calls if _method(call) == "append")
        others = (n for n in self._own if not (isinstance(n, cst.Call) and _method(n) == "append"))
        changing = frozenset[str]().union(*map(_changed_in_place, others))
        functions = {n.name.value for n in self._own if isinstance(n, (cst.FunctionDef, cst.ClassDef))}
        functions |= {name for name, given in values.items() if any(isinstance(v, cst.Lambda) for v in given)}
        functions |= self._defined.keys() - {self._function.name.value}

        def is_known(call: cst.Call) -> bool:
            name = qualified(call.func).removeprefix("builtins.")
            return (
                name.startswith("nki.")
                or name in PURE_FUNCTIONS
                or name in _LOOKING_ON
                or _method(call) in VIEW_METHODS
            )

        def may_hold(name: str) -> bool:
            given = values.get(name, ())
            return any(isinstance(v, _CONTAINERS) or isinstance(v, cst.Call) and not is_known(v) for v in given)

        for call in calls:
            if not is_known(call) and _method(call) != "append":
                handed = {arg.value.value for arg in call.args if isinstance(arg.value, cst.Name)}
                changing |= set(filter(may_hold, handed))
        lazy = {
            name
            for name, given in values.items()
            if any(
                isinstance(v, cst.Call) and isinstance(v.func, cst.Name) and v.func.value in functions for v in given
            )
        }
        return Unsteady(
            changing - tiles - self._imported,
            growing - self._imported,
            _negative_names(self._module, values, makes_negative),
            frozenset(functions),
            frozenset(lazy),
            makes_negative or any(isinstance(node, cst.NamedExpr) for node in self._own),
        )


@dataclass(frozen=True)
class Unsteady:
    """Names in a kernel whose text says less than what they stand for."""

    changing: frozenset[str] = frozenset()
    """Containers and objects that are changed in place."""
    growing: frozenset[str] = frozenset()
    """Lists that are appended to: what they hold stays where it is, counted from the front."""
    negative: frozenset[str] = frozenset()
    """Numbers that are, or may be, less than nothing."""
    functions: frozenset[str] = frozenset()
    """Of the file's own, or nested: what they do to what they are given does not show."""

    lazy: frozenset[str] = frozenset()
    """What such functions have returned: a generator runs when a loop goes over it."""
    otherwise: bool = False
    """The kernel binds names on the way, or has calls such as int(-32)."""

    def is_free_of(self, node: cst.CSTNode) -> bool:
        """Nothing in it hangs on one of these."""
        if not (self.otherwise or self.changing or self.growing or self.negative):
            return True
        for each in descendants(node):
            if isinstance(each, cst.NamedExpr) or isinstance(each, cst.Name) and each.value in self.changing:
                return False
            if isinstance(each, cst.Call):
                bare = {arg.value.value for arg in each.args if isinstance(arg.value, cst.Name)}
                if bare & self.growing and not isinstance(each.func, cst.Attribute):
                    return False
                if isinstance(each.func, cst.Attribute) and each.func.attr.value in VIEW_METHODS:
                    if any(self._may_be_negative(arg.value) for arg in each.args):
                        return False
            if isinstance(each, cst.Subscript):
                if any(self._may_be_negative(part) for part in each.slice):
                    return False
                if isinstance(each.value, cst.Name) and each.value.value in self.growing:
                    if any(isinstance(inner, (cst.Minus, cst.Subtract)) for inner in descendants(each.slice[0])):
                        return False
        return True

    def calls_none_of(self, node: cst.CSTNode) -> bool:
        """Of the file's functions."""
        if not self.functions:
            return True
        nodes = list(descendants(node))
        calls = (each.func for each in nodes if isinstance(each, cst.Call))
        return not any(isinstance(each, cst.Name) and each.value in self.functions for each in calls) and not any(
            isinstance(each, cst.Name) and each.value in self.lazy for each in nodes
        )

    def _may_be_negative(self, node: cst.CSTNode) -> bool:
        return bool(loaded_names(node) & self.negative) or _is_made_negative(node)


def holders_in(statement: cst.CSTNode) -> frozenset[str]:
    """Names whose objects the statement may put something into."""
    nodes = list(descendants(statement))
    receivers = {_receiver(node) for node in nodes if isinstance(node, cst.Call)}
    return frozenset(receivers).union(*(_changed_in_place(node) for node in nodes)) - {""}


# --- reading ----------------------------------------------------------------------------------------


def _own_nodes(scope: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Those that say something, of a function or class, without what is inside others in it."""
    stack: list[cst.CSTNode] = [scope.body] if isinstance(scope, (cst.FunctionDef, cst.Lambda, cst.ClassDef)) else []
    while stack:
        node = stack.pop()
        if type(node) in _TOLD:
            yield node
        if isinstance(node, cst.FunctionDef):
            stack += [each.default for each in node.params.params if each.default is not None]
        elif type(node) not in _SCOPES:
            stack += children(node)


def _parameters(scope: cst.CSTNode) -> frozenset[str]:
    if not isinstance(scope, (cst.FunctionDef, cst.Lambda)):
        return frozenset()
    return frozenset(each.name.value for each in descendants(scope.params) if isinstance(each, cst.Param))


def _base(node: cst.CSTNode) -> str:
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _changed_in_place(node: cst.CSTNode) -> frozenset[str]:
    """Names whose objects it assigns into, or calls a changing method of."""
    if isinstance(node, cst.Call):
        return frozenset({_receiver(node)} if _method(node) in _CHANGING_METHODS else ()) - {""}
    if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Del)):
        target = node.target
        parts = [each.value for each in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
        return frozenset(_base(part) for part in parts if isinstance(part, (cst.Subscript, cst.Attribute))) - {""}
    return frozenset()


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def _receiver(call: cst.Call) -> str:
    return _base(call.func.value) if isinstance(call.func, cst.Attribute) else ""


# --- numbers below zero -----------------------------------------------------------------------------


def _negative_names(module: cst.Module, values: dict[str, list[cst.BaseExpression]], has_calls: bool) -> frozenset[str]:
    """Of the file and of the kernel. `has_calls`: the kernel has some such as int(-32)."""
    given = dict(values)
    for line in module.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                for target in small.targets:
                    for name in bound_by(target):
                        given.setdefault(name, []).append(small.value)
    known: dict[str, int] = {}
    negative: set[str] = set()
    changed = True
    while changed:
        changed = False
        for name, each in given.items():
            numbers = [_number(value, known) for value in each]
            if len(numbers) == 1 and numbers[0] is not None and name not in known:
                known[name] = numbers[0]
                changed = True
            below = any(n is not None and n < 0 for n in numbers) or any(
                n is None and (negative and loaded_names(v) & negative or has_calls and _is_made_negative(v))
                for n, v in zip(numbers, each)
            )
            if below and name not in negative:
                negative.add(name)
                changed = True
    return frozenset(negative)


def _number(value: cst.BaseExpression, known: dict[str, int]) -> int | None:
    """The whole number that an expression is, where that shows."""
    if isinstance(value, cst.Integer):
        return value.evaluated_value
    if isinstance(value, cst.Name):
        return known.get(value.value)
    if isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus):
        inner = _number(value.expression, known)
        return None if inner is None else -inner
    if isinstance(value, cst.BinaryOperation):
        left, right = _number(value.left, known), _number(value.right, known)
        if left is None or right is None:
            return None
        if isinstance(value.operator, cst.Add):
            return left + right
        if isinstance(value.operator, cst.Subtract):
            return left - right
        if isinstance(value.operator, cst.Multiply):
            return left * right
        if isinstance(value.operator, cst.FloorDivide) and right:
            return left // right
    return None


def _is_made_negative(node: cst.CSTNode) -> bool:
    """It holds a call such as int(-32), of which index arithmetic sees no sign."""
    return any(isinstance(each, cst.Call) and _makes_negative(each) for each in descendants(node))


def _makes_negative(call: cst.Call) -> bool:
    named = isinstance(call.func, cst.Name) and call.func.value in _NUMBERS
    return named and any(isinstance(inner, cst.Minus) for arg in call.args for inner in descendants(arg))
