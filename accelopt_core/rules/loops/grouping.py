"""Several passes of a loop at once: tiles side by side, one instruction in place of as many as there are passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, uses_of
from accelopt_core.rules.unread import without_unread
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Along,
    Kernels,
    Path,
    Refused,
    everywhere,
    fission,
    interchange,
    joined_tiles,
    loop_at,
    loops_around,
    merged,
    paths,
    place_of,
    rechecked,
    split,
    with_node,
    with_operands,
)
from nki_sim.loop_ir.dependence import allocated_in, covers, uses
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, Loop, LoopKernel
from nki_sim.machine import ISA

MOST_PASSES = 64
"""Taken together."""


ALL = "all"


class Group:
    """Several passes in one instruction and one transfer: each costs its start once."""

    name = "merge-iterations"
    takes_passes = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                count = node.extent.constant
                for block in blocks_of(count):
                    yield Site(self.name, path, (block,), f"{block} passes of {node.where} at once", node.site)
                if count <= MOST_PASSES:
                    yield Site(self.name, path, (ALL,), f"all passes of {node.where} at once", node.site)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        kernels, path = in_blocks(kernels, site.path, site.arguments[0])
        return grouped(kernels, path)


def blocks_of(count: int) -> list[int]:
    """Sizes of blocks that so many passes are cut into."""
    return [n for n in (2, 4, 8, 16, 32, 64) if count % n == 0 and n < count]


def in_blocks(kernels: Kernels, path: Path, block: int | str) -> tuple[Kernels, Path]:
    """The loop there in blocks of so many passes, and the place of the loop over a block's."""
    if block == ALL:
        return kernels, path
    return everywhere(split, kernels, path, int(block)), (*path, 0)


class GroupOnPartitions:
    """An engine takes as long for one partition as for all, and a transfer of one row as long as one of several
    (AWS's cost formulas count elements of a partition)."""

    name = "rows-on-partitions"
    takes_passes = True

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                most = ISA.partitions // max(1, _partitions(kernel, node))
                count = node.extent.constant
                for block in _divisors(count, most):
                    which: int | str = ALL if block == count else block
                    what = f"{which} passes of {node.where} on partitions of their own"
                    yield Site(self.name, path, (which,), what, node.site)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        before = [kernel.buffers for kernel in kernels]
        kernels, path = in_blocks(kernels, site.path, site.arguments[0])
        loaded = [_with_own_loads(kernel, path) for kernel in kernels]
        if len({path for _, path in loaded}) > 1:
            raise Refused("what is loaded before the loop differs from shape to shape")
        kernels, path = tuple(kernel for kernel, _ in loaded), loaded[0][1]
        kernels = grouped(kernels, path, Along.partitions)
        return tuple(
            rechecked(kernel, {key for key, buffer in kernel.buffers.items() if old.get(key) != buffer})
            for kernel, old in zip(kernels, before)
        )


def _divisors(count: int, most: int) -> list[int]:
    return [n for n in range(2, min(count, most) + 1) if count % n == 0 and (n & (n - 1) == 0 or n == count)]


def _partitions(kernel: LoopKernel, loop: Loop) -> int:
    """How many an instruction of the loop is on, at most."""
    accesses = [use.access for use in uses(loop.body)]
    return max((each.pattern[0][1] for each in accesses if kernel.buffers[each.buffer].region.on_chip), default=1)


def _with_own_loads(kernel: LoopKernel, path: Path) -> tuple[LoopKernel, Path]:
    """Every pass of the loop there loads for itself what is loaded before it and read by all."""
    loop = loop_at(kernel, path)
    for key in sorted({use.access.buffer for use in uses(loop.body) if not use.writes}):
        load = _load_before(kernel, path, key)
        if load is None:
            continue
        own = max(kernel.buffers) + 1
        tile = tuple(Affine.variable(each.variable) for each in (*loops_around(kernel, path), loop))
        mine = partial(_of_own, key, own, tile)
        body = with_operands(loop_at(kernel, path).body, mine)
        target = mine(load.operands[0])
        body = (Allocate(own), replace(load, operands=(target, *load.operands[1:])), *body)
        kernel = replace(kernel, buffers={**kernel.buffers, own: kernel.buffers[key]})
        kernel = with_node(kernel, path, (replace(loop_at(kernel, path), body=body),))
        kernel = without_unread(kernel)
        path = place_of(kernel, loop.variable)
    return kernel, path


def _load_before(kernel: LoopKernel, path: Path, key: int) -> Instruction | None:
    """The transfer outside the loop there that alone fills the buffer, from HBM that nothing writes."""
    writing, _ = uses_of(kernel, key)
    if not is_local(kernel, key) or len(writing) != 1 or not kernel.buffers[key].region.on_chip:
        return None
    place, node = writing[0].path, writing[0].node
    if node.opcode != "dma_copy" or path[: len(place) - 1] != place[:-1] or place >= path:
        return None
    source = node.operands[1]
    if not covers(node.operands[0], kernel.buffers[key]) or kernel.buffers[source.buffer].region.on_chip:
        return None
    return None if uses_of(kernel, source.buffer)[0] or path[: len(place)] == place else node


def _of_own(key: int, own: int, tile: tuple[Affine, ...], access: Access) -> Access:
    return replace(access, buffer=own, tile=tile) if access.buffer == key else access


def grouped(kernels: Kernels, path: Path, along: Along = Along.columns, wholly: bool = False) -> Kernels:
    """The passes of the loop there at once, statement by statement, as far as that is possible: within loops that are
    all of the loop's body, for each statement or none.

    Raises Refused where it is for none, or `wholly` not for all.
    """
    kernels, path = _joined_elsewhere(kernels, path, along)
    kernels, path = with_joined_tiles(kernels, path, along)
    parts = 1
    for cut in range(len(loop_at(kernels[0], path).body) - 1, 0, -1):
        try:
            kernels = everywhere(fission, kernels, path, cut)
            parts += 1
        except Refused:
            continue
    done, reason = 0, ""
    for number in range(parts):
        try:
            part = (*path[:-1], path[-1] + number)
            inner, place = _innermost(kernels, part)
            deeper = place != part and len(loop_at(inner[0], place).body) > 1
            kernels = grouped(inner, place, along, True) if deeper else everywhere(merged, inner, place, along)
            done += 1
        except Refused as error:
            reason = str(error)
    if not done or (wholly and done < parts):
        raise Refused(reason)
    return kernels


def with_joined_tiles(kernels: Kernels, path: Path, along: Along = Along.columns) -> tuple[Kernels, Path]:
    """With a place for each pass's tile in front of the loop there, and where that is then. Raises Refused."""
    at = 0
    while at < len(loop_at(kernels[0], path).body):
        if isinstance(loop_at(kernels[0], path).body[at], Allocate):
            if len(loop_at(kernels[0], path).body) == 1:
                raise Refused("nothing is done in the loop")
            kernels = everywhere(joined_tiles, kernels, (*path, at), along)
            path = (*path[:-1], path[-1] + 1)
        else:
            at += 1
    return kernels, path


def _joined_elsewhere(kernels: Kernels, path: Path, along: Along) -> tuple[Kernels, Path]:
    """With the tiles that are made in other loops, of which each pass here uses another one, in one buffer each."""
    loop = loop_at(kernels[0], path)
    own = allocated_in(loop.body)
    for use in uses(loop.body):
        access = use.access
        if access.buffer in own or not any(loop.variable in form.variables for form in access.tile):
            continue
        place = next(each for each, node in paths(kernels[0].body) if node == Allocate(access.buffer))
        if loop.variable not in access.tile[-1].variables:
            raise Refused(f"line {use.node.line} takes tiles of several loops")
        own |= {access.buffer}
        kernels = everywhere(joined_tiles, kernels, place, along)
        path = place_of(kernels[0], loop.variable)
    return kernels, path


def _innermost(kernels: Kernels, path: Path) -> tuple[Kernels, Path]:
    """The loop there within the loops that are all of its body, and where it is then. Raises Refused."""
    while len(loop_at(kernels[0], path).body) == 1 and isinstance(loop_at(kernels[0], path).body[0], Loop):
        kernels, path = everywhere(interchange, kernels, path), (*path, 0)
    return kernels, path
