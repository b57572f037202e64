"""Objects that a kernel makes to hold its sizes, by their fields: every field a name of its own.

    @dataclass
    class Tiles:                                      tiles_rows = 128
        rows: int                                     tiles_count = n // 128
        count: int                            ->      for i in range(tiles_count):
                                                          ...
    tiles = Tiles(rows=128, count=n // 128)
    for i in range(tiles.count): ...

Of dataclasses that make nothing themselves when they are made, and where nothing in the kernel needs the object whole.
Their methods are written out as functions are (normalize_calls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from accelopt_core.transforms.neighbours import Neighbours
from accelopt_core.transforms.normalize_names import fresh_name
from accelopt_core.transforms.scopes import Scopes, bound_by
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import descendants, parents_in

_BASES = frozenset({"builtins.object", "nki.language.NKIObject"})
_DECORATOR = "dataclasses.dataclass"
_OPTIONS = frozenset({"eq", "frozen", "repr", "slots"})
"""Of a dataclass, with which it is made as without them."""
_FUNCTIONS = (cst.FunctionDef, cst.Lambda)
_SAME = {cst.Is: True, cst.Equal: True, cst.IsNot: False, cst.NotEqual: False}


@dataclass(frozen=True)
class Plain:
    """A dataclass of which an object is its fields."""

    fields: Mapping[str, cst.BaseExpression | None]
    """In their order, with their defaults."""
    methods: Mapping[str, cst.FunctionDef]
    statics: Mapping[str, cst.FunctionDef]
    properties: Mapping[str, cst.FunctionDef]
    """Those that are one expression."""


@dataclass
class Classes:
    """That the kernel's file names, in its own words."""

    tree: cst.Module
    neighbours: Neighbours
    free_names: Callable[[cst.FunctionDef], frozenset[str]]
    _read: dict[str, Plain | None] = field(default_factory=dict)

    def of(self, name: str) -> Plain | None:
        if name not in self._read:
            self._read[name] = self._found(name)
        return self._read[name]

    def method(self, called: str) -> cst.FunctionDef | None:
        """What `Tiles.of` is where that is a static method."""
        owner, _, name = called.rpartition(".")
        plain = self.of(owner) if owner else None
        return plain.statics.get(name) if plain is not None else None

    def _found(self, name: str) -> Plain | None:
        own = [node for node in self.tree.body if isinstance(node, cst.ClassDef) and node.name.value == name]
        if own:
            alone = sum(name in bound_by(node) for node in descendants(self.tree)) == 1
            return _plain(own[0], Scopes(self.tree), lambda f: f) if alone else None
        foreign = self.neighbours.class_of(name)
        if foreign is None:
            return None
        return _plain(foreign.node, foreign.scopes, lambda f: foreign.in_own_words(f, self.free_names(f)))


def _plain(
    node: cst.ClassDef, scopes: Scopes, in_words: Callable[[cst.FunctionDef], cst.FunctionDef | None]
) -> Plain | None:
    """None of a class that is more than a dataclass with its fields."""
    if node.keywords or not isinstance(node.body, cst.IndentedBlock):
        return None
    if any(base.star or base.keyword is not None or scopes.qualified(base.value) not in _BASES for base in node.bases):
        return None
    if len(node.decorators) != 1 or not _makes_a_dataclass(node.decorators[0].decorator, scopes):
        return None
    fields: dict[str, cst.BaseExpression | None] = {}
    methods: dict[str, cst.FunctionDef] = {}
    statics: dict[str, cst.FunctionDef] = {}
    properties: dict[str, cst.FunctionDef] = {}
    for each in node.body.body:
        if isinstance(each, cst.FunctionDef):
            name = each.name.value
            kinds = [scopes.qualified(one.decorator) for one in each.decorators]
            if name.startswith("__") or name in methods.keys() | statics.keys() | properties.keys() | fields.keys():
                return None
            made = in_words(each.with_changes(decorators=()))
            if made is None or not set(kinds) <= {"builtins.staticmethod", "builtins.property"} or len(kinds) > 1:
                methods[name] = each  # its decorators keep it from being written out
            elif kinds:
                (statics if kinds == ["builtins.staticmethod"] else properties)[name] = made
            else:
                methods[name] = made
        elif isinstance(each, cst.SimpleStatementLine) and len(each.body) == 1:
            small = each.body[0]
            if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                if not _is_literal(small.value) or "ClassVar" in _names(small.annotation):
                    return None
                fields[small.target.value] = small.value
            elif not isinstance(small, (cst.Pass, cst.Expr)):
                return None
        else:
            return None
    return Plain(fields, methods, statics, properties)


def _makes_a_dataclass(decorator: cst.BaseExpression, scopes: Scopes) -> bool:
    if isinstance(decorator, cst.Call):
        options = {arg.keyword.value if arg.keyword is not None else "" for arg in decorator.args}
        return options <= _OPTIONS and scopes.qualified(decorator.func) == _DECORATOR
    return scopes.qualified(decorator) == _DECORATOR


def _is_literal(value: cst.BaseExpression | None) -> bool:
    """Or there is none: what a field is when nothing is said needs no name of its file."""
    if isinstance(value, cst.UnaryOperation):
        value = value.expression
    constant = isinstance(value, cst.Name) and value.value in ("None", "True", "False")
    return value is None or constant or isinstance(value, (cst.Integer, cst.Float, cst.SimpleString))


def _names(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(each.value for each in descendants(node) if isinstance(each, cst.Name))


# --- in a kernel ------------------------------------------------------------------------------------


def objects_in(kernel: cst.FunctionDef, classes: Classes) -> dict[str, Plain]:
    """By name, what is bound once and to a new object."""
    times: dict[str, int] = {}
    for node in (*descendants(kernel.params), *descendants(kernel.body)):
        for name in bound_by(node):
            times[name] = times.get(name, 0) + 1
    found = {}
    for _, name, call in _makings(kernel):
        made = classes.of(call.func.value) if isinstance(call.func, cst.Name) and call.func.value not in times else None
        if made is not None and times[name] == 1:
            found[name] = made
    return found


def _makings(kernel: cst.FunctionDef) -> Iterator[tuple[cst.SimpleStatementLine, str, cst.Call]]:
    """Statements `name = Something(...)`."""
    for node in descendants(kernel.body):
        small = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
        if (
            not isinstance(node, cst.SimpleStatementLine)
            or not isinstance(small, cst.Assign)
            or len(small.targets) != 1
        ):
            continue
        target = small.targets[0].target
        if isinstance(target, cst.Name) and isinstance(small.value, cst.Call):
            yield node, target.value, small.value


@dataclass(frozen=True, eq=False)
class _Places:
    """Where everything in a kernel stands."""

    kernel: cst.FunctionDef
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    order: Mapping[cst.CSTNode, int]
    """Of its body, as it is written."""

    @classmethod
    def of(cls, kernel: cst.FunctionDef) -> _Places:
        return cls(kernel, parents_in(kernel), {node: at for at, node in enumerate(descendants(kernel.body))})

    def may_go(self, line: cst.CSTNode, value: cst.BaseExpression, uses: Sequence[cst.CSTNode]) -> bool:
        """The value can stand wherever the field is asked for: it is not changed in between, and costs nothing."""
        if any(self._is_target(use) for use in uses):
            return False
        if not uses:
            return not any(isinstance(node, (cst.Call, cst.Subscript)) for node in descendants(value))
        base = value
        while isinstance(base, cst.Attribute):
            base = base.value
        if not isinstance(base, cst.Name):
            in_text = any(isinstance(each, cst.FormattedString) for use in uses for each in self._ancestors(use))
            return _is_literal(value) and not (in_text and isinstance(value, cst.SimpleString))
        times = self.times_bound(base.value)
        if times == 0:
            return True
        is_dtype = isinstance(value, cst.Attribute) and value.value is base and value.attr.value == "dtype"
        return (base is value or is_dtype) and times == 1 and self.stays(line, uses)

    def stays(self, line: cst.CSTNode, uses: Sequence[cst.CSTNode]) -> bool:
        """Each use comes after the line, in the same iteration of the loop around that."""
        loop = self._around(line)[0]
        scopes = [self._around(use) for use in uses]
        if any(isinstance(each, _FUNCTIONS) and each is not self.kernel for around in scopes for each in around):
            return False
        return all(self.order[use] > self.order[line] and loop in around for use, around in zip(uses, scopes))

    def times_bound(self, name: str) -> int:
        parts = (self.kernel.params, self.kernel.body)
        return sum(name in bound_by(node) for part in parts for node in descendants(part))

    def _is_target(self, use: cst.CSTNode) -> bool:
        around = self.parents[use]
        return isinstance(around, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign)) and around.target is use

    def _ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _around(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Loops and functions, the kernel last."""
        return [each for each in self._ancestors(node) if isinstance(each, (cst.For, cst.While, *_FUNCTIONS))]


def with_fields_as_names(kernel: cst.FunctionDef, classes: Classes, taken: frozenset[str]) -> cst.FunctionDef:
    """The very one when no object is its fields alone. `taken`: names that mean something already."""
    objects = objects_in(kernel, classes)
    if not objects:
        return kernel
    places = _Places.of(kernel)
    for edit in (_second_names(places, objects), _asked(places, objects)):
        if edit.changes or edit.makings:
            return edit.of(kernel)
    used, edit = set(taken), _Edit(places.parents)
    for line, name, call in _makings(kernel):
        plain = objects.get(name)
        uses = _uses(places, name, plain) if plain is not None else None
        values = _values(plain, call) if plain is not None else None
        if plain is None or uses is None or values is None:
            continue
        names = {}
        for each, value in values:
            of_it = [node for node, what in uses.items() if what == each]
            if places.may_go(line, value, of_it):
                edit.changes.update({node: _alone(value) for node in of_it})
                continue
            wanted = f"{name}_{each}"
            names[each] = fresh_name(wanted, used) if wanted in used else wanted
            used.add(names[each])
            edit.changes.update({node: cst.Name(names[each]) for node in of_it})
        edit.changes.update({node: cst.Name(what) for node, what in uses.items() if what in ("True", "False")})
        edit.makings[line] = (plain, names)
        return edit.of(kernel)  # another one's values may have been its fields
    return kernel


def _alone(value: cst.BaseExpression) -> cst.BaseExpression:
    """Wherever it stands."""
    made = value.deep_clone()
    if isinstance(made, cst.UnaryOperation) and not made.lpar:
        return made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return made


class _Edit(cst.CSTTransformer):
    def __init__(self, parents: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self._parents = parents
        self.changes: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.makings: dict[cst.CSTNode, tuple[Plain, Mapping[str, str]]] = {}
        """Lines where an object is made, each with the names of its fields."""

    def of(self, kernel: cst.FunctionDef) -> cst.FunctionDef:
        made = kernel.visit(self)
        assert isinstance(made, cst.FunctionDef)
        return made

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:  # libcst's name and union
        if original_node in self.changes:
            return self.changes[original_node]
        if original_node in self.makings and isinstance(updated_node, cst.SimpleStatementLine):
            made = self._bound(updated_node, *self.makings[original_node])
            if not made:
                around = self._parents[original_node]
                alone = not isinstance(around, cst.IndentedBlock) or len(around.body) == 1
                said = "#" in cst.Module([]).code_for_node(updated_node)
                return updated_node.with_changes(body=[cst.Pass()]) if alone or said else cst.RemoveFromParent()
            made[0] = made[0].with_changes(leading_lines=updated_node.leading_lines)
            made[-1] = made[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
            return cst.FlattenSentinel(made)
        return updated_node

    @staticmethod
    def _bound(line: cst.SimpleStatementLine, plain: Plain, names: Mapping[str, str]) -> list[cst.SimpleStatementLine]:
        small = line.body[0]
        assert isinstance(small, cst.Assign)
        values = _values(plain, small.value) if isinstance(small.value, cst.Call) else []
        assert values is not None
        made = []
        for each, value in values:
            if each not in names:
                continue
            if "\n" in cst.Module([]).code_for_node(value) and not value.lpar:
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            made.append(cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(names[each]))], value)]))
        return made


def _asked(places: _Places, objects: Mapping[str, Plain]) -> _Edit:
    """What a property says, in place of each that is asked for."""
    edit = _Edit(places.parents)
    for node in places.order:
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
            continue
        plain = objects.get(node.value.value)
        function = plain.properties.get(node.attr.value) if plain is not None else None
        value = _only_value(function) if function is not None else None
        if function is not None and value is not None:
            made = substituted(value, {function.params.params[0].name.value: node.value})
            assert isinstance(made, cst.BaseExpression)
            edit.changes[node] = made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return edit


def _only_value(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """What a function of one argument returns, where that is all it does."""
    lines = [each for each in function.body.body if isinstance(each, cst.SimpleStatementLine)]
    says = lines and isinstance(lines[0].body[0], cst.Expr) and isinstance(lines[0].body[0].value, cst.SimpleString)
    lines = lines[1:] if says else lines
    last = lines[0].body[0] if len(lines) == 1 and len(function.body.body) <= 2 else None
    scoped = any(isinstance(node, (cst.BaseComp, cst.Lambda, cst.NamedExpr)) for node in descendants(function))
    return last.value if isinstance(last, cst.Return) and not scoped and len(function.params.params) == 1 else None


def _second_names(places: _Places, objects: Mapping[str, Plain]) -> _Edit:
    """Wherever `b` of a statement `b = a` is asked for, `a`: while that is the same object."""
    edit, order = _Edit(places.parents), places.order
    made = {name: line for line, name, _ in _makings(places.kernel)}
    for line in order:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        target, value = small.targets[0].target, small.value
        if not isinstance(target, cst.Name) or not isinstance(value, cst.Name) or value.value not in objects:
            continue
        if target.value in objects or places.times_bound(target.value) != 1:
            continue
        named = [node for node in order if isinstance(node, cst.Name) and node.value == target.value]
        uses = [node for node in named if node is not target and not _is_label(node, places.parents[node])]
        if order[made[value.value]] < order[line] and places.stays(line, uses):
            edit.changes.update({use: cst.Name(value.value) for use in uses})
            edit.makings[line] = (Plain({}, {}, {}, {}), {})
            return edit
    return edit


def _values(plain: Plain, call: cst.Call) -> list[tuple[str, cst.BaseExpression]] | None:
    """Of every field, in the order in which they are found out."""
    given: dict[str, cst.BaseExpression] = {}
    names = list(plain.fields)
    for at, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else names[at] if at < len(names) else ""
        if arg.star or name not in plain.fields or name in given:
            return None
        given[name] = arg.value
    for name, default in plain.fields.items():
        if name not in given:
            if default is None:
                return None
            given[name] = default.deep_clone()
    return list(given.items())


def _uses(places: _Places, name: str, plain: Plain) -> dict[cst.CSTNode, str] | None:
    """What stands for a field, or for a comparison with None; None where something needs the object itself."""
    found: dict[cst.CSTNode, str] = {}
    for node in places.order:
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        around = places.parents[node]
        if isinstance(around, cst.Attribute) and around.value is node:
            if around.attr.value not in plain.fields:
                return None
            found[around] = around.attr.value
        elif isinstance(around, cst.Comparison) and around.left is node and (same := _is_none(around)) is not None:
            found[around] = str(not same)
        elif isinstance(around, cst.AssignTarget) or _is_label(node, around):
            continue
        else:
            return None
    return found


def _is_label(node: cst.Name, around: cst.CSTNode) -> bool:
    """A keyword or an attribute that is called as the object is."""
    return (isinstance(around, cst.Arg) and around.keyword is node) or (
        isinstance(around, cst.Attribute) and around.attr is node
    )


def _is_none(test: cst.Comparison) -> bool | None:
    """Whether `object is None` asks for sameness; None of another comparison."""
    (target, *others) = test.comparisons
    none = isinstance(target.comparator, cst.Name) and target.comparator.value == "None"
    return _SAME.get(type(target.operator)) if none and not others else None
