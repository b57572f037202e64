"""Products that make a single row each, as work of the Vector engine on as many partitions as there are rows.

The Tensor engine streams a product's rows however few columns stand in its array (AWS's page on nc_matmul): one of a
depth of 4 and one column takes as long as one of 128 and 128. What a depthwise convolution does is such products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, ranges_at, source_in_hbm, uses_of, with_tile
from accelopt_core.rules.loops.grouping import ALL, GroupOnPartitions
from nki_sim.dtypes import float32
from nki_sim.isa.arithmetic.shared import TensorScalar
from nki_sim.isa.vector_engine import ScalarTensorTensor
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Kernels,
    Path,
    Refused,
    block_at,
    checked,
    everywhere,
    loop_at,
    paths,
    rechecked,
    with_block,
    with_node,
)
from nki_sim.loop_ir.composing import through
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, Loop, LoopKernel, Node, dense
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine

MOST_ROWS = 16
"""Added up in one product: each is an instruction."""


class ProductsOnVector:
    """Products of a single row each, by Vector on as many partitions as there are rows."""

    name = "products-on-vector"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Loop) and node.extent.is_constant and node.extent.constant > 1:
                if any(_makes_a_row(each) for each in node.body):
                    count = node.extent.constant
                    most = max(n for n in range(1, ISA.partitions + 1) if count % n == 0)
                    which: int | str = ALL if most == count else most
                    what = f"the rows of {which} passes of {node.where} on partitions, multiplied by Vector"
                    yield Site(self.name, path, (which,), what, node.site)

    def together(self, kernels: Kernels, site: Site) -> Kernels:
        kernels = everywhere(_on_vector, kernels, site.path)
        return GroupOnPartitions().together(kernels, site)


def _makes_a_row(node: Node) -> TypeGuard[Instruction]:
    if not isinstance(node, Instruction) or node.opcode != "nc_matmul" or node.attrs.is_transpose:
        return False
    dst, stationary, moving = node.operands
    rows = stationary.pattern[0][1]
    return stationary.elements == rows <= MOST_ROWS and moving.elements == rows * dst.elements


def _on_vector(kernel: LoopKernel, path: Path) -> LoopKernel:
    moving = {node.operands[2].buffer for node in loop_at(kernel, path).body if _makes_a_row(node)}
    for key in sorted(moving):
        kernel = _in_one_row(kernel, path, key)
    begun: list[Access] = []
    at = 0
    while at < len(loop_at(kernel, path).body):
        node = loop_at(kernel, path).body[at]
        if _makes_a_row(node):
            kernel, count = _multiplied(kernel, (*path, at), node, begun)
            at += count
        else:
            at += 1
    if not begun:
        raise Refused("no product in the loop makes a single row")
    return _out_of_psum(kernel, {access.buffer for access in begun})


def _out_of_psum(kernel: LoopKernel, keys: set[int]) -> LoopKernel:
    """Those that the Tensor engine does not fill any more in SBUF, which all engines reach."""
    left = {key for key in keys if all(each.node.engine is not Engine.tensor for each in uses_of(kernel, key)[0])}
    buffers = {
        key: replace(each, region=MemoryRegion.sbuf) if key in left else each for key, each in kernel.buffers.items()
    }
    return rechecked(replace(kernel, buffers=buffers), left)


def _in_one_row(kernel: LoopKernel, path: Path, key: int) -> LoopKernel:
    """What products take row by row, loaded on a single partition. Its accesses keep the rows as first dimension."""
    writing, reading = uses_of(kernel, key)
    body = loop_at(kernel, path).body
    if len(writing) != 1 or writing[0].node.opcode != "dma_copy" or writing[0].path[:-1] != path:
        raise Refused("what moves in the product is not just loaded in the loop")
    if not is_local(kernel, key) or Allocate(key) not in body or kernel.buffers[key].address is not None:
        raise Refused("what moves in the product is not the loop's own tile")
    if any(not _makes_a_row(each.node) or each.at != 2 for each in reading):
        raise Refused("something else takes what moves in the product")
    load = writing[0].node
    dst, src = load.operands
    if kernel.buffers[src.buffer].region.on_chip:
        raise Refused("what moves in the product does not come from HBM")
    sizes = tuple(n for _, n in dst.pattern)
    view = replace(dst, offset=Affine(), pattern=dense(sizes))
    for each in reading:
        moved = through(each.node.operands[2], dst, view, ranges_at(kernel, each.path))
        if moved is None:
            raise Refused(f"line {each.node.line} takes what was loaded in another form")
        operands = (*each.node.operands[:2], moved)
        kernel = with_node(kernel, each.path, (replace(each.node, operands=operands),))
    total = prod(sizes)
    wide = replace(dst, offset=Affine(), pattern=((total, 1), *dense(sizes)))
    loaded = replace(load, operands=(wide, replace(src, pattern=((1, 1), *src.pattern))))
    buffers = {**kernel.buffers, key: replace(kernel.buffers[key], shape=(1, *sizes))}
    kernel = replace(kernel, buffers=buffers)
    return with_node(kernel, writing[0].path, (checked(loaded, buffers),))


def _multiplied(kernel: LoopKernel, path: Path, node: Instruction, begun: list[Access]) -> tuple[LoopKernel, int]:
    """Row by row, in the product's place; and how many statements that are."""
    dst, stationary, moving = node.operands
    if dst.dtype != float32 or node.attrs.tile_size or node.attrs.accumulate is not None:
        raise Refused("the product adds to what stands there, or works on a part of the array")
    if Allocate(dst.buffer) not in block_at(kernel, path):
        raise Refused("the product is added up over a loop")
    weights, attributes = source_in_hbm(kernel, path, stationary)
    (row_stride, rows), *free = moving.pattern
    partition = kernel.buffers[moving.buffer].partition_elements
    kernel, own = with_tile(kernel, path, [1, rows], weights.dtype, "weights", node.line)
    source = replace(weights, role="src", pattern=((1, 1), weights.pattern[0]))
    load = Instruction("dma_copy", Engine.dma, attributes, (own, source), node.line)
    made: list[Node] = [Allocate(own.buffer), checked(load, kernel.buffers)]
    adds = any(replace(each, role="") == replace(dst, role="") for each in begun)
    if not adds and any(each.buffer == dst.buffer and each.offset == dst.offset for each in begun):
        raise Refused("products of different lengths are added up")
    begun.append(dst)
    result = replace(dst, access="w")
    for row in range(rows):
        data = replace(
            moving, role="data", offset=moving.offset + row * row_stride, pattern=((partition, 1), *(free or ((1, 1),)))
        )
        number = replace(own, role="operand0", access="r", offset=Affine(row), pattern=((rows, 1), (1, 1)))
        if adds or row:
            attrs = ScalarTensorTensor("multiply", None, False, "add", False)
            total = replace(dst, role="operand1", access="r")
            operands = (result, data, total, number)
            step = Instruction("scalar_tensor_tensor", Engine.vector, attrs, operands, node.line)
        else:
            first = TensorScalar("multiply", None, False, None, None, False, False)
            step = Instruction("tensor_scalar", Engine.vector, first, (result, data, number), node.line)
        made.append(checked(step, kernel.buffers))
    block = block_at(kernel, path)
    return with_block(kernel, path, (*block[: path[-1]], *made, *block[path[-1] + 1 :])), len(made)
