"""A copy on chip is left out: whoever took from it takes from where it came, or whoever filled it fills the copy. A
gather by indices that go on evenly is a copy too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, local_tiles, ranges_at, uses_of, with_operand, written_between
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    block_at,
    checked,
    loops_around,
    node_at,
    paths,
    with_block,
    with_node,
)
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import Use, covers, meet, uses
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel, Node
from nki_sim.program import Engine


class DropCopy:
    """What reads a copy reads the original, and no engine moves it."""

    name = "drop-copy"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "tensor_copy":
                for end, done in (("source", "taken"), ("target", "filled")):
                    yield Site(self.name, path, (end,), f"no copy in line {node.line}: its {end} is {done}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "tensor_copy":
            raise Refused("there is no copy in that place")
        dst, src = node.operands
        if dst.dtype != src.dtype:
            raise Refused("the copy converts")
        if site.arguments == ("source",):
            return _take_from_source(kernel, site.path, dst, src)
        return _fill_target(kernel, site.path, dst, src)


def _take_from_source(kernel: LoopKernel, path: Path, dst: Access, src: Access) -> LoopKernel:
    writing, reading = uses_of(kernel, dst.buffer)
    if not is_local(kernel, dst.buffer) or len(writing) != 1 or not covers(dst, kernel.buffers[dst.buffer]):
        raise Refused("the copy is not all that fills its target")
    node = node_at(kernel, path)
    assert isinstance(node, Instruction)
    use = Use(src, node, loops_around(kernel, path))
    for each in reading:
        changed = written_between(kernel, path, each.path, use)
        if changed is not None:
            raise Refused(f"line {changed.node.line} writes the source before line {each.node.line} takes the copy")
        taken = each.node.operands[each.at]
        access = through(taken, dst, src, ranges_at(kernel, each.path)) if taken.tile == dst.tile else None
        if access is None:
            raise Refused(f"line {each.node.line} takes the copy in another form")
        kernel = with_operand(kernel, each, access)
    return without(kernel, path, dst.buffer)


def _fill_target(kernel: LoopKernel, path: Path, dst: Access, src: Access) -> LoopKernel:
    writing, reading = uses_of(kernel, src.buffer)
    if not is_local(kernel, src.buffer) or len(reading) != 1:
        raise Refused("something else takes from the copy's source")
    for each in writing:
        beside = each.path[: len(path)]
        if beside[:-1] != path[:-1] or beside > path:
            raise Refused(f"line {each.node.line} fills the source elsewhere")
        use = Use(dst, each.node, loops_around(kernel, path))
        touched = _touched_between(kernel, beside, path, use)
        if touched is not None:
            raise Refused(f"line {touched.node.line} touches the target in between")
        filled = each.node.operands[each.at]
        access = through(filled, src, dst, ranges_at(kernel, each.path)) if filled.tile == src.tile else None
        if access is None:
            raise Refused(f"line {each.node.line} fills the source in another form")
        kernel = with_operand(kernel, each, access)
    made = next((place for place, key in local_tiles(kernel) if key == dst.buffer), None)
    first = min((each.path[: len(path)] for each in writing), default=path)
    if made is not None and made[:-1] == path[:-1] and made > first:
        node = node_at(kernel, made)
        block = list(block_at(kernel, path))
        block.remove(node)
        block.insert(first[-1], node)
        kernel = with_block(kernel, path, block)
    return without(kernel, path, src.buffer)


def _touched_between(kernel: LoopKernel, first: Path, last: Path, use: Use) -> Use | None:
    around = loops_around(kernel, first)
    for node in block_at(kernel, first)[first[-1] : last[-1]]:
        for other in uses((node,), around):
            if other.access.buffer == use.access.buffer and meet(other, use, kernel, around):
                return other
    return None


def without(kernel: LoopKernel, path: Path, buffer: int) -> LoopKernel:
    """Without that statement, and without a buffer that nothing touches any more."""
    kernel = with_node(kernel, path, ())
    writing, reading = uses_of(kernel, buffer)
    if writing or reading:
        return kernel
    place = next((p for p, node in paths(kernel.body) if isinstance(node, Allocate) and node.buffer == buffer), None)
    return kernel if place is None else with_node(kernel, place, ())


class GatherAsSlice:
    """A gather by indices that iota made, the same on each partition, is a copy of every so many elements."""

    name = "gather-as-slice"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        lines = [node.line for _, node in paths(kernel.body) if _gathers(node)]
        if lines:
            yield Site(self.name, (), (), f"slices in place of gathers from line {lines[0]} on", lines[0])

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        """Of all gathers that are slices."""
        done, reason = False, "there is no gather"
        for path, node in reversed(paths(kernel.body)):
            if _gathers(node):
                try:
                    copy = checked(_as_copy(kernel, node), kernel.buffers)
                except Refused as refused:
                    reason = str(refused)
                    continue
                kernel, done = with_node(kernel, path, (copy,)), True
        if not done:
            raise Refused(reason)
        for key in [key for _, key in local_tiles(kernel)]:
            writing, reading = uses_of(kernel, key)
            if not reading and is_local(kernel, key) and [each.node.opcode for each in writing] == ["iota"]:
                kernel = without(kernel, writing[0].path, key)
        return kernel


def _gathers(node: Node) -> TypeGuard[Instruction]:
    return isinstance(node, Instruction) and node.opcode == "nc_n_gather"


def _as_copy(kernel: LoopKernel, node: Instruction) -> Instruction:
    dst, data, indices = node.operands
    writing, _ = uses_of(kernel, indices.buffer)
    if not is_local(kernel, indices.buffer) or len(writing) != 1 or writing[0].node.opcode != "iota":
        raise Refused("the indices are not made by one iota")
    made, attrs = writing[0].node.operands[0], writing[0].node.attrs
    whole = covers(made, kernel.buffers[indices.buffer]) and covers(indices, kernel.buffers[indices.buffer])
    if not whole or made.pattern != indices.pattern or attrs.channel_multiplier:
        raise Refused("the indices differ from partition to partition, or only some of them are taken")
    (row, partitions), *free = data.pattern
    step = free[-1][0] if free else 1
    if any(stride != step * prod(n for _, n in free[at + 1 :]) for at, (stride, _) in enumerate(free)):
        raise Refused("what is gathered from does not go on evenly")
    pattern = ((row, partitions), *((step * each, count) for each, count in attrs.pattern))
    taken = replace(data, role="src", offset=data.offset + step * attrs.offset, pattern=pattern)
    return Instruction("tensor_copy", Engine.vector, None, (dst, taken), node.line)
