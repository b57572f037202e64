"""Products that a loop adds up in SBUF are added up by the Tensor engine, in PSUM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import DropCopy
from accelopt_core.rules.flow import may_be_exact, taken_through, uses_of
from nki_sim.dtypes import float32
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    block_at,
    checked,
    instruction_at,
    instructions,
    loop_at,
    loops_around,
    out_of_loop,
    rechecked,
    with_block,
    with_node,
)
from nki_sim.loop_ir.dependence import uses
from nki_sim.loop_ir.tree import Access, Allocate, Instruction, LoopKernel, Node
from nki_sim.program.memory import MemoryRegion


class AccumulateInPsum:
    """TensorE adds up its products in PSUM, so that no other engine does."""

    name = "accumulate-in-psum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "tensor_tensor"):
            if node.attrs.op == "add":
                if len(path) > 1:
                    yield Site(self.name, path, (), f"the sum of line {node.line} in PSUM", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "tensor_tensor")
        key = node.operands[0].buffer
        total = kernel.buffers[key]
        in_sbuf = replace(kernel, buffers={**kernel.buffers, key: replace(total, region=MemoryRegion.sbuf)})
        kernel, path = _behind_loop(*_without_copy(in_sbuf, site.path, node))
        zero = _zero_before(kernel, path)
        if total.region is not MemoryRegion.psum:
            return kernel if zero is None else _copied(kernel, path, zero)
        while zero is None:
            if len(path) < 2:
                raise Refused("the total in PSUM is not zero at first")
            kernel, path = _behind_loop(kernel, path)
            zero = _zero_before(kernel, path)
        return _added_in_place(replace(kernel, buffers={**kernel.buffers, key: total}), path, zero)


def _behind_loop(kernel: LoopKernel, path: Path) -> tuple[LoopKernel, Path]:
    """With the product of all passes of the loop around added once behind it, and where. Raises Refused."""
    node, loop = instruction_at(kernel, path), loop_at(kernel, path[:-1])
    dst, product = node.operands[0], _product(node)
    if loop.variable in dst.variables or product.dtype != float32 or not may_be_exact(dst.dtype):
        raise Refused("each pass adds to another tile, or rounds")
    writing, reading = uses_of(kernel, product.buffer)
    own = Allocate(product.buffer)
    products = [each for each in writing if each.node.opcode == "nc_matmul"]
    if (
        own not in loop.body
        or any(each.node not in [node, *(p.node for p in products)] for each in reading)
        or len(products) != len(writing)
        or any(p.node.attrs.accumulate is not None or p.node.attrs.is_transpose for p in products)
    ):
        raise Refused("what it adds is no product that only it takes")
    if any(each.path[: len(path) - 1] != path[:-1] for each in products):
        raise Refused("the product is made elsewhere")
    touching = [use for use in sum(uses_of(kernel, dst.buffer), []) if use.path[: len(path) - 1] == path[:-1]]
    if any(use.node is not node for use in touching):
        raise Refused("the sum is used in the loop")
    rest = tuple(each for at, each in enumerate(loop.body) if each != own and at != path[-1])
    moved = with_node(kernel, path[:-1], (own, replace(loop, body=rest), checked(node, kernel.buffers)))
    changed = out_of_loop(moved, {product.buffer}, len(loops_around(kernel, path[:-1])))
    return changed, (*path[:-2], path[-2] + 2)


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


def _plain(access: Access) -> Access:
    return replace(access, role="", access="")


def _product(node: Instruction) -> Access:
    """What the sum adds to its own target. Raises Refused."""
    dst, one, other = node.operands
    if _plain(dst) not in (_plain(one), _plain(other)):
        raise Refused("it does not add to its own target")
    return other if _plain(one) == _plain(dst) else one


def _zero_before(kernel: LoopKernel, path: Path) -> int | None:
    """Where in its block the target of the sum there is set to zeros, which it adds to."""
    node, block = instruction_at(kernel, path), block_at(kernel, path)
    dst = node.operands[0]
    touching = [n for n in range(path[-1]) if any(use.access.buffer == dst.buffer for use in uses((block[n],)))]
    zero = block[touching[-1]] if touching else None
    if not isinstance(zero, Instruction) or zero.opcode != "memset" or zero.attrs.value != 0:
        return None
    return touching[-1] if _plain(zero.operands[0]) == _plain(dst) else None


def _copied(kernel: LoopKernel, path: Path, zero: int) -> LoopKernel:
    """With a copy in place of the sum there, which adds to zeros."""
    node = instruction_at(kernel, path)
    operands = (node.operands[0], replace(_product(node), role="src"))
    copy = checked(Instruction("tensor_copy", node.engine, None, operands, node.line), kernel.buffers)
    return with_node(with_node(kernel, path, (copy,)), (*path[:-1], zero), ())


def _added_in_place(kernel: LoopKernel, path: Path, zero: int) -> LoopKernel:
    """With products that go to the total in PSUM itself: the first overwrites what was there. Raises Refused."""
    node, block = instruction_at(kernel, path), block_at(kernel, path)
    dst, product = node.operands[0], _product(node)
    own = Allocate(dst.buffer) in block and kernel.buffers[dst.buffer].address is None
    if not own or len(uses_of(kernel, dst.buffer)[0]) > 2:
        raise Refused("the total is in PSUM for several sums")
    for each in uses_of(kernel, product.buffer)[0]:
        if each.node.operands[each.at].tile != product.tile:
            raise Refused(f"line {each.node.line} makes the product in another pass")
        kernel = taken_through(kernel, each, product, dst)
    left = [each for at, each in enumerate(block_at(kernel, path)) if at not in (zero, path[-1])]
    left.remove(Allocate(product.buffer))
    return rechecked(with_block(kernel, path, left), {dst.buffer})
