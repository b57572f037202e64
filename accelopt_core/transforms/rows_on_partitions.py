"""Put the iterations of a loop over single rows on the partitions, as many as there are.

    for i in range(n):                                for i_group in range(n // 128):
        row = ndarray((1, W))                             row = ndarray((128, W))
        dma_copy(dst=row, src=x[i : i + 1, 0:W])  ->      dma_copy(dst=row, src=x[128 * i_group : ..., 0:W])
        work(row)                                         work(row)
        dma_copy(dst=out[i : i + 1, 0:W], src=row)        dma_copy(dst=out[128 * i_group : ..., 0:W], src=row)

An engine takes as long for one partition as for 128. Tiles of a few rows are put below one another in the same way.
A product that makes a single row, of weights of its own, becomes multiplications on the Vector engine.
What makes it right: no iteration touches what another one writes, every tile is the iteration's own and always taken
with all of its rows, and every instruction treats each partition by itself, alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotOfItsKind,
    NotPlain,
    Site,
    SiteGone,
)
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import (
    changing_names,
    check_independent,
    check_names_and_order,
    check_no_shapes,
    made_in,
    read_by,
)
from accelopt_core.transforms.loop_sites import as_factor, lines_of, loop_at
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, Iterations, arguments_of
from accelopt_core.transforms.pattern_operands import Pattern, is_pattern, read_pattern
from accelopt_core.transforms.row_products import RowProducts
from accelopt_core.transforms.shared_rows import SharedRow, shared_row, squeezed
from accelopt_core.transforms.syntax import (
    content_names,
    loaded_names,
    parsed_expression,
    parsed_statement,
    replace_nodes,
)

PARTITIONS = 128
EACH_BY_ITSELF = frozenset(
    {
        "activation",
        "activation_reduce",
        "bn_aggr",
        "bn_stats",
        "max8",
        "memset",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_scalar_reduce",
        "tensor_tensor",
        "tensor_tensor_scan",
    }
)
"""What these write on a partition depends on the same partition alone, whichever it is."""
ONE_BY_ONE = ("priority", "oob_mode")
"""With these a transfer is more than its elements."""
REST = "rest"


@dataclass(frozen=True)
class _Operand:
    node: cst.BaseExpression
    at: Statement
    access: Access | Pattern
    """A pattern is of HBM, as is what does not lie on chip."""
    moves: bool = False
    """It is moved by products: its rows are summed over."""

    @property
    def in_memory(self) -> bool:
        return isinstance(self.access, Pattern) or not self.access.on_chip


@dataclass
class _Plan:
    loop: Statement
    height: int
    """Rows of each tile."""
    reader: AccessReader
    changing: frozenset[str]
    products: RowProducts
    shapes: list[cst.BaseExpression] = field(default_factory=list)
    """The first size of every tile."""
    operands: list[_Operand] = field(default_factory=list)
    gone: list[Statement] = field(default_factory=list)
    """Definitions of numbers that say which iteration it is."""
    shared: dict[str, SharedRow] = field(default_factory=dict)
    """Rows from outside of the loop, by the names of their tiles."""
    needed: dict[Statement, list[str]] = field(default_factory=dict)
    """What must hold before a statement, and the text does not show."""

    @property
    def at_once(self) -> int:
        return PARTITIONS // self.height


class RowsOnPartitions:
    name = "rows-on-partitions"
    addresses = frozenset(Cause) - {Cause.TABLE_SWITCHES, Cause.MATMUL, Cause.THROTTLED}

    def describe(self) -> str:
        return "Do what a loop does row by row, on one partition or a few, for as many rows as fill all partitions."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            key = f"{loop.variable}#{place}"
            try:
                plan = _plan(code, loop)
                written = [_Rewriting(code, plan, even).module() for even in (True, False)]
            except IllegalSite as error:
                context.refuse(self.name, key, loop.line, error, lines_of(loop))
                continue
            for way, _ in zip(("", f"/{REST}"), written):
                last = ", and what is left in the end" if way else ""
                found.append(
                    Site(
                        self.name,
                        f"{key}{way}",
                        f"work on {plan.at_once} iterations of the loop over {loop.variable} at once{last}, each on "
                        "partitions of its own",
                        loop.line,
                        f"no iteration over {loop.variable} touches what another writes, and every instruction treats "
                        "each partition by itself",
                        "an engine takes as long for one partition as for all, and a transfer for many rows as for few",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        place, _, way = key.partition("/")
        if way not in ("", REST):
            raise SiteGone(f"{key}: rows are taken evenly, or with what is left: {place} or {place}/{REST}")
        return _Rewriting(code, _plan(code, loop_at(code, place, key)), even=not way).module()


# --- legality ---------------------------------------------------------------------------------------


def _plan(code: KernelCode, loop: Statement) -> _Plan:
    """Raises IllegalSite."""
    inside = [statement for statement in loop.walk() if statement is not loop]
    allocations = [statement for statement in inside if statement.kind is Kind.ALLOCATE]
    if not allocations:
        raise NotOfItsKind(f"the loop over {loop.variable} makes no tiles")
    if not code.is_pythons_own("min"):
        raise IllegalSite("the kernel gives min another meaning")
    by_pattern = any(is_pattern(arg) for each in inside if (arg := code.argument(each, "dst", 0)) is not None)
    if by_pattern:
        check_names_and_order(code, loop)
    else:
        check_independent(code, loop)
    changing = changing_names(loop, inside)
    reader = AccessReader(code, loop, changing)
    products = RowProducts(code, reader, loop)
    height = _height(code, reader, [each for each in allocations if not each.binds & products.moving], products)
    if products.found and height > 1:
        raise IllegalSite("a product makes several rows")
    plan = _Plan(loop, height, reader, changing, products)
    own = made_in(code, inside)
    for statement in allocations:
        size = _first_size(code, statement, changing)
        if not statement.binds & products.moving:
            plan.shapes.append(size)
    check_no_shapes(own, loop)
    for statement in inside:
        _check(code, plan, own, statement)
    if by_pattern:
        _check_stores(code, plan, inside)
    elif not any(operand.in_memory for operand in plan.operands):
        raise NotOfItsKind(f"the loop over {loop.variable} neither loads nor stores")
    return plan


def _check_stores(code: KernelCode, plan: _Plan, inside: list[Statement]) -> None:
    """Each iteration stores to a part of its own, and loads nothing from there. Raises IllegalSite."""
    own = made_in(code, inside)
    written = {root for each in inside if each.body is None for root in code.changed_by(each) - own}
    for statement in inside:
        for root in sorted(read_by(code, statement) & written):
            raise IllegalSite(f"line {statement.line} reads {root}, which the loop over {plan.loop.variable} writes")
    for root in sorted(written):
        stores = [each for each in plan.operands if each.in_memory and root in each.at.written]
        lines = [each.line for each in inside if each.body is None and root in code.changed_by(each)]
        pattern = stores[0].access if stores else None
        if len(lines) > 1 or not isinstance(pattern, Pattern):
            raise IllegalSite(f"line {lines[-1]} writes {root} in a way that does not show which part")
        if not pattern.step.terms or plan.reader.indices.names(pattern.step) & plan.loop.binds:
            raise IllegalSite(f"line {lines[-1]}: how far an iteration's part of {root} is from the next does not show")
        conditions = pattern.keeps_within_its_step(plan.reader, plan.loop.binds)
        plan.needed.setdefault(stores[0].at, []).extend(conditions)


def _height(code: KernelCode, reader: AccessReader, allocations: list[Statement], products: RowProducts) -> int:
    """Rows that all tiles of the loop have."""
    found = set()
    for statement in allocations:
        (name,) = statement.binds
        sizes = reader.sizes(name)
        if sizes is None or len(sizes) < 2 or (statement.region != "sbuf" and name not in products.sums):
            raise IllegalSite(f"line {statement.line}: {name} has no shape that is written out, or is not in SBUF")
        found.add(reader.full.expanded(sizes[0], statement).value)
    if None in found or len(found) > 1:
        raise IllegalSite("the tiles do not all have the same few rows")
    (height,) = found
    assert height is not None
    if not 0 < height <= PARTITIONS // 2:
        raise NotOfItsKind(f"tiles of {height} rows fill the partitions")
    return height


def _first_size(code: KernelCode, allocation: Statement, changing: frozenset[str]) -> cst.BaseExpression:
    (name,) = allocation.binds
    if code.argument(allocation, "address") is not None:
        raise IllegalSite(f"{name} has a place of its own (address=)")
    if allocation.uses & changing:
        raise IllegalSite(f"what {name} is made with changes with the loop's variable")
    shape = code.argument(allocation, "shape", 0)
    assert isinstance(shape, (cst.Tuple, cst.List))
    return shape.elements[0].value


def _check(code: KernelCode, plan: _Plan, own: frozenset[str], statement: Statement) -> None:
    """Notes what of a statement changes. Raises IllegalSite."""
    where, variable = f"line {statement.line}", plan.loop.variable
    if statement.kind is Kind.INSTRUCTION:
        _check_instruction(code, plan, own, statement)
    elif statement.kind is Kind.DEFINE:
        if code.roots_of(statement.contents) & (code.buffers | code.parameters):
            raise NotPlain(f"{where} gives part of a buffer a name")
        if statement.binds & plan.changing:
            plan.gone.append(statement)
    elif statement.kind is Kind.LOOP:
        if statement.header_uses & plan.changing:
            raise IllegalSite(f"{where}: how long this loop is changes with {variable}")
    elif statement.kind is Kind.CHECK:
        if statement.uses & plan.changing:
            raise IllegalSite(f"{where} checks each iteration by itself")
    elif statement.kind is Kind.APPEND:
        if not code.roots_of(statement.contents) & plan.products.moving:
            raise IllegalSite(f"{where} puts a tile into a list")
    elif statement.kind is not Kind.ALLOCATE:
        raise IllegalSite(f"{where} stands in the loop over {variable} ({statement.kind.value})")


def _check_instruction(code: KernelCode, plan: _Plan, own: frozenset[str], statement: Statement) -> None:
    where, given = f"line {statement.line}", arguments_of(statement)
    if statement.operation == "nc_matmul":
        return  # read as one of the products
    transfers = statement.operation == "dma_copy"
    if transfers and any(keyword in given for keyword in ONE_BY_ONE):
        raise IllegalSite(f"{where}: the transfer does more than its elements")
    if not transfers and statement.operation not in EACH_BY_ITSELF:
        raise IllegalSite(f"{where}: {statement.operation} does not treat every partition by itself")
    tiles = 0
    for keyword, value in given.items():
        roots = code.roots_of(content_names(value))
        if not roots:
            if loaded_names(value) & plan.changing:
                raise IllegalSite(f"{where}: {keyword} changes with {plan.loop.variable}")
            continue
        if roots <= own:
            moves = bool(roots & plan.products.moving)
            plan.operands.append(_moving(plan, value, statement) if moves else _tile(plan, value, statement))
            tiles += 1
        elif transfers and keyword in ("dst", "src"):
            plan.operands.append(_part(code, plan, value, statement))
        else:
            plan.operands.append(_shared(code, plan, value, statement))
    if not tiles:
        raise IllegalSite(f"{where} works on no tile of the loop")
    if statement.operation == "tensor_reduce":
        check_axes(given["axis"], statement)


def _tile(plan: _Plan, value: cst.BaseExpression, at: Statement) -> _Operand:
    """All rows of a tile of the loop's own, and columns that are the same in every iteration."""
    access = plan.reader.access(value, at)
    first, *others = access.dims
    length = plan.reader.full.expanded(first.length, at)
    if first.start != number(0) or length != number(plan.height) or first.step != ONE:
        raise IllegalSite(f"line {at.line} takes some rows of {access.name}")
    if any(plan.loop.variable in each.factors for dim in others for each in (dim.start, dim.length, dim.step)):
        raise IllegalSite(f"line {at.line}: which columns of {access.name} it takes changes with {plan.loop.variable}")
    return _Operand(value, at, access)


def _shared(code: KernelCode, plan: _Plan, value: cst.BaseExpression, at: Statement) -> _Operand:
    """Of a row from outside of the loop."""
    names = content_names(value) & frozenset(code.roots)
    if plan.height > 1 or len(names) != 1 or code.regions_of(value) != {"sbuf"}:
        raise IllegalSite(f"line {at.line} needs {', '.join(sorted(names))} from outside of the loop")
    (name,) = names
    if name not in plan.shared:
        plan.shared[name] = shared_row(code, plan.reader, plan.loop, name)
    return _tile(plan, value, at)


def _moving(plan: _Plan, value: cst.BaseExpression, at: Statement) -> _Operand:
    """Part of a tile that products move: all of that is one partition's afterwards."""
    access = plan.reader.access(value, at)
    if any(plan.loop.variable in each.factors for dim in access.dims for each in (dim.start, dim.length, dim.step)):
        raise IllegalSite(f"line {at.line}: which part of {access.name} it takes changes with {plan.loop.variable}")
    return _Operand(value, at, access, moves=True)


def _part(code: KernelCode, plan: _Plan, value: cst.BaseExpression, at: Statement) -> _Operand:
    """What an iteration moves to or from HBM."""
    if isinstance(value, cst.Call) and is_pattern(value):
        if plan.height > 1:
            raise IllegalSite(f"line {at.line}: that the rows follow one another does not show")
        return _Operand(value, at, read_pattern(code, plan.reader, plan.loop.variable, value, at))
    access = plan.reader.access(value, at)
    if access.on_chip:
        raise IllegalSite(f"line {at.line} needs {access.name} from outside of the loop")
    return _Operand(value, at, access)


def check_axes(axis: cst.BaseExpression, at: Statement) -> None:
    each = [element.value for element in axis.elements] if isinstance(axis, (cst.Tuple, cst.List)) else [axis]
    if not all(isinstance(one, cst.Integer) and one.evaluated_value > 0 for one in each):
        raise IllegalSite(f"line {at.line}: that no rows are reduced does not show")


# --- rewriting --------------------------------------------------------------------------------------


class _Rewriting:
    """`even`: with an assertion that every group of iterations is a whole one."""

    def __init__(self, code: KernelCode, plan: _Plan, even: bool) -> None:
        self._code, self._plan, self._even = code, plan, even
        self._used: set[str] = set()
        self._group = self._fresh(f"{plan.loop.variable}_group")
        self._taken = self._fresh("taken")
        """How many iterations a group has, where that is not always the same."""
        self._asserted: dict[str, int] = {}
        self._shared: dict[str, str] = {}
        """What the tiles of shared rows are called, by those that have them once."""

    def module(self) -> cst.Module:
        plan, loop = self._plan, self._plan.loop
        times = number(plan.at_once) if self._even else Polynomial({(self._taken,): 1})
        iterations = Iterations(loop.variable, number(plan.at_once) * Polynomial({(self._group,): 1}), times)
        rows = number(plan.height) * times
        self._shared = {name: self._fresh(f"{name}_rows") for name in plan.shared}
        changes: dict[cst.CSTNode, cst.CSTNode] = {}
        for size in plan.shapes:
            changes[size] = parsed_expression(str(rows))
        for statement in loop.walk():
            if statement.kind is Kind.ALLOCATE and statement.binds & (plan.products.moving | plan.products.sums):
                changes |= plan.products.allocation(statement, rows)
        for operand in plan.operands:
            changes[operand.node] = parsed_expression(self._text(operand, iterations, rows))
        assert isinstance(loop.node, cst.For) and isinstance(loop.node.body, cst.IndentedBlock)
        body = replace_nodes(_with_others(loop.node.body, self._others(iterations, rows)), changes)
        for row in plan.shared.values():
            if not row.source.rank_is_known:
                self._asserted[row.source.name] = len(row.source.dims)
        first = [
            line
            for name, row in plan.shared.items()
            for line in row.on_partitions(self._code, plan.reader, self._shared[name], iterations)
        ]
        return self._around(body, first, str(number(plan.at_once)))

    def _others(self, iterations: Iterations, rows: Polynomial) -> dict[cst.BaseStatement, list[cst.BaseStatement]]:
        """What stands in place of statements that go, or to which others are added."""
        plan, products = self._plan, self._plan.products
        found: dict[cst.BaseStatement, list[cst.BaseStatement]] = {each.node: [] for each in plan.gone}
        why = "every iteration must store to a part of its own"
        for statement, conditions in plan.needed.items():
            asserted = [parsed_statement(f'assert {each}, "{why}"') for each in conditions]
            found[statement.node] = [*asserted, statement.node]
        for product in products.found:
            access = plan.reader.access(product.dst, product.at)
            found[product.at.node] = products.multiplied(product, iterations, _whole(access, rows), self._fresh)
            cleared = products.cleared(product)
            if cleared and product.top is product.at:
                found[product.at.node][:0] = cleared
            elif cleared:
                found[product.top.node] = [*cleared, product.top.node]
        return found

    def _fresh(self, wanted: str) -> str:
        """Also when it is asked for several times."""
        name, again = wanted, 2
        while name in self._used or name in self._code.all_names:
            name, again = f"{wanted}{again}", again + 1
        self._used.add(name)
        return name

    def _text(self, operand: _Operand, iterations: Iterations, rows: Polynomial) -> str:
        access = operand.access
        if isinstance(access, Pattern):
            return access.merged(iterations)
        if not access.on_chip:
            return self._in_memory(operand, access, iterations)
        if operand.moves:
            dims = (Dim(number(0), rows), *access.dims)
            return replace(access, sizes=(rows, *access.sizes), dims=dims).text
        return _whole(replace(access, name=self._shared.get(access.name, access.name)), rows)

    def _in_memory(self, operand: _Operand, access: Access, iterations: Iterations) -> str:
        """The same part for all iterations, one after the other. Raises IllegalSite."""
        reader, at = self._plan.reader, operand.at
        whole = reader.one_interval(access, iterations, at)
        if whole is not None and all(each == ONE for each in whole.before):
            (place,) = access.moving(iterations.variable)
            if reader.full.expanded(access.dims[place].length, at) == number(self._plan.height):
                return whole.text
        if self._plan.height > 1:
            raise IllegalSite(f"line {at.line}: the rows of {access.name} do not follow one another")
        if not access.rank_is_known:
            self._asserted[access.name] = len(access.dims)
        return reader.one_pattern(squeezed(access), iterations, 0, at).text

    def _around(self, body: cst.CSTNode, first: Sequence[cst.BaseStatement], at_once: str) -> cst.Module:
        """The loop over groups with that body, in place of the loop."""
        code, loop = self._code, self._plan.loop
        assert isinstance(loop.node, cst.For) and isinstance(body, cst.IndentedBlock) and loop.count is not None
        count = as_factor(code.module.code_for_node(loop.count))
        lines = [
            f'assert len({name}.shape) == {rank}, "{name} must have {rank} dimensions"'
            for name, rank in sorted(self._asserted.items())
        ]
        lines += [f'assert {each}, "{why}"' for each, why in self._plan.reader.assumed.items()]
        if self._even:
            why = f"{at_once} iterations over {loop.variable} at a time must come out even"
            lines.append(f'assert {count} % {at_once} == 0, "{why}"')
            groups = f"{count} // {at_once}"
            body = body.with_changes(body=[*first, *body.body])
        else:
            left = f"{count} - {at_once} * {self._group}"
            taken = parsed_statement(f"{self._taken} = min({at_once}, {left})")
            body = body.with_changes(body=[taken, *first, *body.body])
            groups = f"({count} + {int(at_once) - 1}) // {at_once}"
        ranged = replace_nodes(loop.node.iter, {loop.count: parsed_expression(groups)})
        grouped = loop.node.with_changes(target=cst.Name(self._group), iter=ranged, body=body, leading_lines=())
        made: list[cst.CSTNode] = [*map(parsed_statement, lines), grouped]
        made[0] = made[0].with_changes(leading_lines=loop.node.leading_lines)
        parent = loop.block.node
        at = list(parent.body).index(loop.node)
        return code.changed({parent: parent.with_changes(body=[*parent.body[:at], *made, *parent.body[at + 1 :]])})


def _whole(access: Access, rows: Polynomial) -> str:
    dims = (Dim(number(0), rows), *access.dims[1:])
    return replace(access, sizes=(rows, *access.sizes[1:]), dims=dims).text


def _with_others(
    block: cst.IndentedBlock, others: Mapping[cst.BaseStatement, Sequence[cst.BaseStatement]]
) -> cst.IndentedBlock:
    """The block with other statements in place of some; what is not in their place stays the same nodes."""
    body: list[cst.BaseStatement] = []
    for child in block.body:
        made = list(others.get(child, [child]))
        if made and child in others:
            first, *rest = made
            lines = getattr(child, "leading_lines", ())
            rest = [each.with_changes(leading_lines=()) if each is child else each for each in rest]
            made = [first.with_changes(leading_lines=lines), *rest]
        for each in made:
            if isinstance(each, cst.For) and isinstance(each.body, cst.IndentedBlock):
                each = each.with_changes(body=_with_others(each.body, others))
            body.append(each)
    return block.with_changes(body=body or [parsed_statement("pass")])
