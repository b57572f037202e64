"""Rows dealt out to the passes of a loop in turn.

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


class DealRows:
    """Several passes' rows are then one stretch of HBM for each partition."""

    name = "rows-in-turn"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _loops(kernel):
            yield Site(self.name, path, (), f"rows dealt out to the passes of line {node.site} in turn", node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return dealt_out(kernel, site.path)


def _loops(kernel: LoopKernel) -> Iterator[tuple[Path, Loop]]:
    """Those that load."""
    for path, node in paths(kernel.body):
        if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
            if any(isinstance(each, Instruction) and each.opcode == "dma_copy" for each, _ in walk(node.body)):
                yield path, node


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
