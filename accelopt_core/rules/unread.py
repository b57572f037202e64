"""What nobody reads: instructions that are left out, and the ends of tiles, which nobody computes then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from accelopt_core.rules.flow import check_free, is_local
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import ELEMENTWISE, Refused, checked
from nki_sim.loop_ir.dependence import Use, ranges_of, uses
from nki_sim.loop_ir.slices import Index, sliced
from nki_sim.loop_ir.tree import (
    Access,
    Allocate,
    Buffer,
    DeviceLoop,
    Instruction,
    Loop,
    LoopKernel,
    Node,
    rebuilt,
    walk,
)


def without_unread(kernel: LoopKernel) -> LoopKernel:
    """Without instructions whose results are read by such instructions alone, and what only they need."""
    if any(isinstance(node, DeviceLoop) for node, _ in walk(kernel.body)):
        return kernel
    nodes = [node for node, _ in walk(kernel.body) if isinstance(node, Instruction)]
    on_chip = {key for key, buffer in kernel.buffers.items() if buffer.region.on_chip}
    wanted = kernel.buffers.keys() - {key for key in on_chip if key in kernel.permanent or is_local(kernel, key)}
    left, before = nodes, len(nodes) + 1
    while len(left) < before:
        before, unread = len(left), []
        for node in left:
            written = [access.buffer for access in node.operands if access.access != "r"]
            if written and wanted.isdisjoint(written):
                unread.append(node)
            else:
                wanted.update(access.buffer for access in node.operands)
        left = unread
    if not left:
        return kernel
    gone = {id(node) for node in left}

    def change(node: Node) -> tuple[Node, ...]:
        is_unread = id(node) in gone or isinstance(node, Allocate) and node.buffer not in wanted
        return () if is_unread or isinstance(node, Loop) and not node.body else (node,)

    return replace(kernel, body=rebuilt(kernel.body, change))


def cut_to_use(kernel: LoopKernel, key: int) -> LoopKernel:
    """A tile without its last partitions and columns, where nobody reads them. Raises Refused."""
    buffer, every = kernel.buffers[key], [use for use in uses(kernel.body) if use.access.buffer == key]
    check_free(kernel, key)
    if not buffer.region.on_chip or len(buffer.shape) < 2:
        raise Refused("it is no tile")
    found = [(use, _slice_of(use, buffer)) for use in every]
    kept = [_reach(use, part) for use, part in found if use.access.access == "r"]
    if not kept:
        raise Refused("nobody reads the tile")
    shape = [max(sizes) for sizes in zip(*kept)]
    for use, part in found:
        for at, reach in enumerate(_reach(use, part)):
            if reach > shape[at] and not _may_be_cut(use.node, part, at, shape[at]):
                shape[at] = reach
    if tuple(shape) == buffer.shape:
        raise Refused("all of the tile is used")
    parts = {id(use.access): part for use, part in found}
    buffers = {**kernel.buffers, key: replace(buffer, shape=tuple(shape))}

    def change(node: Node) -> tuple[Node, ...]:
        if not isinstance(node, Instruction) or all(access.buffer != key for access in node.operands):
            return (node,)
        operands = list(node.operands)
        for own in node.operands:
            if own.buffer == key and own.access != "r":
                operands = [_cut(each, own, parts[id(own)], shape, node.opcode) for each in operands]
        for at, access in enumerate(node.operands):
            if access.buffer == key:
                operands[at] = _placed(access, parts[id(access)], shape)
        return (checked(node.on(tuple(operands)), buffers),)

    return replace(kernel, body=rebuilt(kernel.body, change), buffers=buffers)


def _slice_of(use: Use, buffer: Buffer) -> tuple[Index, ...]:
    access, row = use.access, buffer.partition_elements
    pattern = access.pattern
    if pattern[1:] == ((1, row),):
        pattern = (pattern[0], *((prod(buffer.shape[at + 1 :]), n) for at, n in enumerate(buffer.shape) if at))
    part = sliced(buffer.shape, True, access.offset, pattern, ranges_of(use.around))
    if part is None or access.dtype != buffer.dtype or access.indirection is not None:
        raise Refused(f"line {use.node.line} takes the tile in another form")
    return part


def _reach(use: Use, part: Sequence[Index]) -> list[int]:
    """Of each dimension how many of the first places it is among."""
    ranges = ranges_of(use.around)
    return [each.start.bounds(ranges)[1] + 1 + each.step * ((each.count or 1) - 1) for each in part]


def _count(part: Index, size: int) -> int:
    """Elements of it below that size."""
    return min(part.count or 1, (size - 1 - part.start.constant) // part.step + 1)


def _may_be_cut(node: Instruction, part: Sequence[Index], at: int, size: int) -> bool:
    """Can it write fewer elements of that dimension? Each of them has to be its own affair."""
    if not part[at].start.is_constant or part[at].count is None or _count(part[at], size) < 1:
        return False
    if at == 0 or node.opcode == "memset":
        return node.opcode == "memset"
    alone = node.opcode in ELEMENTWISE and node.opcode != "tensor_reduce" and node.operand("reduce_res") is None
    tiles = [access for access in node.operands if access.role in ELEMENTWISE.get(node.opcode, ())]
    if not alone or any(access.indirection is not None for access in node.operands):
        return False
    return all(_pair_of(access, part, at) is not None for access in tiles)


def _pair_of(access: Access, part: Sequence[Index], at: int) -> int | None:
    """Which pair of the pattern goes over that dimension of what is written: it may go over outer ones as well."""
    inner = prod(each.count or 1 for each in part[at + 1 :])
    for number in reversed(range(len(access.pattern))):
        count = access.pattern[number][1]
        if inner == 1 and count > 1:
            return number if count % (part[at].count or 1) == 0 else None
        if inner % count:
            return None
        inner //= count
    return None


def _cut(access: Access, own: Access, part: Sequence[Index], shape: Sequence[int], opcode: str) -> Access:
    """An operand of what writes `own`, whose dimensions end with the tile of that shape now."""
    if access.role not in ELEMENTWISE[opcode] or access is own:
        return access
    for at in range(1, len(part)):
        count = part[at].count
        fewer = _count(part[at], shape[at]) if count is not None and part[at].start.is_constant else count
        if count is not None and fewer is not None and fewer < count:
            number = _pair_of(access, part, at)
            assert number is not None
            stride, whole = access.pattern[number]
            pairs = ((stride * count, whole // count), (stride, fewer))
            pattern = (*access.pattern[:number], *pairs[whole == count :], *access.pattern[number + 1 :])
            access = replace(access, pattern=pattern)
    return access


def _placed(access: Access, part: Sequence[Index], shape: Sequence[int]) -> Access:
    """The same elements, as far as they are in a tile of that shape."""
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    offset = sum((each.start * stride for each, stride in zip(part, strides)), Affine())
    fits = [each.count and (each.count if access.access == "r" else _count(each, n)) for each, n in zip(part, shape)]
    pairs = [(stride * each.step, n) for each, stride, n in zip(part, strides, fits) if n is not None]
    return replace(access, offset=offset, pattern=tuple(pairs) if len(pairs) > 1 else (*pairs, (1, 1)))
