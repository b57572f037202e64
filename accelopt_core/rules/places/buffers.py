"""Tiles that are filled for nothing, and tiles for which one pass waits for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import is_not

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import check_free, fills_before_reading, is_local, leaves_gaps, local_tiles, uses_of
from accelopt_core.rules.unread import cut_to_use, without_unread
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    everywhere,
    instruction_at,
    instructions,
    loop_at,
    loops_around,
    paths,
    with_block,
    with_node,
    with_operands,
)
from nki_sim.loop_ir.dependence import covers, uses
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, DeviceLoop, Instruction, Loop, LoopKernel, Node
from nki_sim.program.memory import MemoryRegion


class DropMemset:
    """A tile that is wholly overwritten needs no zeros first, nor does a sum in PSUM: its first product begins it."""

    name = "drop-memset"

    def preparation(self, kernel: LoopKernel) -> Site:
        """A device is not known to add products to zeros that another engine put into PSUM."""
        return Site(self.name, (), (), "sums in PSUM begin with a product")

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "memset"):
            yield Site(self.name, path, (), f"no memset in line {node.line}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        if not site.path:
            for path, node in reversed(instructions(kernel, "memset")):
                kernel = _begun_by_product(kernel, path, node)
            return kernel
        node = instruction_at(kernel, site.path, "memset")
        dst = node.operands[0]
        if not is_local(kernel, dst.buffer):
            raise Refused("the kernel returns what is set")
        _, reading = uses_of(kernel, dst.buffer)
        if reading:
            rest = block_at(kernel, site.path)[site.path[-1] + 1 : _end_of_value(kernel, site.path, dst.buffer) + 1]
            if not fills_before_reading(rest, dst.buffer, kernel):
                raise Refused("something reads what is set")
        return without_unread(with_node(kernel, site.path, ()))


def _begun_by_product(kernel: LoopKernel, path: Path, zeros: Instruction) -> LoopKernel:
    """Without those zeros, where nothing but products is added to them and each element gets one before it is read."""
    key, block = zeros.operands[0].buffer, path[:-1]
    writing, reading = uses_of(kernel, key)
    sums = [each for each in writing if each.path != path]
    if (
        kernel.buffers[key].region is not MemoryRegion.psum
        or zeros.attrs.value != 0
        or Allocate(key) not in block_at(kernel, path)
        or any(each.path[: len(block)] != block or each.path < path for each in (*writing, *reading))
        or any(each.node.opcode != "nc_matmul" or each.node.attrs.accumulate is False for each in sums)
    ):
        return kernel
    begun = overwritten = with_node(kernel, path, ())
    for each in sums:
        place = (*block, each.path[len(block)] - 1, *each.path[len(block) + 1 :])
        node = replace(each.node, attrs=each.node.attrs._replace(accumulate=None))
        begun = with_node(begun, place, (node,))
        operands = (replace(node.operands[0], access="w"), *node.operands[1:])
        overwritten = with_node(overwritten, place, (replace(node, operands=operands),))
    rest = block_at(overwritten, path)[path[-1] :]
    return begun if fills_before_reading(rest, key, kernel) else kernel


class RotateBuffer:
    """A buffer for each pass and each value: the compiler has as many in flight as fit, and nothing waits for the
    readers of what was there."""

    name = "rotate-buffers"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        found = []
        for path, node in paths(kernel.body):
            loops = [each for each in block_at(kernel, path) if isinstance(each, Loop)]
            if isinstance(node, Allocate) and any(use.access.buffer == node.buffer for use in uses(loops)):
                buffer = kernel.buffers[node.buffer]
                what = f"a {buffer.name or 'tile'} of line {buffer.line} for each pass"
                found.append(Site(self.name, path, (node.buffer,), what, buffer.line))
        if len(found) > 1:
            yield self.preparation(kernel)
        yield from found

    def preparation(self, kernel: LoopKernel) -> Site:
        return Site(self.name, (), (), "a tile for each pass and each value, wherever they fill it anew")

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        """Tiles cut to what is used, each value in one of its own, and each of them as deep as it may be."""
        made, reason = kernels, ""
        before: Kernels | None = None
        keys = {int(key) for key in site.arguments} or set(kernels[-1].buffers)
        while made is not before:
            before = made
            if not site.arguments and any(map(is_not, made, everywhere(without_unread, made))):
                made = everywhere(without_unread, made)
            changes: list[Callable[[LoopKernel], LoopKernel]] = [partial(cut_to_use, key=key) for key in sorted(keys)]
            for path, node in reversed(paths(made[-1].body)):
                written = {use.access.buffer for use in uses((node,)) if use.access.access == "w"}
                changes += [partial(_value_apart, path=path, key=key) for key in sorted(keys & written)]
            changes += [partial(_deeper, key=key) for key in sorted(keys)]
            for change in changes:
                try:
                    made = everywhere(change, made)
                except Refused as refused:
                    reason = str(refused)
            keys |= made[-1].buffers.keys() - before[-1].buffers.keys()
        if made is kernels:
            raise Refused(reason)
        return made


def _end_of_value(kernel: LoopKernel, path: Path, key: int) -> int:
    """Which statement of the block overwrites all that the one there wrote to the buffer, or the block's length where
    the buffer is made in it. Raises Refused where something else may read it."""
    block, around = block_at(kernel, path), loops_around(kernel, path)
    end, buffer = path[-1] + 1, kernel.buffers[key]
    while end < len(block) and not _fills(block[end], key, buffer):
        end += 1
    within = block[path[-1] : end + 1] if end < len(block) else kernel.body
    tiles = {use.access.tile for use in uses(within) if use.access.buffer == key}
    made_here = Allocate(key) in block and tiles == {tuple(Affine.variable(loop.variable) for loop in around)}
    if len(tiles) > 1 or len(around) < len(path) - 1 or (end == len(block) and not made_here):
        raise Refused("a later pass may read what is written")
    return end


def _fills(node: Node, key: int, buffer: Buffer) -> bool:
    """Does it write all of the buffer, whatever was there?"""
    if not isinstance(node, Instruction) or leaves_gaps(node):
        return False
    mine = [access for access in node.operands if access.buffer == key and access.access != "r"]
    return any(covers(access, buffer) for access in mine) and all(access.access == "w" for access in mine)


def _value_apart(kernel: LoopKernel, path: Path, key: int) -> LoopKernel:
    """What is written from that statement on, where nothing takes what was there before, in another buffer. Raises
    Refused."""
    check_free(kernel, key)
    block, first, end = block_at(kernel, path), path[-1], _end_of_value(kernel, path, key)
    own, tile = max(kernel.buffers) + 1, tuple(Affine.variable(loop.variable) for loop in loops_around(kernel, path))

    def moved(access: Access, which: str = "rwu") -> Access:
        mine = access.buffer == key and access.access in which
        return replace(access, buffer=own, tile=tile) if mine else access

    writes = partial(moved, which="wu") if isinstance(block[first], Instruction) else moved
    value = (
        *with_operands(block[first : first + 1], writes),
        *with_operands(block[first + 1 : end], moved),
        *with_operands(block[end : end + 1], partial(moved, which="r")),
    )
    rest = (*block[:first], *value, *block[end + 1 :])
    if all(use.access.buffer != key for use in uses(rest)):
        raise Refused("nothing else is in the buffer")
    kernel = replace(kernel, buffers={**kernel.buffers, own: kernel.buffers[key]})
    if not fills_before_reading(value, own, kernel):
        raise Refused("what is written goes on with what was there")
    return with_block(kernel, path, (*block[:first], Allocate(own), *rest[first:]))


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
    check_free(kernel, key)
    path = next((path for path, made in local_tiles(kernel) if made == key), None)
    place = None if path is None else _loop_of(kernel, path, key)
    if path is None or place is None:
        raise Refused("the buffer is used outside of the loop")
    loop = loop_at(kernel, place)
    if not fills_before_reading(loop.body, key, kernel):
        raise Refused("a pass may read what an earlier one left")
    depth, inner = len(loops_around(kernel, place)), Affine.variable(loop.variable)

    def moved(access: Access) -> Access:
        return replace(access, tile=(*access.tile[:depth], inner)) if access.buffer == key else access

    body = (Allocate(key), *with_operands(loop.body, moved))
    return with_node(with_node(kernel, place, (replace(loop, body=body),)), path, ())
