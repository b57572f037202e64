"""What is the same in every pass of a loop is made once, in front of it; loops in blocks and in another order, so that
what an inner one makes serves several passes of the outer one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accelopt_core.rules.base import Site
from accelopt_core.rules.loops.grouping import ALL, MOST_PASSES, blocks_of, in_blocks
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    everywhere,
    fission,
    inlined,
    interchange,
    lifted,
    loop_at,
    node_at,
    paths,
)
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel, Node, walk


class Lift:
    """What is the same in every pass is loaded or computed once, before the loop."""

    name = "hoist-invariant-load"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                for inner, each in paths(node.body):
                    if isinstance(each, Allocate):
                        tile = kernel.buffers[each.buffer]
                        what = f"{tile.name or 'the tile'} of line {tile.line} once for all passes of {node.where}"
                        yield Site(self.name, path, inner, what, tile.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        place = tuple(int(step) for step in site.arguments)
        node = node_at(kernel, (*site.path, *place))
        if not isinstance(node, Allocate):
            raise Refused("no buffer is made there")
        chosen = what_makes(block_at(kernel, (*site.path, *place)), node.buffer)
        return lifted(kernel, site.path, [(*place[:-1], at) for at in chosen])


def what_makes(block: Sequence[Node], buffer: int) -> list[int]:
    """The statements of a block that make a buffer, those that fill it, and whatever these need of the block's own."""
    makers = {node.buffer: at for at, node in enumerate(block) if isinstance(node, Allocate)}
    writers: dict[int, set[int]] = {}
    readers: dict[int, set[int]] = {}
    for at, node in enumerate(block):
        for each, _ in walk((node,)):
            if isinstance(each, Instruction):
                for access in each.operands:
                    (readers if access.access == "r" else writers).setdefault(access.buffer, set()).add(at)
    chosen: set[int] = set()
    waiting = [buffer]
    while waiting:
        wanted = waiting.pop()
        if wanted not in makers or makers[wanted] in chosen:
            continue
        chosen.add(makers[wanted])
        for at in writers.get(wanted, ()):
            chosen.add(at)
            for each, _ in walk((block[at],)):
                if isinstance(each, Instruction):
                    waiting += [access.buffer for access in each.operands]
    return sorted(chosen)


class Block:
    """Tiles of a block stay in SBUF while several products use them, in place of a load for each."""

    name = "block-tiles"
    takes_passes = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if not isinstance(node, Loop) or not node.extent.is_constant or node.extent.constant < 2:
                continue
            count = node.extent.constant
            for at, inner in enumerate(node.body):
                if isinstance(inner, Loop):
                    for block in (*blocks_of(count), *((ALL,) if count <= MOST_PASSES else ())):
                        what = f"{block} passes of {node.where} for each pass of {inner.where}"
                        yield Site(self.name, path, (at, block), what, node.site)

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
                what = f"all passes of {node.where} within each of {node.body[0].where}"
                yield Site(self.name, path, (), what, node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return interchange(kernel, site.path)


class InlineSinglePass:
    """What a loop of one pass does stands among the statements around it, where other rules see it beside them."""

    name = "inline-single-pass"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        if any(isinstance(node, Loop) and node.extent == Affine(1) for node, _ in walk(kernel.body)):
            yield self.preparation(kernel)

    def preparation(self, kernel: LoopKernel) -> Site:
        return Site(self.name, (), (), "the body of each loop of one pass in its place")

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        """Of each loop that has one pass at every shape."""
        made = kernels
        for path, node in reversed(paths(kernels[0].body)):
            if isinstance(node, Loop) and all(loop_at(each, path).extent == Affine(1) for each in made):
                made = everywhere(inlined, made, path)
        if made is kernels:
            raise Refused("no loop has one pass at every shape")
        return made


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
