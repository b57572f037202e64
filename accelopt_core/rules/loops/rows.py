"""Rows dealt out in turn: to the passes of a loop, or to the places that a transfer fills on each partition.

Where pass i has the rows i, i + n, i + 2 n, ... of n passes in place of rows in sequence, the passes' rows are one
stretch of HBM for each partition, and what a window needs one row further on is what the next pass begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import PARTITION_WISE, Path, Refused, checked, loop_at, loops_around, paths, with_node
from nki_sim.loop_ir.dependence import allocated_in, conflict, uses
from nki_sim.loop_ir.reading import IMPLICIT
from nki_sim.loop_ir.tree import Access, DeviceLoop, Instruction, Loop, LoopKernel, Node, rebuilt, walk

_ALONG_ROWS = ("tensor_tensor_scan", "tensor_scalar_reduce")


class DealRows:
    """Several passes' rows are then one stretch of HBM for each partition."""

    name = "rows-in-turn"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and _loads(node):
                yield Site(self.name, path, (), f"rows dealt out to the passes of line {node.site} in turn", node.site)
            elif isinstance(node, Instruction) and _rows_beside(node, kernel)[1]:
                yield Site(self.name, path, (), f"rows of line {node.line} in sequence on each partition", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        there = dict(paths(kernel.body)).get(site.path)
        return _in_sequence(kernel, there) if isinstance(there, Instruction) else dealt_out(kernel, site.path)


def _loads(loop: Loop) -> bool:
    """In several passes?"""
    several = loop.extent.is_constant and loop.extent.constant > 1
    return several and any(isinstance(each, Instruction) and each.opcode == "dma_copy" for each, _ in walk(loop.body))


def _rows_beside(load: Instruction, kernel: LoopKernel) -> tuple[int, int]:
    """(Partitions, rows on each) of a load that lays rows p, p + P, p + 2 P, ... side by side on partition p; or 0."""
    if load.opcode != "dma_copy" or not kernel.buffers[load.operands[0].buffer].region.on_chip:
        return (0, 0)
    (row, height), (further, count) = (*load.operands[1].pattern, (0, 0))[:2]
    return (height, count) if row and further == row * height and count > 1 else (0, 0)


def _in_sequence(kernel: LoopKernel, load: Instruction) -> LoopKernel:
    """Partition p with the rows n p, n p + 1, ... of that load, and of all that is computed with them row by row."""
    height, count = _rows_beside(load, kernel)
    tiles: set[int] = set()

    def touches(node: Instruction) -> bool:
        return any(each.buffer in tiles for each in node.operands)

    more = {load.operands[0].buffer} if count else set()  # at some shape there may be one row on each partition
    while more:
        tiles |= more
        beside = [node.operands for node, _ in walk(kernel.body) if isinstance(node, Instruction) and touches(node)]
        more = {o.buffer for o in sum(beside, ()) if o.role not in IMPLICIT and kernel.buffers[o.buffer].region.on_chip}
        more = {key for key in more - tiles if not _same_everywhere(kernel, key)}

    def moved(access: Access, node: Instruction) -> Access:
        buffer = kernel.buffers[access.buffer]
        (stride, partitions), (further, rows) = (*access.pattern, (0, 1))[:2]
        size = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
        whole = node.opcode != "tensor_reduce" and (further, rows) == (1, size) and size % count == 0
        if not buffer.region.on_chip and stride and (partitions, further, rows) == (height, stride * height, count):
            return replace(access, pattern=((stride * count, height), (stride, count), *access.pattern[2:]))
        in_place = (stride, partitions, buffer.shape[0]) == (size, height, height)
        in_place &= whole or (further * count, rows) == (size, count)
        same = further == 0 or access.elements == partitions
        if not buffer.region.on_chip or not (in_place if access.buffer in tiles else same or access.role in IMPLICIT):
            raise Refused(f"line {node.line} does not take each row by itself")
        return access

    def change(node: Node) -> tuple[Node, ...]:
        if not isinstance(node, Instruction) or not touches(node):
            return (node,)
        across = node.opcode == "tensor_reduce" and 1 in node.attrs.axes or node.opcode in _ALONG_ROWS
        if across or node.opcode not in PARTITION_WISE or any(each.indirection for each in node.operands):
            raise Refused(f"{node.opcode} of line {node.line} does not take each row by itself")
        return (checked(replace(node, operands=tuple(moved(o, node) for o in node.operands)), kernel.buffers),)

    return replace(kernel, body=rebuilt(kernel.body, change))


def dealt_out(kernel: LoopKernel, path: Path) -> LoopKernel:
    """Pass i of the n passes of the loop there with rows i, i + n, ... Raises Refused."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    if not loop.extent.is_constant or loop.start != Affine():
        raise Refused("the loop's length changes, or it begins at another number than 0")
    own = allocated_in(loop.body)
    rows = {access.pattern[0][1] for access in _on_chip(kernel, loop) if access.buffer in own}
    if len(rows) != 1:
        raise Refused("the loop's tiles are not all on as many partitions")
    (height,) = rows
    outside = uses(with_node(kernel, path, ()).body)
    if not own.isdisjoint({*(use.access.buffer for use in outside), *(each.buffer for each in kernel.outputs)}):
        raise Refused("a tile of the loop is taken outside of it")
    blocked = conflict(loop.body, loop.body, kernel, (*around, loop), ((loop, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} needs what an earlier pass left")

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, DeviceLoop):
            raise Refused("a loop on the device is among it")
        if not isinstance(node, Instruction):
            return (node,)
        if node.opcode not in PARTITION_WISE:
            raise Refused(f"{node.opcode} does not treat each partition by itself")
        operands = tuple(_in_turn(each, kernel, loop, own, height, node) for each in node.operands)
        return (checked(replace(node, operands=operands), kernel.buffers),)

    return with_node(kernel, path, (replace(loop, body=rebuilt(loop.body, change)),))


def _on_chip(kernel: LoopKernel, loop: Loop) -> Iterator[Access]:
    for node, _ in walk(loop.body):
        if isinstance(node, Instruction):
            for access in node.operands:
                if access.role not in IMPLICIT and kernel.buffers[access.buffer].region.on_chip:
                    yield access


def _in_turn(
    access: Access, kernel: LoopKernel, loop: Loop, own: frozenset[int], height: int, node: Instruction
) -> Access:
    buffer = kernel.buffers[access.buffer]
    if access.role in IMPLICIT:
        return access
    if access.indirection is not None:
        raise Refused(f"line {node.line}: an index chooses the rows")
    stride, count = access.pattern[0]
    further = access.offset.coefficient(loop.variable)
    if buffer.region.on_chip:
        row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
        if access.buffer in own and (stride != row or any(abs(f) >= row for _, f in access.offset.terms)):
            raise Refused(f"line {node.line} is on partitions that change")
        if access.buffer in own or (not further and _same_everywhere(kernel, access.buffer)):
            return access
        raise Refused(f"line {node.line} takes what differs from partition to partition")
    if count == height and further == height * stride and further:
        offset = access.offset - Affine.of(0, {loop.variable: further - stride})
        return replace(access, offset=offset, pattern=((stride * loop.extent.constant, count), *access.pattern[1:]))
    if not further and stride == 0 and count == height:
        return access
    raise Refused(f"line {node.line} does not go on with the rows of the passes")


def _same_everywhere(kernel: LoopKernel, key: int) -> bool:
    """Is it the same on every partition?"""
    writing, _ = uses_of(kernel, key)
    partitions = kernel.buffers[key].shape[0]
    return bool(writing) and all(
        each.node.operands[each.at].pattern[0][1] == partitions
        and (
            each.node.opcode == "memset"
            or (each.node.opcode == "dma_copy" and each.node.operands[1].pattern[0][0] == 0)
        )
        for each in writing
    )
