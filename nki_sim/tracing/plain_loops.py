"""Which loops of a kernel's source issue, pass after pass, the same instructions one step further on in memory.

Such a loop need not be run pass by pass to be traced (`repeated.py`). What is proved of its body, from its text: the
loop's variable reaches nothing but where a view of a tensor begins and ends, through sums, through products with
numbers that it is not in, and for an end through the lesser of two (`min(128, rows - 128 * i)`); no branch, list,
shape, name or instruction depends on it; and no pass reads what another one left. What the text cannot show, that a
name is a number, a tensor or a function of NKI, is asked when the loop begins: `Needs`. A first or last pass may differ
(`if k == 0:`, `accumulate=k > 0`); those are always run. Where the variable is divided (`h // 4`, `h % 4`), what is
even goes from so many passes to the next so many. All else is not plain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto

from nki_sim.tracing.marks import MARK

REPEATED = "__nki_sim_repeated__"
"""What the iterable of a plain loop is wrapped in."""

RANGES = frozenset({"affine_range", "range", "sequential_range", "static_range"})
NUMBERS_OF = frozenset({"abs", "int", "len", "max", "min"})
"""Python's functions from numbers, or a length, to a number."""
VIEWS = frozenset(
    {
        "ap", "broadcast", "expand_dim", "flatten_dims", "permute", "rearrange", "reshape", "reshape_dim",
        "squeeze_dim", "view",
    }
)  # fmt: skip
"""Methods of a tensor that give a view of it, by arguments that do not depend on the pass; but for the offset of ap."""
FACTS = frozenset({"buffer", "dtype", "ndim", "shape"})
"""Attributes of a tensor that no pass changes."""


_ARITHMETIC = (
    ast.Name, ast.Attribute, ast.Constant, ast.expr_context, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
)  # fmt: skip
"""What a divisor is made of."""


class NotPlain(Exception):
    """The loop is run pass by pass. Why, in a few words."""


class Kind(Enum):
    """What a value is known to be."""

    number = auto()
    tensor = auto()
    list = auto()
    """Made in this very pass."""
    index = auto()
    """`nl.ds`: in a subscript only."""
    shape = auto()
    free = auto()
    """A name of outside the loop, or what one without the pass's number selects from it."""
    other = auto()


@dataclass(frozen=True)
class Needs:
    """What has to hold of names of outside, when the loop begins."""

    numbers: frozenset[tuple[str, ...]] = frozenset()
    """Integers, by dotted name."""
    tensors: frozenset[str] = frozenset()
    indexed: frozenset[tuple[str, int]] = frozenset()
    """Tensors; or lists, so many levels down, whose elements are evenly spaced tensors."""
    callees: frozenset[tuple[str, ...]] = frozenset()
    """Dotted names: a function of NKI, or a view's method of a tensor."""
    builtins: frozenset[str] = frozenset()
    turns: frozenset[str] = frozenset()
    """Products of names of outside that are numbers; all above 0: what lies so many passes apart, the least common
    multiple of these, is even."""
    from_zero: bool = False
    """The range begins at zero or later and goes up; so only its first pass can be number 0, which may differ."""
    ends: bool = False
    """Its last pass may differ."""

    def __or__(self, other: Needs) -> Needs:
        return Needs(*[getattr(self, each.name) | getattr(other, each.name) for each in fields(self)])


@dataclass(frozen=True)
class _Value:
    kind: Kind
    varies: bool = False
    """From pass to pass: a number in even steps; a tensor by where it begins, or by which of even buffers it is."""
    bent: bool = False
    """A varying number in even steps up to some pass and in others from there on: the lesser of two, or the greater."""
    turns: frozenset[str] = frozenset()
    """A varying number is even from so many passes to the next so many, the least common multiple of these."""
    numbers: frozenset[tuple[str, ...]] = frozenset()
    """Dotted names that have to be integers for this to be one."""
    tensors: frozenset[str] = frozenset()
    """Names that have to be tensors for it."""
    root: str = ""
    """Of a free one."""
    depth: int = 0
    """Subscripts below its root."""
    holds: Kind | None = None
    """What all elements of a list are; None of an empty one."""

    @property
    def is_varying_number(self) -> bool:
        return self.varies and self.kind in (Kind.number, Kind.index)


_OTHER = _Value(Kind.other)
_NUMBER = _Value(Kind.number)

_Names = dict[str, _Value]
"""What the names that this pass has assigned hold."""


@dataclass
class _Body:
    """Goes through the body of one loop."""

    variable: str
    stop: str
    """The end of its range, as text; empty where it has another form."""
    assigned: frozenset[str]
    """All names that a pass assigns."""
    needs: Needs = field(default_factory=Needs)

    def need(self, **more: object) -> None:
        self.needs = self.needs | Needs(**more)  # type: ignore[arg-type]

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt], names: _Names) -> _Names:
        """The names that are assigned for certain when it is over."""
        for statement in body:
            names = self._statement(statement, names)
        return names

    def _statement(self, node: ast.stmt, names: _Names) -> _Names:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, names)
            for target in node.targets:
                names = self._assign(target, value, names)
            return names
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self._assign(node.target, self.value(node.value, names), names)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            both = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
            return self._assign(node.target, self.value(both, names), names)
        if isinstance(node, ast.Expr):
            self.value(node.value, names)
            return names
        if isinstance(node, ast.Assert):
            self._same(node.test, names)
            if node.msg is not None:
                self._same(node.msg, names)
            return names
        if isinstance(node, ast.If):
            self._same(node.test, names)
            return _joined(self.block(node.body, names), self.block(node.orelse, names))
        if isinstance(node, ast.For) and not node.orelse:
            return self._loop(node, names)
        if isinstance(node, ast.Pass):
            return names
        raise NotPlain(f"{type(node).__name__} on line {node.lineno}")

    def _loop(self, node: ast.For, names: _Names) -> _Names:
        item = self._item_of(node.iter, names)
        for _ in range(3):  # what one turn leaves, the next one may read
            after = self.block(node.body, self._assign(node.target, item, dict(names)))
            known = {name: _join(value, after.get(name, value)) for name, value in names.items()}
            if known == names:
                return names
            names = known
        raise NotPlain(f"what the loop on line {node.lineno} makes of its names is not clear")

    def _item_of(self, node: ast.expr, names: _Names) -> _Value:
        """Of an iterable that is the same in every pass."""
        over = _range_of(node)
        value = self.value(_bare(node) if over is None else over, names)
        if over is not None:
            return _NUMBER
        if value.varies and value.kind is not Kind.list:
            raise NotPlain(f"what is iterated over on line {node.lineno} depends on the pass")
        return _Value(Kind.tensor, True) if value.varies else _OTHER

    def _assign(self, target: ast.expr, value: _Value, names: _Names) -> _Names:
        if isinstance(target, ast.Name):
            if target.id == self.variable:
                raise NotPlain("the loop's variable is assigned")
            return {**names, target.id: value}
        if isinstance(target, (ast.Tuple, ast.List)) and not value.varies:
            for each in target.elts:
                known = replace(_NUMBER, tensors=value.tensors) if value.kind is Kind.shape else _OTHER
                names = self._assign(each, known, names)
            return names
        raise NotPlain(f"an assignment to {type(target).__name__} on line {target.lineno}")

    # --- expressions ------------------------------------------------------------------------------

    def _same(self, node: ast.expr, names: _Names) -> _Value:
        """A value that is the same in every pass."""
        value = self.value(node, names)
        if value.varies:
            raise NotPlain(f"line {node.lineno} depends on the pass")
        return value

    def value(self, node: ast.expr, names: _Names) -> _Value:
        if isinstance(node, ast.Constant):
            return _NUMBER if type(node.value) is int else _OTHER
        if isinstance(node, ast.Name):
            return self._name(node, names)
        if isinstance(node, ast.BinOp):
            return self._binary(node, names)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, names)
        if isinstance(node, ast.Compare):
            return self._comparison(node, names)
        if isinstance(node, ast.BoolOp):
            for each in node.values:
                self._same(each, names)
            return _OTHER
        if isinstance(node, ast.IfExp):
            self._same(node.test, names)
            return _join(self.value(node.body, names), self.value(node.orelse, names))
        if isinstance(node, (ast.List, ast.Tuple)):
            return self._several(node, names)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node, names)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, names)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, names)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        if isinstance(node, ast.JoinedStr):
            for part in ast.walk(node):
                if isinstance(part, ast.FormattedValue):
                    self._same(part.value, names)
            return _OTHER
        raise NotPlain(f"{type(node).__name__} on line {node.lineno}")

    def _name(self, node: ast.Name, names: _Names) -> _Value:
        name = node.id
        if name == self.variable:
            return _Value(Kind.number, True)
        if name in names:
            return names[name]
        if name in self.assigned:
            raise NotPlain(f"{name} on line {node.lineno} may be of an earlier pass")
        return _Value(Kind.free, numbers=frozenset({(name,)}), root=name)

    def _binary(self, node: ast.BinOp, names: _Names) -> _Value:
        one, other = self.value(node.left, names), self.value(node.right, names)
        if one.is_varying_number or other.is_varying_number:
            if Kind.index in (one.kind, other.kind):
                raise NotPlain(f"arithmetic with nl.ds on line {node.lineno}")
            if one.bent and other.bent:
                raise NotPlain(f"two numbers with an end on line {node.lineno}")
            return self._even(node, one, other)
        if one.varies or other.varies:  # an instruction of the language on tensors
            return _Value(Kind.tensor, True)
        if {one.kind, other.kind} <= {Kind.number, Kind.free} and not (one.depth or other.depth):
            return _Value(Kind.number, numbers=one.numbers | other.numbers, tensors=one.tensors | other.tensors)
        return _Value(Kind.tensor) if Kind.tensor in (one.kind, other.kind) else _OTHER

    def _even(self, node: ast.BinOp, one: _Value, other: _Value) -> _Value:
        """A number that varies in even steps."""
        both = one.is_varying_number and other.is_varying_number
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and not (both or one.bent or other.varies):
            divisor = self._divisor(node.right, other)
            turns = frozenset(f"{each} * ({divisor})" for each in one.turns or ("1",))
            self.need(turns=turns)
            return _Value(Kind.number, True, turns=turns)
        if not (isinstance(node.op, (ast.Add, ast.Sub)) or isinstance(node.op, ast.Mult) and not both):
            raise NotPlain(f"{type(node.op).__name__} of the pass's number on line {node.lineno}")
        for each in (one, other):
            if not each.is_varying_number:
                self._is_number(each, node)
        return _Value(Kind.number, True, one.bent or other.bent, one.turns | other.turns)

    def _divisor(self, node: ast.expr, value: _Value) -> str:
        """The text of a number of outside that the pass's own is divided by."""
        self._is_number(value, node)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and (part.id in self.assigned or part.id == self.variable):
                raise NotPlain(f"{part.id} on line {node.lineno}, which a pass assigns, divides the pass's number")
            if not isinstance(part, _ARITHMETIC) or isinstance(part, ast.Constant) and type(part.value) is not int:
                raise NotPlain(f"{ast.unparse(node)} on line {node.lineno} divides the pass's number")
        return ast.unparse(node)

    def _is_number(self, value: _Value, node: ast.expr) -> None:
        if value.varies or value.kind not in (Kind.number, Kind.free) or value.depth:
            raise NotPlain(f"line {node.lineno} counts with something that may be no number")
        self.need(numbers=value.numbers, tensors=value.tensors)

    def _unary(self, node: ast.UnaryOp, names: _Names) -> _Value:
        value = self.value(node.operand, names)
        if isinstance(node.op, ast.USub) and value.kind in (Kind.number, Kind.free) and not value.depth:
            return replace(value, kind=Kind.number, root="")
        if value.varies:
            raise NotPlain(f"line {node.lineno} depends on the pass")
        return _OTHER

    def _comparison(self, node: ast.Compare, names: _Names) -> _Value:
        values = [self.value(each, names) for each in (node.left, *node.comparators)]
        if not any(value.varies for value in values):
            return _OTHER
        if len(values) == 2 and isinstance(node.left, ast.Name) and node.left.id == self.variable:
            (right,), (operation,) = node.comparators, node.ops
            if isinstance(right, ast.Constant) and type(right.value) is int and right.value == 0:
                if isinstance(operation, (ast.Eq, ast.NotEq, ast.Gt)):
                    self.need(from_zero=True)
                    return _OTHER
            if self.stop and ast.unparse(right) == f"{self.stop} - 1":
                if isinstance(operation, (ast.Eq, ast.NotEq, ast.Lt)) and not values[1].varies:
                    self.need(ends=True)
                    return _OTHER
        raise NotPlain(f"a comparison on line {node.lineno} depends on the pass")

    def _several(self, node: ast.List | ast.Tuple, names: _Names) -> _Value:
        values = [self.value(each, names) for each in node.elts]
        if any(value.is_varying_number for value in values):
            raise NotPlain(f"a list on line {node.lineno} holds the pass's number")
        varies = any(value.varies for value in values)
        if isinstance(node, ast.List):
            return _Value(Kind.list, varies, holds=_all(value.kind for value in values))
        if varies:
            raise NotPlain(f"a tuple on line {node.lineno} depends on the pass")
        return _OTHER

    def _comprehension(self, node: ast.ListComp, names: _Names) -> _Value:
        for part in node.generators:
            if part.is_async:
                raise NotPlain(f"line {node.lineno}")
            names = self._assign(part.target, self._item_of(part.iter, names), names)
            for test in part.ifs:
                self._same(test, names)
        value = self.value(node.elt, names)
        if value.is_varying_number:
            raise NotPlain(f"a list on line {node.lineno} holds the pass's number")
        return _Value(Kind.list, value.varies, holds=value.kind)

    def _attribute(self, node: ast.Attribute, names: _Names) -> _Value:
        dotted = _dotted(node)
        if dotted and dotted[0] not in names and dotted[0] not in self.assigned and dotted[0] != self.variable:
            if node.attr == "shape" and len(dotted) == 2:
                return _Value(Kind.shape, tensors=frozenset({dotted[0]}))
            return _Value(Kind.free, numbers=frozenset({dotted}))
        value = self.value(node.value, names)
        if node.attr not in FACTS or node.attr == "shape" and value.varies:
            raise NotPlain(f".{node.attr} on line {node.lineno}")
        return _Value(Kind.shape) if node.attr == "shape" and value.kind is Kind.tensor else _OTHER

    def _subscript(self, node: ast.Subscript, names: _Names) -> _Value:
        base = self.value(node.value, names)
        varies = any([self._index(each, names) for each in _indices(node.slice)])
        if base.kind is Kind.shape:
            if varies:
                raise NotPlain(f"a shape on line {node.lineno} is asked by the pass")
            return replace(_NUMBER, tensors=base.tensors)
        if base.kind is Kind.list:
            if varies:
                raise NotPlain(f"a list of its own on line {node.lineno} is asked by the pass")
            return _Value(Kind.tensor, True) if base.varies else _Value(base.holds or Kind.other)
        if not varies:
            if base.kind is Kind.free and base.root:
                return _Value(Kind.free, root=base.root, depth=base.depth + 1)
            return base if base.kind is Kind.tensor else _OTHER
        if base.kind is Kind.free and base.root:
            self.need(indexed=frozenset({(base.root, base.depth)}))
        elif base.kind is not Kind.tensor:
            raise NotPlain(f"what the pass selects from on line {node.lineno} may be no tensor")
        return _Value(Kind.tensor, True)

    def _index(self, node: ast.expr, names: _Names) -> bool:
        """Whether it varies."""
        if isinstance(node, ast.Slice):
            if node.step is not None:
                self._same(node.step, names)
            lower = node.lower is not None and self._begin(node.lower, names).varies
            if node.upper is None:
                return lower
            upper = self.value(node.upper, names)
            if upper.varies and upper.kind is not Kind.number:
                raise NotPlain(f"an index on line {node.lineno} is no number")
            return lower or upper.varies
        return self._begin(node, names).varies

    def _begin(self, node: ast.expr, names: _Names) -> _Value:
        value = self.value(node, names)
        if value.varies and (value.bent or not value.is_varying_number):
            raise NotPlain(f"an index on line {node.lineno} is a tensor of the pass, or does not vary in even steps")
        return value

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, names: _Names) -> _Value:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise NotPlain(f"* in a call on line {node.lineno}")
        function = node.func
        if isinstance(function, ast.Attribute):
            dotted = _dotted(function)
            if not dotted or dotted[0] in names or dotted[0] in self.assigned:
                return self._method(node, function, names)
            self.need(callees=frozenset({dotted}))
            if dotted[-1] == "ds" and len(node.args) == 2 and not node.keywords:
                start, size = self._begin(node.args[0], names), self.value(node.args[1], names)
                if size.varies and size.kind is not Kind.number or start.kind is Kind.index:
                    raise NotPlain(f"nl.ds on line {node.lineno}")
                return _Value(Kind.index, start.varies or size.varies)
            if dotted[-1] == "ap" and len(dotted) == 2:
                self.need(tensors=frozenset({dotted[0]}))
                return self._pattern(node, names)
            return _Value(Kind.tensor, self._arguments(node, names))
        if isinstance(function, ast.Name) and function.id not in names and function.id not in self.assigned:
            if function.id in NUMBERS_OF or function.id == "range":
                self.need(builtins=frozenset({function.id}))
                if function.id in ("max", "min") and len(node.args) == 2 and not node.keywords:
                    one, other = (self.value(each, names) for each in node.args)
                    if one.is_varying_number != other.is_varying_number and not (one.bent or other.bent):
                        same, varying = (other, one) if one.varies else (one, other)
                        if varying.kind is Kind.number:
                            self._is_number(same, node)
                            self.need(ends=True)
                            return replace(varying, bent=True)
                if self._arguments(node, names):
                    raise NotPlain(f"{function.id} on line {node.lineno} of what depends on the pass")
                return _NUMBER if function.id in NUMBERS_OF else _OTHER
            self.need(callees=frozenset({(function.id,)}))
            return _Value(Kind.tensor, self._arguments(node, names))
        raise NotPlain(f"a call on line {node.lineno}")

    def _method(self, node: ast.Call, function: ast.Attribute, names: _Names) -> _Value:
        """Of a tensor, or of a list that was made in this pass."""
        base = self.value(function.value, names)
        if function.attr == "append" and base.kind is Kind.list and isinstance(function.value, ast.Name):
            varies = self._arguments(node, names)
            kinds = (
                *([] if base.holds is None else [base.holds]),
                *(self.value(each, names).kind for each in node.args),
            )
            names[function.value.id] = replace(base, varies=base.varies or varies, holds=_all(kinds))
            return _OTHER
        if base.kind is Kind.free and base.root:
            self.need(indexed=frozenset({(base.root, base.depth)}))
        elif base.kind is not Kind.tensor:
            raise NotPlain(f".{function.attr} on line {node.lineno} of what may be no tensor")
        if function.attr not in VIEWS:
            raise NotPlain(f".{function.attr} on line {node.lineno}")
        found = (
            self._pattern(node, names) if function.attr == "ap" else _Value(Kind.tensor, self._arguments(node, names))
        )
        return replace(found, varies=found.varies or base.varies)

    def _pattern(self, node: ast.Call, names: _Names) -> _Value:
        """A view by strides and counts, whose offset may vary in even steps."""
        varies = False
        for argument in node.args:
            self._same(argument, names)
        for keyword in node.keywords:
            value = self.value(keyword.value, names)
            if value.varies and not (keyword.arg == "offset" and value.kind is Kind.number and not value.bent):
                raise NotPlain(f"{keyword.arg} of .ap on line {node.lineno} depends on the pass")
            varies = varies or value.varies
        return _Value(Kind.tensor, varies)

    def _arguments(self, node: ast.Call, names: _Names) -> bool:
        """Whether one of them varies: as a tensor may, and a number may not."""
        values = [self.value(each, names) for each in (*node.args, *(keyword.value for keyword in node.keywords))]
        if any(value.is_varying_number for value in values):
            raise NotPlain(f"a call on line {node.lineno} is given the pass's number")
        return any(value.varies for value in values)


def _join(one: _Value, other: _Value) -> _Value:
    """What is true of either. Raises NotPlain."""
    if one == other:
        return one
    varies = one.varies or other.varies
    if one.kind is other.kind is Kind.list:
        return _Value(Kind.list, varies, holds=_all(each for each in (one.holds, other.holds) if each is not None))
    if not varies:
        if {one.kind, other.kind} <= {Kind.number, Kind.free} and not (one.depth or other.depth):
            return _Value(Kind.number, numbers=one.numbers | other.numbers, tensors=one.tensors | other.tensors)
        return _Value(one.kind) if one.kind is other.kind is Kind.tensor else _OTHER
    plain = _NUMBER, _Value(Kind.number, True)
    if one.kind is other.kind is Kind.tensor or one in plain and other in plain:
        return _Value(one.kind, True)
    raise NotPlain("a name holds one thing or another, by the pass")


def _all(kinds: Iterable[Kind]) -> Kind | None:
    """The kind of all of them; None of none."""
    found = set(kinds)
    return None if not found else found.pop() if len(found) == 1 else Kind.other


def _joined(one: _Names, other: _Names) -> _Names:
    return {name: _join(value, other[name]) for name, value in one.items() if name in other}


def _indices(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else (node,)


def _dotted(node: ast.expr) -> tuple[str, ...]:
    """Of `a.b.c`; empty for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return (*before, node.attr)
    return ()


def _last_name(node: ast.expr) -> str:
    return (_dotted(node) or ("",))[-1]


def _assigned(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id


def needs_of(loop: ast.For) -> Needs:
    """Of a loop over a range. Raises NotPlain."""
    if not isinstance(loop.target, ast.Name) or loop.orelse:
        raise NotPlain("its target is no name, or it has an else")
    over = _range_of(loop.iter)
    if over is None:
        raise NotPlain("it is not over a range")
    stop = ""
    assigned = frozenset(_assigned(loop.body))
    if len(over.args) == 1 and not over.keywords and isinstance(over.args[0], (ast.Name, ast.Constant)):
        stop = ast.unparse(over.args[0])
    body = _Body(loop.target.id, "" if stop in assigned else stop, assigned)
    body.block(loop.body, {})
    return body.needs


def _bare(node: ast.expr) -> ast.expr:
    """An iterable without the mark of its loop."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == MARK:
        return node.args[0]
    return node


def _range_of(node: ast.expr) -> ast.Call | None:
    """What is called for a range, wrapped or not."""
    node = _bare(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == REPEATED:
        node = node.args[0]
    return node if isinstance(node, ast.Call) and _last_name(node.func) in RANGES else None


def wrapped(tree: ast.Module) -> tuple[ast.For, ...]:
    """Wraps the range of each loop over one, in place, in a call of REPEATED with the number of that loop here."""
    loops: list[ast.For] = []
    blocks: list[list[ast.stmt]] = [tree.body]
    while blocks:
        for node in blocks.pop():
            if isinstance(node, ast.For) and _range_of(node.iter) is not None:
                name = ast.copy_location(ast.Name(REPEATED, ast.Load()), node.iter)
                number = ast.copy_location(ast.Constant(len(loops)), node.iter)
                node.iter = ast.copy_location(ast.Call(name, [node.iter, number], []), node.iter)
                loops.append(node)
            blocks += [below for field in _BLOCKS if isinstance(below := getattr(node, field, None), list)]
            blocks += [handler.body for handler in getattr(node, "handlers", ())]
            blocks += [case.body for case in getattr(node, "cases", ())]
    return tuple(loops)


_BLOCKS = ("body", "orelse", "finalbody")
