"""The rows of a product are scaled in place of the rows of what is multiplied: softmax divides once, at the end.

s holds one number for each partition of w, which is a row of the product: (s w) v = s (w v). The product is the
narrower of the two, and it need not wait for s. w comes to the product turned: its partitions are columns of what
stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import Placed, is_local, taken_through, uses_of, written_between
from nki_sim.isa.shared import TensorScalar
from nki_sim.loop_ir.changes import Path, Refused, checked, loops_around, node_at, paths, with_node
from nki_sim.loop_ir.dependence import Use, covers
from nki_sim.loop_ir.tree import Access, Instruction, LoopKernel, Node
from nki_sim.memory import MemoryRegion
from nki_sim.program import Engine


class ScaleAfterProduct:
    """The product, which is narrower, is scaled in place of what is multiplied, and need not wait for the factor."""

    name = "scale-after-product"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if _scales_rows(node):
                what = f"the rows of the product scaled by line {node.line}, not what is multiplied"
                yield Site(self.name, path, (), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not _scales_rows(node):
            raise Refused("nothing is scaled row by row in that place")
        dst, data, factor = node.operands
        if not is_local(kernel, dst.buffer) or not covers(dst, kernel.buffers[dst.buffer]):
            raise Refused("it scales a part of a tile, or what the kernel returns")
        rows = dst.pattern[0][1]
        copies = _copies_of_products(kernel, dst.buffer, rows, site.path)
        writing, reading = uses_of(kernel, dst.buffer)
        if len(writing) != 1:
            raise Refused("something else changes what is scaled")
        for each in reading:
            _check_unchanged(kernel, site.path, each, (data,), node)
            kernel = taken_through(kernel, each, dst, data)
        for each in copies:
            _check_unchanged(kernel, site.path, each, (factor,), node)
            target, source = each.node.operands
            engine = each.node.engine if each.node.engine is not Engine.gpsimd else Engine.vector
            operands = (target, replace(source, role="data"), factor)
            scaled = Instruction("tensor_scalar", engine, node.attrs, operands, each.node.line)
            kernel = with_node(kernel, each.path, (checked(scaled, kernel.buffers),))
        return without(kernel, site.path, dst.buffer)


def _scales_rows(node: Node) -> TypeGuard[Instruction]:
    """Does it multiply each partition by a number of its own, and do nothing else?"""
    if not isinstance(node, Instruction) or node.opcode != "tensor_scalar" or node.operand("operand0") is None:
        return False
    attrs: TensorScalar = node.attrs
    return (attrs.op0, attrs.op1, attrs.exact) == ("multiply", None, False)


def _copies_of_products(kernel: LoopKernel, scaled: int, rows: int, site: Path) -> list[Placed]:
    """What takes products with those rows out of PSUM. Raises Refused where anything else is made of the rows."""
    turned, products = {scaled}, set[int]()
    waiting, copies = [scaled], list[Placed]()
    while waiting:
        key = waiting.pop()
        for each in uses_of(kernel, key)[1]:
            node = each.node
            access, target = node.operands[each.at], node.operands[0]
            if each.path[: len(site) - 1] != site[:-1] or each.path[len(site) - 1] <= site[-1]:
                raise Refused(f"line {node.line} takes it elsewhere")
            if key in products:
                if node.opcode == "nc_matmul":
                    continue  # it adds to the product
                if node.opcode != "tensor_copy" or access.pattern[0][1] != rows:
                    raise Refused(f"line {node.line} does more with the product than copy it")
                copies.append(each)
                continue
            if key == scaled and node.opcode == "nc_transpose":
                fits = access.pattern[0][1] == rows and _is_columns(target, rows, kernel)
            elif key != scaled and node.opcode == "tensor_copy":
                fits = _is_columns(access, rows, kernel) and _is_columns(target, rows, kernel)
            elif key != scaled and node.opcode == "nc_matmul" and access.role == "stationary":
                fits = _is_columns(access, rows, kernel) and kernel.buffers[target.buffer].shape[0] == rows
                products.add(target.buffer)
            else:
                raise Refused(f"line {node.line} takes it for more than a product with its rows")
            if not fits:
                raise Refused(f"line {node.line} has the rows in another order")
            if target.buffer not in turned:
                turned.add(target.buffer)
                waiting.append(target.buffer)
    if not copies:
        raise Refused("no product is made of it")
    for key in turned - {scaled}:
        _check_all_scaled(kernel, key, turned, key in products)
    return copies


def _check_all_scaled(kernel: LoopKernel, key: int, turned: set[int], is_product: bool) -> None:
    for each in uses_of(kernel, key)[0]:
        source = each.node.operand("stationary") if is_product else each.node.operands[1]
        if not is_local(kernel, key) or source is None or source.buffer not in turned:
            raise Refused(f"line {each.node.line} adds what is not scaled")


def _is_columns(access: Access, rows: int, kernel: LoopKernel) -> bool:
    """Has its columns, in groups of as many as there are rows, in the rows' order?"""
    buffer = kernel.buffers[access.buffer]
    stride, count = access.pattern[-1]
    row = buffer.partition_elements * buffer.dtype.itemsize // access.dtype.itemsize
    steps = [each for each, n in access.pattern[1:-1] if n > 1]
    places = [row, access.offset.constant, *(factor for _, factor in access.offset.terms), *steps]
    in_order = len(access.pattern) > 1 and stride == 1 and count % rows == 0
    return in_order and buffer.region in (MemoryRegion.sbuf, MemoryRegion.psum) and all(n % rows == 0 for n in places)


def _check_unchanged(
    kernel: LoopKernel, first: Path, last: Placed, taken: tuple[Access, ...], node: Instruction
) -> None:
    for access in taken:
        changed = written_between(kernel, first, last.path, Use(access, node, loops_around(kernel, first)))
        if changed is not None:
            raise Refused(f"line {changed.node.line} changes what line {node.line} takes")
