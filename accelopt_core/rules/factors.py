"""Factors and differences that cost a pass of their own, where another instruction can take them on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import TypeGuard

from accelopt_core.rules.base import Site
from accelopt_core.rules.copies import without
from accelopt_core.rules.flow import is_local, uses_of, with_operand, with_tile, written_between
from accelopt_core.rules.fusing import check_unchanged, joined, only_filler
from nki_sim.dtypes import float32
from nki_sim.isa.shared import TensorScalar
from nki_sim.loop_ir.changes import Path, Refused, checked, loops_around, node_at, paths, with_node
from nki_sim.loop_ir.dependence import Use
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


class FactorFurtherOn:
    """A tile is not scaled, but what is made of it, where that is scaled already."""

    name = "factor-further-on"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in paths(kernel.body):
            if _is_factor(node):
                what = f"the factor of line {node.line} where its result is scaled again"
                yield Site(self.name, path, (), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = node_at(kernel, site.path)
        if not _is_factor(node):
            raise Refused("there is no constant factor in that place")
        dst, data = node.operands
        factor = float(node.attrs.operand0)
        if factor == 0:
            raise Refused("the factor is zero")
        changed = _absorbed(kernel, dst.buffer, factor, site.path)
        _, reading = uses_of(changed, dst.buffer)
        use = Use(data, node, loops_around(kernel, site.path))
        for each in reading:
            access = each.node.operands[each.at]
            if (access.tile, access.offset, access.pattern) != (dst.tile, dst.offset, dst.pattern):
                raise Refused(f"line {each.node.line} takes the tile in another form")
            later = written_between(kernel, site.path, each.path, use)
            if later is not None and later.node is not node_at(kernel, each.path):
                raise Refused(f"line {later.node.line} changes what is scaled")
            changed = with_operand(changed, each, replace(data, role=access.role))
        return without(changed, site.path, dst.buffer)


def _is_factor(node: Node) -> TypeGuard[Instruction]:
    """Does it multiply a tile by one number, and do nothing else?"""
    if not isinstance(node, Instruction) or node.opcode != "tensor_scalar":
        return False
    attrs: TensorScalar = node.attrs
    return (attrs.op0, attrs.op1, attrs.exact) == ("multiply", None, False) and attrs.operand0 is not None


def _absorbed(kernel: LoopKernel, key: int, factor: float, writer: Path) -> LoopKernel:
    """With readers of the buffer who find its numbers divided by the factor, and make what they made before."""
    writing, reading = uses_of(kernel, key)
    if not is_local(kernel, key) or len(writing) != 1 or kernel.buffers[key].dtype != float32:
        raise Refused("the tile that is scaled is filled elsewhere, or rounds")
    for each in reading:
        if each.path[:-1] != writer[:-1] or each.path < writer:
            raise Refused(f"line {each.node.line} takes the tile elsewhere")
        node = node_at(kernel, each.path)
        assert isinstance(node, Instruction)
        made, left = _taking(node, node.operands[each.at].role, factor)
        if left != 1:
            kernel = _absorbed(kernel, node.operands[0].buffer, left, each.path)
        kernel = with_node(kernel, each.path, (checked(made, kernel.buffers),))
    return kernel


def _taking(node: Instruction, role: str, factor: float) -> tuple[Instruction, float]:
    """The instruction on that operand divided by the factor, and what its result is then divided by."""
    attrs = node.attrs
    scales = attrs is not None and getattr(attrs, "op0", None) == "multiply" and attrs.operand0 is not None
    if node.opcode == "activation" and role == "data" and attrs.scale is not None:
        return replace(node, attrs=attrs._replace(scale=attrs.scale * factor)), 1.0
    if node.opcode == "tensor_scalar" and role == "data" and scales and not attrs.exact:
        return replace(node, attrs=attrs._replace(operand0=attrs.operand0 * factor)), 1.0
    if node.opcode == "scalar_tensor_tensor" and role == "data" and scales:
        return replace(node, attrs=attrs._replace(operand0=attrs.operand0 * factor)), 1.0
    if node.opcode == "scalar_tensor_tensor" and role == "operand1":
        if attrs.op1 == "multiply":
            return (
                (replace(node, attrs=attrs._replace(operand0=attrs.operand0 * factor)), 1.0)
                if scales
                else (node, factor)
            )
        if attrs.op1 in ("add", "subtract") and scales:
            return replace(node, attrs=attrs._replace(operand0=attrs.operand0 / factor)), factor
    if node.opcode == "tensor_tensor" and attrs.op == "multiply" and node.operands[1].buffer != node.operands[2].buffer:
        return node, factor
    raise Refused(f"line {node.line} cannot take the factor on")


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
