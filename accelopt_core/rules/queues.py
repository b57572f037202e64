"""Who issues transfers: hardware makes descriptors without GpSimd, which software does on (NKI's page on DGE)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeGuard

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.changes import Refused, checked, node_at, paths, with_node
from nki_sim.loop_ir.tree import Instruction, LoopKernel, Node
from nki_sim.program import Engine

_WHICH: dict[str, Callable[[LoopKernel, Instruction], bool]] = {
    "all transfers": lambda kernel, node: True,
    "loads": lambda kernel, node: kernel.buffers[node.operands[0].buffer].region.on_chip,
    "stores": lambda kernel, node: not kernel.buffers[node.operands[0].buffer].region.on_chip,
}


class HardwareQueue:
    """Transfers from the queue of the Sync engine, which does nothing else, where the kernel names none."""

    name = "hardware-queue"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        transfers = [
            node for _, node in paths(kernel.body) if isinstance(node, Instruction) and node.opcode == "dma_copy"
        ]
        for which, chosen in _WHICH.items():
            if any(chosen(kernel, node) for node in transfers):
                yield Site(self.name, (), (which,), f"{which} with descriptors that hardware makes")

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        chosen = _WHICH[str(site.arguments[0])]
        found = [path for path, node in paths(kernel.body) if _is_free(node) and chosen(kernel, node)]
        if not found:
            raise Refused("every such transfer has a queue already, converts, or is steered by an index")
        for path in found:
            node = node_at(kernel, path)
            assert isinstance(node, Instruction)
            moved = replace(node, attrs=node.attrs._replace(queue=Engine.sync))
            kernel = with_node(kernel, path, (checked(moved, kernel.buffers),))
        return kernel


def _is_free(node: Node) -> TypeGuard[Instruction]:
    """Is it a transfer whose descriptors hardware can make, of no queue by name?"""
    if not isinstance(node, Instruction) or node.opcode != "dma_copy" or node.attrs.queue is not Engine.unknown:
        return False
    dst, src = node.operands[0], node.operands[-1]
    plain = len(node.operands) == 2 and dst.indirection is None and src.indirection is None
    return plain and dst.dtype == src.dtype and node.attrs.dge_mode.name == "unknown"
