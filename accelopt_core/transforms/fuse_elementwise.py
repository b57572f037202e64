"""Do two elementwise steps in one instruction, so that the tile between them is neither written nor read.

tensor_scalar(dst=t, data=x, op0=multiply, operand0=a)     ->
tensor_tensor(dst=y, data1=t, data2=z, op=add)                  scalar_tensor_tensor(dst=y, data=x, op0=multiply,
                                                                    operand0=a, op1=add, operand1=z)
tensor_scalar(dst=y, data=t, op0=add, operand0=b)          ->   tensor_scalar(dst=y, data=x, op0=.., op1=add, ..)
activation(dst=y, op=exp, data=t)                          ->   activation(dst=y, op=exp, data=x, scale=a)

The tile between must be float32: a narrower one rounds, and the fused instruction does not.
What each instruction can combine: NKI's documentation of tensor_scalar, scalar_tensor_tensor and activation.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.kernel_code import KernelCode, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, parts_written, written_by
from accelopt_core.transforms.private_tile import PrivateTile, check_unchanged, is_float32, private_tile, without
from accelopt_core.transforms.syntax import content_names, parsed_expression

OPERATORS = frozenset({"add", "subtract", "multiply", "maximum", "minimum"})
COMMUTATIVE = OPERATORS - {"subtract"}
READERS = frozenset({"tensor_scalar", "tensor_tensor", "activation"})


class FuseElementwise(InstructionTransform[tuple[PrivateTile, cst.Call]]):
    name = "fuse-elementwise"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "has no tensor_scalar into a tile"

    def describe(self) -> str:
        return "Let one instruction scale (or shift) a tile and do the step after it: tensor_scalar into its reader."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return written_by(code, "tensor_scalar")

    def passed_over(self, code: KernelCode) -> Iterator[tuple[str, Statement, str]]:
        return parts_written(code, "tensor_scalar")

    def check(self, code: KernelCode, key: str, instruction: Statement) -> tuple[PrivateTile, cst.Call]:
        return _fused(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: tuple[PrivateTile, cst.Call]) -> Site:
        tile, call = found
        into = code.module.code_for_node(call.func).rpartition(".")[2]
        return Site(
            self.name,
            key,
            f"compute {key} within the {tile.reader.operation} that reads it, as one {into}",
            instruction.line,
            f"{key} is float32, nothing else reads it, and what it is computed from stays the same in between",
            "one pass over the tile instead of two",
        )

    def rewritten(
        self, code: KernelCode, key: str, instruction: Statement, found: tuple[PrivateTile, cst.Call]
    ) -> cst.Module:
        tile, call = found
        assert tile.reader.call is not None
        return without(code, instruction.block, [tile.allocation, tile.writer], {tile.reader.call: call})


def _fused(code: KernelCode, scaling: Statement) -> tuple[PrivateTile, cst.Call]:
    """The tile in between, and the call that does both steps. Raises IllegalSite."""
    given = _arguments(scaling)
    if set(given) - {"engine"} != {"dst", "data", "op0", "operand0"}:
        raise IllegalSite(f"the tensor_scalar on line {scaling.line} does more than one step")
    tile = private_tile(code, scaling)
    if not is_float32(code, given["dst"]):
        raise IllegalSite(f"{tile.name} is not declared float32, so it rounds what passes through it")
    operator = _operator(code, given["op0"])
    check_unchanged(code, [given["data"], given["operand0"]], tile)
    reader, wanted = tile.reader, _arguments(tile.reader)
    if reader.operation not in READERS:
        raise IllegalSite(f"{reader.operation} cannot take a step of tensor_scalar in")
    if reader.operation != "activation":
        for engine in (given.pop("engine", None), wanted.pop("engine", None)):
            if engine is not None and not code.qualified(engine).endswith(".vector"):
                raise IllegalSite("one of the two was given an engine which the fused instruction might not have")
    if reader.operation == "tensor_scalar":
        return tile, _two_steps(code, tile, given, wanted)
    if reader.operation == "tensor_tensor":
        return tile, _with_other_tile(code, tile, given, wanted)
    return tile, _in_activation(code, tile, given, wanted, operator)


_Arguments = dict[str, cst.BaseExpression]


def _two_steps(code: KernelCode, tile: PrivateTile, given: _Arguments, wanted: _Arguments) -> cst.Call:
    if set(wanted) != {"dst", "data", "op0", "operand0"} or not _is(wanted["data"], tile):
        raise IllegalSite(f"the tensor_scalar on line {tile.reader.line} has two steps already, or another form")
    if tile.name in content_names(wanted["operand0"]):
        raise IllegalSite(f"{tile.name} is an operand twice")
    _operator(code, wanted["op0"])
    return _call(
        code, tile, "tensor_scalar",
        dst=wanted["dst"], data=given["data"], op0=given["op0"], operand0=given["operand0"],
        op1=wanted["op0"], operand1=wanted["operand0"],
    )  # fmt: skip


def _with_other_tile(code: KernelCode, tile: PrivateTile, given: _Arguments, wanted: _Arguments) -> cst.Call:
    if set(wanted) != {"dst", "data1", "data2", "op"}:
        raise IllegalSite(f"the tensor_tensor on line {tile.reader.line} has another form")
    operator = _operator(code, wanted["op"])
    first, second = (_is(wanted[keyword], tile) for keyword in ("data1", "data2"))
    other = wanted["data2" if first else "data1"]
    if tile.name in content_names(other) or not (first or second):
        raise IllegalSite(f"{tile.name} is not one whole operand of two")
    if second and operator not in COMMUTATIVE:
        raise IllegalSite(f"{tile.name} is subtracted, and scalar_tensor_tensor subtracts from it")
    if all("psum" in code.regions_of(expression) for expression in (given["data"], other)):
        raise IllegalSite("both tiles would be read from PSUM")
    return _call(
        code, tile, "scalar_tensor_tensor",
        dst=wanted["dst"], data=given["data"], op0=given["op0"], operand0=given["operand0"],
        op1=wanted["op"], operand1=other,
    )  # fmt: skip


def _in_activation(
    code: KernelCode, tile: PrivateTile, given: _Arguments, wanted: _Arguments, operator: str
) -> cst.Call:
    """activation computes op(data * scale + bias)."""
    if "data" not in wanted or not _is(wanted["data"], tile):
        raise IllegalSite(f"the activation on line {tile.reader.line} does not read the whole of {tile.name}")
    number = _is_number(given["operand0"])
    if not number and not is_float32(code, given["operand0"]):
        raise IllegalSite("scale and bias of an activation are numbers or float32 tiles")
    if operator == "multiply" and "scale" not in wanted:
        taken = {"scale": given["operand0"]}
    elif operator == "add" and not {"scale", "bias"} & set(wanted) and not number:
        taken = {"bias": given["operand0"]}
    else:
        raise IllegalSite(f"an activation multiplies once, then adds a tile once: no room for {operator}")
    return _call(code, tile, "activation", **{**wanted, "data": given["data"], **taken})


def _call(code: KernelCode, tile: PrivateTile, operation: str, **arguments: cst.BaseExpression) -> cst.Call:
    call = tile.reader.call
    assert call is not None
    if not isinstance(call.func, cst.Attribute):
        raise IllegalSite(f"line {tile.reader.line}: the name of nki.isa is not at hand")
    isa = code.module.code_for_node(call.func.value)
    text = ", ".join(f"{name}={code.module.code_for_node(value)}" for name, value in arguments.items())
    made = parsed_expression(f"{isa}.{operation}({text})")
    assert isinstance(made, cst.Call)
    return made


def _arguments(statement: Statement) -> _Arguments:
    assert statement.call is not None
    found = {arg.keyword.value: arg.value for arg in statement.call.args if arg.keyword is not None}
    if len(found) != len(statement.call.args):
        raise IllegalSite(f"line {statement.line} passes operands by position")
    return found


def _operator(code: KernelCode, value: cst.BaseExpression) -> str:
    name = code.qualified(value).removeprefix("nki.language.")
    if name not in OPERATORS:
        raise IllegalSite(f"nl.{name or '?'} is none of {', '.join(sorted(OPERATORS))}")
    return name


def _is(value: cst.BaseExpression, tile: PrivateTile) -> bool:
    return isinstance(value, cst.Name) and value.value == tile.name


def _is_number(value: cst.BaseExpression) -> bool:
    while isinstance(value, cst.UnaryOperation):
        value = value.expression
    return isinstance(value, (cst.Integer, cst.Float))
