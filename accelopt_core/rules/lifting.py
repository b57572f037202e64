"""Work that is the same in every pass of a loop is done once, in front of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accelopt_core.rules.base import Site
from nki_sim.loop_ir.changes import Path, Refused, lifted, loop_at, node_at, paths
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel, Node, walk


class Lift:
    """What is the same in every pass is loaded or computed once, before the loop."""

    name = "hoist-invariant-load"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                for inner, block in _blocks(node.body):
                    for at, each in enumerate(block):
                        if isinstance(each, Allocate):
                            buffer = kernel.buffers[each.buffer]
                            yield Site(
                                self.name,
                                path,
                                (*inner, at),
                                f"{buffer.name or 'the tile'} of line {buffer.line} once for all passes of line "
                                f"{node.site}",
                                buffer.line,
                            )

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        place = tuple(int(step) for step in site.arguments)
        loop = loop_at(kernel, site.path)
        node = node_at(kernel, (*site.path, *place))
        if not isinstance(node, Allocate):
            raise Refused("no buffer is made there")
        block: Sequence[Node] = loop.body
        for step in place[:-1]:
            inner = block[step]
            assert isinstance(inner, Loop)
            block = inner.body
        chosen = what_makes(block, node.buffer)
        return lifted(kernel, site.path, [(*place[:-1], at) for at in chosen])


def _blocks(body: tuple[Node, ...], before: Path = ()) -> Iterator[tuple[Path, tuple[Node, ...]]]:
    yield before, body
    for at, node in enumerate(body):
        if isinstance(node, Loop):
            yield from _blocks(node.body, (*before, at))


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
