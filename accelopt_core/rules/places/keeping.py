"""What a kernel stores to HBM only to load it again stays in SBUF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.flow import Placed, is_local, local_tiles, ranges_at, uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import Refused, instruction_at, instructions, rechecked, with_node
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.tree import Instruction, LoopKernel, dense
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine


class KeepOnChip:
    """What is stored to HBM only to be loaded again stays in SBUF."""

    name = "keep-on-chip"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, key in local_tiles(kernel):
            buffer = kernel.buffers[key]
            if not buffer.region.on_chip and buffer.region is not MemoryRegion.register and is_local(kernel, key):
                what = f"{buffer.name or 'the tensor'} of line {buffer.line} in SBUF"
                yield Site(self.name, path, (key,), what, buffer.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        key = int(site.arguments[0])
        if key not in kernel.buffers or not is_local(kernel, key) or kernel.buffers[key].region.on_chip:
            raise Refused("there is no tensor of the kernel's own in HBM")
        writing, reading = uses_of(kernel, key)
        if not writing or not reading:
            raise Refused("nothing is loaded of what is stored, or nothing stored of what is loaded")
        reason = ""
        for dimension in range(len(kernel.buffers[key].shape)):
            try:
                kept = _in_sbuf(kernel, key, dimension, [*writing, *reading])
            except Refused as refused:
                reason = str(refused)
                continue
            return _without_copies(kept, key)
        raise Refused(reason)


def _in_sbuf(kernel: LoopKernel, key: int, dimension: int, every: list[Placed]) -> LoopKernel:
    """With that dimension on the partitions, and copies in place of the transfers."""
    shape = kernel.buffers[key].shape
    if shape[dimension] > ISA.partitions:
        raise Refused(f"its {shape[dimension]} rows are more than there are partitions")
    rest = [n for at, n in enumerate(shape) if at != dimension]
    row = prod(rest)
    strides = [stride for stride, _ in dense(rest)]
    strides.insert(dimension, row)
    dtype = kernel.buffers[key].dtype
    buffer = replace(kernel.buffers[key], region=MemoryRegion.sbuf, shape=(shape[dimension], *(rest or (1,))))
    for each in every:
        node = instruction_at(kernel, each.path)
        access = node.operands[each.at]
        here = replace(access, offset=Affine(), pattern=dense(shape))
        there = replace(here, pattern=tuple(zip(strides, shape)))
        moved = through(access, here, there, ranges_at(kernel, each.path))
        others = [o for o in node.operands if o.buffer != key]
        if (
            node.opcode != "dma_copy"
            or len(others) != 1
            or kernel.buffers[others[0].buffer].region is not MemoryRegion.sbuf
        ):
            raise Refused(f"line {node.line} does not move it from or to SBUF")
        if others[0].dtype != dtype:
            raise Refused(f"line {node.line} converts")
        (stride, count), *free = moved.pattern if moved is not None else ((0, 0),)
        inside = all(n == 1 or 0 < step < row for step, n in free)
        if not inside or count != others[0].pattern[0][1] or (count > 1 and stride != row) or moved is None:
            raise Refused(f"line {node.line} has its rows on other partitions than another transfer")
        operands = tuple(moved if o.buffer == key else o for o in node.operands)
        copy = Instruction("tensor_copy", Engine.vector, None, operands, node.line)
        kernel = with_node(kernel, each.path, (copy,))
    kernel = replace(kernel, buffers={**kernel.buffers, key: buffer})
    return rechecked(kernel, {key})


def _without_copies(kernel: LoopKernel, key: int) -> LoopKernel:
    """Without those copies from and to the buffer that need not be."""
    for path, node in instructions(kernel, "tensor_copy"):
        if any(access.buffer == key for access in node.operands):
            end = "target" if node.operands[0].buffer == key else "source"
            try:
                changed = DropCopy().apply(kernel, Site(DropCopy.name, path, (end,)))
            except Refused:
                continue
            return _without_copies(changed, key)
    return kernel
