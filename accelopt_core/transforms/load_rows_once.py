"""Load every row once where the tiles of a loop are loaded again, some rows further on.

    for h in range(n):                                     rows = []
        a = ndarray((P, W))                                for j in range(n + 1):
        dma_copy(dst=a, src=x[h * P : (h + 1) * P])            row = ndarray((P, W))
        b = ndarray((P, W))                           ->       dma_copy(dst=row, src=x[j : j + (P - 1) * n + 1 : n])
        dma_copy(dst=b, src=x[h * P + 1 : (h + 1) * P + 1])    rows.append(row)
        c = work(a, b)                                     for h in range(n):
        dma_copy(dst=y[h * P : (h + 1) * P], src=c)            c = work(rows[h], rows[h + 1])
                                                               dma_copy(dst=y[h : h + (P - 1) * n + 1 : n], src=c)

Windows of a stencil overlap, and a partition cannot see its neighbour's row. So rows are dealt out: iteration h has the
rows h, h + n, h + 2 n, ... in place of P rows in sequence. What it needs one row further on is then, on the same
partitions, what the next iteration begins with. The last rows may be fewer than P. Loads may stand in loops inside,
over columns or over the rows of a window.
What makes it right: no iteration touches what another one writes, every instruction treats each partition by itself,
and all that is loaded or stored moves on with the rows, in step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, KernelModule, NotOfItsKind, NotPlain, Site
from accelopt_core.transforms.index_algebra import Polynomial, expression_of, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import changing_names, check_independent, check_no_shapes, made_in
from accelopt_core.transforms.loop_sites import lines_of, loop_at
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, arguments_of
from accelopt_core.transforms.rows_on_partitions import EACH_BY_ITSELF, ONE_BY_ONE, check_axes
from accelopt_core.transforms.substitution import substituted
from accelopt_core.transforms.syntax import (
    content_names,
    loaded_names,
    parsed_expression,
    parsed_statement,
    replace_nodes,
)


class LoadRowsOnce:
    name = "load-rows-once"
    addresses = frozenset({Cause.HBM_TRAFFIC, Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING, Cause.START_UP})

    def describe(self) -> str:
        return "Deal rows out to iterations in turn, so that what overlapping windows share is loaded once."

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for place, loop in enumerate(code.loops()):
            key = f"{loop.variable}#{place}"
            try:
                plan = _plan(code, loop)
                _Rewriting(code, plan).module()
            except IllegalSite as error:
                context.refuse(self.name, key, loop.line, error, lines_of(loop))
                continue
            tiles = ", ".join(tile for shared in plan.shared for tile in shared.tiles)
            found.append(
                Site(
                    self.name,
                    key,
                    f"deal rows out to the iterations over {loop.variable} in turn, and load those of {tiles} once",
                    loop.line,
                    f"no iteration over {loop.variable} touches what another writes, and every instruction treats each "
                    "partition by itself",
                    "rows that several tiles have in common come from HBM once",
                )
            )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        return _Rewriting(code, _plan(code, loop_at(code, key, key))).module()


# --- legality ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    node: cst.BaseExpression
    access: Access


@dataclass(frozen=True)
class _Load:
    tile: str
    made: Statement
    at: Statement
    dst: _Operand
    src: _Operand
    first: Polynomial
    """Of the rows that iteration 0 loads, and the first iterations of loops inside."""
    down: Mapping[str, int]
    """Loops inside that go on to further rows: rows an iteration."""
    inside: tuple[Statement, ...]
    """The others, with columns of their own, outermost first."""


@dataclass(frozen=True)
class _Shared:
    """Loads of one tensor that differ by their first rows alone."""

    loads: tuple[_Load, ...]
    further: Mapping[str, int]
    """By tile: rows from the first of all of them."""
    reach: int
    """Rows from the first of an iteration's first load to the first of its last."""
    defined: tuple[Statement, ...]
    """Numbers that these loads are made of, and that the loop, or one inside it, defines."""

    @property
    def tiles(self) -> list[str]:
        return [load.tile for load in self.loads]

    @property
    def least(self) -> _Load:
        return next(load for load in self.loads if self.further[load.tile] == 0)


@dataclass(frozen=True)
class _End:
    """Where the rows of all iterations together end."""

    at: Statement
    what: str
    rows: Polynomial | None
    """None: no bound cuts the last iteration short."""


@dataclass
class _Plan:
    loop: Statement
    reader: AccessReader
    height: Polynomial
    """Rows of each tile."""
    changing: frozenset[str]
    operands: list[_Operand] = field(default_factory=list)
    gone: list[Statement] = field(default_factory=list)
    """Definitions of numbers that say which rows it is."""
    rows: Polynomial | None = None
    """In all, where the last iteration may have fewer than the others."""
    shared: list[_Shared] = field(default_factory=list)
    stored: list[_End] = field(default_factory=list)
    others: list[_End] = field(default_factory=list)
    """Of what is loaded or worked on."""


def _plan(code: KernelCode, loop: Statement) -> _Plan:
    """Raises IllegalSite."""
    inside = [statement for statement in loop.walk() if statement is not loop]
    allocations = [statement for statement in inside if statement.kind is Kind.ALLOCATE]
    if not allocations or loop.count is None:
        raise NotOfItsKind(f"the loop over {loop.variable} makes no tiles, or does not count up from 0")
    changing = changing_names(loop, inside)
    reader = AccessReader(code, loop, changing)
    shared = _loaded_again(code, reader, loop, changing)
    check_independent(code, loop)
    if not (code.is_pythons_own("max") and code.is_pythons_own("range")):
        raise IllegalSite("the kernel gives max or range another meaning")
    height = _height(code, reader, allocations, changing)
    plan = _Plan(loop, reader, height, changing, shared=shared)
    own = made_in(code, inside)
    check_no_shapes(own, loop)
    for statement in inside:
        _check(code, plan, own, statement)
    plan.rows = _rows(plan)
    for each in shared:
        _check_shared(code, plan, each)
    return plan


def _loaded_again(code: KernelCode, reader: AccessReader, loop: Statement, changing: frozenset[str]) -> list[_Shared]:
    """Raises NotOfItsKind where no tile holds rows that another one has too."""
    found: dict[tuple[object, ...], list[_Load]] = defaultdict(list)
    for statement in loop.walk():
        load = _load(code, reader, loop, statement)
        if load is not None:
            assert load.made.call is not None
            given = {name: code.module.code_for_node(value) for name, value in arguments_of(statement).items()}
            more = tuple(sorted((name, text) for name, text in given.items() if name not in ("dst", "src")))
            columns = tuple(map(str, (*load.src.access.dims[1:], None, *load.dst.access.dims[1:])))
            unknown = str(load.first - number(load.first.terms.get((), 0)))
            made = code.module.code_for_node(load.made.call)
            found[load.src.access.name, unknown, columns, more, made, load.inside].append(load)
    shared = []
    for loads in found.values():
        rows = {load.tile: load.first.terms.get((), 0) for load in loads}
        lowest = min(rows.values())
        further = {tile: row - lowest for tile, row in rows.items()}
        reach = max(further[load.tile] + _last_down(reader, loop, load) for load in loads)
        if reach:
            shared.append(_Shared(tuple(loads), further, reach, _defined(loop, loads, changing)))
    if not shared:
        raise NotOfItsKind(f"the loop over {loop.variable} loads no tile again, some rows further on")
    return shared


def _load(code: KernelCode, reader: AccessReader, loop: Statement, at: Statement) -> _Load | None:
    """None for anything else than rows of a tensor that go to a tile of the iteration's own, and nothing else does."""
    around = at.block.loops()
    dst, src = code.argument(at, "dst", 0), code.argument(at, "src", 1)
    if at.operation != "dma_copy" or loop not in around or dst is None or src is None:
        return None
    try:
        into, source = reader.access(dst, at), reader.access(src, at)
    except IllegalSite:
        return None  # told of with all others, where there is a reason to look at them
    made = code.bindings(into.name)
    if not into.on_chip or source.on_chip or len(made) != 1 or made[0].block is not at.block:
        return None
    if code.writers(into.name) != [at] or source.moving(loop.variable) != (0,):
        return None
    first = source.dims[0].start.split(loop.variable)[1]
    down, inside = {}, []
    within = around[around.index(loop) + 1 :]
    variables = frozenset(inner.variable for inner in within)
    if len(variables) < len(within):
        return None  # one hides another
    for inner in within:
        step, rest = first.split(inner.variable)
        if inner.kind is not Kind.LOOP or inner.count is None or step.value is None or step.value < 0:
            return None
        if step.value:
            if reader.full.polynomial(inner.count, inner).value is None:
                return None
            down[inner.variable], first = step.value, rest
        else:
            count = reader.full.polynomial(inner.count, inner)
            if (reader.full.names(count) | loaded_names(inner.count)) & variables:
                return None
            inside.append(inner)
    operands = _Operand(dst, into), _Operand(src, source)
    return _Load(into.name, made[0], at, *operands, first, down, tuple(inside))


def _last_down(reader: AccessReader, loop: Statement, load: _Load) -> int:
    """Rows from its first one to where the last iterations of the loops inside begin."""
    rows = 0
    around = load.at.block.loops()
    for inner in around[around.index(loop) + 1 :]:
        if inner.variable in load.down and inner.count is not None:
            count = reader.full.polynomial(inner.count, inner).value
            assert count is not None
            rows += load.down[inner.variable] * max(0, count - 1)
    return rows


def _defined(loop: Statement, loads: list[_Load], changing: frozenset[str]) -> tuple[Statement, ...]:
    """In their order."""
    statements = [statement for statement in loop.walk() if statement is not loop]
    needed: set[str] = set()
    for load in loads:
        needed |= _names_beside_rows(load)
        needed |= frozenset().union(*(loaded_names(expression_of(factor)) for factor in load.first.factors))
        for inner in load.inside:
            needed |= inner.header_uses
    found: list[Statement] = []
    for statement in reversed(statements):
        if statement.kind is Kind.DEFINE and statement.binds & needed - changing:
            found.append(statement)
            needed |= statement.uses
    return tuple(reversed(found))


def _names_beside_rows(load: _Load) -> frozenset[str]:
    """That its tile and the transfer are made of, but for where its rows begin and end."""
    given = [value for name, value in arguments_of(load.at).items() if name not in ("dst", "src")]
    columns = [names for end in (load.dst.node, load.src.node) for names in _names_of_indices(end)[1:]]
    return load.made.uses.union(*columns, *map(loaded_names, given))


def _height(
    code: KernelCode, reader: AccessReader, allocations: list[Statement], changing: frozenset[str]
) -> Polynomial:
    """Rows that all tiles of the loop have."""
    found = set()
    for statement in allocations:
        (name,) = statement.binds
        sizes = reader.sizes(name)
        if sizes is None or len(sizes) < 2 or statement.region != "sbuf":
            raise IllegalSite(f"line {statement.line}: {name} has no shape that is written out, or is not in SBUF")
        if code.argument(statement, "address") is not None:
            raise IllegalSite(f"{name} has a place of its own (address=)")
        if statement.uses & changing:
            raise IllegalSite(f"what {name} is made with changes with the loop's variable")
        found.add(str(reader.full.expanded(sizes[0], statement)))
        height = sizes[0]
    if len(found) > 1:
        raise IllegalSite("the tiles do not all have the same number of rows")
    return height


def _check(code: KernelCode, plan: _Plan, own: frozenset[str], statement: Statement) -> None:
    """Notes what of a statement changes. Raises IllegalSite."""
    where, variable = f"line {statement.line}", plan.loop.variable
    if statement.kind is Kind.INSTRUCTION:
        _check_instruction(code, plan, own, statement)
    elif statement.kind is Kind.DEFINE:
        if code.roots_of(statement.contents) & (code.buffers | code.parameters):
            raise NotPlain(f"{where} may give part of a buffer a name")
        if statement.binds & plan.changing:
            plan.gone.append(statement)
    elif statement.kind is Kind.LOOP:
        if any(outer.variable == statement.variable for outer in statement.block.loops()):
            raise NotPlain(f"{where}: a loop over {statement.variable} stands in another one")
        if statement.header_uses & plan.changing:
            raise IllegalSite(f"{where}: how long this loop is changes with {variable}")
    elif statement.kind is Kind.CHECK:
        if statement.uses & plan.changing:
            raise IllegalSite(f"{where} checks each iteration by itself")
    elif statement.kind is not Kind.ALLOCATE:
        raise IllegalSite(f"{where} stands in the loop over {variable} ({statement.kind.value})")


def _check_instruction(code: KernelCode, plan: _Plan, own: frozenset[str], statement: Statement) -> None:
    where, given = f"line {statement.line}", arguments_of(statement)
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
        elif roots <= own:
            plan.operands.append(_tile(plan, value, statement))
            tiles += 1
        elif transfers and keyword in ("dst", "src"):
            plan.operands.append(_part(plan, value, statement, plan.stored if keyword == "dst" else plan.others))
        else:
            raise IllegalSite(f"{where} needs {', '.join(sorted(roots - own))} from outside of the loop")
    if not tiles:
        raise IllegalSite(f"{where} works on no tile of the loop")
    if statement.operation == "tensor_reduce":
        check_axes(given["axis"], statement)


def _tile(plan: _Plan, value: cst.BaseExpression, at: Statement) -> _Operand:
    """All rows of a tile of the loop's own that the iteration has, and columns that are the same in every one."""
    access, end = _access(plan, value, at)
    first, *_ = access.dims
    if first.start != number(0) or first.step != ONE or not plan.reader.same(first.length, plan.height, at):
        raise IllegalSite(f"line {at.line} takes some rows of {access.name}")
    if any(names & plan.changing for names in _names_of_indices(value)[1:]):
        raise IllegalSite(f"line {at.line}: which columns of {access.name} it takes changes with {plan.loop.variable}")
    plan.others.append(end)
    return _Operand(value, access)


def _part(plan: _Plan, value: cst.BaseExpression, at: Statement, ends: list[_End]) -> _Operand:
    """As many rows, which follow those of the iteration before."""
    access, end = _access(plan, value, at)
    ends.append(end)
    if access.on_chip:
        raise IllegalSite(f"line {at.line} needs {access.name} from outside of the loop")
    if not access.rank_is_known and len(access.dims) < 2:
        raise IllegalSite(f"line {at.line}: how many dimensions {access.name} has does not show")
    moving = access.moving(plan.loop.variable)
    changing = [names for names in _names_of_indices(value) if names & plan.changing]
    if len(changing) != 1 or len(moving) != 1 or moving[0] != access.kept[0] or access.dims[moving[0]].step != ONE:
        raise IllegalSite(f"line {at.line}: {access.name} does not move on by its rows")
    dim = access.dims[moving[0]]
    step, _ = dim.start.split(plan.loop.variable)
    if not (plan.reader.same(step, plan.height, at) and plan.reader.same(dim.length, plan.height, at)):
        raise IllegalSite(f"line {at.line}: the rows of {access.name} do not follow those of the iteration before")
    return _Operand(value, access)


def _access(plan: _Plan, value: cst.BaseExpression, at: Statement) -> tuple[Access, _End]:
    """Raises IllegalSite where nobody can tell where its rows end."""
    before, starts = len(plan.reader.cuts), plan.reader.cut_starts
    access = plan.reader.access(value, at)
    if plan.reader.cut_starts > starts:
        raise IllegalSite(f"line {at.line}: a bound may move where the rows of {access.name} begin")
    moved = plan.height * Polynomial({(plan.loop.variable,): 1}) + plan.height
    totals = {str(total): total for total in (bound - kept + moved for kept, bound in plan.reader.cuts[before:])}
    if len(totals) > 1:
        raise IllegalSite(f"line {at.line}: the rows of {access.name} end at {' and at '.join(sorted(totals))}")
    return access, _End(at, access.name, next(iter(totals.values()), None))


def _names_of_indices(value: cst.BaseExpression) -> list[frozenset[str]]:
    return [loaded_names(each.slice) for each in value.slice] if isinstance(value, cst.Subscript) else []


def _rows(plan: _Plan) -> Polynomial | None:
    """Rows of all iterations together; None where no bound cuts the last one short. Raises IllegalSite where a store
    ends elsewhere than another one, or something before it."""
    known = {str(end.rows): end.rows for end in plan.stored}
    if len(known) != 1:
        raise IllegalSite(f"the rows that the loop over {plan.loop.variable} stores end at {_said(*known)}")
    (rows,) = known.values()
    for end in plan.others:
        if end.rows is None or end.rows == rows:
            continue
        over = None if rows is None else plan.reader.full.expanded(end.rows - rows, end.at).value
        if over is None or over < 0:
            stored = _said(str(rows))
            raise IllegalSite(
                f"line {end.at.line}: the rows of {end.what} end at {end.rows}, what is stored at {stored}"
            )
    for known_before in () if rows is None else (rows, plan.height):
        if plan.reader.indices.names(known_before) & (plan.loop.binds | plan.changing):
            where = f"is not known before the loop over {plan.loop.variable}"
            raise IllegalSite(f"how many rows there are, {known_before}, {where}")
    return rows


def _said(*ends: str) -> str:
    return " and at ".join("the end of an iteration" if end == "None" else end for end in ends)


def _check_shared(code: KernelCode, plan: _Plan, shared: _Shared) -> None:
    """What the loads are made of has its value before the loop too."""
    name = shared.least.src.access.name
    source = code.roots_of(frozenset({name}))
    if any(code.roots_of(statement.written) & source for statement in plan.loop.walk() if statement.body is None):
        raise IllegalSite(f"the loop over {plan.loop.variable} writes {name}, which it loads")
    blocks = [plan.loop.body, *(inner.body for inner in shared.least.inside)]
    known = plan.changing.union(shared.tiles, *(each.binds for each in shared.defined if each.block in blocks))
    for load in shared.loads:
        known |= frozenset({*load.down, *(inner.variable for inner in load.inside)})
    for statement in (*shared.defined, *(at for load in shared.loads for at in (load.made, load.at))):
        for each in sorted(statement.uses & plan.loop.binds - known):
            raise NotPlain(f"line {statement.line} needs {each}, which the loop over {plan.loop.variable} sets")
    beside = frozenset().union(
        *(_names_beside_rows(load) for load in shared.loads), *(statement.uses for statement in shared.defined)
    )
    for each in sorted(beside & frozenset().union(*(load.down for load in shared.loads))):
        raise IllegalSite(f"{each} counts rows of {name} and says more than which rows they are")


# --- rewriting --------------------------------------------------------------------------------------


class _Rewriting:
    def __init__(self, code: KernelCode, plan: _Plan) -> None:
        self._code, self._plan = code, plan
        self._used: set[str] = set()
        self._taken = self._fresh(f"{plan.loop.variable}_taken")
        self._lists: dict[str, str] = {}
        self._further: dict[str, int] = {}
        self._loads = {load.tile: load for shared in plan.shared for load in shared.loads}
        for shared in plan.shared:
            self._lists |= dict.fromkeys(shared.tiles, self._fresh(f"{shared.least.tile}_rows"))
            self._further |= shared.further
        count = plan.loop.count
        assert count is not None
        self._count = code.module.code_for_node(count)
        self._named: list[cst.BaseStatement] = []
        if not isinstance(count, (cst.Name, cst.Integer)) or self._count in plan.loop.binds:
            name = self._fresh(f"{plan.loop.variable}_turns")
            self._named = [parsed_statement(f"{name} = {self._count}")]
            self._count = name

    def module(self) -> cst.Module:
        plan, loop = self._plan, self._plan.loop
        assert isinstance(loop.node, cst.For) and isinstance(loop.node.body, cst.IndentedBlock)
        rows = plan.height if plan.rows is None else Polynomial({(self._taken,): 1})
        changes: dict[cst.CSTNode, cst.CSTNode] = {
            operand.node: parsed_expression(self._text(operand.access, rows)) for operand in plan.operands
        }
        left_out = {each.node for each in plan.gone}
        for shared in plan.shared:
            left_out |= {statement.node for load in shared.loads for statement in (load.made, load.at)}
        body = replace_nodes(_without(loop.node.body, left_out), changes)
        assert isinstance(body, cst.IndentedBlock)
        if plan.rows is not None:
            taken = parsed_statement(f"{self._taken} = {self._taken_by(loop.variable)}")
            body = body.with_changes(body=[taken, *body.body])
        made: list[cst.BaseStatement] = [*self._named, *map(parsed_statement, self._asserted())]
        for shared in plan.shared:
            made += self._loaded(shared)
        made.append(self._header().with_changes(body=body, leading_lines=()))
        made[0] = made[0].with_changes(leading_lines=loop.node.leading_lines)
        parent = loop.block.node
        at = list(parent.body).index(loop.node)
        around = [*parent.body[:at], *made, *parent.body[at + 1 :]]
        return self._code.changed({parent: parent.with_changes(body=around)})

    def _header(self) -> cst.For:
        loop = self._plan.loop
        assert isinstance(loop.node, cst.For) and loop.count is not None
        counts: dict[cst.CSTNode, cst.CSTNode] = {}
        if self._named:
            counts[loop.count] = parsed_expression(self._count)
        return loop.node.with_changes(iter=replace_nodes(loop.node.iter, counts))

    def _asserted(self) -> list[str]:
        plan, count = self._plan, self._count
        needed = f"0 < {count}"
        if plan.rows is not None:
            needed += f" <= {plan.rows} <= {plan.height * Polynomial({(count,): 1})}"
        lines = [f'assert {needed}, "every iteration over {plan.loop.variable} must have rows"']
        ranks = {each.access.name: len(each.access.dims) for each in plan.operands if not each.access.rank_is_known}
        return lines + [
            f'assert len({name}.shape) == {rank}, "{name} must have {rank} dimensions"'
            for name, rank in sorted(ranks.items())
        ]

    def _taken_by(self, turn: str) -> str:
        """Rows of an iteration, where rows are left over."""
        assert self._plan.rows is not None
        total = self._plan.rows + Polynomial({(self._count,): 1}) - ONE
        return f"({total} - {turn}) // {self._count}"

    def _loaded(self, shared: _Shared) -> list[cst.BaseStatement]:
        """Before the loop: the rows that its iterations take in turn."""
        plan, code, load = self._plan, self._code, shared.least
        listed = self._lists[load.tile]
        turn, row = self._fresh(f"{plan.loop.variable}_row"), self._fresh(load.tile)
        taken = self._fresh(f"{turn}_taken")
        rows = plan.height if plan.rows is None else Polynomial({(taken,): 1})
        assert load.made.call is not None and load.at.call is not None
        texts = {name: code.module.code_for_node(value) for name, value in arguments_of(load.at).items()}
        texts["dst"] = self._in_rows(replace(load.dst.access, name=row), rows)
        texts["src"] = self._dealt_out(load.src.access, rows, load.first + Polynomial({(turn,): 1}))
        given = ", ".join(f"{name}={text}" for name, text in texts.items())
        block = [
            f"{row} = {code.module.code_for_node(load.made.call)}",
            f"{code.module.code_for_node(load.at.call.func)}({given})",
            f"{listed}.append({row})",
        ]
        names: dict[str, cst.BaseExpression] = {}
        for owner in (*reversed(load.inside), plan.loop):
            assert owner.body is not None and owner.count is not None
            defined = [each for each in shared.defined if each.block is owner.body]
            block = [*(_without_comments(code, each) for each in defined), *block]
            for name in sorted(frozenset().union(*(each.binds for each in defined))):
                names[name] = cst.Name(self._fresh(name))
            if owner is plan.loop:
                if plan.rows is not None:  # the first iteration that takes this row has the most rows
                    block.insert(0, f"{taken} = {self._taken_by(f'max(0, {turn} - {shared.reach})')}")
                head = f"for {turn} in range({self._count} + {shared.reach}):"
            else:
                names[owner.variable] = cst.Name(self._fresh(owner.variable))
                head = f"for {owner.variable} in range({code.module.code_for_node(owner.count)}):"
            block = [head, *(f"    {line}" for line in block)]
        loop = substituted(parsed_statement("\n".join(block) + "\n"), names)
        assert isinstance(loop, cst.For)
        return [parsed_statement(f"{listed} = []"), loop]

    def _text(self, access: Access, rows: Polynomial) -> str:
        """Of an operand in the loop."""
        turn = Polynomial({(self._plan.loop.variable,): 1})
        if not access.on_chip:
            (place,) = access.moving(self._plan.loop.variable)
            return self._dealt_out(access, rows, access.dims[place].start.split(self._plan.loop.variable)[1] + turn)
        load = self._loads.get(access.name)
        if load is not None:
            row = turn + number(self._further[load.tile])
            for variable, step in load.down.items():
                row += Polynomial({(variable,): step})
            for inner in load.inside:
                assert inner.count is not None
                count = self._plan.reader.indices.polynomial(inner.count, inner)
                row = row * count + Polynomial({(inner.variable,): 1})
            access = replace(access, name=f"{self._lists[load.tile]}[{row}]")
        return self._in_rows(access, rows)

    def _in_rows(self, access: Access, rows: Polynomial) -> str:
        return replace(access, dims=(Dim(number(0), rows), *access.dims[1:])).text

    def _dealt_out(self, access: Access, rows: Polynomial, first: Polynomial) -> str:
        (place,) = access.moving(self._plan.loop.variable)
        dim = Dim(first, rows, Polynomial({(self._count,): 1}))
        return replace(access, dims=(*access.dims[:place], dim, *access.dims[place + 1 :])).text

    def _fresh(self, wanted: str) -> str:
        """Also when it is asked for several times."""
        name, again = wanted, 2
        while name in self._used or name in self._code.all_names:
            name, again = f"{wanted}{again}", again + 1
        self._used.add(name)
        return name


def _without_comments(code: KernelCode, statement: Statement) -> str:
    """Those above it; they stay where they are."""
    return code.module.code_for_node(statement.node.with_changes(leading_lines=())).strip()


def _without(block: cst.IndentedBlock, left_out: set[cst.BaseStatement]) -> cst.IndentedBlock:
    """What stays is the same nodes."""
    body: list[cst.BaseStatement] = []
    for child in block.body:
        if child in left_out:
            continue
        if isinstance(child, cst.For) and isinstance(child.body, cst.IndentedBlock):
            child = child.with_changes(body=_without(child.body, left_out))
        body.append(child)
    return block.with_changes(body=body or [parsed_statement("pass")])
