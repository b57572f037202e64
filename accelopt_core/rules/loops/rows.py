"""Rows dealt out to the passes of a loop in turn, or to the places that a transfer fills on each partition.

Where pass i has the rows i, i + n, i + 2 n, ... of n passes in place of rows in sequence, the passes' rows are one
stretch of HBM for each partition, and what a window needs one row further on is what the next pass begins with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    ELEMENTWISE,
    PARTITION_WISE,
    Path,
    Refused,
    checked,
    loop_at,
    loops_around,
    node_at,
    paths,
    with_node,
)
from nki_sim.loop_ir.dependence import allocated_in, conflict, uses
from nki_sim.loop_ir.reading import IMPLICIT
from nki_sim.loop_ir.tree import Access, DeviceLoop, Instruction, Loop, LoopKernel, Node, rebuilt, walk


_ROW_WISE = PARTITION_WISE & ELEMENTWISE.keys()


class DealRows:
    """Several passes' rows are then one stretch of HBM for each partition."""

    name = "rows-in-turn"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _loops(kernel):
            yield Site(self.name, path, (), f"rows dealt out to the passes of line {node.site} in turn", node.site)
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and _rows_beside(node, kernel)[1]:
                yield Site(self.name, path, (), f"rows of line {node.line} in sequence on each partition", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        if isinstance(node := node_at(kernel, site.path), Instruction):
            return _in_sequence(kernel, node)
        return dealt_out(kernel, site.path)


def _loops(kernel: LoopKernel) -> Iterator[tuple[Path, Loop]]:
    """Those that load."""
    for path, node in paths(kernel.body):
        if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
            if any(isinstance(each, Instruction) and each.opcode == "dma_copy" for each, _ in walk(node.body)):
                yield path, node


def _rows_beside(node: Instruction, kernel: LoopKernel) -> tuple[int, int]:
    """(Partitions, rows on each) of a load whose rows p, p + P, p + 2 P, ... lie side by side on partition p."""
    if node.opcode != "dma_copy" or not kernel.buffers[node.operands[0].buffer].region.on_chip:
        return (0, 0)
    (row, height), (further, count) = (*node.operands[1].pattern, (0, 0))[:2]
    return (height, count) if row and further == row * height and count > 1 else (0, 0)


def _in_sequence(kernel: LoopKernel, load: Instruction) -> LoopKernel:
    """Partition p with rows n p, n p + 1, ... of that load, and of all that is computed with it row by row."""
    height, count = _rows_beside(load, kernel)
    tiles = {load.operands[0].buffer}
    touching: list[Instruction] = []
    while True:
        found = [n for n, _ in walk(kernel.body) if isinstance(n, Instruction) and tiles & {o.buffer for o in n.operands}]
        if len(found) == len(touching):
            break
        touching = found
        of = {o.buffer for node in found for o in node.operands if o.role not in IMPLICIT}
        tiles |= {key for key in of if kernel.buffers[key].region.on_chip and not _same_everywhere(kernel, key)}

    def moved(access: Access, node: Instruction) -> Access:
        (stride, partitions), (further, rows), *rest = (*access.pattern, (0, 1), (0, 1))[: max(2, len(access.pattern))]
        buffer = kernel.buffers[access.buffer]
        if access.role in IMPLICIT:
            return access
        if not buffer.region.on_chip:
            if stride and (partitions, further, rows) == (height, stride * height, count):
                return replace(access, pattern=((stride * count, height), (stride, count), *rest))
        elif access.buffer not in tiles:
            if further == 0 or access.elements == partitions:
                return access
        else:
            size = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
            whole = node.opcode != "tensor_reduce" and (further, rows) == (1, size) and size % count == 0
            if buffer.shape[0] == partitions == height and (whole or (further * count, rows) == (size, count)):
                return access
        raise Refused(f"line {node.line} does not take each row by itself")

    def change(node: Node) -> tuple[Node, ...]:
        if not isinstance(node, Instruction) or tiles.isdisjoint(each.buffer for each in node.operands):
            return (node,)
        sums_rows = node.opcode == "tensor_reduce" and 1 in node.attrs.axes
        if sums_rows or node.opcode not in _ROW_WISE or any(each.indirection for each in node.operands):
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
