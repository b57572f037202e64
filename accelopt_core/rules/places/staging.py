"""Tiles of their own for what an instruction takes or makes, which another engine goes through element by element; and
tiles of another layout, in which what is transferred lies together.

A transfer's descriptors move runs of bytes that lie together on both sides, and a run of 4 bytes takes as long as one
of 64 (AWS's pages on DMA). An engine takes one element a cycle, whatever lies between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, taken_through, uses_of, with_tile
from nki_sim.isa.dma import DmaCopy
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import Path, Refused, checked, instruction_at, instructions, rechecked, with_node
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, Instruction, LoopKernel, Node, dense
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine

WIDEST = 16
"""Elements from one that is wanted to the next, of which all are loaded: 64 bytes of float32."""


class StageTransfer:
    """An engine picks or spreads single elements on chip; what is transferred lies together."""

    name = "stage-transfer"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "dma_copy"):
            for at, access in enumerate(node.operands):
                if access.pattern[-1][1] > 1 and access.pattern[-1][0] != 1:
                    what = f"an engine in place of the transfer of line {node.line} goes through single elements"
                    yield Site(self.name, path, (at,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "dma_copy")
        dst, src = node.operands[:2]
        if dst.indirection is not None or src.indirection is not None or dst.dtype != src.dtype:
            raise Refused("an index steers the transfer, or it converts")
        on_chip = [each for each in node.operands if kernel.buffers[each.buffer].region is MemoryRegion.sbuf]
        if len(on_chip) != 1:
            raise Refused("it is no transfer between SBUF and HBM")
        (tile,) = on_chip
        sizes = [count for _, count in tile.pattern]
        apart = node.operands[int(site.arguments[0])]
        step, count = apart.pattern[-1]
        if apart is tile:
            kernel, own = with_tile(kernel, site.path, sizes, tile.dtype, "staged", node.line)
            taken = own
        else:
            if tile is src or not 1 < step <= WIDEST or sizes[-1] != count:
                raise Refused("what lies between would be written, is too much, or is not what the tile has in a row")
            if uses_of(kernel, src.buffer)[0]:
                raise Refused("the kernel writes what it is loaded from, and perhaps not what lies between")
            every = (count - 1) * step + 1
            kernel, own = with_tile(kernel, site.path, [*sizes[:-1], every], tile.dtype, "staged", node.line)
            src = replace(src, pattern=(*src.pattern[:-1], (1, every)))
            taken = replace(own, pattern=(*own.pattern[:-1], (step, count)))
        ends = ((own, src), (dst, taken)) if tile is dst else ((own, src), (dst, own))
        first, second = (
            (replace(into, role="dst", access="w"), replace(out_of, role="src", access="r")) for into, out_of in ends
        )
        copy = Instruction("tensor_copy", Engine.vector, None, second if tile is dst else first, node.line)
        moved = replace(node, operands=first if tile is dst else second)
        made: tuple[Node, ...] = (checked(moved, kernel.buffers), checked(copy, kernel.buffers))
        return with_node(kernel, site.path, (Allocate(own.buffer), *(made if tile is dst else reversed(made))))


class TransposeOnTensor:
    """The Tensor engine turns what is loaded as it lies: a transfer that turns it moves element by element."""

    name = "transpose-on-tensor"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for _, node in _turning(kernel)[:1]:
            what = f"transfers from line {node.line} on that turn a matrix, turned on the Tensor engine"
            yield Site(self.name, (), (), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        """All of them, as the first one alone costs more than it gains."""
        for path, node in reversed(_turning(kernel)):
            dst, src = node.operands
            sizes = [count for _, count in src.pattern]
            kernel, loaded = with_tile(kernel, path, sizes, src.dtype, "loaded", node.line)
            kernel, turned = with_tile(kernel, path, sizes[::-1], src.dtype, "turned", node.line, MemoryRegion.psum)
            plain = DmaCopy(Engine.unknown, node.attrs.dge_mode, node.attrs.oob_mode)
            data, out = replace(loaded, role="data", access="r"), replace(turned, role="src", access="r")
            made = (
                replace(node, opcode="dma_copy", attrs=plain, operands=(loaded, src)),
                Instruction("nc_transpose", Engine.tensor, None, (turned, data), node.line),
                Instruction("tensor_copy", Engine.vector, None, (dst, out), node.line),
            )
            allocated = Allocate(loaded.buffer), Allocate(turned.buffer)
            kernel = with_node(kernel, path, (*allocated, *(checked(each, kernel.buffers) for each in made)))
        return kernel


def _turning(kernel: LoopKernel) -> list[tuple[Path, Instruction]]:
    """Those that turn a matrix of floats. Of integers nothing says that the Tensor engine keeps every bit."""
    found = instructions(kernel, "dma_transpose")
    return [each for each in found if each[1].attrs.axes == (1, 0) and each[1].operands[0].dtype.is_float]


class OrderDimensions:
    """A tile's dimension of which a transfer takes one index lies in front of those that it takes whole, in one run."""

    name = "order-dimensions"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        found: dict[tuple[int, int], int] = {}
        for _, node in instructions(kernel, "dma_copy"):
            for access in node.operands:
                for dimension in _indexed(access, kernel.buffers[access.buffer]):
                    found.setdefault((access.buffer, dimension), node.line)
        for (key, dimension), line in found.items():
            what = f"dimension {dimension} of {kernel.buffers[key].name or 'the tile'} behind its partitions"
            yield Site(self.name, (), (key, dimension), f"{what}, as line {line} transfers it", line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        key, dimension = (int(each) for each in site.arguments)
        if key not in kernel.buffers or not is_local(kernel, key):
            raise Refused("there is no tile of the kernel's own")
        buffer = kernel.buffers[key]
        shape = buffer.shape
        order = sorted(range(len(shape)), key=lambda n: (n > 0, n not in (0, dimension), n))
        turned = tuple(shape[n] for n in order)
        kernel = replace(kernel, buffers={**kernel.buffers, key: replace(buffer, shape=turned)})
        before = tuple(dense(shape)[n] for n in order)
        after = dense(turned)
        writing, reading = uses_of(kernel, key)
        for each in [*writing, *(each for each in reading if each not in writing)]:
            access = each.node.operands[each.at]
            here = replace(access, offset=Affine(), pattern=before, dtype=buffer.dtype)
            kernel = taken_through(kernel, each, here, replace(here, pattern=after))
        return rechecked(kernel, {key})


def _indexed(access: Access, buffer: Buffer) -> Iterator[int]:
    """Dimensions of a tile in SBUF along which the access does not go, behind some along which it does."""
    if buffer.region is MemoryRegion.sbuf and access.dtype == buffer.dtype:
        strides = [stride for stride, count in access.pattern if count > 1]
        for at in range(2, len(buffer.shape)):
            unit, row = prod(buffer.shape[at + 1 :]), buffer.partition_elements
            next_unit = unit * buffer.shape[at]
            if buffer.shape[at] > 1 and not any(unit <= stride < next_unit for stride in strides):
                if any(next_unit <= stride < row for stride in strides):
                    yield at
