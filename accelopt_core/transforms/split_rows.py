"""Work on whole images some rows at a time, so that transfers and engines overlap.

    dma_copy(dst=t, src=x)                         for part in range(4):
    tensor_reduce(dst=s, op=add,                       dma_copy(dst=t[0:C, 24 * part : ...], src=x[...])
                  data=windows(t), axis=(3, 4)) -> for part2 in range(4):
    dma_copy(dst=out, src=s)                           tensor_reduce(dst=s[0:C, 8 * part2 : ...], data=windows(t, ...))
                                                       dma_copy(dst=out[...], src=s[0:C, 8 * part2 : ...])

Tiles stay what they are. Rows are the first dimension behind the partitions, also of an access pattern. Every
instruction does the same rows as before, in the same order; only whole parts change places, and only where a later part
of an earlier instruction touches nothing that an earlier part of a later one does. First come the loads, all of them:
a stencil may look beyond its own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import libcst as cst

from accelopt_core.transforms.base import IllegalSite, NotOfItsKind
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.isa_effects import WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement
from accelopt_core.transforms.loop_sites import as_factor
from accelopt_core.transforms.merged_loop import MERGEABLE
from accelopt_core.transforms.operand_access import ONE, arguments_of
from accelopt_core.transforms.part_by_part import PartByPart
from accelopt_core.transforms.row_operands import RowReader, Rows
from accelopt_core.transforms.syntax import content_names, parsed_expression, parsed_statement, replace_nodes

PARTS = (2, 3, 4, 8)
APART = "apart"


@dataclass(frozen=True)
class _Operand:
    node: cst.BaseExpression
    at: Statement
    rows: Rows
    is_written: bool
    dimensions: int
    """Of the element that it has for every element of `dst`: without those that are reduced."""


@dataclass
class _Unit:
    """One instruction of the block, or a loop of it with nothing but such instructions."""

    statement: Statement
    operands: list[_Operand]
    whole: tuple[cst.BaseExpression, ...] = ()
    """What it needs of every row: one value for each partition."""

    @property
    def is_load(self) -> bool:
        """From HBM to a tile."""
        return self.statement.operation == "dma_copy" and [o.rows.on_chip for o in self.operands] == [True, False]

    @property
    def is_image(self) -> bool:
        return any(operand.rows.dimensions > 2 for operand in self.operands)


@dataclass
class _Run:
    block: Block
    units: list[_Unit] = field(default_factory=list)
    before: list[Statement] = field(default_factory=list)
    """Allocations and definitions that stand between, and can come first."""

    @property
    def instructions(self) -> list[Statement]:
        return [unit.statement for unit in self.units]

    @property
    def tile(self) -> str:
        return self.operands[0].rows.name

    @property
    def operands(self) -> list[_Operand]:
        return [operand for unit in self.units for operand in unit.operands]

    @property
    def lines(self) -> list[int]:
        return [each.line for unit in self.units for each in unit.statement.walk()]


@dataclass
class _Group:
    """Units whose parts take turns, and what must hold for it beside what the text shows."""

    units: list[_Unit]
    conditions: list[tuple[_Operand, _Operand]] = field(default_factory=list)
    stays_whole: bool = False

    @property
    def operands(self) -> list[_Operand]:
        return [operand for unit in self.units for operand in unit.operands]


class SplitRows(PartByPart[_Run]):
    name = "split-rows"
    parts = PARTS
    of = "rows"
    said = MappingProxyType({"": "", APART: ", each instruction by itself"})
    why_legal = (
        "every instruction does the same rows in the same order, and no part needs what a later one has yet to write"
    )
    why_faster = "some rows are loaded or stored while others are computed"

    def describe(self) -> str:
        return (
            "Do work on tiles of several rows per partition (pooling, stencils) some rows at a time, so that rows are "
            "loaded while others are computed."
        )

    def runs(self, code: KernelCode, block: Block) -> Iterator[_Run]:
        """With a transfer and a tile of several rows in it."""
        for run in _runs_of(code, block):
            transfers = [unit for unit in run.units if unit.statement.operation == "dma_copy"]
            if len(run.units) > 1 and transfers and any(unit.is_image for unit in run.units):
                yield run

    def ways(self, code: KernelCode, run: _Run, parts: int) -> Sequence[str]:
        """Together, and apart where that makes more groups."""
        _check(code, run, parts)
        together, each = _groups(code, run, False), _groups(code, run, True)
        return ("", APART) if len(together) < len(each) else ("",)

    def rewritten(self, code: KernelCode, run: _Run, parts: int, way: str) -> cst.Module:
        return _Rewriting(code, run, parts).module(_groups(code, run, way == APART))


# --- what can be done row by row --------------------------------------------------------------------


def _runs_of(code: KernelCode, block: Block) -> Iterator[_Run]:
    reader = RowReader(code)
    run = _Run(block)
    for statement in block.statements:
        if statement.kind in (Kind.ALLOCATE, Kind.DEFINE) and run.units:
            once = all(len(code.bindings(name)) + (name in code.parameters) == 1 for name in statement.binds)
            counted = frozenset(each.variable for unit in run.units for each in unit.statement.walk())
            if once and not statement.uses & counted:
                run.before.append(statement)
                continue
        unit = _unit(reader, statement)
        if unit is not None:
            run.units.append(unit)
        elif run.units:
            yield _without_the_rest(run)
            run = _Run(block)
    if run.units:
        yield _without_the_rest(run)


def _without_the_rest(run: _Run) -> _Run:
    """What stands after the last instruction stays there."""
    last = run.units[-1].statement.line
    return _Run(run.block, run.units, [each for each in run.before if each.line < last])


def _unit(reader: RowReader, statement: Statement) -> _Unit | None:
    if statement.kind is Kind.INSTRUCTION:
        return _instruction(reader, statement)
    if statement.kind is not Kind.LOOP or statement.body is None or statement.leaves or not statement.variable:
        return None
    inside = [each for each in statement.walk() if each is not statement]
    if any(each.kind not in (Kind.INSTRUCTION, Kind.LOOP, Kind.CHECK) for each in inside):
        return None
    units = [_instruction(reader, each) for each in inside if each.kind is Kind.INSTRUCTION]
    found = [each for each in units if each is not None]
    if not found or len(found) < len(units) or any(each.statement.operation == "dma_copy" for each in found):
        return None
    variables = frozenset(each.variable for each in statement.walk() if each.kind is Kind.LOOP)
    operands = []
    for operand in (operand for each in found for operand in each.operands):
        if reader.names(operand.rows.count, operand.at) & variables:
            return None  # how many rows there are changes with the loop
        begins = reader.names(operand.rows.begin, operand.at) if operand.rows.begin is not None else variables
        moves = begins & variables
        operands.append(replace(operand, rows=replace(operand.rows, place=())) if moves else operand)
    return _Unit(statement, operands, tuple(node for each in found for node in each.whole))


def _instruction(reader: RowReader, statement: Statement) -> _Unit | None:
    """None where it does not treat rows alone, or the text does not show which."""
    roles = MERGEABLE.get(statement.operation)
    if roles is None or statement.stateful:
        return None
    try:
        given = arguments_of(statement)
        if set(roles.not_with) & set(given):
            return None
        operands = []
        for keyword in roles.tiles:
            rows = reader.rows(given[keyword], statement)
            dimensions = rows.dimensions
            if statement.operation == "tensor_reduce" and keyword == "data":
                dimensions = _left(given["axis"], dimensions)
            written = keyword in WRITTEN_ARGUMENTS[statement.operation]
            operands.append(_Operand(given[keyword], statement, rows, written, dimensions))
    except (IllegalSite, KeyError):
        return None
    if statement.operation == "dma_copy" and not _same_partitions(reader, operands):
        return None
    return _Unit(statement, operands, tuple(given[each] for each in roles.per_partition if each in given))


def _left(axis: cst.BaseExpression, dimensions: int) -> int:
    """Dimensions of a sum, of which the rows must be one. Raises IllegalSite."""
    each = [element.value for element in axis.elements] if isinstance(axis, (cst.Tuple, cst.List)) else [axis]
    if not all(isinstance(one, cst.Integer) for one in each):
        raise IllegalSite("which dimensions are reduced does not show")
    axes = {one.evaluated_value for one in each if isinstance(one, cst.Integer)}
    if axes != set(range(dimensions - len(axes), dimensions)) or min(axes) < 2:
        raise IllegalSite("the rows are reduced")
    return dimensions - len(axes)


def _same_partitions(reader: RowReader, operands: Sequence[_Operand]) -> bool:
    """A transfer pairs elements in their order; row by row it does only where the first dimensions agree."""
    first, *others = operands
    return all(reader.same(first.rows.partitions, each.rows.partitions, each.at) for each in others)


# --- legality ---------------------------------------------------------------------------------------


def _check(code: KernelCode, run: _Run, parts: int) -> None:
    """What holds whatever takes turns with what. Raises IllegalSite."""
    if not all(map(code.is_pythons_own, ("min", "range"))):
        raise IllegalSite("the kernel gives min or range another meaning")
    for group in _groups(code, run, True):
        for operand in () if group.stays_whole else group.operands:
            rows = operand.rows.count.value
            if rows is not None and rows < parts:
                raise NotOfItsKind(f"line {operand.at.line}: {rows} rows have no {parts} parts")
    written: dict[str, list[_Operand]] = {}
    for operand in run.operands:
        for root in _roots(code, operand):
            written.setdefault(root, []).append(operand)
    changed = {root for root, users in written.items() if any(user.is_written for user in users)}
    after = run.units[len(_first(run)) :]
    in_parts = {root for unit in after for o in unit.operands if o.is_written for root in _roots(code, o)}
    for unit in run.units:
        for node in unit.whole:
            needed = code.roots_of(content_names(node)) & in_parts
            if needed:
                raise IllegalSite(f"line {unit.statement.line} needs every row of {', '.join(sorted(needed))}")
    for root in sorted(changed):
        users = written[root]
        if root in code.captured:
            raise IllegalSite(f"{root} is used by a nested function or declared global")
        if any(user.rows.name != root for user in users):
            raise IllegalSite(f"{root} is written, and touched by another name")
        if not users[0].rows.on_chip and len(users) > 1:
            raise IllegalSite(f"{root}, which is written, is touched more than once, and lies in HBM")
    for statement in run.before:
        if statement.binds & code.captured:
            raise IllegalSite(f"line {statement.line} binds a name that a nested function uses")


def _roots(code: KernelCode, operand: _Operand) -> frozenset[str]:
    return code.roots_of(frozenset({operand.rows.name}))


def _groups(code: KernelCode, run: _Run, apart: bool) -> list[_Group]:
    """What comes first by itself, then all others; `apart`: a new group where the text does not show that parts may
    take turns, or that rows are as many. Raises IllegalSite."""
    reader = RowReader(code)
    first = _first(run)
    images = {operand.rows.name for operand in run.operands if operand.rows.dimensions > 2}
    groups = []
    for unit in first:
        filled = unit.operands[0].rows.name
        groups.append(_Group([unit], stays_whole=not unit.is_load or filled not in images))
    current: _Group | None = None
    for unit in run.units[len(first) :]:
        own = _conditions(unit, unit)
        shared = [pair for other in (current.units if current is not None else ()) for pair in _conditions(other, unit)]
        for pair in (*own, *shared):
            if any(operand.at.block is not run.block for operand in pair):
                raise IllegalSite(
                    f"line {pair[1].at.line}: {pair[1].rows.name} is written, and touched at other rows, in a loop"
                )
        if current is None or (apart and (shared or not _counts_alike(reader, current.operands, unit.operands))):
            current = _Group([unit], own)
            groups.append(current)
        else:
            current.units.append(unit)
            current.conditions += [*shared, *own]
    return groups


def _counts_alike(reader: RowReader, operands: Sequence[_Operand], others: Sequence[_Operand]) -> bool:
    return any(reader.same(a.rows.count, b.rows.count, b.at) for a in operands for b in others)


def _first(run: _Run) -> list[_Unit]:
    """Loads and fillings with a number, up to anything else."""
    found = []
    for unit in run.units:
        if not unit.is_load and unit.statement.operation != "memset":
            break
        found.append(unit)
    return found


def _conditions(earlier: _Unit, later: _Unit) -> list[tuple[_Operand, _Operand]]:
    """Pairs (a, b) for which a later part of a must lie behind an earlier part of b, and the text does not show it."""
    found = []
    in_loop = earlier is later and earlier.statement.kind is Kind.LOOP
    for a in earlier.operands:
        for b in later.operands:
            if a.rows.name != b.rows.name or not (a.is_written or b.is_written):
                continue
            if a.rows.place and a.rows.place == b.rows.place:
                continue
            if earlier is later and not in_loop and not (b.is_written and not a.is_written):
                continue  # within one instruction: what it reads later must not have been written by its earlier parts
            found.append((a, b))
    return found


# --- rewriting --------------------------------------------------------------------------------------


class _Rewriting:
    def __init__(self, code: KernelCode, run: _Run, parts: int) -> None:
        self._code, self._run, self._parts = code, run, parts
        self._reader = RowReader(code)
        self._taken = set(code.all_names)
        self._first: _Group | None = None

    def module(self, groups: Sequence[_Group]) -> cst.Module:
        run = self._run
        self._first = groups[0]
        around: list[cst.CSTNode] = [statement.node for statement in run.before]
        for group in groups:
            around += self._group(group)
        first = run.units[0].statement.node
        leading = [line for line in getattr(around[0], "leading_lines", ()) if line.comment is not None]
        around[0] = around[0].with_changes(leading_lines=[*getattr(first, "leading_lines", ()), *leading])
        gone = {unit.statement.node for unit in run.units} | {statement.node for statement in run.before}
        block = run.block.node
        body: list[cst.CSTNode] = []
        for child in block.body:
            if child is first:
                body += around
            elif child not in gone:
                body.append(child)
        return self._code.changed({block: block.with_changes(body=body)})

    def _group(self, group: _Group) -> list[cst.CSTNode]:
        if group.stays_whole:
            return [_with_comments(group.units[0].statement.node, group is self._first)]
        lines: list[str] = []
        widths, counted = self._widths(group, lines)
        needed = sorted({each for pair in group.conditions for operand in pair for each in operand.rows.needs})
        for condition in (*needed, *self._turns(group, widths)):
            line = f'assert {condition}, "a part must need nothing of the next one"'
            if line not in lines:
                lines.append(line)
        part = self._fresh("part")
        at = Polynomial({(part,): 1})
        times, lengths, inner = str(self._parts), widths, []
        if counted is not None:  # of all alike, and perhaps not even
            width = widths[str(counted)]
            last = self._fresh("length")
            inner = [f"{last} = min({width}, {counted - at * width})"]
            lengths = dict.fromkeys(widths, Polynomial({(last,): 1}))
            times = f"({counted + width - ONE}) // {as_factor(str(width))}"
        texts: dict[cst.CSTNode, cst.CSTNode] = {}
        for operand in group.operands:
            count = str(operand.rows.count)
            texts[operand.node] = parsed_expression(operand.rows.taken(at * widths[count], lengths[count]))
        body: list[cst.CSTNode] = [parsed_statement(line) for line in inner]
        for unit in group.units:
            node = replace_nodes(unit.statement.node, texts)
            body.append(_with_comments(node, group is self._first and unit is group.units[0]))
        loop = parsed_statement(f"for {part} in range({times}):\n    pass\n")
        assert isinstance(loop, cst.For) and isinstance(loop.body, cst.IndentedBlock)
        made: list[cst.CSTNode] = [parsed_statement(line) for line in lines]
        return [*made, loop.with_changes(body=loop.body.with_changes(body=body))]

    def _widths(self, group: _Group, lines: list[str]) -> tuple[dict[str, Polynomial], Polynomial | None]:
        """Rows of a part, by how many there are; and how many, where all count them alike and it may not come out even.

        The operands of an instruction with as many dimensions have as many rows, which is asserted where it does not
        show. Where a row of one is several rows of another, all must come out even.
        """
        alike: list[list[Polynomial]] = []
        for instruction in _by_instruction(group.operands):
            counts = [operand.rows.count for operand in instruction]
            one = len({operand.dimensions for operand in instruction}) == 1
            first = counts[0]
            for count in counts[1:]:
                if one and not self._reader.same(first, count, instruction[0].at):
                    line = f'assert {count} == {first}, "both must have as many rows"'
                    lines += [line] if line not in lines else []
            for together in [counts] if one else [[count] for count in counts]:
                joined = [each for each in alike if self._meet(each, together, instruction[0].at)]
                alike = [each for each in alike if each not in joined]
                alike.append([count for each in joined for count in each] + together)
        widths: dict[str, Polynomial] = {}
        for counts in alike:
            count = next((each for each in counts if each.value is not None), counts[0])
            if count.value is not None and count.value % self._parts == 0:
                width = number(count.value // self._parts)
            else:
                over = count if len(alike) > 1 else count + number(self._parts - 1)
                if len(alike) > 1:
                    wanted = f"{as_factor(str(count))} % {self._parts} == 0"
                    lines.append(f'assert {wanted}, "{self._parts} parts of the rows must come out even"')
                name = self._fresh("rows")
                lines.append(f"{name} = {as_factor(str(over))} // {self._parts}")
                width = Polynomial({(name,): 1})
            widths |= dict.fromkeys(map(str, counts), width)
        (all_alike, *others) = alike
        count = next((each for each in all_alike if each.value is not None), all_alike[0])
        even = others or (count.value is not None and count.value % self._parts == 0)
        return widths, None if even else count

    def _meet(self, left: list[Polynomial], right: list[Polynomial], at: Statement) -> bool:
        return any(self._reader.same(a, b, at) for a in left for b in right)

    def _turns(self, group: _Group, widths: dict[str, Polynomial]) -> Iterator[str]:
        """The first row of a's next part lies behind the last element of b's part, and both move on alike."""
        for a, b in group.conditions:
            mine, other = a.rows, b.rows
            forward, along = widths[str(mine.count)] * mine.stride, widths[str(other.count)] * other.stride
            if forward != along:
                yield f"{forward} == {along}"
            reach = other.offset + along - other.stride + other.extent
            yield f"{mine.offset + forward} > {reach}"

    def _fresh(self, wanted: str) -> str:
        name, again = wanted, 2
        while name in self._taken:
            name, again = f"{wanted}{again}", again + 1
        self._taken.add(name)
        return name


def _by_instruction(operands: Sequence[_Operand]) -> list[list[_Operand]]:
    found: dict[Statement, list[_Operand]] = {}
    for operand in operands:
        found.setdefault(operand.at, []).append(operand)
    return list(found.values())


def _with_comments(node: cst.CSTNode, stand_before: bool) -> cst.CSTNode:
    """Without blank lines; without comments, too, where these stand before all of it already."""
    lines = () if stand_before else getattr(node, "leading_lines", ())
    return node.with_changes(leading_lines=[line for line in lines if line.comment is not None])
