"""Transfers of several passes of a loop as one, and tiles laid out as HBM has them, so that its rows are long.

A transfer costs its start and, for each run of bytes that lie together on both sides, at least 64 bytes' time (AWS's
pages on DMA): one of single elements costs as much as one of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, taken_through, uses_of
from accelopt_core.rules.loops.grouping import ALL, in_blocks
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    checked,
    everywhere,
    fresh_variable,
    instruction_at,
    instructions,
    loop_at,
    loops_around,
    node_at,
    substituted,
    with_node,
)
from nki_sim.loop_ir.composing import steps_of
from nki_sim.loop_ir.dependence import Use, conflict, meet, uses
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, Loop, LoopKernel, Node, dense
from nki_sim.program.memory import MemoryRegion
from nki_sim.timing.capacity import usable_bytes

BLOCKS = (4, 16)
"""Passes that one transfer serves, where it does not serve all."""
SMALL = 8
"""Part of SBUF that tiles of all passes may take before fewer are thought of."""


class GroupTransfers:
    """One transfer for several passes, its rows as long as HBM has them: each costs its start, each row 64 bytes."""

    name = "group-transfers"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "dma_copy"):
            dst, src = node.operands[:2]
            outside = src if kernel.buffers[dst.buffer].region.on_chip else dst
            for depth in range(1, len(path)):
                loop = node_at(kernel, path[:depth])
                if not isinstance(loop, Loop) or loop.variable not in outside.offset.variables:
                    continue
                if loop.extent.is_constant and loop.extent.constant > 1:
                    tile = dst if outside is src else src
                    for block in _blocks(loop.extent.constant, tile, kernel):
                        what = f"the transfer of line {node.line} once for {block} passes of {loop.where}"
                        yield Site(self.name, path[:depth], (block, *path[depth:]), what, node.line)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        block, *rest = site.arguments
        kernels, path = in_blocks(kernels, site.path, block)
        inner = tuple(int(step) for step in rest)
        plans = [_plan(kernel, path, inner) for kernel in kernels]
        if len({(len(plan.dimensions.free), *sorted(plan.dimensions.within)) for plan in plans}) > 1:
            raise Refused("the tile has more dimensions at one shape than at another")
        order = plans[-1].dimensions.order()
        kept = plans[-1].kept
        return everywhere(_loaded_once if plans[-1].loads else _stored_once, kernels, path, inner, kept, order)


def _blocks(count: int, tile: Access, kernel: LoopKernel) -> Iterator[int | str]:
    """How many passes to take together: all, or some, where their tiles fit."""
    bytes_each = kernel.buffers[tile.buffer].partition_elements * tile.dtype.itemsize
    most = usable_bytes(kernel.machine, MemoryRegion.sbuf) // bytes_each
    if count <= most:
        yield ALL
    if count > most // SMALL:
        yield from (block for block in BLOCKS if count % block == 0 and block < count and block <= most)


@dataclass(frozen=True)
class _Order:
    """How the dimensions within a partition follow each other, at every shape as at the largest: those that go on as
    one within a dimension of HBM's tensor are one."""

    whole: tuple[tuple[int, ...], ...]
    """Outermost first, by number: the tile's own, then one for each loop. Those in one group go on as one."""
    moved: tuple[tuple[int, ...], ...]
    """Of one transfer."""


@dataclass(frozen=True)
class _Dimensions:
    """Of a tile and of the loops whose passes it gets places for."""

    partitions: tuple[tuple[int, int, int], ...]
    """(partitions from one to the next, elements in HBM, count)."""
    free: tuple[tuple[int, int], ...]
    """(Elements in HBM, count)."""
    own: tuple[int, ...]
    """Their counts in the tile itself, of its own dimensions: less than `free` has where passes' windows overlap."""
    within: Mapping[int, tuple[int, int]]
    """Of those loops, by number: along which of the tile's dimensions they go on, by how many elements a pass."""
    loops: tuple[Loop, ...]
    """Of the last ones of `free`. The first is the one whose passes are one transfer."""
    whole: frozenset[int]
    """Elements that a step along a dimension of HBM's tensor goes over."""

    @staticmethod
    def of(tile: Access, outside: Access, kernel: LoopKernel, loops: Sequence[Loop]) -> _Dimensions:
        steps = steps_of(tile.pattern, outside.pattern)
        row, shape = kernel.buffers[tile.buffer].partition_elements, kernel.buffers[outside.buffer].shape
        if steps is None or tile.dtype != kernel.buffers[tile.buffer].dtype or not tile.offset.is_constant:
            raise Refused("the transfer goes through the tile and HBM in unlike steps")
        own = [(step.there, step.count) for step in steps if step.here % row]
        if any(abs(step.here) > row for step in steps if step.here % row):
            raise Refused("the transfer does not go partition by partition")
        free = [*own, *((outside.offset.coefficient(each.variable), _passes(each)) for each in loops)]
        within: dict[int, tuple[int, int]] = {}
        for number in range(len(own), len(free) if tile.access == "w" else 0):
            far, passes = free[number]
            for at, (step, count) in enumerate(own):
                if 0 < step <= far < step * count and far % step == 0 and number not in within:
                    within[number] = at, far // step
                    free[at] = step, free[at][1] + far // step * (passes - 1)
        return _Dimensions(
            tuple((step.here // row, step.there, step.count) for step in steps if step.here % row == 0),
            tuple(free),
            tuple(count for _, count in own),
            within,
            tuple(loops),
            frozenset(stride for stride, _ in dense(shape)),
        )

    @property
    def _first_loop(self) -> int:
        return len(self.free) - len(self.loops)

    def order(self) -> _Order:
        """As HBM has them, where there is more than one of them."""
        numbers = [number for number, (_, count) in enumerate(self.free) if count > 1 and number not in self.within]
        numbers.sort(key=lambda number: -abs(self.free[number][0]))
        apart = range(self._first_loop + 1, len(self.free))
        return _Order(self._groups(numbers), self._groups([number for number in numbers if number not in apart]))

    def _groups(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        groups: list[tuple[int, ...]] = []
        for number in numbers:
            far, count = self.free[number]
            if groups and self.free[groups[-1][-1]][0] == far * count and far * count not in self.whole:
                groups[-1] = (*groups[-1], number)
            else:
                groups.append((number,))
        return tuple(groups)

    def lengths(self, groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, int], ...]:
        """(Elements in HBM, count) of each group."""
        made = []
        for group in groups:
            far, count = 1, 1
            for number in reversed(group):
                each, times = self.free[number]
                if times > 1 and count > 1 and each != far * count:
                    raise Refused("HBM has the elements in another order at another shape")
                far, count = each if count == 1 else far, count * times
            made.append((far if count > 1 else 1, count))
        return tuple(made)

    def strides(self, order: _Order) -> dict[int, int]:
        """Of each dimension on chip, and under -1 what a partition has."""
        strides = {number: 1 for number in range(len(self.free))}
        stride = 1
        for number in reversed([number for group in order.whole for number in group]):
            strides[number] = stride
            stride *= self.free[number][1]
        known = {*sum(order.whole, ()), *self.within}
        if any(count > 1 and number not in known for number, (_, count) in enumerate(self.free)):
            raise Refused("the tile has another form at another shape")
        strides |= {number: times * strides[at] for number, (at, times) in self.within.items()}
        return {**strides, -1: stride}

    def view(self, tile: Access, row: int, left: tuple[Affine, ...], order: _Order) -> Access:
        """What was the tile, in the pass that is at the loops' counters. `row`: what a partition of the tile had."""
        strides = self.strides(order)
        offset = Affine(tile.offset.constant // row * strides[-1])
        for number, loop in enumerate(self.loops, self._first_loop):
            offset = offset + (Affine.variable(loop.variable) - loop.start) * strides[number]
        partitions = [(step * strides[-1], count) for step, _, count in self.partitions]
        own = [(strides[number], count) for number, count in enumerate(self.own)]
        return replace(
            tile, tile=left, offset=offset, pattern=(*(partitions or [(strides[-1], 1)]), *(own or [(1, 1)]))
        )

    def transfer(self, order: _Order) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """The patterns of the wide one: on chip, and in HBM."""
        strides = self.strides(order)
        lengths = self.lengths(order.moved)
        near = [(strides[group[-1]], count) for group, (_, count) in zip(order.moved, lengths)]
        partitions = self.partitions or ((1, 1, 1),)
        return (
            (*((step * strides[-1], count) for step, _, count in partitions), *(near or [(1, 1)])),
            (*((far, count) for _, far, count in partitions), *(lengths or ((1, 1),))),
        )


def _passes(loop: Loop) -> int:
    if not loop.extent.is_constant or not loop.start.is_constant:
        raise Refused("a loop's length changes")
    return loop.extent.constant


@dataclass(frozen=True)
class _Plan:
    node: Instruction
    tile: Access
    outside: Access
    made_at: int
    """Where the tile is made, in the transfer's block."""
    between: tuple[Loop, ...]
    """The loops from the grouped one to the transfer."""
    kept: tuple[int, ...]
    """Those on which the transfer depends, by number."""
    dimensions: _Dimensions

    @property
    def loads(self) -> bool:
        return self.tile.access == "w"


def _plan(kernel: LoopKernel, path: Path, inner: Path) -> _Plan:
    node = instruction_at(kernel, (*path, *inner), "dma_copy")
    if any(access.indirection is not None for access in node.operands):
        raise Refused("an index steers the transfer")
    tiles = [each for each in node.operands if kernel.buffers[each.buffer].region is MemoryRegion.sbuf]
    outside = [each for each in node.operands if not kernel.buffers[each.buffer].region.on_chip]
    if len(tiles) != 1 or len(outside) != 1:
        raise Refused("it is no transfer between SBUF and HBM")
    tile = tiles[0]
    if not is_local(kernel, tile.buffer) or kernel.buffers[tile.buffer].address is not None:
        raise Refused("the tile is not the kernel's own, or it places it itself")
    block = block_at(kernel, (*path, *inner))
    if Allocate(tile.buffer) not in block:
        raise Refused("the tile is made outside of the transfer's loop")
    loop = loop_at(kernel, path)
    between = tuple(loop_at(kernel, (*path, *inner[:length])) for length in range(1, len(inner)))
    if any(loop.variable in (each.start + each.extent).variables for each in between):
        raise Refused("an inner loop's length depends on the loop")
    loops = (loop,) if tile.access == "w" else (loop, *between)
    return _Plan(
        node,
        tile,
        outside[0],
        block.index(Allocate(tile.buffer)),
        between,
        tuple(at for at, each in enumerate(between) if each.variable in outside[0].offset.variables),
        _Dimensions.of(tile, outside[0], kernel, loops),
    )


def _loaded_once(kernel: LoopKernel, path: Path, inner: Path, kept: tuple[int, ...], order: _Order) -> LoopKernel:
    plan, loop, around = _plan(kernel, path, inner), loop_at(kernel, path), loops_around(kernel, path)
    tile, outside = plan.tile, plan.outside
    if not plan.loads or len(uses_of(kernel, tile.buffer)[0]) > 1:
        raise Refused("something else fills the tile too")
    use = Use(outside, plan.node, (*around, loop, *plan.between))
    for other in uses((loop,), around):
        if other.writes and meet(other, use, kernel, around):
            raise Refused(f"line {other.node.line} writes what line {plan.node.line} loads")
    if any(at not in kept and plan.between[at].extent != Affine(1) for at in plan.kept):
        raise Refused("which loops the transfer depends on differs from shape to shape")
    loops = [plan.between[at] for at in kept]
    left = (*tile.tile[: len(around)], *(Affine.variable(each.variable) for each in loops))
    kernel, key, wide = _widened(kernel, plan, left, order, (*path, *inner))
    return with_node(kernel, path, (*_in_loops(kernel, loops, (Allocate(key), wide)), loop_at(kernel, path)))


def _stored_once(kernel: LoopKernel, path: Path, inner: Path, kept: tuple[int, ...], order: _Order) -> LoopKernel:
    plan, loop, around = _plan(kernel, path, inner), loop_at(kernel, path), loops_around(kernel, path)
    tile, outside = plan.tile, plan.outside
    if plan.loads or any(at not in kept and each.extent != Affine(1) for at, each in enumerate(plan.between)):
        raise Refused("an inner loop stores the same place again and again")
    for each in block_at(kernel, (*path, *inner))[inner[-1] + 1 :]:
        if any(use.writes and use.access.buffer == tile.buffer for use in uses((each,))):
            raise Refused("the tile is changed after it is stored")
    stores: tuple[Node, ...] = (plan.node,)
    for each in reversed(plan.between):
        stores = (replace(each, body=stores),)
    if conflict(stores, stores, kernel, (*around, loop), ((loop, 1),)) is not None:
        raise Refused("two passes store to one place")
    use = Use(outside, plan.node, (*around, loop, *plan.between))
    for other in uses((loop,), around):
        if other.node is not plan.node and meet(other, use, kernel, around):
            raise Refused(f"line {other.node.line} touches what line {plan.node.line} stores")
    kernel, key, wide = _widened(kernel, plan, tile.tile[: len(around)], order, (*path, *inner))
    behind = _in_loops(kernel, plan.between, (wide,))
    return with_node(kernel, path, (Allocate(key), loop_at(kernel, path), *behind))


def _in_loops(kernel: LoopKernel, loops: Sequence[Loop], body: tuple[Node, ...]) -> tuple[Node, ...]:
    """With counters of their own."""
    for loop in reversed(loops):
        name = fresh_variable(kernel, loop.variable)
        body = (replace(loop, variable=name, body=substituted(body, {loop.variable: Affine.variable(name)})),)
    return body


def _widened(
    kernel: LoopKernel, plan: _Plan, left: tuple[Affine, ...], order: _Order, here: Path
) -> tuple[LoopKernel, int, Instruction]:
    """Without the transfer and its tile, of which every use is in another buffer; that one; and the wide transfer.

    `left`: which of the buffers that are made then.
    """
    tile, dimensions = plan.tile, plan.dimensions
    key = max(kernel.buffers) + 1
    old = kernel.buffers[tile.buffer]
    sizes = tuple(count for _, count in dimensions.lengths(order.whole))
    view = replace(dimensions.view(tile, old.partition_elements, left, order), buffer=key)
    buffers = {**kernel.buffers, key: replace(old, shape=(old.shape[0], *(sizes or (1,))))}
    kernel = replace(kernel, buffers=buffers)
    writing, reading = uses_of(kernel, tile.buffer)
    for each in dict.fromkeys(each for each in (*writing, *reading) if each.path != here):
        kernel = taken_through(kernel, each, tile, view)
    for place in sorted((here, (*here[:-1], plan.made_at)), reverse=True):
        kernel = with_node(kernel, place, ())
    near, far = dimensions.transfer(order)
    first = {dimensions.loops[0].variable: dimensions.loops[0].start}
    wide = {
        tile.role: replace(view, offset=view.offset.substitute(first), pattern=near),
        plan.outside.role: replace(plan.outside, offset=plan.outside.offset.substitute(first), pattern=far),
    }
    made = replace(plan.node, operands=tuple(wide[each.role] for each in plan.node.operands))
    return kernel, key, checked(made, kernel.buffers)
