"""Elementwise work on a part of the columns at a time, so that transfers and engines overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, ranges_at, uses_of
from accelopt_core.rules.grouping import ALL, GroupOnPartitions
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    ELEMENTWISE,
    Kernels,
    Path,
    Refused,
    block_at,
    checked,
    everywhere,
    fresh_variable,
    loop_at,
    loops_around,
    node_at,
    paths,
    with_block,
    with_node,
)
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.dependence import conflict, uses
from nki_sim.loop_ir.tree import Access, Allocate, DeviceLoop, Instruction, Loop, LoopKernel, Node
from nki_sim.machine import ISA

PARTS = (2, 4, 8)
_OF_WHOLE_ROWS = frozenset({"nc_matmul"})


class SplitColumns:
    name = "split-columns"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _blocks(kernel):
            runs = _runs(node)
            for first, last in runs:
                line = next((n.line for n in node[first:last] if isinstance(n, Instruction)), 0)
                for parts in PARTS:
                    what = f"the work from line {line} on in {parts} parts of its columns"
                    yield Site(self.name, path, (first, last, parts), what, line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        first, last, parts = (int(each) for each in site.arguments)
        block = block_at(kernel, site.path)
        run = block[first:last]
        variable = fresh_variable(kernel, "part")
        made: list[Node] = []
        kept: list[Node] = []
        for node in run:
            if isinstance(node, Allocate):
                kept.append(node)
            elif isinstance(node, Instruction):
                made.append(checked(part_of(node, parts, variable, kernel), kernel.buffers))
        if not made:
            raise Refused("nothing is computed there")
        loop = Loop(variable, Affine(), Affine(parts), tuple(made), 0)
        changed = with_block(kernel, site.path, (*block[:first], *kept, loop, *block[last:]))
        path = (*site.path[:-1], first + len(kept))
        around = loops_around(changed, path)
        for at, node in enumerate(made):
            blocked = conflict(made[at + 1 :], (node,), changed, (*around, loop), ((loop, 1),))
            if blocked is not None:
                raise Refused(f"line {blocked.node.line} takes more than its part's columns")
        return changed


class FillPartitions:
    """Tiles of few partitions in parts of their columns, each on partitions of its own: an engine takes all at once."""

    name = "fill-partitions"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _blocks(kernel):
            for first, last in _runs(node):
                line = next((n.line for n in node[first:last] if isinstance(n, Instruction)), 0)
                most = max(
                    use.access.pattern[0][1]
                    for use in uses(node[first:last])
                    if kernel.buffers[use.access.buffer].region.on_chip
                )
                for parts in PARTS:
                    if parts * most <= ISA.partitions:
                        what = f"{parts} parts of the columns from line {line} on, on partitions of their own"
                        yield Site(self.name, path, (first, last, parts), what, line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return self.together((kernel,), site)[0]

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        kernels = everywhere(SplitColumns().apply, kernels, site)
        first, last, _ = (int(each) for each in site.arguments)
        block = block_at(kernels[-1], site.path)
        at = next(n for n in range(first, last + 1) if isinstance(block[n], Loop))
        kernels = everywhere(_narrowed, kernels, (*site.path[:-1], at))
        at = next(n for n, node in enumerate(block_at(kernels[-1], site.path)) if n >= first and isinstance(node, Loop))
        return GroupOnPartitions().together(kernels, Site(self.name, (*site.path[:-1], at), (ALL,)))


def _narrowed(kernel: LoopKernel, path: Path) -> LoopKernel:
    """Tiles of which every pass of the loop there uses its own part are made by each pass, of that part alone."""
    loop = loop_at(kernel, path)
    made: list[Node] = []
    for use in [use for use in uses((loop,)) if use.writes]:
        key, around = use.access.buffer, loops_around(kernel, path)
        every = sum(uses_of(kernel, key), [])
        own = Allocate(key) in block_at(kernel, path) and is_local(kernel, key) and kernel.buffers[key].region.on_chip
        if not own or any(each.path[: len(path)] != path for each in every) or use.access.access != "w":
            continue
        sizes = tuple(n for _, n in use.access.pattern)
        pattern = tuple((prod(sizes[at + 1 :]), n) for at, n in enumerate(sizes))
        tile = (*use.access.tile[: len(around)], Affine.variable(loop.variable))
        view = replace(use.access, buffer=max(kernel.buffers) + 1, tile=tile, offset=Affine(), pattern=pattern)
        buffers = {**kernel.buffers, view.buffer: replace(kernel.buffers[key], shape=sizes)}
        changed = replace(kernel, buffers=buffers)
        for place in dict.fromkeys(each.path for each in every):
            changed = _through(changed, place, use.access, view)
        made.append(Allocate(view.buffer))
        kernel = changed
    left = {use.access.buffer for use in uses(kernel.body)}
    body = (*made, *loop_at(kernel, path).body)
    kernel = with_node(kernel, path, (replace(loop_at(kernel, path), body=body),))
    block = block_at(kernel, path)
    return with_block(kernel, path, [n for n in block if not isinstance(n, Allocate) or n.buffer in left])


def _through(kernel: LoopKernel, path: Path, here: Access, there: Access) -> LoopKernel:
    node = node_at(kernel, path)
    assert isinstance(node, Instruction)
    operands = []
    for access in node.operands:
        if access.buffer == here.buffer:
            moved = through(access, here, there, ranges_at(kernel, path))
            if moved is None:
                raise Refused(f"line {node.line} takes more than its part")
            access = moved
        operands.append(access)
    return with_node(kernel, path, (checked(replace(node, operands=tuple(operands)), kernel.buffers),))


def _blocks(kernel: LoopKernel) -> Iterator[tuple[Path, tuple[Node, ...]]]:
    """Each block by the path of its first statement."""
    yield (0,), kernel.body
    for path, node in paths(kernel.body):
        if isinstance(node, (Loop, DeviceLoop)) and node.body:
            yield (*path, 0), node.body


def _runs(block: tuple[Node, ...]) -> list[tuple[int, int]]:
    """Stretches of elementwise instructions, with what is allocated between them."""
    runs: list[tuple[int, int]] = []
    begin = None
    for at, node in enumerate((*block, None)):
        fits = isinstance(node, Allocate) or (
            isinstance(node, Instruction) and node.opcode in ELEMENTWISE and node.opcode not in _OF_WHOLE_ROWS
        )
        if fits and begin is None:
            begin = at
        elif not fits and begin is not None:
            if sum(isinstance(each, Instruction) for each in block[begin:at]) > 1:
                runs.append((begin, at))
            begin = None
    return runs


def part_of(node: Instruction, parts: int, variable: str, kernel: LoopKernel) -> Instruction:
    """One part of its columns: of its first dimension behind the partitions."""
    tiles = ELEMENTWISE.get(node.opcode, ())
    if node.operand("reduce_res") is not None:
        raise Refused(f"line {node.line} sums up whole rows")
    if node.opcode == "tensor_reduce" and _split_first(node.operands[1]) in node.attrs.axes:
        raise Refused(f"line {node.line} takes whole rows")
    on_chip = [o for o in node.operands if o.role in tiles and kernel.buffers[o.buffer].region.on_chip]
    if not on_chip:
        raise Refused(f"line {node.line} does nothing on chip")
    partitions = on_chip[0].pattern[0][1]
    operands = []
    for access in node.operands:
        if access.role not in tiles:
            operands.append(access)
            continue
        at = _first_free(access, partitions, kernel)
        stride, count = access.pattern[at]
        if count % parts:
            raise Refused(f"line {node.line} has {count} columns, which are not {parts} equal parts")
        size = count // parts
        pattern = (*access.pattern[:at], (stride, size), *access.pattern[at + 1 :])
        operands.append(
            replace(access, pattern=pattern, offset=access.offset + Affine.of(0, {variable: stride * size}))
        )
    return replace(node, operands=tuple(operands))


def _split_first(access: Access) -> int:
    """Which dimension of a tile on chip its parts are made of."""
    at = 1
    while at < len(access.pattern) - 1 and access.pattern[at][1] == 1:
        at += 1
    return at


def _first_free(access: Access, partitions: int, kernel: LoopKernel) -> int:
    """Which pair of the pattern is the first that walks within a partition."""
    if kernel.buffers[access.buffer].region.on_chip:
        return _split_first(access)
    at, run = 0, 1
    while at < len(access.pattern) and run < partitions:
        run *= access.pattern[at][1]
        at += 1
    while at < len(access.pattern) - 1 and access.pattern[at][1] == 1:
        at += 1
    if run != partitions or at >= len(access.pattern):
        raise Refused("its rows do not fit the partitions")
    return at
