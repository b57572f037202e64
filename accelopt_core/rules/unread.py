"""What nobody reads: instructions that are left out, and the ends of tiles, which nobody computes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    dense,
    rebuilt,
    walk,
)


def without_unread(kernel: LoopKernel) -> LoopKernel:
    """Without instructions whose results are read by such instructions alone, and what only they need."""
    nodes = [node for node, _ in walk(kernel.body)]
    left = [node for node in nodes if isinstance(node, Instruction)]
    if any(isinstance(node, DeviceLoop) for node in nodes):  # a later pass may read anything
        return kernel
    on_chip = {key for key, buffer in kernel.buffers.items() if buffer.region.on_chip}
    wanted = kernel.buffers.keys() - {key for key in on_chip if key in kernel.permanent or is_local(kernel, key)}
    before = len(left) + 1
    while len(left) < before:
        before, unread = len(left), []
        for node in left:
            written = [access.buffer for access in node.operands if access.access != "r"]
            if written and wanted.isdisjoint(written):
                unread.append(node)
            else:
                wanted.update(access.buffer for access in node.operands)
        left = unread
    gone = {id(node) for node in left}

    def change(node: Node) -> tuple[Node, ...]:
        is_unread = id(node) in gone or isinstance(node, Allocate) and node.buffer not in wanted
        return () if is_unread or isinstance(node, Loop) and not node.body else (node,)

    body = rebuilt(kernel.body, change)
    return kernel if body is kernel.body else replace(kernel, body=body)


def cut_to_use(kernel: LoopKernel, key: int) -> LoopKernel:
    """A tile without the last places of a dimension that nobody reads, nor writes then. Raises Refused."""
    buffer = kernel.buffers[key]
    check_free(kernel, key)
    if not buffer.region.on_chip or len(buffer.shape) < 2:
        raise Refused("it is no tile")
    found = [(use, _slice_of(use, buffer)) for use in uses(kernel.body) if use.access.buffer == key]
    for at, whole in enumerate(buffer.shape):
        read = max((_reach(use, part[at]) for use, part in found if use.access.access == "r"), default=whole)
        held = [_reach(use, part[at]) for use, part in found if use.writes and not _may_be_cut(use, part, at, read)]
        if max(read, *held, 0) < whole:
            return _cut(kernel, key, {id(use.access): part for use, part in found}, at, max(read, *held, 0))
    raise Refused("all of the tile is used")


def _slice_of(use: Use, buffer: Buffer) -> tuple[Index, ...]:
    access, pattern = use.access, use.access.pattern
    if pattern[1:] == ((1, buffer.partition_elements),):
        pattern = (pattern[0], *dense(buffer.shape)[1:])
    part = sliced(buffer.shape, True, access.offset, pattern, ranges_of(use.around))
    if part is None or access.dtype != buffer.dtype or access.indirection is not None:
        raise Refused(f"line {use.node.line} takes the tile in another form")
    return part


def _reach(use: Use, index: Index) -> int:
    """How many of the first places of a dimension it is among."""
    return index.start.bounds(ranges_of(use.around))[1] + 1 + index.step * ((index.count or 1) - 1)


def _may_be_cut(use: Use, part: Sequence[Index], at: int, size: int) -> bool:
    """Can it write fewer elements of that dimension? Each of them has to be its own affair."""
    node, index = use.node, part[at]
    if not index.start.is_constant or index.count is None or index.start.constant >= size:
        return False
    if at == 0 or node.opcode == "memset":
        return node.opcode == "memset"
    alone = node.opcode in ELEMENTWISE and node.opcode != "tensor_reduce" and node.operand("reduce_res") is None
    return alone and all(
        access.indirection is None and (access.role not in ELEMENTWISE[node.opcode] or _pair_of(access, part, at) >= 0)
        for access in node.operands
    )


def _pair_of(access: Access, part: Sequence[Index], at: int) -> int:
    """Which pair of the pattern goes over that dimension of what is written, and maybe over outer ones; or -1."""
    inner = prod(each.count or 1 for each in part[at + 1 :])
    for number in reversed(range(len(access.pattern))):
        count = access.pattern[number][1]
        if inner == 1 and count > 1:
            return number if count % (part[at].count or 1) == 0 else -1
        if inner % count:
            break
        inner //= count
    return -1


def _cut(kernel: LoopKernel, key: int, parts: Mapping[int, Sequence[Index]], at: int, size: int) -> LoopKernel:
    """With a tile of that size in that dimension. `parts`: by access."""
    old = kernel.buffers[key]
    shape = (*old.shape[:at], size, *old.shape[at + 1 :])
    buffers = {**kernel.buffers, key: replace(old, shape=shape)}

    def placed(access: Access, part: Sequence[Index], fewer: int) -> Access:
        offset = sum((each.start * stride for each, (stride, _) in zip(part, dense(shape))), Affine())
        counts = [fewer if n == at and each.count else each.count for n, each in enumerate(part)]
        pairs = [(stride * each.step, n) for each, (stride, _), n in zip(part, dense(shape), counts) if n is not None]
        return replace(access, offset=offset, pattern=tuple(pairs) if len(pairs) > 1 else (*pairs, (1, 1)))

    def change(node: Node) -> tuple[Node, ...]:
        if not isinstance(node, Instruction) or all(access.buffer != key for access in node.operands):
            return (node,)
        operands = list(node.operands)
        for number, own in enumerate(node.operands):
            if own.buffer == key:
                part = parts[id(own)]
                count = part[at].count or 1
                fewer = min(count, (size - 1 - part[at].start.constant) // part[at].step + 1)
                if fewer < count:
                    operands = [_with_fewer(each, part, at, fewer, node.opcode) for each in operands]
                operands[number] = placed(own, part, fewer)
        return (checked(node.on(tuple(operands)), buffers),)

    return replace(kernel, body=rebuilt(kernel.body, change), buffers=buffers)


def _with_fewer(access: Access, part: Sequence[Index], at: int, fewer: int, opcode: str) -> Access:
    """An operand of what writes that part, of which the dimension has fewer elements now."""
    if access.role not in ELEMENTWISE[opcode] or at == 0:
        return access
    number, count = _pair_of(access, part, at), part[at].count or 1
    stride, whole = access.pattern[number]
    pairs = ((stride * count, whole // count), (stride, fewer))
    return replace(access, pattern=(*access.pattern[:number], *pairs[whole == count :], *access.pattern[number + 1 :]))
