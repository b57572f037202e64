"""Do elementwise work on a part of the columns at a time, so that transfers and engines overlap.

    dma_copy(dst=t, src=x[0:P, 0:N])              for part in range(4):
    activation(dst=y, op=exp, data=t)      ->         dma_copy(dst=t, src=x[0:P, part * N // 4 : ...])
    dma_copy(dst=out[0:P, 0:N], src=y)                activation(dst=y, op=exp, data=t)
                                                      dma_copy(dst=out[0:P, part * N // 4 : ...], src=y)

A tile that only this work needs becomes a part's size. What makes it right: every column of what an instruction writes
depends on the same column of its tiles alone, and what is written here is touched here at the same columns only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from accelopt_core.transforms.base import IllegalSite, NotOfItsKind
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.isa_effects import WRITTEN_ARGUMENTS
from accelopt_core.transforms.kernel_code import Block, KernelCode, Kind, Statement
from accelopt_core.transforms.loop_independence import shapes_asked
from accelopt_core.transforms.loop_sites import as_factor
from accelopt_core.transforms.merged_loop import MERGEABLE
from accelopt_core.transforms.operand_access import ONE, Access, AccessReader, Dim, arguments_of
from accelopt_core.transforms.part_by_part import PartByPart
from accelopt_core.transforms.syntax import content_names, parsed_expression, parsed_statement, replace_nodes

COLUMNWISE = {name: roles for name, roles in MERGEABLE.items() if name != "tensor_reduce"}
PARTS = (2, 4, 8)
LEAST_COLUMNS = 64
"""Of a part, where the number shows: shorter rows cost a transfer most of its bandwidth."""


@dataclass(frozen=True)
class _Operand:
    node: cst.BaseExpression
    access: Access
    is_written: bool


@dataclass
class _Run:
    """Statements of one block, one after the other, that can be done part by part."""

    block: Block
    columns: Polynomial
    statements: list[Statement] = field(default_factory=list)
    operands: list[_Operand] = field(default_factory=list)

    @property
    def instructions(self) -> list[Statement]:
        return [statement for statement in self.statements if statement.kind is Kind.INSTRUCTION]

    @property
    def tile(self) -> str:
        return self.operands[0].access.name

    @property
    def lines(self) -> list[int]:
        return [statement.line for statement in self.statements]

    @property
    def moved_before(self) -> list[Statement]:
        return [s for s in self.statements if s.kind is not Kind.INSTRUCTION]


class SplitColumns(PartByPart[_Run]):
    name = "split-columns"
    parts = PARTS
    of = "columns"
    why_legal = (
        "every column depends on the same column alone, and what is written here is touched here at those columns only"
    )
    why_faster = "one part is loaded or stored while another is computed"

    def describe(self) -> str:
        return (
            "Do elementwise work and its transfers on 1/2, 1/4 or 1/8 of the columns at a time, so that one part is "
            "loaded while another is computed."
        )

    def runs(self, code: KernelCode, block: Block) -> Iterator[_Run]:
        """With a transfer in it."""
        for run in _runs_of(code, block):
            operations = [statement.operation for statement in run.instructions]
            if len(operations) > 1 and "dma_copy" in operations:
                yield run

    def ways(self, code: KernelCode, run: _Run, parts: int) -> Sequence[str]:
        _check_parts(run, parts)
        _plan(code, run)
        return ("",)

    def rewritten(self, code: KernelCode, run: _Run, parts: int, way: str) -> cst.Module:
        return _rewritten(code, run, parts, _plan(code, run))


# --- legality ---------------------------------------------------------------------------------------


def _runs_of(code: KernelCode, block: Block) -> Iterator[_Run]:
    reader = AccessReader(code)
    run: _Run | None = None
    for statement in block.statements:
        if statement.kind in (Kind.ALLOCATE, Kind.DEFINE) and _can_come_first(code, run, statement):
            if run is not None:
                run.statements.append(statement)
            continue
        operands = _operands(reader, statement)
        columns = operands[0].access.dims[-1].length if operands else None
        if run is not None and run.columns != columns:
            yield _without_the_rest(run)
            run = None
        if columns is not None:
            run = run or _Run(block, columns)
            run.statements.append(statement)
            run.operands += operands
    if run is not None:
        yield _without_the_rest(run)


def _without_the_rest(run: _Run) -> _Run:
    """What stands after the last instruction stays there."""
    last = run.statements.index(run.instructions[-1])
    return replace(run, statements=run.statements[: last + 1])


def _can_come_first(code: KernelCode, run: _Run | None, statement: Statement) -> bool:
    """Before the whole run: it needs nothing that is made within."""
    if run is None:
        return True
    if any(len(code.bindings(name)) > 1 for name in statement.binds):
        return False  # what comes earlier may mean another value of the name
    made = frozenset[str]().union(*(s.binds for s in run.statements if s.kind is not Kind.INSTRUCTION))
    return statement.kind is Kind.ALLOCATE or not code.roots_of(statement.uses) & made


def _operands(reader: AccessReader, statement: Statement) -> list[_Operand]:
    """Of an instruction that treats columns alone, `dst` first; empty for anything else."""
    roles = COLUMNWISE.get(statement.operation) if statement.kind is Kind.INSTRUCTION else None
    if roles is None or statement.stateful:
        return []
    try:
        given = arguments_of(statement)
        if set(roles.not_with) & set(given):
            return []
        found = []
        for keyword in roles.tiles:
            access = reader.access(given[keyword], statement)
            last = access.dims[-1]
            if last.dropped or last.step != ONE or len(access.kept) < 2:
                return []
            found.append(_Operand(given[keyword], access, keyword in WRITTEN_ARGUMENTS[statement.operation]))
    except (IllegalSite, KeyError):
        return []
    length = found[0].access.dims[-1].length
    return found if all(operand.access.dims[-1].length == length for operand in found) else []


def _check_parts(run: _Run, parts: int) -> None:
    columns = run.columns.value
    if columns is not None and (columns % parts or columns // parts < LEAST_COLUMNS):
        raise NotOfItsKind(f"{columns} columns have no {parts} parts of {LEAST_COLUMNS} or more")


def _plan(code: KernelCode, run: _Run) -> dict[str, Statement]:
    """The tiles that become a part's size, by name, with their allocations. Raises IllegalSite."""
    written = {root for operand in run.operands if operand.is_written for root in _roots(code, operand)}
    touched: dict[str, _Operand] = {}
    for operand in run.operands:
        for root in _roots(code, operand):
            other = touched.setdefault(root, operand)
            mine, its = operand.access, other.access
            if root in written and (mine.name != its.name or mine.dims[-1] != its.dims[-1]):
                raise IllegalSite(f"{root} is written, and touched at other columns or by another name")
    for statement in run.instructions:
        given = arguments_of(statement)
        for keyword in COLUMNWISE[statement.operation].per_partition:
            needed = code.roots_of(content_names(given[keyword])) if keyword in given else frozenset()
            if needed & written:
                raise IllegalSite(f"line {statement.line} needs the whole of {', '.join(sorted(needed & written))}")
    for name in sorted(written):
        if name in code.captured:
            raise IllegalSite(f"{name} is used by a nested function or declared global")
    for statement in run.statements:
        if statement.kind is Kind.DEFINE and statement.binds & code.captured:
            raise IllegalSite(f"line {statement.line} binds a name that a nested function uses")
    return _own_tiles(code, run)


def _roots(code: KernelCode, operand: _Operand) -> frozenset[str]:
    return code.roots_of(frozenset({operand.access.name}))


def _own_tiles(code: KernelCode, run: _Run) -> dict[str, Statement]:
    """Made in this block, of these columns, and used nowhere else."""
    inside = {id(statement) for statement in run.instructions}
    asked = {name for _, name in shapes_asked(code.function)}
    found = {}
    for operand in run.operands:
        access = operand.access
        if access.name in asked:
            continue  # its size is a number that something else is made of
        whole = access.dims[-1] == Dim(number(0), access.sizes[-1]) and access.sizes[-1] == run.columns
        made = code.bindings(access.name)
        if not (whole and access.is_buffer and access.on_chip) or len(made) != 1 or made[0].kind is not Kind.ALLOCATE:
            continue
        users = [s for s in code.statements() if access.name in s.own_uses and s is not made[0]]
        if made[0].block is run.block and all(id(user) in inside for user in users):
            found[access.name] = made[0]
    return found


# --- rewriting --------------------------------------------------------------------------------------


def _rewritten(code: KernelCode, run: _Run, parts: int, own: dict[str, Statement]) -> cst.Module:
    part, width = code.fresh_name("part"), code.fresh_name("columns")
    wide = Polynomial({(width,): 1})
    at = Polynomial({tuple(sorted((part, width))): 1})
    texts: dict[cst.CSTNode, cst.CSTNode] = {}
    for operand in run.operands:
        access = operand.access
        if access.name in own:
            sizes, last = (*access.sizes[:-1], wide), Dim(number(0), wide)
        else:
            sizes, last = access.sizes, Dim(access.dims[-1].start + at, wide)
        text = replace(access, sizes=sizes, dims=(*access.dims[:-1], last)).text
        texts[operand.node] = parsed_expression(text)
    for allocation in own.values():
        shape = code.argument(allocation, "shape", 0)
        assert isinstance(shape, (cst.Tuple, cst.List))
        texts[shape.elements[-1].value] = cst.Name(width)
    earlier = [allocation for allocation in own.values() if allocation not in run.statements]
    inside = [s for s in run.statements if s.kind is Kind.INSTRUCTION or s in own.values()]
    body = [replace_nodes(statement.node, texts) for statement in (*earlier, *inside)]
    body[0] = _without_blank_lines(body[0])
    first = run.statements[0]
    loop = parsed_statement(f"for {part} in range({parts}):\n    pass\n")
    assert isinstance(loop, cst.For) and isinstance(loop.body, cst.IndentedBlock)
    before = [s.node for s in run.moved_before if s not in own.values()]
    around = [*before, *_stated(run, parts, width), loop.with_changes(body=loop.body.with_changes(body=body))]
    gone = {s.node for s in (*run.statements, *own.values())}
    block = run.block.node
    new: list[cst.CSTNode] = []
    for child in block.body:
        if child is first.node:
            new += around
        elif child not in gone:
            new.append(child)
    return code.changed({block: block.with_changes(body=new)})


def _without_blank_lines(node: cst.CSTNode) -> cst.CSTNode:
    comments = [line for line in getattr(node, "leading_lines", ()) if line.comment is not None]
    return node.with_changes(leading_lines=comments)


def _stated(run: _Run, parts: int, width: str) -> Sequence[cst.BaseStatement]:
    """How wide a part is, and what that rests on."""
    columns = as_factor(str(run.columns))
    ranks = {o.access.name: len(o.access.dims) for o in run.operands if not o.access.rank_is_known}
    lines = [
        f'assert len({name}.shape) == {rank}, "{name} must have {rank} dimensions"' for name, rank in ranks.items()
    ]
    if run.columns.value is None:
        lines.append(f'assert {columns} % {parts} == 0, "{parts} parts of the columns must come out even"')
    lines.append(f"{width} = {columns} // {parts}")
    return [parsed_statement(line) for line in lines]
