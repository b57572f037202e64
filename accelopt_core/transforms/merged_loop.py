"""A loop whose instructions each do the work of many iterations at once.

What makes it right: no iteration touches what another one writes, so that all iterations of the first instruction may
come before all of the second. A tile that every iteration makes anew becomes one with a dimension more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.isa_effects import WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import (
    KernelCode,
    Kind,
    Statement,
    content_names,
    loaded_names,
    replace_nodes,
)
from accelopt_core.transforms.loop_independence import check_names_and_order, made_in
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, Iterations, Merged


@dataclass(frozen=True)
class Elementwise:
    """Which arguments of an instruction are tiles, element by element."""

    parameters: tuple[str, ...]
    """In the order of the signature, as far as they are passed by position."""
    tiles: tuple[str, ...]
    per_partition: tuple[str, ...] = ()
    """One value for each partition, or a number."""
    not_with: tuple[str, ...] = ()
    """Arguments with which it is not elementwise."""


_SUMS = ("reduce_op", "reduce_res", "reduce_cmd")
MERGEABLE = {
    "activation": Elementwise(("dst", "op", "data", "bias", "scale"), ("dst", "data"), ("bias", "scale"), _SUMS),
    "dma_copy": Elementwise(("dst", "src"), ("dst", "src"), (), ("priority", "oob_mode")),
    "memset": Elementwise(("dst", "value"), ("dst",)),
    "reciprocal": Elementwise(("dst", "data"), ("dst", "data")),
    "scalar_tensor_tensor": Elementwise(
        ("dst", "data", "op0", "operand0", "op1", "operand1"), ("dst", "data", "operand1"), ("operand0",)
    ),
    "tensor_copy": Elementwise(("dst", "src"), ("dst", "src")),
    "tensor_reduce": Elementwise(("dst", "op", "data", "axis"), ("dst", "data")),
    "tensor_scalar": Elementwise(
        ("dst", "data", "op0", "operand0", "reverse0", "op1", "operand1"), ("dst", "data"), ("operand0", "operand1")
    ),
    "tensor_tensor": Elementwise(("dst", "data1", "data2", "op"), ("dst", "data1", "data2")),
}
"""Every element of `dst` depends on the same element of the other tiles alone; of tensor_reduce, on the same row."""

_Text = Callable[[Iterations], str]


@dataclass(frozen=True)
class _Tile:
    """A tile that every iteration makes anew."""

    allocation: Statement
    sizes: tuple[Polynomial, ...]
    side_by_side: bool
    """Always used whole: the tiles of many iterations lie beside one another in two dimensions."""


class MergedLoop:
    """Raises IllegalSite, when it is made, naming what forbids it."""

    def __init__(self, code: KernelCode, loop: Statement, stays: Callable[[Statement], bool] = lambda _: False) -> None:
        if loop.count is None:
            raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
        self._code, self.loop = code, loop
        inside = check_names_and_order(code, loop)
        self._changing = _changing_names(code, loop, inside)
        self._read = AccessReader(code, loop.variable, self._changing)
        self.inner = _innermost(code, loop, self._changing)
        assert self.inner.body is not None
        self.statements = self.inner.body.statements
        self.stays = [s for s in self.statements if s.kind is Kind.INSTRUCTION and stays(s)]
        self._tiles: dict[str, _Tile] = {}
        self._accesses: dict[cst.BaseExpression, Access] = {}
        self._asserted: dict[str, int] = {}
        own = made_in(code, inside)
        self._find_tiles(own)
        for statement in self.statements:
            self._check(statement)
        self._check_parts(own)
        self.merged = [s for s in self.statements if s.kind is Kind.INSTRUCTION and s not in self.stays]
        if not self.merged:
            raise IllegalSite(f"nothing in the loop over {loop.variable} works on several iterations at once")
        everything = self.all_iterations
        self._changes = {statement: self._merged_operands(statement, everything) for statement in self.merged}

    @property
    def all_iterations(self) -> Iterations:
        assert self.loop.count is not None
        return Iterations(self.loop.variable, number(0), self._read.number(self.loop.count, self.loop))

    # --- what the loop does -------------------------------------------------------------------------

    def _find_tiles(self, own: frozenset[str]) -> None:
        for statement in self.statements:
            if statement.kind is not Kind.ALLOCATE:
                continue
            (name,) = statement.binds
            if name not in own or len(self._code.bindings(name)) != 1:
                raise IllegalSite(f"{name} is bound outside the loop over {self.loop.variable} too")
            sizes = self._read.sizes(name)
            if sizes is None or len(sizes) < 2 or statement.region not in ("sbuf", "psum"):
                raise IllegalSite(f"line {statement.line}: {name} has no shape that is written out, or is in HBM")
            if self._code.argument(statement, "address") is not None:
                raise IllegalSite(f"{name} has a place of its own (address=)")
            if statement.uses & self._changing or any(self.loop.variable in size.factors for size in sizes):
                raise IllegalSite(f"what {name} is made with changes in the loop over {self.loop.variable}")
            uses = [s for s in self.statements if name in s.uses and s is not statement]
            self._tiles[name] = _Tile(statement, sizes, len(sizes) == 2 and all(map(self._uses_whole, uses)))

    def _uses_whole(self, statement: Statement) -> bool:
        """Every operand of it that is a tile of the loop's own, or part of one, takes all of a row."""
        if statement.kind is not Kind.INSTRUCTION or statement.call is None or statement.operation == "tensor_reduce":
            return False
        for arg in statement.call.args:
            if isinstance(arg.value, cst.Subscript):
                access = self._read.access(arg.value, statement)
                if len(access.dims) != 2 or access.dims[1] != Dim(number(0), access.sizes[1]):
                    return False
        return True

    def _check(self, statement: Statement) -> None:
        where = f"line {statement.line}"
        if statement.kind is Kind.DEFINE:
            if self._code.roots_of(statement.contents) & (self._code.buffers | frozenset(self._tiles)):
                raise IllegalSite(f"{where} gives part of a buffer a name")
        elif statement.kind is Kind.CHECK:
            if statement.uses & self._changing:
                raise IllegalSite(f"{where} checks each iteration by itself")
        elif statement.kind is not Kind.ALLOCATE and statement.kind is not Kind.INSTRUCTION:
            raise IllegalSite(f"{where} stands in the loop over {self.loop.variable} ({statement.kind.value})")
        elif statement.kind is Kind.INSTRUCTION and statement not in self.stays:
            form = MERGEABLE.get(statement.operation)
            if form is None:
                raise IllegalSite(f"{where}: {statement.operation} does not work element by element")
            if any(self._code.argument(statement, keyword) is not None for keyword in form.not_with):
                raise IllegalSite(f"{where}: {statement.operation} does more than its elements")

    def _access(self, expression: cst.BaseExpression, at: Statement) -> Access:
        """With a dimension more, in which the iterations are, where it is a tile of the loop's own."""
        found = self._accesses.get(expression)
        if found is None:
            found = self._read.access(expression, at)
            if found.name in self.loop.binds and found.name not in self._tiles:
                raise IllegalSite(f"line {at.line}: {found.name} is part of a buffer that the loop gave a name")
            tile = self._tiles.get(found.name)
            here = Polynomial({(self.loop.variable,): 1})
            if tile is not None and tile.side_by_side:
                width = tile.sizes[1]
                dims = (found.dims[0], Dim(here * width, width))
                found = replace(found, dims=dims, sizes=(found.sizes[0],))
            elif tile is not None:
                dims = (found.dims[0], Dim(here, ONE, dropped=True), *found.dims[1:])
                found = replace(found, dims=dims, sizes=(found.sizes[0],))
            self._accesses[expression] = found
            if not found.rank_is_known:
                self._asserted[found.name] = len(found.dims)
        return found

    def _laid_out(self, access: Access, count: Polynomial) -> Access:
        """With the layout that a tile of the loop's own has for so many iterations."""
        tile = self._tiles.get(access.name)
        if tile is None:
            return access
        if tile.side_by_side:
            return replace(access, sizes=(tile.sizes[0], count * tile.sizes[1]))
        return replace(access, sizes=(tile.sizes[0], count, *tile.sizes[1:]))

    def _check_parts(self, own: frozenset[str]) -> None:
        """Each iteration touches a part of its own of every buffer that any of them writes."""
        written: set[str] = set()
        for statement, arg, is_written in self._arguments():
            if is_written:
                written |= self._code.roots_of(_bases(arg.value)) - own
        parts: dict[str, tuple[int, Polynomial, Polynomial]] = {}
        names: dict[str, str] = {}
        for statement, arg, _ in self._arguments():
            for root in sorted(self._code.roots_of(_bases(arg.value)) & written):
                access = self._access(arg.value, statement)
                if names.setdefault(root, access.name) != access.name:
                    raise IllegalSite(f"line {statement.line} touches {root} under another name")
                found = self._part(access, statement, parts.get(root))
                if found is None:
                    raise IllegalSite(
                        f"two iterations of the loop over {self.loop.variable} may touch the same part of {root} "
                        f"(line {statement.line})"
                    )
                parts[root] = found

    def _arguments(self) -> Iterator[tuple[Statement, cst.Arg, bool]]:
        """Of all instructions, and whether each is written."""
        for statement in self.statements:
            if statement.kind is Kind.INSTRUCTION and statement.call is not None:
                for at, arg in enumerate(statement.call.args):
                    keyword = arg.keyword.value if arg.keyword is not None else ("dst" if at == 0 else "")
                    yield statement, arg, keyword in WRITTEN_ARGUMENTS[statement.operation]

    def _part(
        self, access: Access, at: Statement, wanted: tuple[int, Polynomial, Polynomial] | None
    ) -> tuple[int, Polynomial, Polynomial] | None:
        """(dimension, step, start) of intervals that no two iterations share: [start + step * variable, step more)."""
        changing = self.loop.binds | {self.loop.variable}
        for place in access.moving(self.loop.variable):
            dim = access.dims[place]
            step, start = (self._read.full.expanded(each, at) for each in dim.start.split(self.loop.variable))
            if self._read.full.names(step) & changing:
                continue
            span = (dim.length - ONE) * dim.step + ONE
            apart = self._read.fits(span, step, at) or (dim.length == ONE and _is_product(step))
            between = not apart and self._read.same(self.all_iterations.count * step, dim.step, at)
            if (apart or between) and wanted in (None, (place, step, start)):
                return place, step, start
        return None

    # --- one instruction for many iterations ----------------------------------------------------------

    def _merged_operands(self, statement: Statement, iterations: Iterations) -> dict[cst.CSTNode, cst.CSTNode]:
        """What is written instead of its operands. Raises IllegalSite."""
        form, call = MERGEABLE[statement.operation], statement.call
        assert call is not None
        given = {
            arg.keyword.value if arg.keyword is not None else form.parameters[at]: arg.value
            for at, arg in enumerate(call.args)
            if arg.keyword is not None or at < len(form.parameters)
        }
        if len(given) != len(call.args) or any(tile not in given for tile in form.tiles):
            raise IllegalSite(f"line {statement.line}: {statement.operation} is given its operands in another form")
        accesses = {tile: self._laid_out(self._access(given[tile], statement), iterations.count) for tile in form.tiles}
        reduces = statement.operation == "tensor_reduce"
        merged = None if reduces else self._as_intervals(accesses, iterations, statement)
        if merged is None:
            merged = self._as_patterns(accesses, iterations, statement)
        by_partition = not all(m.before for m in merged.values())
        for keyword, value in given.items():
            if keyword in form.tiles:
                continue
            if loaded_names(value) & (self._changing | frozenset(self._tiles)):
                raise IllegalSite(f"line {statement.line}: {keyword} changes with {self.loop.variable}")
            if by_partition and keyword in form.per_partition and content_names(value) & frozenset(self._code.roots):
                raise IllegalSite(f"line {statement.line}: {keyword} has no value for the partitions of all iterations")
        changes: dict[cst.CSTNode, cst.CSTNode] = {
            given[tile]: cst.parse_expression(each.text) for tile, each in merged.items()
        }
        if reduces:
            changes[given["axis"]] = _next_axes(given["axis"], statement)
        return changes

    def _as_intervals(
        self, accesses: dict[str, Access], iterations: Iterations, at: Statement
    ) -> dict[str, Merged] | None:
        merged = {tile: self._read.one_interval(access, iterations, at) for tile, access in accesses.items()}
        whole = {tile: each for tile, each in merged.items() if each is not None}
        if len(whole) < len(merged):
            return None
        first, *others = whole.values()
        engine = at.operation != "dma_copy"
        for other in others:
            in_each_partition = engine and len(first.before) == len(other.before) == 1
            if not in_each_partition and not self._read.same_order(first, other, at):
                return None
        return whole

    def _as_patterns(self, accesses: dict[str, Access], iterations: Iterations, at: Statement) -> dict[str, Merged]:
        """The iterations come right after the partitions, in memory wherever that is in its own order."""
        found: dict[str, Merged] = {}
        on_chip = {tile: access for tile, access in accesses.items() if access.on_chip}
        for tile, access in on_chip.items():
            found[tile] = self._read.one_pattern(access, iterations, 1, at)
        for tile, access in accesses.items():
            if access.on_chip:
                continue
            if not found:
                found[tile] = self._read.one_pattern(access, iterations, 0, at)
                continue
            first = next(iter(found.values()))
            whole = self._read.one_interval(access, iterations, at)
            if whole is not None and self._read.same_order(first, whole, at):
                found[tile] = whole
                continue
            for position in range(len(access.kept) + 1):
                made = self._read.one_pattern(access, iterations, position, at)
                if self._read.same_order(first, made, at):
                    found[tile] = made
                    break
            else:
                raise IllegalSite(f"line {at.line} does not show which element goes where")
        if at.operation != "tensor_reduce":  # a shorter text for the same elements
            for tile, access in on_chip.items():
                whole = self._read.one_interval(access, iterations, at)
                if whole is not None and len(whole.before) == 1:
                    found[tile] = whole
        return found

    # --- rewriting ------------------------------------------------------------------------------------

    def statement(self, instruction: Statement, iterations: Iterations) -> cst.BaseStatement:
        return _statement(replace_nodes(instruction.node, self._merged_operands(instruction, iterations)))

    def one_by_one(self, instruction: Statement, variable: str) -> cst.BaseStatement:
        """An instruction that stays: of its tiles, the part of the iteration that `variable` counts."""
        assert instruction.call is not None
        changes: dict[cst.CSTNode, cst.CSTNode] = {}
        here = Polynomial({(variable,): 1})
        for arg in instruction.call.args:
            if content_names(arg.value) & frozenset(self._tiles):
                access = self._access(arg.value, instruction)
                dims = []
                for dim in access.dims:
                    step, rest = dim.start.split(self.loop.variable)
                    dims.append(replace(dim, start=step * here + rest))
                changes[arg.value] = cst.parse_expression(replace(access, dims=tuple(dims)).text)
        return _statement(replace_nodes(instruction.node, changes))

    def allocation(self, statement: Statement, count: Polynomial) -> cst.BaseStatement:
        (name,) = statement.binds
        tile = self._tiles[name]
        rows, *columns = tile.sizes
        sizes = (rows, count * columns[0]) if tile.side_by_side else (rows, count, *columns)
        shape = self._code.argument(statement, "shape", 0)
        assert shape is not None
        text = f"({', '.join(map(str, sizes))})"
        return _statement(replace_nodes(statement.node, {shape: cst.parse_expression(text)}))

    def is_kept(self, statement: Statement) -> bool:
        """A number or a check that is the same for all iterations."""
        return statement.kind in (Kind.DEFINE, Kind.CHECK) and not statement.binds & self._changing

    def assertions(self) -> list[cst.BaseStatement]:
        """How many dimensions there are of what the text does not say it of."""
        return [
            _statement(cst.parse_statement(f'assert len({name}.shape) == {rank}, "{name} must have {rank} dimensions"'))
            for name, rank in sorted(self._asserted.items())
        ]

    def around(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """The statements in place of the loop: `body`, within whatever loops it held."""
        made = list(body)
        statement = self.inner
        while statement is not self.loop:
            node, outer = statement.node, statement.block.owner
            assert isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock) and outer is not None
            looped = node.with_changes(body=node.body.with_changes(body=made))
            assert outer.body is not None
            before = [_statement(s.node) for s in outer.body.statements if self.is_kept(s)]
            made = [*before, looped]
            statement = outer
        return [*self.assertions(), *made]


def in_place_of(code: KernelCode, loop: Statement, made: Sequence[cst.BaseStatement]) -> cst.Module:
    """The module with other statements where the loop was; its comments stay before them."""
    first, *rest = made
    lines = [*getattr(loop.node, "leading_lines", ()), *getattr(first, "leading_lines", ())]
    parent = loop.block.node
    at = list(parent.body).index(loop.node)
    body = [*parent.body[:at], first.with_changes(leading_lines=lines), *rest, *parent.body[at + 1 :]]
    return code.changed({parent: parent.with_changes(body=body)})


def _statement(node: cst.CSTNode) -> cst.BaseStatement:
    assert isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    return node


def _changing_names(code: KernelCode, loop: Statement, inside: list[Statement]) -> frozenset[str]:
    """The variable, and every number that is defined with it."""
    changing = {loop.variable}
    for statement in inside:
        if statement.kind is Kind.DEFINE and statement.uses & changing:
            changing |= statement.binds
    return frozenset(changing)


def _innermost(code: KernelCode, loop: Statement, changing: frozenset[str]) -> Statement:
    """The loop that holds the instructions, all of them, with nothing but numbers between it and `loop`."""
    assert loop.body is not None
    inner = [statement for statement in loop.body.statements if statement.kind is Kind.LOOP]
    others = [s for s in loop.body.statements if s.kind not in (Kind.LOOP, Kind.DEFINE, Kind.CHECK)]
    if not inner:
        return loop
    if len(inner) > 1 or others:
        raise IllegalSite(f"the loop over {loop.variable} holds a loop and other work beside it")
    (within,) = inner
    order = loop.body.statements
    if order.index(within) != len(order) - 1:
        raise IllegalSite(f"line {order[-1].line} follows the inner loop")
    if within.header_uses & changing:
        raise IllegalSite(f"the length of the loop over {within.variable} changes with {loop.variable}")
    if any(s.kind is Kind.DEFINE and s.contents & code.buffers for s in order):
        raise IllegalSite(f"the loop over {loop.variable} gives part of a buffer a name")
    if any(s.kind is Kind.CHECK and s.uses & changing for s in order):
        raise IllegalSite(f"the loop over {loop.variable} checks each iteration by itself")
    return _innermost(code, within, changing)


def _bases(expression: cst.BaseExpression) -> frozenset[str]:
    """Names of the buffers that an operand may be, and not what its indices are computed from."""
    if isinstance(expression, cst.Subscript) and isinstance(expression.value, cst.Name):
        return frozenset({expression.value.value})
    return content_names(expression)


def _is_product(step: Polynomial) -> bool:
    """Of sizes: one at least."""
    return len(step.terms) == 1 and step.adds_up


def _next_axes(axis: cst.BaseExpression, at: Statement) -> cst.BaseExpression:
    """Axes counted from the front are one further; those from the back stay."""
    if isinstance(axis, (cst.Tuple, cst.List)):
        elements = [
            element.with_changes(value=_next_axes(element.value, at))
            for element in axis.elements
            if isinstance(element, cst.Element)
        ]
        return axis.with_changes(elements=elements)
    if isinstance(axis, cst.Integer):
        return cst.Integer(str(axis.evaluated_value + 1))
    if isinstance(axis, cst.UnaryOperation) and isinstance(axis.expression, cst.Integer):
        return axis
    raise IllegalSite(f"line {at.line}: which axes are reduced does not show")
