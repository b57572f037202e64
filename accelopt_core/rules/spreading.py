"""A row on every partition by one transfer that reads it many times, in place of a product with a column of ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import Placed, is_local, ranges_at, uses_of
from nki_sim.dtypes import float32
from nki_sim.loop_ir.changes import Path, Refused, block_at, checked, node_at, paths, rechecked, with_node
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import covers
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel
from nki_sim.memory import MemoryRegion


class BroadcastByDma:
    """A row reaches all partitions by its transfer, without an engine's broadcast."""

    name = "broadcast-by-dma"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "nc_matmul" and node.operands[1].pattern[0][1] == 1:
                yield Site(self.name, path, (), f"the row of line {node.line} loaded to every partition", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "nc_matmul":
            raise Refused("there is no product in that place")
        dst, ones, row = node.operands
        if ones.pattern[0][1] != 1 or node.attrs.is_transpose or node.attrs.accumulate:
            raise Refused("it adds up products of several rows")
        if not _holds_ones(kernel, ones):
            raise Refused("what is stationary is not ones alone")
        if dst.dtype != float32 and dst.dtype != row.dtype:
            raise Refused(f"the product rounds to {dst.dtype}")
        _check_target(kernel, site.path, dst)
        load = _load_of(kernel, row)
        if load.path[:-1] != site.path[: len(load.path) - 1] or load.path > site.path:
            raise Refused("the row is not loaded in front of the product")
        target, source = load.node.operands
        if source.dtype != row.dtype:
            raise Refused("the load converts")
        taken = through(row, target, source, {**ranges_at(kernel, load.path), **ranges_at(kernel, site.path)})
        if taken is None:
            raise Refused("the row is taken in another form than it was loaded")
        buffer = replace(kernel.buffers[dst.buffer], region=MemoryRegion.sbuf)
        kernel = replace(kernel, buffers={**kernel.buffers, dst.buffer: buffer})
        free = taken.pattern[1:] if taken.pattern[0][1] == 1 else taken.pattern
        wide = replace(taken, role="src", access="r", pattern=((0, dst.pattern[0][1]), *(free or ((1, 1),))))
        moved = replace(load.node, operands=(replace(dst, role="dst", access="w"), wide), line=node.line)
        kernel = rechecked(with_node(kernel, site.path, (checked(moved, kernel.buffers),)), {dst.buffer})
        kernel = _without_unread(kernel, row.buffer)
        return _without_unread(kernel, ones.buffer)


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


def _load_of(kernel: LoopKernel, row: Access) -> Placed:
    """The transfer that alone fills the row, from HBM that nothing writes."""
    writing, _ = uses_of(kernel, row.buffer)
    if not is_local(kernel, row.buffer) or len(writing) != 1 or writing[0].node.opcode != "dma_copy":
        raise Refused("the row is not just loaded")
    source = writing[0].node.operands[1]
    if kernel.buffers[source.buffer].region.on_chip or uses_of(kernel, source.buffer)[0]:
        raise Refused("the kernel writes what the row is loaded from")
    return writing[0]


def _without_unread(kernel: LoopKernel, key: int) -> LoopKernel:
    writing, reading = uses_of(kernel, key)
    if reading or any(isinstance(each, Instruction) and len(each.operands) > 2 for each in (w.node for w in writing)):
        return kernel
    for each in reversed(writing):
        kernel = without(kernel, each.path, key)
    return kernel
