"""Tiles that are filled for nothing, and tiles for which one pass waits for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import is_local, uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import Refused, block_at, loop_at, loops_around, node_at, paths, with_block, with_node
from nki_sim.loop_ir.dependence import Use, covers, meet, uses
from nki_sim.loop_ir.tree import Access, Allocate, DeviceLoop, Instruction, Loop, LoopKernel, Node, rebuilt
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
        if reading and not _overwritten(block[site.path[-1] + 1 :], dst, kernel, loops_around(kernel, site.path)):
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
        for path, node in paths(kernel.body):
            if not isinstance(node, Loop):
                continue
            made = {n.buffer: at for at, n in enumerate(block_at(kernel, path)[: path[-1]]) if isinstance(n, Allocate)}
            for key in sorted({use.access.buffer for use in uses(node.body)} & set(made)):
                buffer = kernel.buffers[key]
                what = f"a {buffer.name or 'tile'} of line {buffer.line} for each pass of line {node.site}"
                yield Site(self.name, path, (made[key],), what, buffer.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        loop = loop_at(kernel, site.path)
        at = int(site.arguments[0])
        node = block_at(kernel, site.path)[at]
        if not isinstance(node, Allocate):
            raise Refused("no buffer is made there")
        key = node.buffer
        if not is_local(kernel, key) or kernel.buffers[key].address is not None:
            raise Refused("the kernel returns the buffer, or places it itself")
        writing, reading = uses_of(kernel, key)
        if any(each.path[: len(site.path)] != site.path for each in (*writing, *reading)):
            raise Refused("the buffer is used outside of the loop")
        if not _filled_first(loop.body, key, kernel):
            raise Refused("a pass may read what an earlier one left")
        depth = len(loops_around(kernel, site.path))
        inner = Affine.variable(loop.variable)
        body = (node, *_one_deeper(loop.body, key, depth, inner))
        kernel = with_node(kernel, site.path, (replace(loop, body=body),))
        block = block_at(kernel, site.path)
        return with_block(kernel, site.path, (*block[:at], *block[at + 1 :]))


def _filled_first(body: Sequence[Node], key: int, kernel: LoopKernel) -> bool:
    """Is the first statement that touches the buffer an instruction that overwrites all of it?"""
    for node in body:
        touching = [use for use in uses((node,)) if use.access.buffer == key]
        if touching:
            return (
                isinstance(node, Instruction)
                and all(use.access.access == "w" for use in touching)
                and any(covers(use.access, kernel.buffers[key]) for use in touching)
            )
    return False


def _one_deeper(body: tuple[Node, ...], key: int, depth: int, inner: Affine) -> tuple[Node, ...]:
    def moved(access: Access) -> Access:
        return replace(access, tile=(*access.tile[:depth], inner)) if access.buffer == key else access

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Instruction) and any(access.buffer == key for access in node.operands):
            return (replace(node, operands=tuple(moved(access) for access in node.operands)),)
        return (node,)

    return rebuilt(body, change)
