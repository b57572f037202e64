"""A loop whose instructions each do the work of many iterations at once.

What makes it right: no iteration touches what another one writes, so that all iterations of the first instruction may
come before all of the second. A tile that every iteration makes anew becomes one with a dimension more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.isa_effects import WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.loop_independence import changing_names, check_names_and_order, check_no_shapes, made_in
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, Iterations, Merged, arguments_of
from accelopt_core.transforms.syntax import (
    content_names,
    loaded_names,
    parsed_expression,
    parsed_statement,
    replace_nodes,
)


@dataclass(frozen=True)
class Elementwise:
    """Which arguments of an instruction are tiles, element by element."""

    tiles: tuple[str, ...]
    per_partition: tuple[str, ...] = ()
    """One value for each partition, or a number."""
    not_with: tuple[str, ...] = ()
    """Arguments with which it is not elementwise."""


MERGEABLE = {
    "activation": Elementwise(("dst", "data"), ("bias", "scale"), ("reduce_op", "reduce_res", "reduce_cmd")),
    "dma_copy": Elementwise(("dst", "src"), (), ("priority", "oob_mode")),
    "memset": Elementwise(("dst",)),
    "reciprocal": Elementwise(("dst", "data")),
    "scalar_tensor_tensor": Elementwise(("dst", "data", "operand1"), ("operand0",)),
    "tensor_copy": Elementwise(("dst", "src")),
    "tensor_reduce": Elementwise(("dst", "data")),
    "tensor_scalar": Elementwise(("dst", "data"), ("operand0", "operand1")),
    "tensor_tensor": Elementwise(("dst", "data1", "data2")),
}
"""Every element of `dst` depends on the same element of the other tiles alone; of tensor_reduce, on the same row."""

PRODUCTS = {
    "nc_matmul": Elementwise(("dst", "moving"), (), ("is_transpose", "tile_position", "tile_size", "perf_mode")),
}
"""Every column of `dst` depends on the same column of `moving` alone; what is stationary is the same for all."""


@dataclass(frozen=True)
class _Tile:
    """A tile that every iteration makes anew."""

    allocation: Statement
    sizes: tuple[Polynomial, ...]
    side_by_side: bool
    """Always used whole: the tiles of many iterations lie beside one another in two dimensions."""


@dataclass(frozen=True)
class _Part:
    """Of one dimension: start + step * variable and the `span - 1` after it, perhaps in every period of the loop."""

    dimension: int
    step: Polynomial
    start: Polynomial
    span: Polynomial


class MergedLoop:
    """Raises IllegalSite, when it is made, naming what forbids it.

    With `partly`, what cannot be merged stays in loops of its own, between the instructions that are. With `products`,
    products by one stationary tile are merged too, and so is an inner loop in which everything can be.
    """

    def __init__(self, code: KernelCode, loop: Statement, partly: bool = False, products: bool = False) -> None:
        if loop.count is None:
            raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
        self._code, self.loop, self._partly, self._products = code, loop, partly, products
        inside = check_names_and_order(code, loop, lists_may_grow=partly)
        self._changing = changing_names(loop, inside)
        self._read = AccessReader(code, loop, self._changing)
        self.inner = _innermost(code, loop, self._changing, partly)
        assert self.inner.body is not None
        self.statements = self.inner.body.statements
        self._tiles: dict[str, _Tile] = {}
        self._accesses: dict[cst.BaseExpression, Access] = {}
        self._asserted: dict[str, int] = {}
        self._in_order: set[Statement] = set()
        """Statements whose iterations need their order."""
        own = made_in(code, inside)
        for statement in self.statements:
            self._check(statement)
        self._find_tiles(own)
        check_no_shapes(frozenset(self._tiles), loop)
        self._check_parts(own)
        self._keep_lists_in_order()
        self.merged = [s for s in self.statements if self._can_be_merged(s)]
        if partly:
            self._leave_tiles_that_stay()
            self._check_that_all_can_be_written()
        if not self.merged:
            raise IllegalSite(f"nothing in the loop over {loop.variable} works on several iterations at once")

    @classmethod
    def of(cls, code: KernelCode, loop: Statement, partly: bool = False, products: bool = False) -> MergedLoop:
        """The same as made anew, and made once for all that ask for it: several transforms do, for each of their sites.

        Raises IllegalSite as that does.
        """
        key = (cls, loop.node, partly, products)
        if key not in code.kept:
            try:
                code.kept[key] = cls(code, loop, partly, products)
            except IllegalSite as error:
                code.kept[key] = error
        known = code.kept[key]
        if isinstance(known, IllegalSite):
            raise known.with_traceback(None)
        assert isinstance(known, cls)
        mine = copy(known)  # writing a kernel adds to these
        mine._tiles, mine._accesses, mine._asserted = dict(known._tiles), dict(known._accesses), dict(known._asserted)
        return mine

    @property
    def all_iterations(self) -> Iterations:
        assert self.loop.count is not None
        return Iterations(self.loop.variable, number(0), self._read.number(self.loop.count, self.loop))

    @property
    def runs(self) -> list[list[Statement]]:
        """What becomes of the loop's statements: each that is merged by itself, what stays between them together."""
        found: list[list[Statement]] = []
        for statement in self.statements:
            if statement in self.merged:
                found += [[statement], []]
            elif statement.kind in (Kind.INSTRUCTION, Kind.APPEND, Kind.LOOP):
                found = found or [[]]
                found[-1].append(statement)
        return [run for run in found if run]

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
            self._tiles[name] = _Tile(statement, sizes, len(sizes) == 2 and self._is_used_whole(name))

    def _is_used_whole(self, name: str) -> bool:
        """Every operand that is this tile of the loop's own, or part of it, takes all of a row."""
        for statement, arg, _ in self._arguments():
            if name not in content_names(arg.value):
                continue
            access = self._read.access(arg.value, statement)
            if statement.operation == "tensor_reduce" or access.dims[1] != Dim(number(0), access.sizes[1]):
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
        elif statement.kind is Kind.APPEND and self._partly:
            assert statement.call is not None
            self._read.access(statement.call.args[0].value, statement)
        elif statement.kind is Kind.LOOP and self._partly:
            for inner in statement.walk():
                if inner.kind not in (Kind.LOOP, Kind.INSTRUCTION, Kind.ALLOCATE, Kind.CHECK):
                    self._check(inner)
        elif statement.kind is not Kind.ALLOCATE and statement.kind is not Kind.INSTRUCTION:
            raise IllegalSite(f"{where} stands in the loop over {self.loop.variable} ({statement.kind.value})")

    def _can_be_merged(self, statement: Statement) -> bool:
        """Raises IllegalSite for an instruction that cannot, unless it may stay."""
        if statement.kind is Kind.LOOP and self._products:
            return statement not in self._in_order and self._whole_loop_can_be_merged(statement)
        if statement.kind is not Kind.INSTRUCTION:
            return False
        try:
            self._merged_operands(statement, self.all_iterations)
        except IllegalSite:
            if not self._partly:
                raise
            return False
        return statement not in self._in_order

    def _whole_loop_can_be_merged(self, inner: Statement) -> bool:
        """It runs as often in every iteration, and all that it holds can be merged or is a number."""
        for each in inner.walk():
            if each.kind is Kind.LOOP and not each.header_uses & self._changing:
                continue
            if each.kind is Kind.CHECK and not each.uses & self._changing:
                continue
            if each.kind is not Kind.DEFINE and not (each.kind is Kind.INSTRUCTION and self._can_be_merged(each)):
                return False
        return any(each.kind is Kind.INSTRUCTION for each in inner.walk())

    def _form(self, statement: Statement) -> Elementwise:
        form = MERGEABLE.get(statement.operation)
        if form is None and self._products:
            form = PRODUCTS.get(statement.operation)
        if form is None:
            raise IllegalSite(f"line {statement.line}: {statement.operation} does not work element by element")
        if any(self._code.argument(statement, keyword) is not None for keyword in form.not_with):
            raise IllegalSite(f"line {statement.line}: {statement.operation} does more than its elements")
        return form

    def _leave_tiles_that_stay(self) -> None:
        """A tile that a single run of what stays uses is made there, as it was."""
        for name in list(self._tiles):
            users = [run for run in self.runs if any(name in statement.uses for statement in run)]
            if len(users) == 1 and users[0][0] not in self.merged:
                del self._tiles[name]
        self._accesses.clear()

    def _check_that_all_can_be_written(self) -> None:
        """Also what stays uses the tiles of all iterations."""
        for statement, arg, _ in self._arguments():
            if content_names(arg.value) & frozenset(self._tiles):
                self._access(arg.value, statement)

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
                dims: tuple[Dim, ...] = (found.dims[0], Dim(here * width, width))
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
        for root in sorted(written):
            users = [
                (s, arg.value) for s, arg, _ in self._arguments() if root in self._code.roots_of(_bases(arg.value))
            ]
            try:
                self._check_parts_of(root, users)
            except IllegalSite:
                if not self._partly:
                    raise
                self._keep_in_order([statement for statement, _ in users])

    def _check_parts_of(self, root: str, users: list[tuple[Statement, cst.BaseExpression]]) -> None:
        parts: list[list[_Part]] = []
        names: set[str] = set()
        for statement, value in users:
            access = self._access(value, statement)
            names.add(access.name)
            if len(names) > 1:
                raise IllegalSite(f"line {statement.line} touches {root} under another name")
            parts.append(self._parts(access, statement))
            if not any(all(_beside(first, each) for each in parts) for first in (p for each in parts for p in each)):
                raise IllegalSite(
                    f"two iterations of the loop over {self.loop.variable} may touch the same part of {root} "
                    f"(line {statement.line})"
                )

    def _keep_lists_in_order(self) -> None:
        """A list that grows at several places takes turns: an iteration's tiles stay beside one another."""
        growing: dict[frozenset[str], list[Statement]] = {}
        for statement in (each for top in self.statements for each in top.walk()):
            if statement.kind is Kind.APPEND:
                growing.setdefault(statement.written, []).append(statement)
        for appends in growing.values():
            if len(appends) > 1:
                self._keep_in_order(appends)

    def _keep_in_order(self, users: list[Statement]) -> None:
        """They stay, with all that stands between the first and the last of them."""
        places = [at for at, top in enumerate(self.statements) for each in top.walk() if each in users]
        self._in_order |= set(self.statements[min(places) : max(places) + 1])

    def _arguments(self) -> Iterator[tuple[Statement, cst.Arg, bool]]:
        """Of all instructions, and whether each is written; and what is put into lists."""
        for statement in (each for top in self.statements for each in top.walk()):
            if statement.kind is Kind.APPEND and statement.call is not None:
                yield statement, statement.call.args[0], False
            elif statement.kind is Kind.INSTRUCTION and statement.call is not None:
                for at, arg in enumerate(statement.call.args):
                    keyword = arg.keyword.value if arg.keyword is not None else ("dst" if at == 0 else "")
                    yield statement, arg, keyword in WRITTEN_ARGUMENTS[statement.operation]

    def _parts(self, access: Access, at: Statement) -> list[_Part]:
        """In which dimensions an iteration takes elements that no other one takes, and which."""
        read, count = self._read, self._read.full.expanded(self.all_iterations.count, self.loop)
        found = []
        for place in access.moving(self.loop.variable):
            dim = access.dims[place]
            step, start = (read.full.expanded(each, at) for each in dim.start.split(self.loop.variable))
            stride = read.full.expanded(dim.step, at)
            span = ONE if stride == count * step else (read.full.expanded(dim.length, at) - ONE) * stride + ONE
            inner = self._spread_by_inner_loops(start, count * step, at)
            if inner is None or read.full.names(step) & self.loop.binds:
                continue
            rest, spread = inner
            alone = span + spread == ONE and _is_product(step)
            if alone or read.fits(span + spread, step, at):
                found.append(_Part(place, step, rest, span + spread))
        return found

    def _spread_by_inner_loops(
        self, start: Polynomial, period: Polynomial, at: Statement
    ) -> tuple[Polynomial, Polynomial] | None:
        """What of a start is the same in the whole loop, and how much further inner loops go; None if nobody knows.

        What they add in multiples of `period`, which is as far as the loop itself goes, does not count: remainders
        tell the iterations apart.
        """
        spread = number(0)
        for loop in at.block.loops():
            if self.loop not in loop.block.loops() or loop.variable not in start.factors:
                continue
            step, start = start.split(loop.variable)
            if period.terms and step.over(period) is not None:
                continue
            if loop.count is None or not step.adds_up:
                return None
            spread += step * (self._read.full.polynomial(loop.count, loop) - ONE)
        known = not (self._read.full.names(start) | self._read.full.names(spread)) & self.loop.binds
        return (start, spread) if known else None

    # --- one instruction for many iterations ----------------------------------------------------------

    def _merged_operands(self, statement: Statement, iterations: Iterations) -> dict[cst.CSTNode, cst.CSTNode]:
        """What is written instead of its operands. Raises IllegalSite."""
        form, given = self._form(statement), arguments_of(statement)
        if any(tile not in given for tile in form.tiles):
            raise IllegalSite(f"line {statement.line}: {statement.operation} lacks an operand")
        accesses = {tile: self._laid_out(self._access(given[tile], statement), iterations.count) for tile in form.tiles}
        reduces = statement.operation == "tensor_reduce"
        merged = None if reduces else self._as_intervals(accesses, iterations, statement)
        if merged is None:
            merged = self._as_patterns(accesses, iterations, statement)
        by_partition = not all(m.before for m in merged.values())
        if by_partition and statement.operation in PRODUCTS:
            raise IllegalSite(f"line {statement.line}: {statement.operation} turns to other partitions")
        for keyword, value in given.items():
            if keyword in form.tiles:
                continue
            if loaded_names(value) & (self._changing | frozenset(self._tiles)):
                raise IllegalSite(f"line {statement.line}: {keyword} changes with {self.loop.variable}")
            if by_partition and keyword in form.per_partition and content_names(value) & frozenset(self._code.roots):
                raise IllegalSite(f"line {statement.line}: {keyword} has no value for the partitions of all iterations")
        changes: dict[cst.CSTNode, cst.CSTNode] = {
            given[tile]: parsed_expression(each.text) for tile, each in merged.items()
        }
        if reduces:
            changes[given["axis"]] = _next_axes(given["axis"], statement)
        return changes

    def _as_intervals(
        self, accesses: dict[str, Access], iterations: Iterations, at: Statement
    ) -> dict[str, Merged] | None:
        merged = {
            tile: self._read.one_interval(access, self._of(access, iterations), at) for tile, access in accesses.items()
        }
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
        for tile, access in accesses.items():
            if access.on_chip:
                these = self._of(access, iterations)
                found[tile] = self._read.one_pattern(access, these, 1, at)
        first = next(iter(found.values()), None)
        for tile, access in accesses.items():
            if not access.on_chip:
                found[tile] = self._in_memory(access, iterations, first, at)
                first = first or found[tile]
        if at.operation != "tensor_reduce":  # a shorter text for the same elements
            for tile, access in accesses.items():
                whole = self._read.one_interval(access, self._of(access, iterations), at)
                if access.on_chip and whole is not None and len(whole.before) == 1:
                    found[tile] = whole
        return found

    def _in_memory(self, access: Access, iterations: Iterations, other: Merged | None, at: Statement) -> Merged:
        """In the order of the other side of a transfer."""
        if other is None:
            return self._read.one_pattern(access, iterations, 0, at)
        whole = self._read.one_interval(access, iterations, at)
        if whole is not None and self._read.same_order(other, whole, at):
            return whole
        for position in range(len(access.kept) + 1):
            made = self._read.one_pattern(access, iterations, position, at)
            if self._read.same_order(other, made, at):
                return made
        raise IllegalSite(f"line {at.line} does not show which element goes where")

    def _of(self, access: Access, iterations: Iterations) -> Iterations:
        """The same ones as counted in a buffer: a tile of the loop's own has no others."""
        return replace(iterations, first=number(0)) if access.name in self._tiles else iterations

    # --- rewriting ------------------------------------------------------------------------------------

    def statement(self, merged: Statement, iterations: Iterations) -> cst.BaseStatement:
        """An instruction for all of the iterations; or a loop of such, without the numbers of a single one."""
        if merged.kind is not Kind.LOOP:
            return _statement(replace_nodes(merged.node, self._merged_operands(merged, iterations)))
        assert merged.body is not None and isinstance(merged.node, cst.For)
        body = []
        for each in merged.body.statements:
            if each.kind in (Kind.LOOP, Kind.INSTRUCTION):
                body.append(self.statement(each, iterations))
            elif not each.binds & self._changing:
                body.append(_statement(replace_nodes(each.node, {})))
        block = merged.body.node.with_changes(body=body)
        return _statement(replace_nodes(merged.node.with_changes(body=block), {}))

    def one_by_one(self, run: list[Statement], variable: str, count: Polynomial) -> list[cst.BaseStatement]:
        """Statements that stay: of the loop's own tiles, the part of the iteration that `variable` counts."""
        changes: dict[cst.CSTNode, cst.CSTNode] = {}
        here = Polynomial({(variable,): 1})
        used = frozenset[str]().union(*(statement.uses for statement in run)) - frozenset(self._tiles)
        own = [s for s in self.statements if s in run or (s.kind is Kind.ALLOCATE and s.binds & used)]
        inside = {each for statement in own for each in statement.walk()}
        for statement, arg, _ in self._arguments():
            if statement in inside and content_names(arg.value) & frozenset(self._tiles):
                access = self._laid_out(self._access(arg.value, statement), count)
                dims = []
                for dim in access.dims:
                    step, rest = dim.start.split(self.loop.variable)
                    dims.append(replace(dim, start=step * here + rest))
                changes[arg.value] = parsed_expression(replace(access, dims=tuple(dims)).text)
        return [_statement(replace_nodes(s.node, changes)) for s in (*self._numbers_for(own), *own)]

    def _numbers_for(self, statements: list[Statement]) -> list[Statement]:
        """Definitions of the numbers that they use and that change with the loop, in their order."""
        used = frozenset[str]().union(*(statement.uses for statement in statements))
        found: list[Statement] = []
        for statement in reversed(list(self.loop.walk())):
            around = (self.inner, *self.inner.block.loops())
            if statement.kind is Kind.DEFINE and statement.block.owner in around and statement.binds & self._changing:
                if statement.binds & used:
                    found.insert(0, statement)
                    used |= statement.uses
        return found

    def allocation(self, statement: Statement, count: Polynomial) -> cst.BaseStatement:
        (name,) = statement.binds
        tile = self._tiles[name]
        rows, *columns = tile.sizes
        sizes = (rows, count * columns[0]) if tile.side_by_side else (rows, count, *columns)
        shape = self._code.argument(statement, "shape", 0)
        assert shape is not None
        text = f"({', '.join(map(str, sizes))})"
        return _statement(replace_nodes(statement.node, {shape: parsed_expression(text)}))

    def is_made_once(self, allocation: Statement) -> bool:
        """It holds the tiles of all iterations: a part of what stays does not use it alone."""
        return bool(allocation.binds & frozenset(self._tiles))

    def is_kept(self, statement: Statement) -> bool:
        """A number or a check that is the same for all iterations."""
        return statement.kind in (Kind.DEFINE, Kind.CHECK) and not statement.binds & self._changing

    def assertions(self) -> list[cst.BaseStatement]:
        """What the text does not say and the merged instructions take for granted."""
        conditions = {
            f"len({name}.shape) == {rank}": f"{name} must have {rank} dimensions"
            for name, rank in sorted(self._asserted.items())
        }
        conditions |= self._read.assumed
        return [_statement(parsed_statement(f'assert {each}, "{why}"')) for each, why in conditions.items()]

    def around(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """The statements in place of the loop: `body`, within whatever loops it held."""
        kept = [_statement(statement.node) for statement in self.statements if self.is_kept(statement)]
        made = [*kept, *self.assertions(), *body]
        statement = self.inner
        while statement is not self.loop:
            node, outer = statement.node, statement.block.owner
            assert isinstance(node, cst.For) and isinstance(node.body, cst.IndentedBlock) and outer is not None
            looped = _statement(node.with_changes(body=node.body.with_changes(body=made)))
            assert outer.body is not None
            before = [_statement(s.node) for s in outer.body.statements if self.is_kept(s)]
            made = [*before, looped]
            statement = outer
        return made


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


def _innermost(code: KernelCode, loop: Statement, changing: frozenset[str], partly: bool) -> Statement:
    """The loop that holds the instructions, all of them, with nothing but numbers between it and `loop`."""
    assert loop.body is not None
    order = loop.body.statements
    inner = [statement for statement in order if statement.kind is Kind.LOOP]
    others = [s for s in order if s.kind not in (Kind.LOOP, Kind.DEFINE, Kind.CHECK)]
    if not inner or (partly and (others or len(inner) > 1)):
        return loop
    if len(inner) > 1 or others:
        raise IllegalSite(f"the loop over {loop.variable} holds a loop and other work beside it")
    (within,) = inner
    if within is not order[-1]:
        raise IllegalSite(f"line {order[-1].line} follows the inner loop")
    if within.header_uses & changing:
        raise IllegalSite(f"the length of the loop over {within.variable} changes with {loop.variable}")
    if any(s.kind is Kind.DEFINE and code.roots_of(s.contents) & code.buffers for s in order):
        raise IllegalSite(f"the loop over {loop.variable} gives part of a buffer a name")
    if any(s.kind is Kind.CHECK and s.uses & changing for s in order):
        raise IllegalSite(f"the loop over {loop.variable} checks each iteration by itself")
    return _innermost(code, within, changing, partly)


def _bases(expression: cst.BaseExpression) -> frozenset[str]:
    """Names of the buffers that an operand may be, and not what its indices are computed from."""
    if isinstance(expression, cst.Subscript) and isinstance(expression.value, cst.Name):
        return frozenset({expression.value.value})
    return content_names(expression)


def _beside(first: _Part, others: list[_Part]) -> bool:
    """One of them keeps within the step that begins where `first` does."""
    for other in others:
        if (other.dimension, other.step) == (first.dimension, first.step):
            after = (other.start - first.start).value
            left = (first.step - (other.start - first.start) - other.span).value
            if after == 0 or (after is not None and after > 0 and left is not None and left >= 0):
                return True
    return False


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
