"""Indices that go on evenly are a slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import is_local, local_tiles, uses_of
from nki_sim.loop_ir.changes import Refused, checked, paths, with_node
from nki_sim.loop_ir.dependence import covers
from nki_sim.loop_ir.tree import Instruction, LoopKernel, Node
from nki_sim.program import Engine


class GatherAsSlice:
    """A gather by indices that iota made, the same on each partition, is a copy of every so many elements."""

    name = "gather-as-slice"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        lines = [node.line for _, node in paths(kernel.body) if _gathers(node)]
        if lines:
            yield Site(self.name, (), (), f"slices in place of gathers from line {lines[0]} on", lines[0])

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        """Of all gathers that are slices."""
        done, reason = False, "there is no gather"
        for path, node in reversed(paths(kernel.body)):
            if _gathers(node):
                try:
                    copy = checked(_as_copy(kernel, node), kernel.buffers)
                except Refused as refused:
                    reason = str(refused)
                    continue
                kernel, done = with_node(kernel, path, (copy,)), True
        if not done:
            raise Refused(reason)
        for key in [key for _, key in local_tiles(kernel)]:
            writing, reading = uses_of(kernel, key)
            if not reading and is_local(kernel, key) and [each.node.opcode for each in writing] == ["iota"]:
                kernel = without(kernel, writing[0].path, key)
        return kernel


def _gathers(node: Node) -> TypeGuard[Instruction]:
    return isinstance(node, Instruction) and node.opcode == "nc_n_gather"


def _as_copy(kernel: LoopKernel, node: Instruction) -> Instruction:
    dst, data, indices = node.operands
    writing, _ = uses_of(kernel, indices.buffer)
    if not is_local(kernel, indices.buffer) or len(writing) != 1 or writing[0].node.opcode != "iota":
        raise Refused("the indices are not made by one iota")
    made, attrs = writing[0].node.operands[0], writing[0].node.attrs
    whole = covers(made, kernel.buffers[indices.buffer]) and covers(indices, kernel.buffers[indices.buffer])
    if not whole or made.pattern != indices.pattern or attrs.channel_multiplier:
        raise Refused("the indices differ from partition to partition, or only some of them are taken")
    (row, partitions), *free = data.pattern
    step = free[-1][0] if free else 1
    if any(stride != step * prod(n for _, n in free[at + 1 :]) for at, (stride, _) in enumerate(free)):
        raise Refused("what is gathered from does not go on evenly")
    pattern = ((row, partitions), *((step * each, count) for each, count in attrs.pattern))
    taken = replace(data, role="src", offset=data.offset + step * attrs.offset, pattern=pattern)
    return Instruction("tensor_copy", Engine.vector, None, (dst, taken), node.line)
