"""Loops in blocks and in another order: what an inner loop loads serves several passes of the outer one."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.rules.base import Site
from accelopt_core.rules.grouping import ALL, MOST_PASSES, blocks_of, in_blocks
from accelopt_core.rules.lifting import what_makes
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    everywhere,
    fission,
    interchange,
    lifted,
    loop_at,
    paths,
)
from nki_sim.loop_ir.tree import Allocate, Loop, LoopKernel


class Block:
    """Tiles of a block stay in SBUF while several products use them, in place of a load for each."""

    name = "block-tiles"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if not isinstance(node, Loop) or not node.extent.is_constant or node.extent.constant < 2:
                continue
            count = node.extent.constant
            for at, inner in enumerate(node.body):
                if isinstance(inner, Loop):
                    for block in (*blocks_of(count), *((ALL,) if count <= MOST_PASSES else ())):
                        what = f"{block} passes of line {node.site} for each pass of line {inner.site}"
                        yield Site(self.name, path, (at, block), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return self.together((kernel,), site)[0]

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        at = int(site.arguments[0])
        kernels, path = in_blocks(kernels, site.path, site.arguments[1])
        if at + 1 < len(loop_at(kernels[0], path).body):
            kernels = everywhere(fission, kernels, path, at + 1)
        if at:
            kernels = everywhere(fission, kernels, path, at)
            path = (*path[:-1], path[-1] + 1)
        kernels = everywhere(interchange, kernels, path)
        return _lifted_from(kernels, (*path, 0))


class Interchange:
    """What an inner loop loads serves the passes of the outer one."""

    name = "interchange-loops"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and len(node.body) == 1 and isinstance(node.body[0], Loop):
                what = f"all passes of line {node.site} within each of line {node.body[0].site}"
                yield Site(self.name, path, (), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return interchange(kernel, site.path)


def _lifted_from(kernels: Kernels, path: Path) -> Kernels:
    """What no pass of that loop changes goes in front of it. Raises Refused where nothing does."""
    lifted_any = False
    at = 0
    while at < len(loop_at(kernels[0], path).body):
        body = loop_at(kernels[0], path).body
        node = body[at]
        if isinstance(node, Allocate):
            chosen = what_makes(body, node.buffer)
            try:
                kernels = everywhere(lifted, kernels, path, [(each,) for each in chosen])
            except Refused:
                at += 1
                continue
            path = (*path[:-1], path[-1] + len(chosen))
            lifted_any = True
            at = 0
        else:
            at += 1
    if not lifted_any:
        raise Refused("nothing in the inner loop is the same for several passes of the outer one")
    return kernels
