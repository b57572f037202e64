"""Reductions over small windows, as steps between whole rows.

A reduction takes a cycle for each element of each window (AWS's cost formulas), and windows that overlap have most of
their elements in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import with_tile
from nki_sim.dtypes import float32
from nki_sim.isa.arithmetic.shared import TensorTensor
from nki_sim.loop_ir.changes import Refused, checked, instruction_at, instructions, with_node
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel, Node
from nki_sim.program.program import Engine

WIDEST = 8
"""Elements of a window in one dimension: each is an instruction."""


class ReduceBySteps:
    """Whole rows are added or compared, one for each place in the window: fewer elements than the windows have."""

    name = "reduce-by-steps"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "tensor_reduce"):
            kept = len(node.operands[1].pattern) - len(node.attrs.axes)
            windows = node.operands[1].pattern[kept:]
            if kept > 1 and len(windows) < 3 and max(n for _, n in windows) <= WIDEST:
                for walked in range(len(windows)):
                    what = f"dimension {walked} of the windows of line {node.line} by steps between rows"
                    yield Site(self.name, path, (walked,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "tensor_reduce")
        dst, data = node.operands
        if node.attrs.op not in ("maximum", "minimum", "add") or node.attrs.negate or dst.buffer == data.buffer:
            raise Refused(f"nl.{node.attrs.op} is not the same in another order, or a sign or its own tile is changed")
        if node.attrs.op == "add" and (dst.dtype, data.dtype) != (float32, float32):
            raise Refused("the sums of a step would round")
        partitions, *free = data.pattern
        walked = free.pop(len(free) - len(node.attrs.axes) + int(site.arguments[0]))
        if len(node.attrs.axes) == 1:
            rows = replace(data, pattern=(partitions, *free))
            return with_node(kernel, site.path, _steps(node, dst, rows, walked, kernel))
        if min(stride for stride, _ in free) < 0:
            raise Refused("the windows go backwards")
        row = 1 + sum(stride * (count - 1) for stride, count in free)
        kernel, tile = with_tile(kernel, site.path, [partitions[1], row], data.dtype, "rows", node.line)
        rows = replace(data, pattern=(partitions, (1, row)))
        taken = replace(tile, role="data", access="r", pattern=(tile.pattern[0], *free))
        left = replace(node, attrs=node.attrs._replace(axes=(len(free),)), operands=(dst, taken))
        steps = _steps(node, tile, rows, walked, kernel)
        return with_node(kernel, site.path, (Allocate(tile.buffer), *steps, checked(left, kernel.buffers)))


def _steps(
    node: Instruction, dst: Access, rows: Access, walked: tuple[int, int], kernel: LoopKernel
) -> tuple[Node, ...]:
    """The rows that lie one step further, and so on, each taken together with what there is. Raises Refused."""
    made: list[Node] = []
    before = replace(rows, role="data1", access="r")
    for at in range(1, walked[1]):
        further = replace(rows, role="data2", access="r", offset=rows.offset + walked[0] * at)
        operands = (dst, before, further)
        step = Instruction("tensor_tensor", Engine.vector, TensorTensor(node.attrs.op, False), operands, node.line)
        made.append(checked(step, kernel.buffers))
        before = replace(dst, role="data1", access="r")
    if not made:
        raise Refused("the windows have one element in that dimension")
    return tuple(made)
