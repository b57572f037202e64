"""Move the columns of several iterations at once, so that rows of a transfer are longer and transfers fewer.

    for n in range(N):                            for n_wide in range(N // 4):
        a = ndarray((128, W))                         a_wide = ndarray((128, 4 * W))
        dma_copy(a, x[:, n * W : ...])                dma_copy(a_wide, x[:, 4 * n_wide * W : ...])
        b = ndarray((128, W))                         b_wide = ndarray((128, 4 * W))
        work(b, a)                       ->           for j in range(4):
        dma_copy(out[:, n * W : ...], b)                  work(b_wide[:, j * W : ...], a_wide[:, j * W : ...])
                                                      dma_copy(out[:, 4 * n_wide * W : ...], b_wide)

Iterations keep their order; only loads come earlier and stores later. Instructions work on the same
columns as before, so what limits them (512 columns of PSUM, say) does not stand in the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotOfItsKind,
    NotPlain,
    Site,
)
from accelopt_core.transforms.index_algebra import Indices
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement, read_kernel
from accelopt_core.transforms.loop_independence import changing_names, read_by
from accelopt_core.transforms.loop_sites import as_factor, lines_of, loop_and_factor, several_at_a_time
from accelopt_core.transforms.operand_access import AccessReader
from accelopt_core.transforms.plain_names import begins_anew, made_once
from accelopt_core.transforms.syntax import loaded_names, name_nodes, parsed_expression, parsed_statement, replace_nodes

FACTORS = (2, 4)
_HBM = {"hbm", "shared_hbm", "private_hbm"}


@dataclass(frozen=True)
class _Transfer:
    """A tile whose columns follow one another from iteration to iteration, in HBM."""

    tile: str
    allocation: Statement
    statement: Statement
    """The dma_copy that moves all of it."""
    is_load: bool
    partitions: str
    columns: str
    lower: cst.BaseExpression
    """First column in HBM, an expression in the loop's variable."""
    upper: cst.BaseExpression
    uses: tuple[cst.Name, ...]
    """Where instructions name the tile, the transfer apart."""


class WidenDmaRows:
    name = "widen-dma-rows"
    addresses = frozenset({Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING, Cause.HBM_TRAFFIC})

    def describe(self) -> str:
        return (
            "Load and store the columns of 2 or 4 iterations in one transfer with longer rows; the work between them "
            "stays as it is."
        )

    def analyze(self, module: KernelModule, context: AnalysisContext) -> tuple[Site, ...]:
        code = read_kernel(module)
        found = []
        for number, loop in enumerate(code.loops()):
            try:
                transfers = _plan(code, loop)
            except IllegalSite as error:
                context.refuse(self.name, f"{loop.variable}#{number}", loop.line, error, lines_of(loop))
                continue
            tiles = " and ".join(transfer.tile for transfer in transfers)
            for factor in FACTORS:
                found.append(
                    Site(
                        self.name,
                        f"{loop.variable}#{number}x{factor}",
                        f"move {tiles} for {factor} iterations of the loop over {loop.variable} in one transfer",
                        loop.line,
                        f"the columns of {tiles} follow one another as {loop.variable} counts up, nothing in the loop "
                        "writes what is loaded, and nothing else touches what is stored",
                        f"there are {factor} times fewer transfers, and their rows are {factor} times longer",
                    )
                )
        return tuple(found)

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        code = read_kernel(module)
        loop, factor = loop_and_factor(code, key)
        return _rewrite(code, loop, _plan(code, loop), factor)


# --- legality ---------------------------------------------------------------------------------------


def _plan(code: KernelCode, loop: Statement) -> tuple[_Transfer, ...]:
    """Raises IllegalSite naming the rule that forbids it."""
    assert loop.body is not None
    if loop.count is None:
        raise IllegalSite(f"the loop over {loop.variable} does not simply count up from 0")
    if loop.leaves:
        raise IllegalSite(f"the loop over {loop.variable} can be left early")
    if any(binding is not loop and loop in binding.block.loops() for binding in code.bindings(loop.variable)):
        raise IllegalSite(f"{loop.variable} is bound again inside its own loop")
    if loop.variable in code.captured or loop.variable in loop.header_uses:
        raise IllegalSite(f"{loop.variable} is used by a nested function, or sets its own limit")
    indices = Indices(code)
    found: list[_Transfer] = []
    reasons: list[IllegalSite] = []
    for statement in loop.body.statements:
        if statement.kind is Kind.INSTRUCTION and statement.operation == "dma_copy":
            try:
                transfer = _transfer(code, indices, loop, statement)
            except IllegalSite as error:
                reasons.append(error)
            else:
                if all(transfer.tile != other.tile for other in found):  # else it goes straight through: widen one end
                    found.append(transfer)
    if not found and not reasons:
        raise NotOfItsKind(f"the loop over {loop.variable} itself moves no tile")
    if not found:
        said = "; ".join(map(str, reasons))
        raise NotPlain(said) if any(isinstance(error, NotPlain) for error in reasons) else IllegalSite(said)
    return tuple(found)


def _transfer(code: KernelCode, indices: Indices, loop: Statement, statement: Statement) -> _Transfer:
    where = f"the transfer on line {statement.line}"
    dst, src = code.argument(statement, "dst", 0), code.argument(statement, "src", 1)
    if statement.stateful or code.argument(statement, "oob_mode") is not None:
        raise IllegalSite(f"{where} has a priority, or may leave something out")
    for end, other, is_load in ((dst, src, True), (src, dst, False)):
        if isinstance(end, cst.Name) and isinstance(other, cst.Subscript) and isinstance(other.value, cst.Name):
            tile, memory = end.value, other
            break
    else:
        raise IllegalSite(f"{where} does not move one whole tile to or from part of a buffer")
    regions = code.regions_of(memory.value)
    if not regions or regions - _HBM:
        raise IllegalSite(f"{where} does not move a tile to or from HBM")
    allocation, partitions, columns = _tile(code, loop, tile)
    lower, upper = _columns(code, indices, loop, statement, memory, (allocation, partitions, columns))
    _check_order(code, loop, statement, tile, memory, is_load)
    return _Transfer(
        tile,
        allocation,
        statement,
        is_load,
        code.module.code_for_node(partitions),
        code.module.code_for_node(columns),
        lower,
        upper,
        _uses(code, loop, statement, tile, is_load),
    )


def _tile(code: KernelCode, loop: Statement, tile: str) -> tuple[Statement, cst.BaseExpression, cst.BaseExpression]:
    """The tile's allocation, its partitions and its columns."""
    allocation = made_once(code, tile)
    if allocation.block is not loop.body or allocation.region != "sbuf":
        inside = [statement for statement in code.statements() if loop in statement.block.loops()]
        said = f"{tile} is not made in SBUF by the loop over {loop.variable} itself (line {allocation.line})"
        raise NotPlain(said) if begins_anew(code, tile, inside) else IllegalSite(said)
    if code.argument(allocation, "address") is not None:
        raise IllegalSite(f"{tile} has a place of its own (address=)")
    shape = code.argument(allocation, "shape", 0)
    if not isinstance(shape, cst.Tuple) or len(shape.elements) != 2:
        raise IllegalSite(f"{tile} is not two-dimensional")
    if allocation.uses & (loop.binds | {loop.variable}):
        raise IllegalSite(f"what {tile} is made with changes in the loop over {loop.variable}")
    return allocation, shape.elements[0].value, shape.elements[1].value


def _columns(
    code: KernelCode,
    indices: Indices,
    loop: Statement,
    statement: Statement,
    memory: cst.Subscript,
    made: tuple[Statement, cst.BaseExpression, cst.BaseExpression],
) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """First and last column in HBM. Two slices as long as the tile is: whatever follows them has length 1."""
    allocation, partitions, columns = made
    where = f"the transfer on line {statement.line}"
    changing = loop.binds | {loop.variable}
    slices: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    for element in memory.slice:
        part = element.slice
        if isinstance(part, cst.Slice):
            if part.lower is None and part.upper is None and part.step is None and not slices:
                slices.append((cst.Integer("0"), partitions))  # all rows there are: as many as the tile has
                continue
            if part.lower is None or part.upper is None or part.step is not None:
                raise IllegalSite(f"{where} has a slice without both ends, or with a step")
            slices.append((part.lower, part.upper))
        elif isinstance(part, cst.Index) and isinstance(part.value, (cst.Ellipsis, cst.Tuple)):
            raise IllegalSite(f"{where} does not say which dimensions it moves")
        elif loaded_names(part) & changing:
            raise IllegalSite(f"{where} moves on in another dimension than its columns")
    if len(slices) != 2:
        raise IllegalSite(f"{where} does not move rows and columns")
    for (start, stop), wanted in zip(slices, (partitions, columns)):
        length = indices.polynomial(stop, allocation if stop is partitions else statement) - indices.polynomial(
            start, statement
        )
        if length != indices.polynomial(wanted, allocation):
            raise IllegalSite(f"{where} does not show that it fills the tile row by row")
    (first_row, last_row), (lower, upper) = slices
    if (loaded_names(first_row) | loaded_names(last_row)) & changing:
        raise IllegalSite(f"{where} moves on in another dimension than its columns")
    if (loaded_names(lower) | loaded_names(upper)) & (changing - {loop.variable}):
        raise IllegalSite(f"{where} computes its columns in the loop over {loop.variable}")
    step, start_of_all = indices.polynomial(lower, statement).split(loop.variable)
    if step != indices.polynomial(columns, allocation) or loop.variable in indices.names(start_of_all):
        raise IllegalSite(f"the columns of {where} do not follow one another")
    return lower, upper


def _check_order(
    code: KernelCode, loop: Statement, statement: Statement, tile: str, memory: cst.Subscript, is_load: bool
) -> None:
    """A load may come earlier, a store later, as far as the loop goes."""
    buffers = code.roots_of(loaded_names(memory.value))
    for other in code.statements():
        if loop not in other.block.loops() or other is statement or other.body is not None:
            continue
        touched = code.changed_by(other) if is_load else code.roots_of(other.contents | other.written)
        if touched & buffers and not (not is_load and _stores_elsewhere(code, loop, memory, statement, other)):
            what = "writes what is loaded" if is_load else "touches what is stored"
            raise IllegalSite(f"line {other.line} {what} on line {statement.line}")


def _stores_elsewhere(
    code: KernelCode, loop: Statement, memory: cst.Subscript, statement: Statement, other: Statement
) -> bool:
    """Another transfer that stores into the same buffer, in every iteration where none of these ever does."""
    if other.operation != "dma_copy" or code.roots_of(loaded_names(memory.value)) & read_by(code, other):
        return False
    dst = code.argument(other, "dst", 0)
    inside = [inner for inner in code.statements() if loop in inner.block.loops()]
    reader = AccessReader(code, loop, changing_names(loop, inside))
    try:
        return dst is not None and reader.apart(reader.access(memory, statement), reader.access(dst, other), statement)
    except IllegalSite:
        return False


def _uses(code: KernelCode, loop: Statement, transfer: Statement, tile: str, is_load: bool) -> tuple[cst.Name, ...]:
    """Every use of the tile but by the transfer: a whole argument of an instruction of the same loop."""
    found: list[cst.Name] = []
    for statement in code.statements():
        if statement is transfer or tile not in statement.own_uses | (
            statement.written if not statement.body else set()
        ):
            continue
        if loop not in statement.block.loops():
            raise IllegalSite(f"{tile} is used on line {statement.line}, outside the loop over {loop.variable}")
        if statement.kind is not Kind.INSTRUCTION or statement.call is None:
            raise IllegalSite(f"line {statement.line} does more with {tile} than an instruction does")
        whole = [
            arg.value for arg in statement.call.args if isinstance(arg.value, cst.Name) and arg.value.value == tile
        ]
        if len(whole) != sum(node.value == tile for node in name_nodes(statement.node)):
            raise IllegalSite(f"line {statement.line} works on part of {tile}")
        if is_load and tile in code.changed_by(statement):
            raise IllegalSite(f"{tile} is written again on line {statement.line}")
        if statement.line < transfer.line if is_load else statement.line > transfer.line:
            raise IllegalSite(f"{tile} is used on line {statement.line}, on the other side of its transfer")
        found += [node for node in whole if isinstance(node, cst.Name)]
    if not found:
        raise IllegalSite(f"nothing uses {tile}")
    return tuple(found)


# --- rewriting --------------------------------------------------------------------------------------


def _rewrite(code: KernelCode, loop: Statement, transfers: tuple[_Transfer, ...], factor: int) -> cst.Module:
    assert isinstance(loop.node, cst.For) and loop.body is not None and loop.count is not None
    outer, inner = code.fresh_name(f"{loop.variable}_wide"), code.fresh_name("j")
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    before: list[cst.BaseStatement] = []
    after: list[cst.BaseStatement] = []
    gone: set[cst.CSTNode] = set()
    for transfer in transfers:
        wide = code.fresh_name(f"{transfer.tile}_wide")
        columns = as_factor(transfer.columns)
        part = f"{wide}[0:{transfer.partitions}, {inner} * {columns} : ({inner} + 1) * {columns}]"
        for use in transfer.uses:
            changes[use] = parsed_expression(part)
        before.append(_widened_allocation(code, transfer, wide, factor))
        moved = _widened_transfer(code, loop, transfer, (wide, outer, factor))
        (before if transfer.is_load else after).append(moved)
        gone |= {transfer.allocation.node, transfer.statement.node}
    kept = [
        replace_nodes(child, changes).with_changes(leading_lines=_comments(child))
        if not at
        else replace_nodes(child, changes)
        for at, child in enumerate(node for node in loop.body.node.body if node not in gone)
    ]
    here = parsed_statement(f"{loop.variable} = {factor} * {outer} + {inner}")
    repeated = replace_nodes(loop.node.iter, {loop.count: cst.Integer(str(factor))})
    assert isinstance(repeated, cst.Call)
    narrow = cst.For(
        target=cst.Name(inner),
        iter=repeated,
        body=loop.body.node.with_changes(body=[here, *kept], header=cst.TrailingWhitespace(), footer=()),
    )
    return several_at_a_time(code, loop, factor, outer, [*before, narrow, *after])


def _widened_allocation(code: KernelCode, transfer: _Transfer, wide: str, factor: int) -> cst.BaseStatement:
    shape = code.argument(transfer.allocation, "shape", 0)
    node = transfer.allocation.node
    assert isinstance(shape, cst.Tuple) and isinstance(node, cst.SimpleStatementLine)
    small = node.body[0]
    assert isinstance(small, cst.Assign)
    columns = parsed_expression(f"{factor} * {as_factor(transfer.columns)}")
    result = replace_nodes(node, {shape.elements[1].value: columns, small.targets[0].target: cst.Name(wide)})
    assert isinstance(result, cst.SimpleStatementLine)
    return result.with_changes(leading_lines=_comments(node))


def _widened_transfer(
    code: KernelCode, loop: Statement, transfer: _Transfer, names: tuple[str, str, int]
) -> cst.BaseStatement:
    wide, outer, factor = names
    first = replace_nodes(
        transfer.lower,
        {
            node: parsed_expression(f"({factor} * {outer})")
            for node in name_nodes(transfer.lower)
            if node.value == loop.variable
        },
    )
    last = parsed_expression(f"{code.module.code_for_node(first)} + {factor} * {as_factor(transfer.columns)}")
    changes: dict[cst.CSTNode, cst.CSTNode] = {transfer.lower: first, transfer.upper: last}
    for node in name_nodes(transfer.statement.node):
        if node.value == transfer.tile:
            changes[node] = cst.Name(wide)
    result = replace_nodes(transfer.statement.node, changes)
    assert isinstance(result, cst.SimpleStatementLine)
    return result.with_changes(leading_lines=_comments(result))


def _comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return [line for line in getattr(node, "leading_lines", ()) if line.comment is not None]
