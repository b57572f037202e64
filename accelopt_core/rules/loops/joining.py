"""Loops one after the other as one: what a pass makes is taken while the next one is being made.

An engine takes its instructions in their order: where each loop keeps one engine busy, they wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accelopt_core.rules.base import Site
from accelopt_core.rules.loops.grouping import ALL
from accelopt_core.rules.loops.parts import is_by_columns, part_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    everywhere,
    fresh_variable,
    fuse,
    loop_at,
    loops_around,
    paths,
    place_of,
    with_block,
    with_node,
)
from nki_sim.loop_ir.dependence import conflict
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel, Node


class FuseLoops:
    """One engine takes what a pass makes while another makes the next, in place of one loop after the other."""

    name = "fuse-loops"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                following = _following(block_at(kernel, path), path[-1])
                if following:
                    other = block_at(kernel, path)[following[0]]
                    assert isinstance(other, Loop)
                    what = f"the loops of {node.where} and {other.where} as one"
                    yield Site(self.name, path, (1,), what, node.site)
                if len(following) > 1:
                    what = f"the loop of {node.where} and those like it after it as one"
                    yield Site(self.name, path, (ALL,), what, node.site)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        """As many as can be, from the first one on; that is the same at every shape."""
        path, done, reason = site.path, False, "no loop of that length follows"
        skipped = 0
        while site.arguments == (ALL,) or not done:
            following = _following(block_at(kernels[-1], path), path[-1])[skipped:]
            if not following:
                break
            try:
                fused = everywhere(_fused, kernels, path, following[0])
            except Refused as refused:
                reason, skipped = str(refused), skipped + 1
                if site.arguments != (ALL,):
                    break
                continue
            variable = loop_at(kernels[-1], path).variable
            kernels, done = fused, True
            path = place_of(kernels[-1], variable)
        if not done:
            raise Refused(reason)
        return kernels


def _following(block: Sequence[Node], at: int) -> list[int]:
    """Where the loops behind that one stand that have its length."""
    loop = block[at]
    assert isinstance(loop, Loop)
    return [
        n
        for n, node in enumerate(block)
        if n > at and isinstance(node, Loop) and (node.start, node.extent) == (loop.start, loop.extent)
    ]


def _fused(kernel: LoopKernel, path: Path, other: int) -> LoopKernel:
    """With the loop at `other` in the block as part of the one there; what stands between goes before or after both."""
    block = block_at(kernel, path)
    loop, second = block[path[-1]], block[other]
    before, after, around = list[Node](), list[Node](), loops_around(kernel, path)
    for at in range(path[-1] + 1, other):
        node = block[at]
        if isinstance(node, Allocate) or conflict((loop, *after), (node,), kernel, around) is None:
            before.append(node)
            continue
        if conflict((node,), (second,), kernel, around) is not None:
            if isinstance(node, Instruction):
                return _fused_with(kernel, path, at, other)
            raise Refused("a loop of another length between the two takes what the first makes for the second")
        after.append(node)
    together = (*block[: path[-1]], *before, loop, second, *after, *block[other + 1 :])
    return fuse(with_block(kernel, path, together), (*path[:-1], path[-1] + len(before)))


def _fused_with(kernel: LoopKernel, path: Path, at: int, other: int) -> LoopKernel:
    """The instruction between the two is a part of itself in each pass."""
    loop, node = loop_at(kernel, path), block_at(kernel, path)[at]
    assert isinstance(node, Instruction)
    if not is_by_columns(node) or loop.start != Affine():
        raise Refused(f"line {node.line} takes all that the first loop makes")
    variable = fresh_variable(kernel, loop.variable)
    part = part_of(node, loop.extent.constant, variable, kernel)
    kernel = with_node(kernel, (*path[:-1], at), (Loop(variable, Affine(), loop.extent, (part,), loop.site),))
    second = block_at(kernel, path)[other]
    kernel = _fused(kernel, path, at)
    found = place_of(kernel, loop.variable)
    return _fused(kernel, found, block_at(kernel, found).index(second))
