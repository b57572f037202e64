"""A product of a single column with its operands exchanged: the column stands, and the long rows move.

What stands is loaded into the array first, row by row (AWS's page on nc_matmul): a matrix that is used for one column
costs as much to load as to multiply, where one column costs next to nothing to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local
from nki_sim.loop_ir.changes import Refused, node_at, paths, rechecked, with_accesses
from nki_sim.loop_ir.dependence import covers, uses
from nki_sim.loop_ir.tree import Access, Buffer, Instruction, LoopKernel, Node, rebuilt

_SAME_ORDER = frozenset(
    {"tensor_copy", "activation", "tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "memset"}
)
"""What these make of a column they make of a row, element by element; numbers of each partition they may not take."""
_OF_A_PARTITION = frozenset({"scale", "bias", "operand0", "operand1", "accumulators", "reduce_res"})


class ExchangeOperands:
    """The operand that loads into the array and the one that streams change places."""

    name = "exchange-operands"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if _multiplies_column(node):
                what = f"the single column of line {node.line} stationary, the other operand moving"
                yield Site(self.name, path, (), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not _multiplies_column(node):
            raise Refused("there is no product with a single column in that place")
        turned = _turned_with(kernel, node.operands[0].buffer)
        buffers = {key: _row_of(kernel.buffers[key]) if key in turned else each for key, each in kernel.buffers.items()}

        def as_row(access: Access) -> Access:
            if access.buffer not in turned:
                return access
            return replace(access, pattern=((buffers[access.buffer].partition_elements, 1), (1, access.elements)))

        def exchanged(each: Node) -> tuple[Node, ...]:
            if not isinstance(each, Instruction) or each.opcode != "nc_matmul" or each.operands[0].buffer not in turned:
                return (each,)
            dst, stationary, moving = each.operands
            attrs = each.attrs._replace(onezero=each.attrs.onezero[::-1])
            operands = (dst, replace(moving, role="stationary"), replace(stationary, role="moving"))
            return (replace(each, attrs=attrs, operands=operands),)

        changed = with_accesses(replace(kernel, buffers=buffers), as_row)
        return rechecked(replace(changed, body=rebuilt(changed.body, exchanged)), turned)


def _multiplies_column(node: Node) -> TypeGuard[Instruction]:
    if not isinstance(node, Instruction) or node.opcode != "nc_matmul" or node.attrs.is_transpose:
        return False
    _, stationary, moving = node.operands
    one = moving.elements == moving.pattern[0][1]
    return one and stationary.elements > stationary.pattern[0][1] and not node.attrs.tile_size


def _turned_with(kernel: LoopKernel, start: int) -> frozenset[int]:
    """The columns that have to be rows where that one is. Raises Refused."""
    turned = {start}
    waiting = [start]
    while waiting:
        key = waiting.pop()
        buffer = kernel.buffers[key]
        if not is_local(kernel, key) or buffer.partition_elements != 1 or buffer.address is not None:
            raise Refused("what is made of the column is more than a column, or has its own place")
        for use in uses(kernel.body):
            if use.access.buffer != key:
                continue
            if not covers(use.access, buffer):
                raise Refused(f"line {use.node.line} takes a part of the column")
            for access in _beside(use.node, use.access):
                if kernel.buffers[access.buffer].region.on_chip and access.buffer not in turned:
                    turned.add(access.buffer)
                    waiting.append(access.buffer)
    return frozenset(turned)


def _beside(node: Instruction, access: Access) -> tuple[Access, ...]:
    """What an instruction takes or makes element by element with that one. Raises Refused."""
    if node.opcode == "dma_copy":
        return node.operands
    if node.opcode == "nc_matmul" and access.role == "dst":
        if not _multiplies_column(node):
            raise Refused(f"line {node.line} makes more than a column")
        return ()
    tiles = ("data", "dst", "operand1") if node.opcode == "scalar_tensor_tensor" else ()
    numbers = [each for each in node.operands if each.role in _OF_A_PARTITION and each.role not in tiles]
    if node.opcode not in _SAME_ORDER or numbers:
        raise Refused(f"line {node.line} needs the column on the partitions")
    return node.operands


def _row_of(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=(1, buffer.shape[0], *buffer.shape[2:]))
