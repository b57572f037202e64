"""Rows that several passes of a loop load are loaded once; for that, rows are dealt out to the passes in turn.

Windows of a stencil overlap, and a partition cannot see its neighbour's row. Where pass i has the rows i, i + n,
i + 2 n, ... of n passes in place of rows in sequence, what it needs one row further on is, on the same partitions, what
the next pass begins with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, ranges_at, uses_of
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    PARTITION_WISE,
    Path,
    Refused,
    block_at,
    checked,
    fresh_variable,
    loop_at,
    loops_around,
    paths,
    with_accesses,
    with_node,
)
from nki_sim.loop_ir.dependence import allocated_in, conflict
from nki_sim.loop_ir.reading import IMPLICIT
from nki_sim.loop_ir.tree import Access, Allocate, DeviceLoop, Instruction, Loop, LoopKernel, Node, rebuilt, walk


class DealRows:
    """Several passes' rows are then one stretch of HBM for each partition."""

    name = "rows-in-turn"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _loops(kernel):
            yield Site(self.name, path, (), f"rows dealt out to the passes of line {node.site} in turn", node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        return dealt_out(kernel, site.path)


class LoadRowsOnce:
    """Rows that the windows of several passes share come from HBM once."""

    name = "load-rows-once"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in _loops(kernel):
            yield Site(self.name, path, (), f"rows that passes of line {node.site} share loaded once", node.site)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        path = site.path
        shared = _shared(kernel, path)
        if not shared:
            kernel = dealt_out(kernel, path)
            shared = _shared(kernel, path)
        if not shared:
            raise Refused("no pass loads what another one loads, some rows further on")
        while shared:
            kernel = _loaded_once(kernel, path, shared[0])
            path = (*path[:-1], path[-1] + 1)
            shared = _shared(kernel, path)
        return kernel


def _loops(kernel: LoopKernel) -> Iterator[tuple[Path, Loop]]:
    """Those that load."""
    for path, node in paths(kernel.body):
        if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
            if any(isinstance(each, Instruction) and each.opcode == "dma_copy" for each, _ in walk(node.body)):
                yield path, node


# --- dealing out ---------------------------------------------------------------------------------------------


def dealt_out(kernel: LoopKernel, path: Path) -> LoopKernel:
    """Pass i of the n passes of the loop there with rows i, i + n, ... Raises Refused."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    if not loop.extent.is_constant or loop.start != Affine():
        raise Refused("the loop's length changes, or it begins at another number than 0")
    own = allocated_in(loop.body)
    rows = {access.pattern[0][1] for access in _on_chip(kernel, loop) if access.buffer in own}
    if len(rows) != 1:
        raise Refused("the loop's tiles are not all on as many partitions")
    (height,) = rows
    blocked = conflict(loop.body, loop.body, kernel, (*around, loop), ((loop, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} needs what an earlier pass left")

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, DeviceLoop):
            raise Refused("a loop on the device is among it")
        if not isinstance(node, Instruction):
            return (node,)
        if node.opcode not in PARTITION_WISE:
            raise Refused(f"{node.opcode} does not treat each partition by itself")
        operands = tuple(_in_turn(each, kernel, loop, own, height, node) for each in node.operands)
        return (checked(replace(node, operands=operands), kernel.buffers),)

    return with_node(kernel, path, (replace(loop, body=rebuilt(loop.body, change)),))


def _on_chip(kernel: LoopKernel, loop: Loop) -> Iterator[Access]:
    for node, _ in walk(loop.body):
        if isinstance(node, Instruction):
            for access in node.operands:
                if access.role not in IMPLICIT and kernel.buffers[access.buffer].region.on_chip:
                    yield access


def _in_turn(
    access: Access, kernel: LoopKernel, loop: Loop, own: frozenset[int], height: int, node: Instruction
) -> Access:
    buffer = kernel.buffers[access.buffer]
    if access.role in IMPLICIT:
        return access
    if access.indirection is not None:
        raise Refused(f"line {node.line}: an index chooses the rows")
    stride, count = access.pattern[0]
    further = access.offset.coefficient(loop.variable)
    if buffer.region.on_chip:
        row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
        if access.buffer in own and (stride != row or any(abs(f) >= row for _, f in access.offset.terms)):
            raise Refused(f"line {node.line} is on partitions that change")
        if access.buffer in own or (not further and _same_everywhere(kernel, access.buffer)):
            return access
        raise Refused(f"line {node.line} takes what differs from partition to partition")
    if count == height and further == height * stride and further:
        offset = access.offset - Affine.of(0, {loop.variable: further - stride})
        return replace(access, offset=offset, pattern=((stride * loop.extent.constant, count), *access.pattern[1:]))
    if not further and stride == 0 and count == height:
        return access
    raise Refused(f"line {node.line} does not go on with the rows of the passes")


def _same_everywhere(kernel: LoopKernel, key: int) -> bool:
    """Is it the same on every partition?"""
    writing, _ = uses_of(kernel, key)
    return bool(writing) and all(
        each.node.opcode == "memset" or (each.node.opcode == "dma_copy" and each.node.operands[1].pattern[0][0] == 0)
        for each in writing
    )


# --- loading once --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    path: Path
    node: Instruction
    down: Mapping[str, int]
    """By counter of the loop and those inside: rows for each pass."""
    first: int
    """Constant part of where it loads from, in rows."""


def _shared(kernel: LoopKernel, path: Path) -> list[list[_Load]]:
    """Loads of the same columns of one tensor, some rows further on, of which passes have rows in common."""
    loop = loop_at(kernel, path)
    found: dict[object, list[_Load]] = defaultdict(list)
    for inner, node in paths(loop.body, path):
        if isinstance(node, Instruction) and node.opcode == "dma_copy" and _is_plain_load(kernel, inner, node):
            dst, src = node.operands
            step = src.offset.coefficient(loop.variable)
            if step <= 0:
                continue
            inside = [each.variable for each in loops_around(kernel, inner)[len(loops_around(kernel, path)) :]]
            down = {n: f // step for n, f in src.offset.terms if n in inside and f > 0 and f % step == 0}
            rest = Affine.of(src.offset.constant % step, {n: f for n, f in src.offset.terms if n not in down})
            key = (
                inner[:-1], node.attrs, node.engine, rest, step, tuple(down.items()), kernel.buffers[dst.buffer].shape,
                replace(dst, buffer=0), replace(src, offset=Affine()),
            )  # fmt: skip
            found[key].append(_Load(inner, node, down, src.offset.constant // step))
    return [loads for loads in found.values() if _rows(kernel, loads)[1] < _loaded(kernel, loads)]


def _is_plain_load(kernel: LoopKernel, path: Path, node: Instruction) -> bool:
    """Does it alone fill a tile of its own block from HBM that nothing writes?"""
    dst, src = node.operands[:2]
    if len(node.operands) != 2 or dst.indirection is not None or src.indirection is not None:
        return False
    return (
        is_local(kernel, dst.buffer)
        and kernel.buffers[dst.buffer].address is None
        and kernel.buffers[dst.buffer].region.on_chip
        and not kernel.buffers[src.buffer].region.on_chip
        and len(uses_of(kernel, dst.buffer)[0]) == 1
        and not uses_of(kernel, src.buffer)[0]
        and Allocate(dst.buffer) in block_at(kernel, path)
        and dst.offset.is_constant
        and all(form == Affine.variable(loop.variable) for form, loop in zip(dst.tile, loops_around(kernel, path)))
    )


def _rows(kernel: LoopKernel, loads: Sequence[_Load]) -> tuple[int, int]:
    """(the first, how many) that are loaded in all."""
    ranges = ranges_at(kernel, loads[0].path)
    low, high = Affine.of(0, loads[0].down).bounds(ranges)
    first, last = min(each.first for each in loads), max(each.first for each in loads)
    return first + low, last - first + high - low + 1


def _loaded(kernel: LoopKernel, loads: Sequence[_Load]) -> int:
    count = len(loads)
    for name in loads[0].down:
        low, high = ranges_at(kernel, loads[0].path)[name]
        count *= high - low + 1
    return count


def _loaded_once(kernel: LoopKernel, path: Path, loads: Sequence[_Load]) -> LoopKernel:
    """A loop in front of the one there loads each row, and whoever takes one takes its tile."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    first, count = _rows(kernel, loads)
    node, down = loads[0].node, loads[0].down
    dst, src = node.operands
    inside = loops_around(kernel, loads[0].path)[len(around) + 1 :]
    kept = [each for each in inside if each.variable not in down]
    if any(not each.extent.is_constant or not each.start.is_constant for each in inside):
        raise Refused("a loop inside is not as long in every pass")
    turn = fresh_variable(kernel, loop.variable)
    renamed = {each.variable: fresh_variable(kernel, each.variable, (turn,)) for each in kept}
    own = max(kernel.buffers) + 1
    step = src.offset.coefficient(loop.variable)
    rest = Affine.of(src.offset.constant % step, {n: f for n, f in src.offset.terms if n not in down})
    offset = (rest + first * step).substitute({n: Affine.variable(to) for n, to in renamed.items()})
    tile = tuple(Affine.variable(n) for n in (*(each.variable for each in around), turn, *renamed.values()))
    made = replace(
        node,
        operands=(
            replace(dst, buffer=own, tile=tile),
            replace(src, offset=offset + Affine.of(0, {turn: step})),
        ),
    )
    body: tuple[Node, ...] = (Allocate(own), made)
    for each in reversed(kept):
        body = (Loop(renamed[each.variable], each.start, each.extent, body, each.site),)
    front = Loop(turn, Affine(), Affine(count), body, loop.site)
    further = {each.node.operands[0].buffer: each.first - first for each in loads}
    names = [each.variable for each in (loop, *inside)]

    def taken(access: Access) -> Access:
        if access.buffer not in further:
            return access
        forms = dict(zip(names, access.tile[len(around) :]))
        row = Affine(further[access.buffer])
        for name, times in down.items():
            row = row + forms[name] * times
        return replace(access, buffer=own, tile=(*access.tile[: len(around)], row, *(forms[n] for n in renamed)))

    gone = {id(each.node) for each in loads}

    def without(node: Node) -> tuple[Node, ...]:
        is_gone = id(node) in gone or (isinstance(node, Allocate) and node.buffer in further)
        return () if is_gone else (node,)

    kernel = with_node(kernel, path, (front, replace(loop, body=rebuilt(loop.body, without))))
    kernel = replace(kernel, buffers={**kernel.buffers, own: kernel.buffers[dst.buffer]})
    return with_accesses(kernel, taken)
