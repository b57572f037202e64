"""Changes of a loop tree that keep what it computes: each checks that it may, and returns a new tree.

A place in a tree is a path: which statement of the kernel's body, which of that loop's body, and so on. A path means
the same in the trees of one kernel at several shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import Enum
from math import prod
from typing import Any, Union

import numpy as np

from nki_sim.by_object import by_object
from nki_sim.contract.opcodes import OPCODES
from nki_sim.contract.operands import check_operands
from nki_sim.errors import NkiError
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.dependence import allocated_in, conflict, meet, uses
from nki_sim.loop_ir.expansion import template_of
from nki_sim.loop_ir.reading import IMPLICIT, grid
from nki_sim.loop_ir.tree import (
    Access,
    Allocate,
    Buffer,
    DeviceLoop,
    Instruction,
    Loop,
    LoopKernel,
    Node,
    Result,
    rebuilt,
    walk,
)
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Template

Path = tuple[int, ...]


class Refused(Exception):
    """The change would alter what the kernel computes, or make what no engine does; why, in one line."""


# --- places ---------------------------------------------------------------------------------------------------


def node_at(kernel: LoopKernel, path: Path) -> Node:
    """Raises Refused where no statement has that place."""
    body: Sequence[Node] = kernel.body
    node: Node | None = None
    for step in path:
        if node is not None and not isinstance(node, (Loop, DeviceLoop)):
            raise Refused("no statement stands in that place")
        body = body if node is None else node.body
        if step >= len(body):
            raise Refused("no statement stands in that place")
        node = body[step]
    assert node is not None
    return node


def instruction_at(kernel: LoopKernel, path: Path, opcode: str = "") -> Instruction:
    """Raises Refused where another statement stands, or another opcode than a wanted one."""
    node = node_at(kernel, path)
    if not isinstance(node, Instruction) or opcode not in ("", node.opcode):
        raise Refused(f"there is no {opcode or 'instruction'} in that place")
    return node


def loop_at(kernel: LoopKernel, path: Path) -> Loop:
    node = node_at(kernel, path)
    if not isinstance(node, Loop):
        raise Refused("there is no loop in that place")
    return node


def loops_around(kernel: LoopKernel, path: Path) -> tuple[Loop, ...]:
    nodes = [node_at(kernel, path[:length]) for length in range(1, len(path))]
    return tuple(node for node in nodes if isinstance(node, Loop))


def block_at(kernel: LoopKernel, path: Path) -> tuple[Node, ...]:
    """The statements among which that one stands. Raises Refused where there are none."""
    if len(path) == 1:
        return kernel.body
    node = node_at(kernel, path[:-1])
    if not isinstance(node, (Loop, DeviceLoop)):
        raise Refused("no statement stands in that place")
    return node.body


def with_block(kernel: LoopKernel, path: Path, body: Sequence[Node]) -> LoopKernel:
    """With these statements in place of those among which that one stands."""
    return replace(kernel, body=_put(kernel.body, path, tuple(body)))


def _put(nodes: tuple[Node, ...], path: Path, body: tuple[Node, ...]) -> tuple[Node, ...]:
    if len(path) == 1:
        return body
    node = nodes[path[0]]
    assert isinstance(node, (Loop, DeviceLoop))
    return (*nodes[: path[0]], replace(node, body=_put(node.body, path[1:], body)), *nodes[path[0] + 1 :])


def with_node(kernel: LoopKernel, path: Path, nodes: Sequence[Node]) -> LoopKernel:
    """With these statements in that one's place."""
    block = block_at(kernel, path)
    return with_block(kernel, path, (*block[: path[-1]], *nodes, *block[path[-1] + 1 :]))


def paths(body: Sequence[Node], before: Path = ()) -> list[tuple[Path, Node]]:
    """Every place, in program order."""
    found: list[tuple[Path, Node]] = []
    for at, node in enumerate(body):
        found.append(((*before, at), node))
        if isinstance(node, (Loop, DeviceLoop)):
            found += paths(node.body, (*before, at))
    return found


def instructions(kernel: LoopKernel, *opcodes: str) -> list[tuple[Path, Instruction]]:
    """Those of these opcodes, or all, in program order."""
    found = [(path, node) for path, node in paths(kernel.body) if isinstance(node, Instruction)]
    return [(path, node) for path, node in found if not opcodes or node.opcode in opcodes]


def place_of(kernel: LoopKernel, variable: str) -> Path:
    """Of the loop with that counter. Raises Refused where there is none."""
    for path, node in paths(kernel.body):
        if isinstance(node, Loop) and node.variable == variable:
            return path
    raise Refused("the loop is gone")


# --- names -----------------------------------------------------------------------------------------------------


def fresh_variable(kernel: LoopKernel, like: str, beside: Sequence[str] = ()) -> str:
    taken = {node.variable for node, _ in walk(kernel.body) if isinstance(node, Loop)} | set(beside)
    stem = like.rstrip("'")
    number = 1
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"


def substituted(body: Sequence[Node], values: Mapping[str, Union[Affine, int]]) -> tuple[Node, ...]:
    """With those counters replaced, wherever they stand."""

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Instruction):
            return (node.on(tuple([each.substitute(values) for each in node.operands])),)
        if isinstance(node, Loop):
            start, extent = node.start.substitute(values), node.extent.substitute(values)
            if start is not node.start or extent is not node.extent:
                return (Loop(node.variable, start, extent, node.body, node.site),)
        return (node,)

    return rebuilt(tuple(body), change)


def with_operands(body: Sequence[Node], change: Callable[[Access], Access]) -> tuple[Node, ...]:
    """Every access of the instructions changed."""

    def changed(node: Node) -> tuple[Node, ...]:
        return (node.on(tuple(map(change, node.operands))) if isinstance(node, Instruction) else node,)

    return rebuilt(tuple(body), changed)


def with_accesses(kernel: LoopKernel, change: Callable[[Access], Access]) -> LoopKernel:
    """Every access and result changed."""
    outputs = []
    for each in kernel.outputs:
        access = change(Access("", "r", each.buffer, each.tile, Affine(each.offset), each.pattern, each.dtype))
        outputs.append(Result(access.buffer, access.tile, access.offset.constant, access.pattern, access.dtype))
    return replace(kernel, body=with_operands(kernel.body, change), outputs=tuple(outputs))


# --- several shapes ------------------------------------------------------------------------------------------------

Kernels = tuple[LoopKernel, ...]
"""One kernel's trees at several shapes."""


def everywhere(change: Callable[..., LoopKernel], kernels: Kernels, *arguments: Any) -> Kernels:
    """The change at every shape, or at none. Raises Refused."""
    return tuple(change(kernel, *arguments) for kernel in kernels)


# --- loops -----------------------------------------------------------------------------------------------------


def _extent(loop: Loop) -> int:
    if not loop.extent.is_constant:
        raise Refused("the loop's length changes")
    return loop.extent.constant


def fission(kernel: LoopKernel, path: Path, at: int) -> LoopKernel:
    """The loop there as two, of which the first has the first `at` statements of its body."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    first, second = loop.body[:at], loop.body[at:]
    if not first or not second:
        raise Refused("one of the two loops would be empty")
    blocked = conflict(second, first, kernel, (*around, loop), ((loop, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} of a later pass needs what comes after it in an earlier one")
    name = fresh_variable(kernel, loop.variable)
    other = Loop(name, loop.start, loop.extent, substituted(second, {loop.variable: Affine.variable(name)}), loop.site)
    return with_node(kernel, path, (replace(loop, body=first), other))


def split(kernel: LoopKernel, path: Path, inner: int) -> LoopKernel:
    """The loop there as a loop over blocks of `inner` passes around one over a block's; of fewer, one block of all."""
    loop = loop_at(kernel, path)
    extent = _extent(loop)
    inner = min(inner, extent)
    if extent % inner:
        raise Refused(f"{extent} passes are not blocks of {inner}")
    if not loop.start.is_constant:
        raise Refused("the loop begins at a counter of another one")
    outer = fresh_variable(kernel, loop.variable)
    within = fresh_variable(kernel, loop.variable, (outer,))
    counter = Affine.of(loop.start.constant, {outer: inner, within: 1})
    made = allocated_in(loop.body)
    depth = len(loops_around(kernel, path))
    body = substituted(loop.body, {loop.variable: counter})
    block = Loop(outer, Affine(), Affine(extent // inner), (Loop(within, Affine(), Affine(inner), body, loop.site),), 0)
    changed = with_node(kernel, path, (block,))
    return with_accesses(changed, lambda access: _split_tile(access, made, depth, loop, inner, outer, within))


def _split_tile(
    access: Access, made: frozenset[int], depth: int, loop: Loop, inner: int, outer: str, within: str
) -> Access:
    """An Allocate in the loop is in two now."""
    if access.buffer not in made:
        return access
    form = access.tile[depth]
    own = Affine.of(loop.start.constant, {outer: inner, within: 1})
    if form == own:
        two = (Affine.variable(outer), Affine.variable(within))
    elif form.is_constant:
        number = form.constant - loop.start.constant
        two = (Affine(number // inner), Affine(number % inner))
    else:
        raise Refused("a tile of the loop is used elsewhere, by another counter")
    return access.at((*access.tile[:depth], *two, *access.tile[depth + 1 :]), access.offset)


def inlined(kernel: LoopKernel, path: Path) -> LoopKernel:
    """The loop there, of one pass, as its body."""
    loop, depth = loop_at(kernel, path), len(loops_around(kernel, path))
    if loop.extent != Affine(1):
        raise Refused("the loop has more than one pass")
    made = allocated_in(loop.body)
    return out_of_loop(with_node(kernel, path, substituted(loop.body, {loop.variable: loop.start})), made, depth)


def out_of_loop(kernel: LoopKernel, made: Set[int], depth: int) -> LoopKernel:
    """With those buffers made once for all passes of the loop at that depth."""

    def fewer(access: Access) -> Access:
        tile = (*access.tile[:depth], *access.tile[depth + 1 :])
        return access.at(tile, access.offset) if access.buffer in made else access

    return with_accesses(kernel, fewer)


def interchange(kernel: LoopKernel, path: Path) -> LoopKernel:
    """The loop there, whose body is one loop, inside that one."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    if len(loop.body) != 1 or not isinstance(loop.body[0], Loop):
        raise Refused("its body is more than one loop")
    inner = loop.body[0]
    if loop.variable in inner.extent.variables | inner.start.variables:
        raise Refused("the inner loop's length depends on the outer one")
    blocked = conflict(inner.body, inner.body, kernel, (*around, loop, inner), ((loop, 1), (inner, -1)))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} needs the passes in their order")
    made, depth = allocated_in(inner.body), len(around)

    def swapped(access: Access) -> Access:
        if access.buffer not in made:
            return access
        tile = list(access.tile)
        tile[depth], tile[depth + 1] = tile[depth + 1], tile[depth]
        return access.at(tuple(tile), access.offset)

    changed = with_node(kernel, path, (replace(inner, body=(replace(loop, body=inner.body),)),))
    return with_accesses(changed, swapped)


def fuse(kernel: LoopKernel, path: Path) -> LoopKernel:
    """The loop there and the one right behind it as one."""
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    block = block_at(kernel, path)
    following = block[path[-1] + 1] if path[-1] + 1 < len(block) else None
    if not isinstance(following, Loop) or (following.start, following.extent) != (loop.start, loop.extent):
        raise Refused("no loop of that length follows")
    second = substituted(following.body, {following.variable: Affine.variable(loop.variable)})
    joined = replace(loop, body=(*loop.body, *second))
    blocked = conflict(second, loop.body, kernel, (*around, joined), ((joined, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} is needed whole before the second loop begins")
    return with_block(kernel, path, (*block[: path[-1]], joined, *block[path[-1] + 2 :]))


def lifted(kernel: LoopKernel, path: Path, statements: Sequence[Path]) -> LoopKernel:
    """Those statements in front of the loop there, once: nothing in them changes from pass to pass.

    `statements`: paths from the loop on, all in one block. Where that is inside inner loops, loops of that kind go with
    them, and a buffer of each pass is kept.
    """
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    _extent(loop)
    depth = len(around)
    inner = statements[0][:-1]
    if any(each[:-1] != inner for each in statements):
        raise Refused("the statements are not in one block")
    chain = [loop_at(kernel, (*path, *inner[:length])) for length in range(1, len(inner) + 1)]
    moved = [node_at(kernel, (*path, *each)) for each in sorted(statements)]
    made = allocated_in(moved)
    for each in chain:
        if loop.variable in each.start.variables | each.extent.variables:
            raise Refused("an inner loop's length depends on the loop")
    _does_not_vary(moved, made, loop, depth)
    inside = (*around, loop, *chain)
    kept = _without(loop, statements)
    own_nodes = {id(node) for node, _ in walk(tuple(moved))}
    for use in uses(kernel.body):
        if use.writes and use.access.buffer in made and id(use.node) not in own_nodes:
            raise Refused(f"line {use.node.line} changes it too")
    for use in uses(kept.body, (*around, kept)):
        for mine in uses(moved, inside):
            if (use.writes or mine.writes) and mine.access.buffer not in made and meet(use, mine, kernel, around):
                raise Refused(f"line {use.node.line} writes what line {mine.node.line} takes")
    renamed = {each.variable: fresh_variable(kernel, each.variable) for each in chain}
    body = substituted(moved, {old: Affine.variable(new) for old, new in renamed.items()})
    for number, each in reversed(list(enumerate(chain))):
        before = {old.variable: Affine.variable(renamed[old.variable]) for old in chain[:number]}
        start, extent = each.start.substitute(before), each.extent.substitute(before)
        body = (Loop(renamed[each.variable], start, extent, body, each.site),)
    return out_of_loop(with_node(kernel, path, (*body, kept)), made, depth)


def _does_not_vary(moved: Sequence[Node], made: frozenset[int], loop: Loop, depth: int) -> None:
    for node, _ in walk(tuple(moved)):
        if isinstance(node, DeviceLoop):
            raise Refused("a loop on the device is among it")
        if isinstance(node, Loop) and loop.variable in node.start.variables | node.extent.variables:
            raise Refused("an inner loop's length depends on the loop")
        if isinstance(node, Instruction):
            for access in node.operands:
                own = access.buffer in made
                tile = (*access.tile[:depth], *access.tile[depth + 1 :]) if own else access.tile
                if any(loop.variable in form.variables for form in (access.offset, *tile)):
                    raise Refused(f"line {node.line} differs from pass to pass")
                if access.access != "r" and not own and access.role not in IMPLICIT:
                    raise Refused(f"line {node.line} writes what is not made there")


def _without(loop: Loop, statements: Sequence[Path]) -> Loop:
    def rest(nodes: tuple[Node, ...], before: Path) -> tuple[Node, ...]:
        kept: list[Node] = []
        for at, node in enumerate(nodes):
            here = (*before, at)
            if here in statements:
                continue
            if isinstance(node, (Loop, DeviceLoop)) and any(each[: len(here)] == here for each in statements):
                body = rest(node.body, here)
                if not body:
                    continue
                node = replace(node, body=body)
            kept.append(node)
        return tuple(kept)

    return replace(loop, body=rest(loop.body, ()))


def without_empty_loops(kernel: LoopKernel) -> LoopKernel:
    def change(node: Node) -> tuple[Node, ...]:
        return () if isinstance(node, Loop) and not node.body else (node,)

    return replace(kernel, body=rebuilt(kernel.body, change))


# --- buffers ---------------------------------------------------------------------------------------------------


class Along(Enum):
    """Where on chip the passes of a loop lie beside each other."""

    columns = "columns"
    partitions = "partitions"


def joined_tiles(kernel: LoopKernel, path: Path, along: Along = Along.columns) -> LoopKernel:
    """The Allocate there, in a loop's body, as one buffer in front of the loop with a place for each pass's tile.

    On chip the places are side by side in every partition, or on partitions of their own; in HBM one after the other.
    """
    node, around = node_at(kernel, path), loops_around(kernel, path)
    if not isinstance(node, Allocate) or not around or len(path) < 2:
        raise Refused("no buffer is made there in a loop")
    loop = around[-1]
    count, buffer = _extent(loop), kernel.buffers[node.buffer]
    if buffer.address is not None:
        raise Refused("the kernel places the buffer itself")
    if not loop.start.is_constant:
        raise Refused("the loop begins at a counter of another one")
    depth, first = len(around) - 1, loop.start.constant
    on_chip = buffer.region.on_chip
    on_partitions = on_chip and along is Along.partitions
    if on_partitions:
        shape = (buffer.shape[0] * count, *buffer.shape[1:])
        if shape[0] > ISA.partitions:
            raise Refused(f"{count} tiles of {buffer.shape[0]} partitions are more than there are")
    elif on_chip:
        shape = (buffer.shape[0], count, *buffer.shape[1:])
    else:
        shape = (count, *buffer.shape)
    own = prod(buffer.shape[1:]) if on_chip else prod(buffer.shape)

    def moved(access: Access) -> Access:
        if access.buffer != node.buffer:
            return access
        scale = buffer.dtype.itemsize / access.dtype.itemsize
        row = int(own * scale)
        place = (access.tile[depth] - first) * row
        tile = (*access.tile[:depth], *access.tile[depth + 1 :])
        if on_partitions:
            place = place * buffer.shape[0]
        if on_partitions or not on_chip:
            return replace(access, tile=tile, offset=access.offset + place)
        partition, rest = _by_partition(access.offset, row)
        (stride, partitions), *free = access.pattern
        if stride % row and partitions > 1:
            raise Refused("an access steps by no whole partition")
        return replace(
            access,
            tile=tile,
            offset=partition * (row * count) + rest + place,
            pattern=((stride * count if stride % row == 0 else row * count, partitions), *free),
        )

    block = block_at(kernel, path)
    without = with_block(kernel, path, (*block[: path[-1]], *block[path[-1] + 1 :]))
    left = node_at(without, path[:-1])
    placed = with_node(without, path[:-1], (node, left) if len(block) > 1 else (node,))
    buffers = {**placed.buffers, node.buffer: replace(buffer, shape=shape)}
    return with_accesses(replace(placed, buffers=buffers), moved)


def _by_partition(offset: Affine, row: int) -> tuple[Affine, Affine]:
    """Which partition, and where in it. Raises Refused for a counter that goes on in both."""
    if any(abs(f) > row and f % row for _, f in offset.terms):
        raise Refused("an access goes on by a partition and within it at once")
    partition = Affine.of(offset.constant // row, {n: f // row for n, f in offset.terms if f % row == 0})
    return partition, offset - partition * row


# --- instructions --------------------------------------------------------------------------------------------------


def rechecked(kernel: LoopKernel, keys: Set[int]) -> LoopKernel:
    """The same, once an engine can do every instruction that touches one of those buffers, in all passes of the loops.

    Raises Refused.
    """
    for node, around in walk(kernel.body):
        if isinstance(node, Instruction) and any(access.buffer in keys for access in node.operands):
            for counters in _different_places(node, around, kernel.buffers):
                checked(
                    replace(node, operands=tuple(each.substitute(counters) for each in node.operands)), kernel.buffers
                )
    return kernel


def _different_places(
    node: Instruction, around: tuple[Loop, ...], buffers: Mapping[int, Buffer]
) -> Iterator[dict[str, int]]:
    """Counters of one pass for each set of places on chip that the operands begin at."""
    counters = grid(around)
    passes = len(counters[around[-1].variable]) if around else 1
    places = np.zeros((len(node.operands), passes), np.int64)
    for at, access in enumerate(node.operands):
        buffer = buffers[access.buffer]
        if buffer.region.on_chip:
            row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
            offsets = np.asarray(access.offset.evaluate(counters))
            places[at] = offsets if buffer.region is MemoryRegion.psum else offsets // row
    _, firsts = np.unique(places, axis=1, return_index=True)
    for first in firsts.tolist():
        yield {name: int(values[first]) for name, values in counters.items()}


def checked(node: Instruction, buffers: Mapping[int, Buffer]) -> Instruction:
    """The same, once an engine can do it. Raises Refused."""
    try:
        check_template(template_of(buffers, node))
    except NkiError as error:
        raise Refused(str(error)) from None
    return node


@by_object
def check_template(template: Template) -> None:
    """Raises NkiError for what no engine does."""
    OPCODES[template.opcode].check(template)
    check_operands(template, OPCODES[template.opcode].contract)


ELEMENTWISE = {
    "activation": ("dst", "data"),
    "tensor_tensor": ("dst", "data1", "data2"),
    "tensor_scalar": ("dst", "data"),
    "tensor_copy": ("dst", "src"),
    "scalar_tensor_tensor": ("dst", "data", "operand1"),
    "memset": ("dst",),
    "reciprocal": ("dst", "data"),
    "dma_copy": ("dst", "src"),
    "tensor_copy_predicated": ("dst", "predicate", "src"),
    "nc_matmul": ("dst", "moving"),
    "tensor_reduce": ("dst", "data"),
}
"""Operands of which an instruction treats one free dimension's elements each by themselves; others it takes whole."""


PARTITION_WISE = frozenset(ELEMENTWISE) - {"nc_matmul"} | {"tensor_tensor_scan", "tensor_scalar_reduce"}
"""What these write on a partition depends on the same partition alone, whichever it is; a transfer goes where it is
told."""


def merged(kernel: LoopKernel, path: Path, along: Along = Along.columns) -> LoopKernel:
    """The loop there, whose body is one instruction, as one instruction over all its passes."""
    if along is Along.partitions:
        return _merged_on_partitions(kernel, path)
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    if len(loop.body) != 1 or not isinstance(loop.body[0], Instruction):
        raise Refused("its body is more than one instruction")
    node, count = loop.body[0], _extent(loop)
    tiles = ELEMENTWISE.get(node.opcode)
    if tiles is None:
        raise Refused(f"{node.opcode} does not take several tiles at once")
    if node.opcode == "activation" and node.operand("reduce_res") is not None:
        raise Refused("it sums up each tile by itself")
    blocked = conflict(loop.body, loop.body, kernel, (*around, loop), ((loop, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} needs what an earlier pass left")
    operands = []
    for access in node.operands:
        if any(loop.variable in form.variables for form in access.tile):
            raise Refused("its passes are on different buffers")
        factor = access.offset.coefficient(loop.variable)
        rest = access.offset.substitute({loop.variable: loop.start})
        if access.role not in tiles:
            if factor:
                raise Refused(f"its {access.role} differs from pass to pass")
            operands.append(access)
            continue
        buffer = kernel.buffers[access.buffer]
        row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
        if buffer.region.on_chip and abs(factor) >= row:
            raise Refused("its passes are on different partitions")
        at = _place_of_passes(access, node, kernel)
        pattern = (*access.pattern[:at], (factor, count), *access.pattern[at:])
        operands.append(replace(access, offset=rest, pattern=_squeezed(pattern, at)))
    attrs = node.attrs
    if node.opcode == "tensor_reduce":
        data = operands[1]
        free = len(data.pattern)
        attrs = attrs._replace(axes=tuple(range(free - len(attrs.axes), free)))
    made = checked(replace(node, operands=tuple(operands), attrs=attrs), kernel.buffers)
    return with_node(kernel, path, (made,))


def _merged_on_partitions(kernel: LoopKernel, path: Path) -> LoopKernel:
    loop, around = loop_at(kernel, path), loops_around(kernel, path)
    if len(loop.body) != 1 or not isinstance(loop.body[0], Instruction):
        raise Refused("its body is more than one instruction")
    node, count = loop.body[0], _extent(loop)
    if node.opcode not in PARTITION_WISE:
        raise Refused(f"{node.opcode} does not treat each partition by itself")
    if not any(kernel.buffers[access.buffer].region.on_chip for access in node.operands):
        raise Refused("nothing of it is on chip")
    blocked = conflict(loop.body, loop.body, kernel, (*around, loop), ((loop, 1),))
    if blocked is not None:
        raise Refused(f"line {blocked.node.line} needs what an earlier pass left")
    operands = tuple(_on_partitions(access, loop, count, kernel.buffers[access.buffer]) for access in node.operands)
    return with_node(kernel, path, (checked(replace(node, operands=operands), kernel.buffers),))


def _on_partitions(access: Access, loop: Loop, count: int, buffer: Buffer) -> Access:
    """All passes of it: on chip on adjacent partitions, in HBM one after the other."""
    if any(loop.variable in form.variables for form in access.tile) or access.indirection is not None:
        raise Refused("its passes are on different buffers")
    step = access.offset.coefficient(loop.variable)
    first = access.offset.substitute({loop.variable: loop.start})
    (stride, size), *rest = access.pattern
    if access.role in IMPLICIT:
        if access.access != "w" or step:
            raise Refused("a pass goes on with the sum of the one before")
        return replace(access, pattern=((stride, size * count), *rest))
    if buffer.region.on_chip:
        row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
        if step != row * size or (size > 1 and stride != row):
            raise Refused(f"the passes' {access.role} is not on adjacent partitions")
        return replace(access, offset=first, pattern=((row, size * count), *rest))
    if size == 1:
        return replace(access, offset=first, pattern=((step, count), *(rest or [(1, 1)])))
    if step == stride * size:
        return replace(access, offset=first, pattern=((stride, size * count), *rest))
    return replace(access, offset=first, pattern=((step, count), *access.pattern))


def _squeezed(pattern: tuple[tuple[int, int], ...], at: int) -> tuple[tuple[int, int], ...]:
    """Without dimensions of one element behind the passes'."""
    kept = [pair for number, pair in enumerate(pattern) if number <= at or pair[1] > 1]
    return tuple(kept)


def _place_of_passes(access: Access, node: Instruction, kernel: LoopKernel) -> int:
    """Before which pair of the pattern: behind the partitions, of which an HBM side of a transfer has as many."""
    if kernel.buffers[access.buffer].region.on_chip:
        return 1
    other = next((o for o in node.operands if kernel.buffers[o.buffer].region.on_chip), None)
    if other is None:
        return 0
    partitions, run = other.pattern[0][1], 1
    for at, (_, n) in enumerate(access.pattern):
        if run == partitions:
            return at
        run *= n
    if run == partitions:
        return len(access.pattern)
    raise Refused("its rows do not fit the partitions")
