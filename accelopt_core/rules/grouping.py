"""Several passes of a loop at once: tiles side by side, one instruction in place of as many as there are passes."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
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
                for block in _divisors(count):
                    yield Site(
                        self.name, path, (block,), f"{block} of {count} passes of line {node.site} at once", node.site
                    )

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        block = int(site.arguments[0])
        path = site.path
        if loop_at(kernel, path).extent != Affine(block):
            kernel = split(kernel, path, block)
            path = (*path, 0)
        return grouped(kernel, path)


def _divisors(count: int) -> list[int]:
    return [n for n in range(2, min(count, MOST_PASSES) + 1) if count % n == 0 and (n & (n - 1) == 0 or n == count)]


def grouped(kernel: LoopKernel, path: Path) -> LoopKernel:
    """The passes of the loop there at once, statement by statement, as far as that is possible.

    Raises Refused where it is for none.
    """
    at = 0
    while at < len(loop_at(kernel, path).body):
        if isinstance(loop_at(kernel, path).body[at], Allocate):
            if len(loop_at(kernel, path).body) == 1:
                raise Refused("nothing is done in the loop")
            kernel = joined_tiles(kernel, (*path, at))
            path = (*path[:-1], path[-1] + 1)
        else:
            at += 1
    parts = 1
    for cut in range(len(loop_at(kernel, path).body) - 1, 0, -1):
        try:
            kernel = fission(kernel, path, cut)
            parts += 1
        except Refused:
            continue
    done, reason = 0, ""
    for number in range(parts):
        try:
            kernel = merged(kernel, (*path[:-1], path[-1] + number))
            done += 1
        except Refused as error:
            reason = str(error)
    if not done:
        raise Refused(reason)
    return kernel
