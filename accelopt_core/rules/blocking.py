"""A loop of products in blocks: what an inner loop loads serves several passes of the outer one."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import Path, Refused, fission, interchange, lifted, loop_at, paths, split
from nki_sim.loop_ir.tree import Allocate, Loop, LoopKernel

BLOCKS = (2, 4, 8)


class Block:
    name = "block-tiles"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if not isinstance(node, Loop) or not node.extent.is_constant:
                continue
            for at, inner in enumerate(node.body):
                if isinstance(inner, Loop):
                    for block in (*BLOCKS, node.extent.constant):
                        if node.extent.constant % block == 0 and block <= node.extent.constant and block > 1:
                            what = f"{block} passes of line {node.site} for each pass of line {inner.site}"
                            yield Site(self.name, path, (at, block), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        at, block = int(site.arguments[0]), int(site.arguments[1])
        path: Path = site.path
        if loop_at(kernel, path).extent != Affine(block):
            kernel = split(kernel, path, block)
            path = (*path, 0)
        if at + 1 < len(loop_at(kernel, path).body):
            kernel = fission(kernel, path, at + 1)
        if at:
            kernel = fission(kernel, path, at)
            path = (*path[:-1], path[-1] + 1)
        kernel = interchange(kernel, path)
        return _lifted_from(kernel, (*path, 0))


def _lifted_from(kernel: LoopKernel, path: Path) -> LoopKernel:
    """What no pass of that loop changes goes in front of it. Raises Refused where nothing does."""
    from accelopt_core.rules.lifting import _what_makes

    lifted_any = False
    at = 0
    while at < len(loop_at(kernel, path).body):
        node = loop_at(kernel, path).body[at]
        if isinstance(node, Allocate):
            chosen = _what_makes(loop_at(kernel, path).body, node.buffer)
            try:
                kernel = lifted(kernel, path, [(each,) for each in chosen])
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
    return kernel
