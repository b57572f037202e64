"""Products that a loop adds up in SBUF are added up by the Tensor engine, in PSUM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.flow import uses_of
from nki_sim.dtypes import float32
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    block_at,
    checked,
    loop_at,
    node_at,
    out_of_loop,
    paths,
    with_block,
    with_node,
)
from nki_sim.loop_ir.dependence import uses
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, Loop, LoopKernel, Node


class AccumulateInPsum:
    """TensorE adds up its products in PSUM, so that no other engine does."""

    name = "accumulate-in-psum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "tensor_tensor" and node.attrs.op == "add":
                if len(path) > 1:
                    yield Site(self.name, path, (), f"the sum of line {node.line} in PSUM", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "tensor_tensor":
            raise Refused("there is no sum in that place")
        kernel, path = _without_copy(kernel, site.path, node)
        node, loop = node_at(kernel, path), loop_at(kernel, path[:-1])
        assert isinstance(node, Instruction)
        dst, *both = node.operands
        total = next((o for o in both if replace(o, role="", access="") == replace(dst, role="", access="")), None)
        if total is None:
            raise Refused("it does not add to its own target")
        product = both[0] if total is both[1] else both[1]
        if loop.variable in dst.variables or product.dtype != float32 or dst.dtype != float32:
            raise Refused("each pass adds to another tile, or rounds")
        writing, reading = uses_of(kernel, product.buffer)
        made = next((at for at, each in enumerate(loop.body) if each == Allocate(product.buffer)), None)
        products = [each for each in writing if each.node.opcode == "nc_matmul"]
        others = [each for each in reading if each.node is not node and each.node not in [p.node for p in products]]
        if (
            made is None
            or others
            or len(products) != len(writing)
            or any(p.node.attrs.accumulate is not None for p in products)
        ):
            raise Refused("what it adds is no product that only it takes")
        if any(each.path[: len(path) - 1] != path[:-1] for each in products):
            raise Refused("the product is made elsewhere")
        touching = [use for use in sum(uses_of(kernel, dst.buffer), []) if use.path[: len(path) - 1] == path[:-1]]
        if any(use.node is not node for use in touching):
            raise Refused("the sum is used in the loop")
        depth = sum(isinstance(node_at(kernel, path[:n]), Loop) for n in range(1, len(path) - 1))
        rest = [each for at, each in enumerate(loop.body) if at not in (made, path[-1])]

        block = block_at(kernel, path[:-1])
        at = path[-2]
        new = (*block[:at], Allocate(product.buffer), replace(loop, body=tuple(rest)), checked(node, kernel.buffers),
               *block[at + 1 :])  # fmt: skip
        changed = out_of_loop(with_block(kernel, path[:-1], new), {product.buffer}, depth)
        return _without_zero(changed, (*path[:-2], at + 2))


def _without_copy(kernel: LoopKernel, path: Path, node: Instruction) -> tuple[LoopKernel, Path]:
    """With the product itself added, where a copy of it is; and where the sum is then."""
    for access in node.operands[1:]:
        writing, _ = uses_of(kernel, access.buffer)
        if len(writing) == 1 and writing[0].node.opcode == "tensor_copy" and writing[0].path[:-1] == path[:-1]:
            try:
                changed = DropCopy().apply(kernel, Site(DropCopy.name, writing[0].path, ("source",)))
            except Refused:
                continue
            block = block_at(changed, path[:-1] + (0,))
            return changed, (*path[:-1], next(at for at, each in enumerate(block) if _adds_to(each, node.operands[0])))
    return kernel, path


def _adds_to(node: Node, total: Access) -> bool:
    return isinstance(node, Instruction) and node.opcode == "tensor_tensor" and node.operands[0] == total


def _without_zero(kernel: LoopKernel, path: Path) -> LoopKernel:
    """A copy in place of the sum there, where it adds to zeros."""
    node, block = node_at(kernel, path), block_at(kernel, path)
    assert isinstance(node, Instruction)
    dst, one, other = node.operands
    touching = [n for n in range(path[-1]) if any(use.access.buffer == dst.buffer for use in uses((block[n],)))]
    zero = block[touching[-1]] if touching else None
    if not isinstance(zero, Instruction) or zero.opcode != "memset" or zero.attrs.value != 0:
        return kernel
    if replace(zero.operands[0], role="", access="") != replace(dst, role="", access=""):
        return kernel
    product = other if replace(one, role="", access="") == replace(dst, role="", access="") else one
    copy = Instruction("tensor_copy", node.engine, None, (dst, replace(product, role="src")), node.line)
    kernel = with_node(kernel, path, (checked(copy, kernel.buffers),))
    return with_node(kernel, (*path[:-1], touching[-1]), ())
