"""Work on an engine that has time for it, and transfers on a queue: hardware makes descriptors without GpSimd, which
software does on (NKI's page on DGE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import with_tile
from accelopt_core.rules.loops.grouping import ALL
from nki_sim.isa.constants import reduce_cmd
from nki_sim.isa.scalar_engine import Activation
from nki_sim.loop_ir.changes import Path, Refused, checked, instruction_at, instructions, loops_around, with_node
from nki_sim.loop_ir.tree import Allocate, Instruction, LoopKernel
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine

_ENGINES = (Engine.vector, Engine.scalar, Engine.gpsimd)
_OF_TILES = frozenset({"tensor_tensor", "tensor_scalar", "scalar_tensor_tensor"})
_MOVABLE = frozenset({"tensor_copy", "tensor_scalar", "tensor_tensor", "memset"})
SELDOM = 4
"""What is done in one place so many times less often than in another is not moved by itself."""


class MoveEngine:
    """The same work on an engine that has less to do."""

    name = "move-elementwise-work"
    comes_last = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        """Of what stands in several places, as what is done ahead does, all at once, and each that is done often."""
        for places in _movable(kernel).values():
            most = max(passes for _, _, passes in places)
            for engine in _ENGINES:
                there = [each for each in places if each[1].engine is not engine]
                if len(there) > 1:
                    path, node, _ = there[0]
                    what = f"every {node.opcode} like that of line {node.line} on {engine.name}"
                    yield Site(self.name, path, (engine.name, ALL), what, node.line)
                for path, node, passes in there:
                    if passes * SELDOM > most:
                        what = f"{node.opcode} of line {node.line} on {engine.name}"
                        yield Site(self.name, path, (engine.name,), what, node.line)

    def moves(self, kernel: LoopKernel, site: Site) -> tuple[str, str]:
        node = instruction_at(kernel, site.path)
        return node.engine.name, str(site.arguments[0])

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path)
        places = [site.path]
        if site.arguments[1:] == (ALL,):
            places = [path for path, _, _ in _movable(kernel)[_form(node)]]
        for path in places:
            node = instruction_at(kernel, path)
            moved = replace(node, engine=Engine[str(site.arguments[0])])
            kernel = with_node(kernel, path, (checked(moved, kernel.buffers),))
        return kernel


def _movable(kernel: LoopKernel) -> dict[tuple[object, ...], list[tuple[Path, Instruction, int]]]:
    """By what is done to which form of operands: where it stands, and how often that is done."""
    found: dict[tuple[object, ...], list[tuple[Path, Instruction, int]]] = {}
    for path, node in instructions(kernel, *_MOVABLE):
        passes = prod(loop.extent.constant for loop in loops_around(kernel, path))
        found.setdefault(_form(node), []).append((path, node, passes))
    return found


def _form(node: Instruction) -> tuple[object, ...]:
    return node.opcode, node.attrs, *((each.role, each.dtype, each.pattern) for each in node.operands)


class ReciprocalOnScalar:
    """One element a cycle in place of eight cycles each (AWS's cost formulas); a table, so perhaps less exact."""

    name = "reciprocal-on-scalar"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "reciprocal"):
            yield Site(self.name, path, (), f"the reciprocal of line {node.line} on Scalar", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "reciprocal")
        attrs = Activation("reciprocal", 1.0, 0.0, reduce_cmd.idle)
        made = replace(node, opcode="activation", engine=Engine.scalar, attrs=attrs)
        return with_node(kernel, site.path, (checked(made, kernel.buffers),))


class EvacuatePsum:
    """A copy that Scalar makes opens PSUM's tile to engines that have no path to it."""

    name = "evacuate-psum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, *_OF_TILES):
            for at, access in enumerate(node.operands):
                if access.access == "r" and kernel.buffers[access.buffer].region is MemoryRegion.psum:
                    what = f"{access.role} of line {node.line} copied out of PSUM by Scalar"
                    yield Site(self.name, path, (at,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path)
        at = int(site.arguments[0])
        access = node.operands[at]
        sizes = [count for _, count in access.pattern]
        kernel, copy = with_tile(kernel, site.path, sizes, access.dtype, "evacuated", node.line)
        moved = Instruction("tensor_copy", Engine.scalar, None, (copy, replace(access, role="src")), node.line)
        taken = replace(copy, role=access.role, access="r")
        operands = (*node.operands[:at], taken, *node.operands[at + 1 :])
        made = (
            Allocate(copy.buffer),
            checked(moved, kernel.buffers),
            checked(replace(node, operands=operands), kernel.buffers),
        )
        return with_node(kernel, site.path, made)


_STEERED = "wide transfers that a register steers"


class HardwareQueue:
    """Transfers from the queue of the Sync engine, which does nothing else, where the kernel names none."""

    name = "hardware-queue"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        found = {which for _, node in instructions(kernel, "dma_copy") for which in _kinds(node, kernel)}
        for which in ("all transfers", "loads", "stores", _STEERED):
            if which in found:
                yield Site(self.name, (), (which,), f"{which} with descriptors that hardware makes")

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        every = [each for each in instructions(kernel, "dma_copy") if site.arguments[0] in _kinds(each[1], kernel)]
        found = [(path, node) for path, node in every if _is_free(node)]
        if not found:
            raise Refused("every such transfer has a queue already, converts, or is steered by an index")
        for path, node in found:
            moved = replace(node, attrs=node.attrs._replace(queue=Engine.sync))
            kernel = with_node(kernel, path, (checked(moved, kernel.buffers),))
        return kernel


def _is_free(transfer: Instruction) -> bool:
    """Is it one whose descriptors hardware can make, of no queue by name?"""
    dst, src, attrs = transfer.operand("dst"), transfer.operand("src"), transfer.attrs
    if dst is None or src is None or (attrs.queue, attrs.dge_mode.name) != (Engine.unknown, "unknown"):
        return False
    return dst.dtype == src.dtype and not any(o.indirection and o.indirection[0] == "vector" for o in (dst, src))


def _kinds(transfer: Instruction, kernel: LoopKernel) -> tuple[str, ...]:
    """Software writes a descriptor for each partition: narrow transfers that a register steers are left to it."""
    on_chip = [access for access in transfer.operands if kernel.buffers[access.buffer].region.on_chip]
    if len(transfer.operands) > 2:
        return (_STEERED,) if any(access.pattern[0][1] > 1 for access in on_chip) else ()
    return "all transfers", "loads" if transfer.operands[0] in on_chip else "stores"
