"""Tiles of their own for what an instruction takes or makes, which another engine goes through element by element.

A transfer's descriptors move runs of bytes that lie together on both sides, and a run of 4 bytes takes as long as one
of 64 (AWS's pages on DMA). An engine takes one element a cycle, whatever lies between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import uses_of, with_tile
from nki_sim.loop_ir.changes import Refused, checked, node_at, paths, with_node
from nki_sim.loop_ir.tree import Allocate, Instruction, LoopKernel, Node
from nki_sim.memory import MemoryRegion
from nki_sim.program import Engine

WIDEST = 16
"""Elements from one that is wanted to the next, of which all are loaded: 64 bytes of float32."""


class StageTransfer:
    """An engine picks or spreads single elements on chip; what is transferred lies together."""

    name = "stage-transfer"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "dma_copy":
                for at, access in enumerate(node.operands):
                    if access.pattern[-1][1] > 1 and access.pattern[-1][0] != 1:
                        what = f"an engine in place of the transfer of line {node.line} goes through single elements"
                        yield Site(self.name, path, (at,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "dma_copy" or len(node.operands) != 2:
            raise Refused("there is no plain transfer in that place")
        dst, src = node.operands
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
