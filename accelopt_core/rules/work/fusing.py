"""Two instructions on the same elements as one: an operator more in one slot costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from accelopt_core.rules.base import Site
from accelopt_core.rules.flow import is_local, may_be_exact, uses_of, with_target_before, with_tile, written_between
from accelopt_core.rules.unread import without_unread
from nki_sim.dtypes import float32
from nki_sim.isa.arithmetic.shared import TensorScalar
from nki_sim.isa.constants import reduce_cmd
from nki_sim.isa.scalar_engine import Activation
from nki_sim.isa.vector_engine import ScalarTensorTensor
from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.changes import (
    Path,
    Refused,
    checked,
    instruction_at,
    instructions,
    loops_around,
    node_at,
    with_node,
)
from nki_sim.loop_ir.dependence import Use, covers
from nki_sim.loop_ir.tree import Access, Allocate, Buffer, Instruction, LoopKernel
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine


class FuseElementwise:
    """Two steps over the same elements in one instruction, which passes over them once."""

    name = "fuse-elementwise"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "tensor_scalar", "tensor_tensor", "activation"):
            for at, access in enumerate(node.operands):
                if access.role in ("data", "data1", "data2"):
                    what = f"line {node.line} and what fills its {access.role} in one instruction"
                    yield Site(self.name, path, (at,), what, node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        second = instruction_at(kernel, site.path)
        at = int(site.arguments[0])
        access = second.operands[at]
        path, first = _only_filler(kernel, access, site.path)
        if first.opcode != "tensor_scalar" or first.attrs.exact:
            raise Refused(f"{first.opcode} does not go into {second.opcode}")
        made = _FUSED[second.opcode](first, second, access)
        _check_unchanged(kernel, path, first, site.path)
        kernel = with_node(kernel, site.path, (checked(made, kernel.buffers),))
        return without_unread(with_node(kernel, path, ()))


def _only_filler(kernel: LoopKernel, access: Access, reader: Path) -> tuple[Path, Instruction]:
    """What fills the tile that this access takes whole, and nothing else does or takes."""
    writing, reading = uses_of(kernel, access.buffer)
    buffer = kernel.buffers[access.buffer]
    if not is_local(kernel, access.buffer) or len(writing) != 1 or len(reading) != 1:
        raise Refused("the tile between the two is used elsewhere")
    first = writing[0]
    given = first.node.operands[first.at]
    if first.path[:-1] != reader[:-1] or first.path > reader:
        raise Refused("the two are not in one block")
    if (given.tile, given.offset, given.pattern) != (access.tile, access.offset, access.pattern):
        raise Refused("the two go through the tile in other orders")
    if not may_be_exact(buffer.dtype):
        raise Refused(f"the tile between the two rounds to {buffer.dtype}")
    return first.path, first.node


def _check_unchanged(kernel: LoopKernel, path: Path, first: Instruction, second: Path) -> None:
    """What the first one takes is the same where the second one stands. Raises Refused."""
    node = node_at(kernel, second)
    for operand in first.operands[1:]:
        changed = written_between(kernel, path, second, Use(operand, first, loops_around(kernel, path)))
        if changed is not None and changed.node is not node:
            raise Refused(f"line {changed.node.line} changes what line {first.line} takes")


def _two_scalars(first: Instruction, second: Instruction, access: Access) -> Instruction:
    if first.attrs.op1 is not None or second.attrs.op1 is not None or second.attrs.exact:
        raise Refused("there would be more than two operators")
    attrs = second.attrs._replace(
        op0=first.attrs.op0,
        operand0=first.attrs.operand0,
        reverse0=first.attrs.reverse0,
        op1=second.attrs.op0,
        operand1=second.attrs.operand0,
        reverse1=second.attrs.reverse0,
    )
    operands = [second.operands[0], replace(first.operands[1], role="data")]
    for node, role in ((first, "operand0"), (second, "operand1")):
        extra = node.operand("operand0")
        if extra is not None:
            operands.append(replace(extra, role=role))
    engine = second.engine if second.engine is not Engine.scalar else Engine.vector
    return replace(second, engine=engine, attrs=attrs, operands=tuple(operands))


def _scalar_and_tensors(first: Instruction, second: Instruction, access: Access) -> Instruction:
    if first.attrs.op1 is not None or second.attrs.exact:
        raise Refused("there would be more than two operators")
    reverse = access.role == "data2"
    other = second.operands[2 if access.role == "data1" else 1]
    attrs = ScalarTensorTensor(first.attrs.op0, first.attrs.operand0, first.attrs.reverse0, second.attrs.op, reverse)
    operands = [second.operands[0], replace(first.operands[1], role="data"), replace(other, role="operand1")]
    extra = first.operand("operand0")
    if extra is not None:
        operands.append(replace(extra, role="operand0"))
    return Instruction("scalar_tensor_tensor", Engine.vector, attrs, tuple(operands), second.line)


def _into_activation(first: Instruction, second: Instruction, access: Access) -> Instruction:
    """`scale` and `bias` of an activation: data * scale + bias."""
    attrs: Activation = second.attrs
    operators = [(first.attrs.op0, first.attrs.operand0, first.operand("operand0"))]
    if first.attrs.op1 is not None:
        operators.append((first.attrs.op1, first.attrs.operand1, first.operand("operand1")))
    if first.attrs.reverse0 and first.attrs.op0 == "subtract":
        raise Refused("a difference from a number does not go into an activation")
    scale, bias = second.operand("scale"), second.operand("bias")
    if attrs.scale != 1 or scale is not None or bias is not None:
        raise Refused("the activation scales already")
    values: dict[str, float | None] = {"scale": 1.0, "bias": attrs.bias}
    tiles: dict[str, Access] = {}
    for op, number, tile in operators:
        if op == "multiply" and values["scale"] == 1.0 and "bias" not in tiles and values["bias"] == 0:
            name = "scale"
        elif op in ("add", "subtract") and values["bias"] == 0 and "bias" not in tiles:
            name = "bias"
        else:
            raise Refused(f"nl.{op} does not go into an activation")
        if tile is not None:
            if op == "subtract":
                raise Refused("a tile that is subtracted does not go into an activation")
            tiles[name] = replace(tile, role=name)
            values[name] = None
        else:
            assert number is not None
            values[name] = -float(number) if op == "subtract" else float(number)
    rest = second.operands[2:]
    operands = [second.operands[0], replace(first.operands[1], role="data")]
    operands += [tiles[name] for name in ("scale", "bias") if name in tiles]
    return replace(
        second, attrs=attrs._replace(scale=values["scale"], bias=values["bias"]), operands=(*operands, *rest)
    )


_FUSED: dict[str, Callable[[Instruction, Instruction, Access], Instruction]] = {
    "tensor_scalar": _two_scalars,
    "tensor_tensor": _scalar_and_tensors,
    "activation": _into_activation,
}


class FuseRowSum:
    """The sum of a row comes with the instruction that makes it, without a pass of its own."""

    name = "fuse-row-sum"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "tensor_reduce"):
            if node.attrs.op == "add":
                yield Site(self.name, path, (), f"the sum of line {node.line} beside what makes its rows", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        second = instruction_at(kernel, site.path, "tensor_reduce")
        if second.attrs.negate:
            raise Refused("the sum is negated")
        dst, data = second.operands
        if len(second.attrs.axes) != len(data.pattern) - 1:
            raise Refused("it sums up parts of rows")
        writing, _ = uses_of(kernel, data.buffer)
        before = [each for each in writing if each.path[:-1] == site.path[:-1] and each.path < site.path]
        if not before or not _same_elements(before[-1].node.operands[before[-1].at], data, kernel):
            raise Refused("more than one instruction makes its rows, or it sums up other elements")
        first, around = before[-1].node, loops_around(kernel, site.path)
        if written_between(kernel, before[-1].path, site.path, Use(data, second, around)) is not None:
            raise Refused("something else writes its rows in between")
        if not may_be_exact(data.dtype):
            raise Refused(f"the rows round to {data.dtype}")
        made, kernel = _summing(first, kernel)
        operands = (*made.operands, *_registers(kernel, made, replace(dst, role="reduce_res")))
        fused = checked(replace(made, operands=operands), kernel.buffers)
        changed = written_between(kernel, before[-1].path, site.path, Use(dst, second, around))
        if changed is not None:
            raise Refused(f"line {changed.node.line} writes the sum in between")
        kernel = with_node(kernel, site.path, ())
        return with_target_before(with_node(kernel, before[-1].path, (fused,)), before[-1].path, dst.buffer)


def _same_elements(one: Access, other: Access, kernel: LoopKernel) -> bool:
    """In whatever order within a partition."""
    buffer = kernel.buffers[one.buffer]
    same = (one.buffer, one.tile, one.offset, one.dtype) == (other.buffer, other.tile, other.offset, other.dtype)
    steps = [sorted(pair for pair in each.pattern if pair[1] > 1) for each in (one, other)]
    return same and (steps[0] == steps[1] or covers(one, buffer) and covers(other, buffer))


def _summing(first: Instruction, kernel: LoopKernel) -> tuple[Instruction, LoopKernel]:
    """The instruction as an activation that sums up its rows."""
    if first.opcode == "activation" and first.operand("accumulators") is None:
        activation = first
    elif first.opcode == "tensor_tensor" and first.attrs.op == "multiply" and not first.attrs.exact:
        one, other = first.operands[1:]
        if replace(one, role="") != replace(other, role=""):
            raise Refused("the rows are products of two tiles")
        attrs = Activation("square", 1.0, 0.0, reduce_cmd.idle)
        activation = replace(
            first, opcode="activation", engine=Engine.scalar, attrs=attrs,
            operands=(first.operands[0], replace(one, role="data")),
        )  # fmt: skip
    else:
        raise Refused(f"{first.opcode} does not sum up what it makes")
    activation = replace(activation, attrs=activation.attrs._replace(reduce_cmd=reduce_cmd.reset_reduce))
    for key in kernel.permanent:
        buffer = kernel.buffers[key]
        if buffer.region is MemoryRegion.register and buffer.name == _REGISTERS:
            return activation, kernel
    key = max(kernel.buffers) + 1
    buffer = Buffer(MemoryRegion.register, (ISA.partitions, 1), float32, _REGISTERS)
    return activation, replace(kernel, buffers={**kernel.buffers, key: buffer}, permanent=(*kernel.permanent, key))


_REGISTERS = "scalar accumulators"


def _registers(kernel: LoopKernel, node: Instruction, result: Access) -> tuple[Access, Access]:
    key = next(key for key in kernel.permanent if kernel.buffers[key].name == _REGISTERS)
    data = node.operands[1]
    row = kernel.buffers[data.buffer].partition_elements
    start = data.offset.constant // row
    lanes = Access("accumulators", "w", key, (), Affine(start), ((1, data.pattern[0][1]), (1, 1)), float32)
    return lanes, result


class SubtractInActivation:
    """exp(x - m) with -m as the activation's bias: one pass over the row less, for one number of each partition."""

    name = "subtract-in-activation"

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        for path, node in instructions(kernel, "activation"):
            yield Site(self.name, path, (), f"the difference within the activation of line {node.line}", node.line)

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        node = instruction_at(kernel, site.path, "activation")
        access = node.operands[1]
        path, first = _only_filler(kernel, access, site.path)
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
        if not may_be_exact(tile.dtype):
            raise Refused(f"what is subtracted is {tile.dtype}")
        kernel, target = with_tile(kernel, path, [tile.pattern[0][1]], float32, "negative", first.line)
        attrs = TensorScalar("multiply", -float(node.attrs.scale), False, None, None, False, False)
        negate = Instruction("tensor_scalar", Engine.vector, attrs, (target, replace(tile, role="data")), first.line)
        bias = replace(target, role="bias", access="r")
        operands = (node.operands[0], replace(first.operands[1], role="data"), bias, *node.operands[2:])
        made = replace(node, attrs=node.attrs._replace(bias=None), operands=operands)
        _check_unchanged(kernel, path, first, site.path)
        kernel = with_node(kernel, site.path, (checked(made, kernel.buffers),))
        return without_unread(with_node(kernel, path, (Allocate(target.buffer), checked(negate, kernel.buffers))))
