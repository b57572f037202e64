"""Reductions over small windows, as steps between whole rows.

A reduction takes a cycle for each element of each window (AWS's cost formulas), and windows that overlap have most of
their elements in common. Taken dimension by dimension, what lies beside each other in one is there for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import with_tile
from nki_sim.dtypes import float32
from nki_sim.isa.arithmetic.shared import TensorTensor
from nki_sim.loop_ir.changes import Refused, checked, instruction_at, instructions, with_node
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel, Node
from nki_sim.program.patterns import Pattern
from nki_sim.program.program import Engine

WIDEST = 8
"""Elements of a window in one dimension: each is an instruction."""


class ReduceBySteps:
    """Whole rows are added or compared, one for each place in the window: fewer elements than the windows have."""

    name = "reduce-by-steps"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "tensor_reduce"):
            pattern = node.operands[1].pattern
            windows = pattern[len(pattern) - len(node.attrs.axes) :]
            if len(windows) < len(pattern) - 1 and len(windows) < 3 and max(n for _, n in windows) <= WIDEST:
                for first in range(len(windows)):
                    what = f"the windows of line {node.line} by steps between rows, dimension {first} first"
                    yield Site(self.name, path, (first,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "tensor_reduce")
        dst, data = node.operands
        if dst.buffer == data.buffer or node.attrs.op not in ("maximum", "minimum", "add") or node.attrs.negate:
            raise Refused(f"nl.{node.attrs.op} is not the same in another order")
        if node.attrs.op == "add" and (dst.dtype, data.dtype) != (float32, float32):
            raise Refused("the sums of a step would round")
        depth = len(data.pattern) - len(node.attrs.axes)
        kept, windows = data.pattern[1:depth], list(data.pattern[depth:])
        walked = windows.pop(int(site.arguments[0]))
        target = replace(dst, pattern=(dst.pattern[0], *_as_many(dst.pattern[1:], kept)))
        if not windows:
            return with_node(kernel, site.path, _steps(node, target, data, kept, walked, kernel))
        (other,) = windows
        rows, taken, window = _with_neighbours(kept, other)
        sizes = [n for _, n in rows]
        kernel, tile = with_tile(kernel, site.path, [data.pattern[0][1], *sizes], data.dtype, "rows", node.line)
        strides = {far: stride for (far, _), (stride, _) in zip(rows, tile.pattern[1:])}
        own = tuple((strides[far] * times, count) for far, times, count in taken)
        between = replace(tile, role="data", access="r", pattern=(tile.pattern[0], *own))
        made = (
            Allocate(tile.buffer),
            *_steps(node, tile, data, rows, walked, kernel),
            *_steps(node, target, between, own, (strides[window], other[1]), kernel),
        )
        return with_node(kernel, site.path, made)


def _with_neighbours(kept: Pattern, window: tuple[int, int]) -> tuple[Pattern, list[tuple[int, int, int]], int]:
    """The rows that windows which lie in them take, each element once; by which of their steps, how many at once and
    how often what is kept goes through them; and by which the window does. Raises Refused."""
    step, size = window
    rows: list[tuple[int, int]] = []
    taken: list[tuple[int, int, int]] = []
    found = False
    for far, count in kept:
        if not found and far % step == 0 and 0 < far // step <= size and count > 1:
            rows.append((step, (count - 1) * (far // step) + size))
            taken.append((step, far // step, count))
            found = True
        else:
            rows.append((far, count))
            taken.append((far, 1, count))
    if not found:
        rows.append(window)
    if len({far for far, _ in rows}) < len(rows):
        raise Refused("two dimensions go by the same step")
    return tuple(rows), taken, step


def _as_many(pattern: Pattern, kept: Pattern) -> Pattern:
    """What is written in the dimensions that are kept. Raises Refused where it has others."""
    counts = [n for _, n in kept if n > 1]
    if [n for _, n in pattern if n > 1] == counts:
        strides = iter([stride for stride, n in pattern if n > 1])
        return tuple((next(strides) if n > 1 else 1, n) for _, n in kept)
    dense = [pair for pair in pattern if pair[1] > 1]
    if len(dense) != 1:
        raise Refused("what is written has other dimensions than what is kept")
    return tuple((dense[0][0] * prod(n for _, n in kept[at + 1 :]), n) for at, (_, n) in enumerate(kept))


def _steps(
    node: Instruction, dst: Access, data: Access, rows: Pattern, walked: tuple[int, int], kernel: LoopKernel
) -> list[Node]:
    """The rows one step further, and so on, each taken together with what is there."""
    stride, count = walked
    parts = [replace(data, offset=data.offset + stride * at, pattern=(data.pattern[0], *rows)) for at in range(count)]
    made: list[Node] = []
    before = replace(parts[0], role="data1", access="r")
    for part in parts[1:]:
        operands = (dst, before, replace(part, role="data2", access="r"))
        step = Instruction("tensor_tensor", Engine.vector, TensorTensor(node.attrs.op, False), operands, node.line)
        made.append(checked(step, kernel.buffers))
        before = replace(dst, role="data1", access="r")
    if not made:
        raise Refused("the windows have one element in that dimension")
    return made
