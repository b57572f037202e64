"""A row on every partition by one transfer that reads it many times, in place of a product with a column of ones, or of
copies from partition to partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, source_in_hbm, uses_of
from accelopt_core.rules.unread import without_unread
from nki_sim.dtypes import float32
from nki_sim.loop_ir.changes import Path, Refused, block_at, checked, instruction_at, instructions, rechecked, with_node
from nki_sim.loop_ir.dependence import covers
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine


class BroadcastByDma:
    """A row reaches all partitions by its transfer, without an engine's broadcast."""

    name = "broadcast-by-dma"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        shuffled: set[int] = set()
        for path, node in instructions(kernel):
            if _row_of(node) is not None and node.operands[0].buffer not in shuffled:
                shuffled |= {node.operands[0].buffer} if node.opcode == "nc_stream_shuffle" else set()
                yield Site(self.name, path, (), f"the row of line {node.line} loaded to every partition", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path)
        if (row := _row_of(node)) is None:
            raise Refused("there is no row that is spread in that place")
        dst = node.operands[0]
        if node.opcode == "nc_matmul":
            _check_product(kernel, site.path, node)
            parts = [site.path]
        else:
            parts, dst = _shuffles_of(kernel, site.path, row, dst)
        taken, attributes = source_in_hbm(kernel, site.path, row)
        buffer = replace(kernel.buffers[dst.buffer], region=MemoryRegion.sbuf)
        kernel = replace(kernel, buffers={**kernel.buffers, dst.buffer: buffer})
        free = taken.pattern[1:] if taken.pattern[0][1] == 1 else taken.pattern
        wide = replace(taken, role="src", access="r", pattern=((0, dst.pattern[0][1]), *(free or ((1, 1),))))
        spread = Instruction(
            "dma_copy", Engine.dma, attributes, (replace(dst, role="dst", access="w"), wide), node.line
        )
        for path in reversed(parts):
            kernel = with_node(kernel, path, (checked(spread, kernel.buffers),) if path == parts[0] else ())
        return without_unread(rechecked(kernel, {dst.buffer}))


def _row_of(node: Instruction) -> Access | None:
    """What it spreads, by a product with ones or by shuffling."""
    if node.opcode == "nc_matmul" and node.operands[1].pattern[0][1] == 1:
        return node.operands[2]
    if node.opcode == "nc_stream_shuffle":
        dst, src = node.operands[:2]
        (stride, _), *free = src.pattern
        chosen = set(node.attrs.mask[: dst.pattern[0][1]])
        if len(chosen) == 1 and min(chosen) >= 0 and dst.pattern[0][1] <= len(node.attrs.mask):
            return replace(src, offset=src.offset + chosen.pop() * stride, pattern=((stride, 1), *free))
    return None


def _shuffles_of(kernel: LoopKernel, path: Path, row: Access, dst: Access) -> tuple[list[Path], Access]:
    """Where the same row is spread to parts of one tile, and those parts together, where they lie side by side."""
    writing, _ = uses_of(kernel, dst.buffer)
    alike = [
        each
        for each in writing
        if each.path[:-1] == path[:-1]
        and replace(each.node.operands[0], offset=dst.offset) == dst
        and (found := _row_of(each.node)) is not None
        and replace(found, role=row.role) == row
    ]
    step = dst.pattern[0][0] * dst.pattern[0][1]
    firsts = [each.node.operands[0].offset for each in alike]
    if len(alike) < len(writing) or any(each != firsts[0] + step * at for at, each in enumerate(firsts)):
        return [path], dst
    pattern = ((dst.pattern[0][0], dst.pattern[0][1] * len(alike)), *dst.pattern[1:])
    return [each.path for each in alike], replace(dst, offset=firsts[0], pattern=pattern)


def _check_product(kernel: LoopKernel, path: Path, node: Instruction) -> None:
    dst, ones, row = node.operands
    if ones.pattern[0][1] != 1 or node.attrs.is_transpose or node.attrs.accumulate:
        raise Refused("it adds up products of several rows")
    if not _holds_ones(kernel, ones):
        raise Refused("what is stationary is not ones alone")
    if dst.dtype != float32 and dst.dtype != row.dtype:
        raise Refused(f"the product rounds to {dst.dtype}")
    _check_target(kernel, path, dst)


def _holds_ones(kernel: LoopKernel, access: Access) -> bool:
    writing, _ = uses_of(kernel, access.buffer)
    return (
        is_local(kernel, access.buffer)
        and len(writing) == 1
        and writing[0].node.opcode == "memset"
        and writing[0].node.attrs.value == 1
        and covers(writing[0].node.operands[0], kernel.buffers[access.buffer])
    )


def _check_target(kernel: LoopKernel, path: Path, dst: Access) -> None:
    """PSUM's tile is filled by this product alone, once each time that it is made."""
    writing, _ = uses_of(kernel, dst.buffer)
    if not is_local(kernel, dst.buffer) or len(writing) != 1:
        raise Refused("something else adds to the product")
    if kernel.buffers[dst.buffer].address is not None:
        raise Refused("the kernel places the product itself")
    if Allocate(dst.buffer) not in block_at(kernel, path):
        raise Refused("the product is added up over a loop")
