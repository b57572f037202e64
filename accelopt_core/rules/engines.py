"""Work on an engine that has time for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.staging import with_tile
from nki_sim.isa.constants import reduce_cmd
from nki_sim.isa.scalar_engine import Activation
from nki_sim.loop_ir.changes import Refused, checked, node_at, paths, with_node
from nki_sim.loop_ir.tree import Allocate, Instruction, LoopKernel
from nki_sim.memory import MemoryRegion
from nki_sim.program import Engine

_ENGINES = (Engine.vector, Engine.scalar, Engine.gpsimd)
_MOVABLE = frozenset({"tensor_copy", "tensor_scalar", "tensor_tensor", "memset"})


class MoveEngine:
    """The same work on an engine that has less to do."""

    name = "move-elementwise-work"
    comes_last = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode in _MOVABLE:
                for engine in _ENGINES:
                    if engine is not node.engine:
                        what = f"{node.opcode} of line {node.line} on {engine.name}"
                        yield Site(self.name, path, (engine.name,), what, node.line)

    def moves(self, kernel: LoopKernel, site: Site) -> tuple[str, str]:
        node = node_at(kernel, site.path)
        assert isinstance(node, Instruction)
        return node.engine.name, str(site.arguments[0])

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction):
            raise Refused("no instruction stands there")
        moved = replace(node, engine=Engine[str(site.arguments[0])])
        return with_node(kernel, site.path, (checked(moved, kernel.buffers),))


class ReciprocalOnScalar:
    """One element a cycle in place of eight cycles each (AWS's cost formulas); a table, so perhaps less exact."""

    name = "reciprocal-on-scalar"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "reciprocal":
                yield Site(self.name, path, (), f"the reciprocal of line {node.line} on Scalar", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "reciprocal":
            raise Refused("there is no reciprocal in that place")
        attrs = Activation("reciprocal", 1.0, 0.0, reduce_cmd.idle)
        made = replace(node, opcode="activation", engine=Engine.scalar, attrs=attrs)
        return with_node(kernel, site.path, (checked(made, kernel.buffers),))


class EvacuatePsum:
    """A copy that Scalar makes opens PSUM's tile to engines that have no path to it."""

    name = "evacuate-psum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode in (
                "tensor_tensor",
                "tensor_scalar",
                "scalar_tensor_tensor",
            ):
                for at, access in enumerate(node.operands):
                    if access.access == "r" and kernel.buffers[access.buffer].region is MemoryRegion.psum:
                        what = f"{access.role} of line {node.line} copied out of PSUM by Scalar"
                        yield Site(self.name, path, (at,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction):
            raise Refused("no instruction stands there")
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
