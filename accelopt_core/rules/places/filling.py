"""Tiles of few partitions as tiles of more: an engine takes as long for one partition as for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, taken_through, uses_of
from accelopt_core.rules.loops.grouping import ALL, GroupOnPartitions
from accelopt_core.rules.loops.parts import PARTS, SplitColumns, blocks, runs
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    everywhere,
    loop_at,
    loops_around,
    place_of,
    with_block,
    with_node,
)
from nki_sim.loop_ir.dependence import uses
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel, Node, dense
from nki_sim.machine import ISA


class FillPartitions:
    """Parts of their columns on partitions of their own."""

    name = "fill-partitions"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in blocks(kernel):
            for first, last in runs(node):
                line = next((n.line for n in node[first:last] if isinstance(n, Instruction)), 0)
                most = max(
                    use.access.pattern[0][1]
                    for use in uses(node[first:last])
                    if kernel.buffers[use.access.buffer].region.on_chip
                )
                for parts in PARTS:
                    if parts * most <= ISA.partitions:
                        what = f"{parts} parts of the columns from line {line} on, on partitions of their own"
                        yield Site(self.name, path, (first, last, parts), what, line)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        before_kernel = kernels[-1]
        kernels = everywhere(SplitColumns().apply, kernels, site)
        first, last, _ = (int(each) for each in site.arguments)
        before, block = len(block_at(before_kernel, site.path)), block_at(kernels[-1], site.path)
        made = [n for n in range(first, last + len(block) - before) if isinstance(block[n], Loop)]
        if len(made) != 1:
            raise Refused("parts of the columns need what others make")
        loop = block[made[0]]
        kernels = everywhere(_narrowed, kernels, (*site.path[:-1], made[0]))
        assert isinstance(loop, Loop)
        return GroupOnPartitions().together(kernels, Site(self.name, place_of(kernels[-1], loop.variable), (ALL,)))


def _narrowed(kernel: LoopKernel, path: Path) -> LoopKernel:
    """Tiles of which every pass of the loop there uses its own part are made by each pass, of that part alone."""
    loop = loop_at(kernel, path)
    made: list[Node] = []
    for use in [use for use in uses((loop,)) if use.writes]:
        key, around = use.access.buffer, loops_around(kernel, path)
        every = sum(uses_of(kernel, key), [])
        own = Allocate(key) in block_at(kernel, path) and is_local(kernel, key) and kernel.buffers[key].region.on_chip
        if not own or any(each.path[: len(path)] != path for each in every) or use.access.access != "w":
            continue
        sizes = tuple(n for _, n in use.access.pattern)
        tile = (*use.access.tile[: len(around)], Affine.variable(loop.variable))
        view = replace(use.access, buffer=max(kernel.buffers) + 1, tile=tile, offset=Affine(), pattern=dense(sizes))
        buffers = {**kernel.buffers, view.buffer: replace(kernel.buffers[key], shape=sizes)}
        changed = replace(kernel, buffers=buffers)
        for each in dict.fromkeys(every):
            changed = taken_through(changed, each, use.access, view)
        made.append(Allocate(view.buffer))
        kernel = changed
    left = {use.access.buffer for use in uses(kernel.body)}
    body = (*made, *loop_at(kernel, path).body)
    kernel = with_node(kernel, path, (replace(loop_at(kernel, path), body=body),))
    block = block_at(kernel, path)
    return with_block(kernel, path, [n for n in block if not isinstance(n, Allocate) or n.buffer in left])
