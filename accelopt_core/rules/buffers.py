"""Tiles that are filled for nothing, and tiles for which one pass waits for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import fills_before_reading, is_local, local_tiles, uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    everywhere,
    loop_at,
    loops_around,
    node_at,
    paths,
    with_block,
    with_node,
    with_operands,
)
from nki_sim.loop_ir.dependence import Use, covers, meet, uses
from nki_sim.loop_ir.tree import Access, Allocate, DeviceLoop, Instruction, Loop, LoopKernel, Node
from nki_sim.program import Engine


class DropMemset:
    """A tile that is wholly overwritten needs no zeros first."""

    name = "drop-memset"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "memset":
                yield Site(self.name, path, (), f"no memset in line {node.line}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "memset":
            raise Refused("there is no memset in that place")
        dst = node.operands[0]
        if not is_local(kernel, dst.buffer):
            raise Refused("the kernel returns what is set")
        _, reading = uses_of(kernel, dst.buffer)
        block = block_at(kernel, site.path)
        rest = block[site.path[-1] + 1 :]
        own = Allocate(dst.buffer) in block and fills_before_reading(rest, dst.buffer, kernel)
        if reading and not own and not _overwritten(rest, dst, kernel, loops_around(kernel, site.path)):
            raise Refused("something reads what is set")
        return without(kernel, site.path, dst.buffer)


def _overwritten(rest: Sequence[Node], dst: Access, kernel: LoopKernel, around: tuple[Loop, ...]) -> bool:
    """Does one of the statements write all of it before any of them may read from it?"""
    use = Use(dst, Instruction("memset", Engine.unknown, None, (dst,)), around)
    for node in rest:
        if isinstance(node, DeviceLoop):
            return False
        for other in uses((node,), around):
            if other.access.access != "w" and meet(other, use, kernel, around):
                return False
        if isinstance(node, Instruction):
            for access in node.operands:
                if access.buffer == dst.buffer and _fills(access, dst, kernel):
                    return True
    return False


def _fills(access: Access, dst: Access, kernel: LoopKernel) -> bool:
    """Does it write all that the memset does?"""
    if access.access != "w" or access.indirection is not None or access.tile != dst.tile:
        return False
    same = (access.offset, access.pattern, access.dtype) == (dst.offset, dst.pattern, dst.dtype)
    return same or covers(access, kernel.buffers[dst.buffer])


class RotateBuffer:
    """A buffer for each pass: the compiler has as many in flight as fit, and no pass waits for another's readers."""

    name = "rotate-buffers"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        found = []
        for path, node in paths(kernel.body):
            if isinstance(node, Allocate) and _used_in_a_loop(block_at(kernel, path), node.buffer):
                buffer = kernel.buffers[node.buffer]
                what = f"a {buffer.name or 'tile'} of line {buffer.line} for each pass"
                found.append(Site(self.name, path, (node.buffer,), what, buffer.line))
        if len(found) > 1:
            yield self.preparation(kernel)
        yield from found

    def preparation(self, kernel: LoopKernel) -> Site:
        return Site(self.name, (), (), "a tile for each pass wherever passes fill it anew")

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        """Each as deep as it may be."""
        made, reason = kernels, ""
        waiting = list(site.arguments or sorted(kernels[-1].buffers))
        while waiting:
            key = int(waiting.pop(0))
            while True:
                try:
                    made = everywhere(_lives_apart, made, key)
                    waiting.append(max(made[-1].buffers))
                except Refused:
                    break
            while True:
                try:
                    made = everywhere(_deeper, made, key)
                except Refused as refused:
                    reason = str(refused)
                    break
        if made is kernels:
            raise Refused(reason)
        return made


def _lives_apart(kernel: LoopKernel, key: int) -> LoopKernel:
    """What the last statements of a block, which fill it anew, do with the buffer, in another one. Raises Refused."""
    path = next((path for path, made in local_tiles(kernel) if made == key), None)
    if path is None or not is_local(kernel, key) or kernel.buffers[key].address is not None:
        raise Refused("the kernel returns the buffer, or places it itself")
    block = block_at(kernel, path)
    using = [at for at, node in enumerate(block) if any(use.access.buffer == key for use in uses((node,)))]
    every = sum(uses_of(kernel, key), [])
    if any(each.path[: len(path) - 1] != path[:-1] for each in every):
        raise Refused("the buffer is used outside of the block that it is made in")
    first = next((at for at in reversed(using[1:]) if fills_before_reading(block[at:], key, kernel)), None)
    if first is None:
        raise Refused("what is filled last goes on with what was there")
    own = max(kernel.buffers) + 1
    rest = with_operands(block[first:], lambda each: replace(each, buffer=own) if each.buffer == key else each)
    kernel = replace(kernel, buffers={**kernel.buffers, own: kernel.buffers[key]})
    return with_block(kernel, path, (*block[:first], Allocate(own), *rest))


def _used_in_a_loop(block: Sequence[Node], key: int) -> bool:
    loops = [node for node in block if isinstance(node, Loop)]
    return any(use.access.buffer == key for use in uses(loops))


def _loop_of(kernel: LoopKernel, path: Path, key: int) -> Path | None:
    """The loop beside the Allocate there that holds every use of its buffer."""
    for at, node in enumerate(block_at(kernel, path)):
        if isinstance(node, (Loop, DeviceLoop)) and any(use.access.buffer == key for use in uses((node,))):
            place = (*path[:-1], at)
            every = sum(uses_of(kernel, key), [])
            inside = isinstance(node, Loop) and all(each.path[: len(place)] == place for each in every)
            return place if inside else None
    return None


def _deeper(kernel: LoopKernel, key: int) -> LoopKernel:
    """The buffer made in the loop that holds every use of it. Raises Refused."""
    path = next((path for path, made in local_tiles(kernel) if made == key), None)
    if path is None or not is_local(kernel, key) or kernel.buffers[key].address is not None:
        raise Refused("the kernel returns the buffer, or places it itself")
    place = _loop_of(kernel, path, key)
    if place is None:
        raise Refused("the buffer is used outside of the loop")
    loop = loop_at(kernel, place)
    if not fills_before_reading(loop.body, key, kernel):
        raise Refused("a pass may read what an earlier one left")
    depth, inner = len(loops_around(kernel, place)), Affine.variable(loop.variable)

    def moved(access: Access) -> Access:
        return replace(access, tile=(*access.tile[:depth], inner)) if access.buffer == key else access

    body = (Allocate(key), *with_operands(loop.body, moved))
    return with_node(with_node(kernel, place, (replace(loop, body=body),)), path, ())
