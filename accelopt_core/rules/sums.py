"""Products that a loop adds up in SBUF are added up by the Tensor engine, in PSUM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import uses_of
from nki_sim.dtypes import float32
from nki_sim.loop_ir.changes import Refused, block_at, checked, loop_at, node_at, paths, with_accesses, with_block
from nki_sim.loop_ir.tree import Allocate, Instruction, Loop, LoopKernel


class AccumulateInPsum:
    """TensorE adds up its products in PSUM, so that no other engine does."""

    name = "accumulate-in-psum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "tensor_tensor" and node.attrs.op == "add":
                if len(path) > 1:
                    yield Site(self.name, path, (), f"the sum of line {node.line} in PSUM", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        path = site.path
        node = node_at(kernel, path)
        loop = loop_at(kernel, path[:-1])
        if not isinstance(node, Instruction) or node.opcode != "tensor_tensor":
            raise Refused("there is no sum in that place")
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
        changed = with_block(kernel, path[:-1], new)
        return with_accesses(
            changed,
            lambda access: (
                access
                if access.buffer != product.buffer
                else replace(access, tile=(*access.tile[:depth], *access.tile[depth + 1 :]))
            ),
        )
