"""Factors and differences that cost a pass of their own, where another instruction can take them on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import with_tile
from accelopt_core.rules.fusing import check_unchanged, joined, only_filler
from nki_sim.dtypes import float32
from nki_sim.isa.shared import TensorScalar
from nki_sim.loop_ir.changes import Refused, checked, node_at, paths, with_node
from nki_sim.loop_ir.tree import Allocate, Instruction, LoopKernel, Node
from nki_sim.program import Engine

_HOMOGENEOUS: Mapping[str, Callable[[float], float]] = {
    "square": sqrt,
    "copy": float,
    "relu": float,
    "abs": float,
    "sqrt": lambda factor: factor * factor,
}
"""f(k x) = c f(x) for c >= 0, and k of c."""


class FactorInActivation:
    """activation(square, x) * c as activation(square, x * sqrt(c)): its scale costs nothing."""

    name = "factor-in-activation"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if _is_factor(node):
                what = f"the factor of line {node.line} within the activation before it"
                yield Site(self.name, path, (), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not _is_factor(node):
            raise Refused("there is no constant factor in that place")
        access = node.operands[1]
        path, first = only_filler(kernel, access, site.path)
        if first.opcode != "activation" or first.operand("accumulators") is not None:
            raise Refused(f"{first.opcode} takes no factor")
        attrs, factor = first.attrs, float(node.attrs.operand0)
        if attrs.op not in _HOMOGENEOUS or factor < 0 or attrs.scale is None or attrs.bias is None:
            raise Refused(f"a factor of {attrs.op} is none of what it takes")
        inner = _HOMOGENEOUS[attrs.op](factor)
        attrs = attrs._replace(scale=attrs.scale * inner, bias=attrs.bias * inner)
        made = replace(first, attrs=attrs, operands=(node.operands[0], *first.operands[1:]))
        return joined(kernel, path, first, site.path, made, access.buffer)


def _is_factor(node: Node) -> TypeGuard[Instruction]:
    """Does it multiply a tile by one number, and do nothing else?"""
    if not isinstance(node, Instruction) or node.opcode != "tensor_scalar":
        return False
    attrs: TensorScalar = node.attrs
    return (attrs.op0, attrs.op1, attrs.exact) == ("multiply", None, False) and attrs.operand0 is not None


class SubtractInActivation:
    """exp(x - m) with -m as the activation's bias: one pass over the row less, for one number of each partition."""

    name = "subtract-in-activation"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if isinstance(node, Instruction) and node.opcode == "activation":
                yield Site(self.name, path, (), f"the difference within the activation of line {node.line}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not isinstance(node, Instruction) or node.opcode != "activation":
            raise Refused("there is no activation in that place")
        access = node.operands[1]
        path, first = only_filler(kernel, access, site.path)
        tile = first.operand("operand0")
        if (
            first.opcode != "tensor_scalar"
            or (first.attrs.op0, first.attrs.op1, first.attrs.reverse0) != ("subtract", None, False)
            or tile is None
            or first.attrs.exact
        ):
            raise Refused(f"{first.opcode} subtracts no number of each partition")
        if node.attrs.scale is None or node.attrs.bias != 0:
            raise Refused("the activation adds something already")
        if tile.dtype != float32:
            raise Refused(f"what is subtracted is {tile.dtype}")
        kernel, target = with_tile(kernel, path, [tile.pattern[0][1]], float32, "negative", first.line)
        attrs = TensorScalar("multiply", -float(node.attrs.scale), False, None, None, False, False)
        negate = Instruction("tensor_scalar", Engine.vector, attrs, (target, replace(tile, role="data")), first.line)
        bias = replace(target, role="bias", access="r")
        operands = (node.operands[0], replace(first.operands[1], role="data"), bias, *node.operands[2:])
        made = replace(node, attrs=node.attrs._replace(bias=None), operands=operands)
        check_unchanged(kernel, path, first, site.path)
        kernel = with_node(kernel, site.path, (checked(made, kernel.buffers),))
        kernel = with_node(kernel, path, (Allocate(target.buffer), checked(negate, kernel.buffers)))
        place = next(each for each, made_there in paths(kernel.body) if made_there == Allocate(access.buffer))
        return with_node(kernel, place, ())
