"""Elementwise work on another engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.changes import Refused, checked, node_at, paths, with_node
from nki_sim.loop_ir.tree import Instruction, LoopKernel
from nki_sim.program import Engine

_ENGINES = (Engine.vector, Engine.scalar, Engine.gpsimd)
_MOVABLE = frozenset({"tensor_copy", "tensor_scalar", "tensor_tensor", "memset"})


class MoveEngine:
    name = "move-elementwise-work"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode in _MOVABLE:
                for engine in _ENGINES:
                    if engine is not node.engine:
                        what = f"{node.opcode} of line {node.line} on {engine.name}"
                        yield Site(self.name, path, (engine.name,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction):
            raise Refused("no instruction stands there")
        moved = replace(node, engine=Engine[str(site.arguments[0])])
        return with_node(kernel, site.path, (checked(moved, kernel.buffers),))
