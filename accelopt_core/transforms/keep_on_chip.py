"""Keep in SBUF what a kernel stores to a buffer of its own in HBM and loads again.

scratch = ndarray((T, 128, n), buffer=shared_hbm)     scratch = ndarray((128, T, n), buffer=sbuf)
for t in range(T):                                    for t in range(T):
    dma_copy(dst=scratch[t, :, :], src=a)       ->        tensor_copy(dst=scratch[0:128, t, 0:n], src=a)
for t in range(T):                                    for t in range(T):
    dma_copy(dst=b, src=scratch[t, :, :])                 tensor_copy(dst=b, src=scratch[0:128, t, 0:n])

Rows that every transfer spreads over the partitions stay on theirs. Whether the buffer fits into SBUF depends on shapes
and is left to whoever prices the result. The copies are often dropped by a step that follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, NotPlain, Site
from accelopt_core.transforms.index_algebra import Polynomial, number
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform
from accelopt_core.transforms.operand_access import HBM, ONE, Access, AccessReader, Dim
from accelopt_core.transforms.plain_names import made_once
from accelopt_core.transforms.strided_parts import ends_of, is_on_chip
from accelopt_core.transforms.syntax import content_names, parsed_expression, parsed_statement, replace_nodes


@dataclass(frozen=True)
class _Transfer:
    statement: Statement
    operand: cst.BaseExpression
    """The part of the buffer."""
    access: Access
    rows: int
    """The dimension that lies on the partitions."""


@dataclass(frozen=True)
class _Layout:
    transfers: tuple[_Transfer, ...]
    rows: int
    height: Polynomial
    """Rows that a transfer moves."""
    blocks: Polynomial | None
    """Rows of the buffer where they are more: it has them in blocks of `height`."""


class KeepOnChip(InstructionTransform[_Layout]):
    name = "keep-on-chip"
    addresses = frozenset(
        {Cause.HBM_TRAFFIC, Cause.DMA_BANDWIDTH, Cause.DMA_ISSUING, Cause.WAITING, Cause.TAIL, Cause.START_UP}
    )
    gone = "makes no buffer in HBM"

    def describe(self) -> str:
        return "Keep a buffer that the kernel stores to HBM and loads again in SBUF instead."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        for statement in code.statements():
            if statement.kind is Kind.ALLOCATE and statement.region in HBM:
                (name,) = statement.binds
                users = [s for s in code.statements() if s is not statement and name in s.contents]
                if not any(isinstance(user.node, cst.SimpleStatementLine) and _returns(user) for user in users):
                    yield name, statement

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Layout:
        return _plan(code, key, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Layout) -> Site:
        return Site(
            self.name,
            key,
            f"keep {key} in SBUF",
            instruction.line,
            f"only transfers use {key}, and all of them have the same of its rows on the same partitions",
            "what stays on the chip is neither stored nor loaded",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Layout) -> cst.Module:
        return _rewritten(code, instruction, found)


def _returns(user: Statement) -> bool:
    assert isinstance(user.node, cst.SimpleStatementLine)
    return any(isinstance(small, cst.Return) for small in user.node.body)


def _plan(code: KernelCode, name: str, allocation: Statement) -> _Layout:
    """Raises IllegalSite."""
    made_once(code, name)
    if code.argument(allocation, "address") is not None or not isinstance(
        code.argument(allocation, "buffer", 2), cst.Attribute
    ):
        raise IllegalSite(f"where {name} lies does not show, or is given by an address")
    reader = AccessReader(code)
    found = [
        _transfer(code, reader, name, user)
        for user in code.statements()
        if user is not allocation and user.body is None and name in user.contents | user.written
    ]
    if not found:
        raise IllegalSite(f"nothing uses {name}")
    for each in found:
        owners = [loop.block for loop in each.statement.block.loops()]
        if allocation.block not in (each.statement.block, *owners):
            raise IllegalSite(f"line {each.statement.line} uses {name} outside the block that makes it")
    first = found[0]
    heights = [reader.full.expanded(each.access.dims[each.rows].length, each.statement) for each in found]
    if any(each.rows != first.rows for each in found) or any(height != heights[0] for height in heights):
        raise IllegalSite(f"transfers of {name} do not have the same of its rows on the partitions")
    for each in found:
        rows = reader.full.expanded(each.access.dims[each.rows].length, each.statement)
        for named in sorted(reader.full.names(rows)):
            if len(code.bindings(named)) > 1:
                raise NotPlain(f"{named}, which tells how many rows of {name} are moved, is bound more than once")
    height, size = first.access.dims[first.rows].length, first.access.sizes[first.rows]
    whole = reader.same(height, size, first.statement)
    for each in found:
        start = reader.full.expanded(each.access.dims[each.rows].start, each.statement)
        if (start != number(0)) if whole else _block(reader, each, height) is None:
            raise IllegalSite(f"line {each.statement.line} has other rows of {name} on the partitions")
    return _Layout(tuple(found), first.rows, height, None if whole else size)


def _transfer(code: KernelCode, reader: AccessReader, name: str, user: Statement) -> _Transfer:
    where = f"line {user.line}"
    if user.operation != "dma_copy" or user.stateful or user.call is None or len(user.call.args) != 2:
        raise IllegalSite(f"{where} does more with {name} than move it")
    ends = ends_of(code, user)
    mine = [end for end in ends if name in content_names(end)]
    others = [end for end in ends if end not in mine]
    if len(mine) != 1 or len(others) != 1 or not is_on_chip(code, others[0]) or not code.regions_of(others[0]):
        raise IllegalSite(f"{where} does not move {name} to or from a tile")
    if not isinstance(user.call.func, cst.Attribute):
        raise IllegalSite(f"{where}: the name of nki.isa is not at hand")
    access = reader.access(mine[0], user)
    if access.name != name or not access.is_buffer or len(access.kept) < 2:
        raise IllegalSite(f"{where} does not move rows of {name}")
    rows = access.kept[0]
    if access.dims[rows].step != ONE:
        raise IllegalSite(f"{where} does not move rows of {name} that follow one another")
    return _Transfer(user, mine[0], access, rows)


def _block(reader: AccessReader, transfer: _Transfer, height: Polynomial) -> Polynomial | None:
    """Which block of rows it moves."""
    start = transfer.access.dims[transfer.rows].start
    found = start.over(height)
    if found is None:
        full = reader.full
        found = full.expanded(start, transfer.statement).over(full.expanded(height, transfer.statement))
    return found


def _rewritten(code: KernelCode, allocation: Statement, layout: _Layout) -> cst.Module:
    text, reader = code.module.code_for_node, AccessReader(code)
    rows, height = layout.rows, layout.height
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    sizes = layout.transfers[0].access.sizes
    others = [size for at, size in enumerate(sizes) if at != rows]
    blocks = [] if layout.blocks is None else [_divided(layout.blocks, height)]
    for each in layout.transfers:
        access = each.access
        dims = [dim for at, dim in enumerate(access.dims) if at != rows]
        if layout.blocks is not None:
            block = _block(reader, each, height)
            assert block is not None
            dims.insert(0, Dim(block, ONE, dropped=True))
        here = replace(access, dims=(Dim(number(0), height), *dims), sizes=(height, *[ONE] * len(dims)))
        call = each.statement.call
        assert call is not None and isinstance(call.func, cst.Attribute)
        dst, src = (here.text if end is each.operand else text(end) for end in ends_of(code, each.statement))
        changes[call] = parsed_expression(f"{text(call.func.value)}.tensor_copy(dst={dst}, src={src})")
    shape, buffer = code.argument(allocation, "shape", 0), code.argument(allocation, "buffer", 2)
    assert shape is not None and isinstance(buffer, cst.Attribute)
    made = ", ".join([str(height), *blocks, *map(str, others)])
    changes[shape] = parsed_expression(f"({made})")
    changes[buffer] = buffer.with_changes(attr=cst.Name("sbuf"))
    if layout.blocks is None:
        return code.changed(changes)
    check = parsed_statement(
        f'assert ({layout.blocks}) % ({height}) == 0, "blocks of {height} rows must come out even"'
    )
    block_of_all = allocation.block.node
    body: list[cst.CSTNode] = []
    for child in block_of_all.body:
        body += [check] if child is allocation.node else []
        body.append(replace_nodes(child, changes))
    return code.changed({block_of_all: block_of_all.with_changes(body=body)})


def _divided(size: Polynomial, by: Polynomial) -> str:
    whole = size.over(by)
    return str(whole) if whole is not None else f"({size}) // ({by})"
