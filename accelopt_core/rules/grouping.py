"""Several passes of a loop at once: tiles side by side, one instruction in place of as many as there are passes."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    everywhere,
    fission,
    joined_tiles,
    loop_at,
    merged,
    paths,
    split,
)
from nki_sim.loop_ir.tree import Allocate, Loop, LoopKernel

MOST_PASSES = 64
"""Taken together."""


class Group:
    name = "merge-iterations"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                count = node.extent.constant
                for block in blocks_of(count):
                    yield Site(self.name, path, (block,), f"{block} passes of line {node.site} at once", node.site)
                if count <= MOST_PASSES:
                    yield Site(self.name, path, (ALL,), f"all passes of line {node.site} at once", node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return self.together((kernel,), site)[0]

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        kernels, path = in_blocks(kernels, site.path, site.arguments[0])
        return grouped(kernels, path)


ALL = "all"


def blocks_of(count: int) -> list[int]:
    """Sizes of blocks that so many passes are cut into."""
    return [n for n in (2, 4, 8, 16, 32, 64) if count % n == 0 and n < count]


def in_blocks(kernels: Kernels, path: Path, block: int | str) -> tuple[Kernels, Path]:
    """The loop there in blocks of so many passes, and the place of the loop over a block's."""
    if block == ALL:
        return kernels, path
    return everywhere(split, kernels, path, int(block)), (*path, 0)


def grouped(kernels: Kernels, path: Path) -> Kernels:
    """The passes of the loop there at once, statement by statement, as far as that is possible.

    Raises Refused where it is for none.
    """
    at = 0
    while at < len(loop_at(kernels[0], path).body):
        if isinstance(loop_at(kernels[0], path).body[at], Allocate):
            if len(loop_at(kernels[0], path).body) == 1:
                raise Refused("nothing is done in the loop")
            kernels = everywhere(joined_tiles, kernels, (*path, at))
            path = (*path[:-1], path[-1] + 1)
        else:
            at += 1
    parts = 1
    for cut in range(len(loop_at(kernels[0], path).body) - 1, 0, -1):
        try:
            kernels = everywhere(fission, kernels, path, cut)
            parts += 1
        except Refused:
            continue
    done, reason = 0, ""
    for number in range(parts):
        try:
            kernels = everywhere(merged, kernels, (*path[:-1], path[-1] + number))
            done += 1
        except Refused as error:
            reason = str(error)
    if not done:
        raise Refused(reason)
    return kernels
