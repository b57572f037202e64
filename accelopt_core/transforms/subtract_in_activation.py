"""Subtract a row's maximum within the exponential that reads the difference, as the activation's bias.

tensor_scalar(dst=t, data=x, op0=subtract, operand0=m)        negative = ndarray((P, 1), dtype=float32)
activation(dst=y, op=exp, data=t, scale=s)              ->    tensor_scalar(dst=negative, data=m, op0=multiply,
                                                                            operand0=-s)
                                                              activation(dst=y, op=exp, data=x, bias=negative, scale=s)

One pass over the row less; negating one number per partition costs next to nothing. The tile between must be float32:
a narrower one rounds. Without a scale the numbers stay the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.transforms.base import IllegalSite, Site
from accelopt_core.transforms.kernel_code import KernelCode, Kind, Statement
from accelopt_core.transforms.one_instruction import InstructionTransform, counted
from accelopt_core.transforms.operand_access import AccessReader, arguments_of, base_name
from accelopt_core.transforms.private_tile import PrivateTile, check_unchanged, is_float32
from accelopt_core.transforms.syntax import (
    content_names,
    loaded_names,
    parsed_expression,
    parsed_statement,
    replace_nodes,
)


@dataclass(frozen=True)
class _Difference:
    tile: PrivateTile
    data: cst.BaseExpression
    subtracted: cst.BaseExpression
    shape: str
    """Of what is subtracted."""
    scale: str
    """What the activation multiplies with; empty if it does not."""


class SubtractInActivation(InstructionTransform[_Difference]):
    name = "subtract-in-activation"
    addresses = frozenset({Cause.ELEMENTWISE, Cause.WAITING})
    gone = "subtracts from no tile"

    def describe(self) -> str:
        return "Subtract one number per partition within the activation that reads the difference, as its bias."

    def candidates(self, code: KernelCode) -> Iterator[tuple[str, Statement]]:
        return counted(_subtractions(code))

    def check(self, code: KernelCode, key: str, instruction: Statement) -> _Difference:
        return _plan(code, instruction)

    def site(self, code: KernelCode, key: str, instruction: Statement, found: _Difference) -> Site:
        return Site(
            self.name,
            key,
            f"subtract within the activation on line {found.tile.reader.line}",
            instruction.line,
            f"{found.tile.name} is float32, nothing else reads it, and what it is computed from stays the same in "
            "between",
            "one pass over the tile instead of two",
        )

    def rewritten(self, code: KernelCode, key: str, instruction: Statement, found: _Difference) -> cst.Module:
        call, reader = instruction.call, found.tile.reader
        assert call is not None and reader.call is not None
        if not isinstance(call.func, cst.Attribute):
            raise IllegalSite(f"line {instruction.line}: the name of nki.isa is not at hand")
        isa, nl = code.module.code_for_node(call.func.value), code.name_of_module("nki.language")
        if not nl:
            raise IllegalSite("the kernel has no name for nki.language")
        negative = code.fresh_name(f"negative_{base_name(found.subtracted)}")
        subtracted = code.module.code_for_node(found.subtracted)
        factor = f"-({found.scale})" if found.scale else "-1.0"
        made = [
            f"{negative} = {nl}.ndarray({found.shape}, dtype={nl}.float32, buffer={nl}.sbuf)",
            f"{isa}.tensor_scalar(dst={negative}, data={subtracted}, op0={nl}.multiply, operand0={factor})",
        ]
        kept = [
            f"{keyword}={code.module.code_for_node(value)}"
            for keyword, value in arguments_of(reader).items()
            if keyword not in ("data", "bias", "scale")
        ]
        scale = f", scale={found.scale}" if found.scale else ""
        given = f"{', '.join(kept)}, data={code.module.code_for_node(found.data)}, bias={negative}{scale}"
        activation = replace_nodes(reader.node, {reader.call: parsed_expression(f"{isa}.activation({given})")})
        lines: list[cst.CSTNode] = [parsed_statement(line) for line in made]
        lines[0] = lines[0].with_changes(leading_lines=getattr(instruction.node, "leading_lines", ()))
        return _with(code, found.tile, {instruction.node: lines, reader.node: [activation]})


def _subtractions(code: KernelCode) -> Iterator[tuple[str, Statement]]:
    for statement in code.statements():
        if statement.kind is Kind.INSTRUCTION and statement.operation == "tensor_scalar":
            op, dst = code.argument(statement, "op0", 2), code.argument(statement, "dst", 0)
            if op is not None and dst is not None and code.qualified(op) == "nki.language.subtract" and base_name(dst):
                yield base_name(dst), statement


def _plan(code: KernelCode, subtraction: Statement) -> _Difference:
    """Raises IllegalSite."""
    where = f"line {subtraction.line}"
    given = arguments_of(subtraction)
    if set(given) - {"engine"} not in (
        {"dst", "data", "op0", "operand0"},
        {"dst", "data", "op0", "operand0", "op1", "operand1"},
    ):
        raise IllegalSite(f"{where} does more than subtract and scale")
    name = base_name(given["dst"])
    allocation, reader = _only_reader(code, subtraction, name)
    if not is_float32(code, given["dst"]):
        raise IllegalSite(f"{name} is not declared float32, so it rounds what passes through it")
    wanted = arguments_of(reader)
    read = wanted.get("data")
    if reader.operation != "activation" or read is None or not read.deep_equals(given["dst"]):
        raise IllegalSite(f"line {reader.line} is no activation that reads just what {where} writes")
    if any(name in loaded_names(value) for keyword, value in wanted.items() if keyword != "data"):
        raise IllegalSite(f"line {reader.line} needs {name} for more than its data")
    bias = wanted.get("bias")
    if bias is not None and not (isinstance(bias, cst.Name) and bias.value == "None"):
        raise IllegalSite(f"the activation on line {reader.line} has a bias already")
    scales = [wanted["scale"]] if "scale" in wanted and not _is_one(wanted["scale"]) else []
    if "op1" in given:
        if code.qualified(given["op1"]) != "nki.language.multiply":
            raise IllegalSite(f"{where} does more than subtract and scale")
        scales.insert(0, given["operand1"])
    if any(code.roots_of(content_names(scale)) for scale in scales):
        raise IllegalSite("what is multiplied with is not known to be a number")
    tile = PrivateTile(name, allocation, subtraction, reader)
    check_unchanged(code, [given["data"], given["operand0"], *scales], tile)
    if code.regions_of(given["operand0"]) not in ({"sbuf"}, {"psum"}):
        raise IllegalSite(f"{where} subtracts no tile")
    access = AccessReader(code).access(given["operand0"], subtraction)
    shape = ", ".join(map(str, access.lengths(access.kept)))
    texts = [code.module.code_for_node(scale) for scale in scales]
    scale = texts[0] if len(texts) == 1 else " * ".join(f"({text})" for text in texts)
    return _Difference(tile, given["data"], given["operand0"], f"({shape})", scale)


def _only_reader(code: KernelCode, writer: Statement, name: str) -> tuple[Statement, Statement]:
    """The allocation of the tile, and the one other instruction that uses it, later in the writer's block."""
    if name in code.captured:
        raise IllegalSite(f"{name} is used by a nested function or declared global")
    bindings = code.bindings(name)
    if len(bindings) != 1 or bindings[0].kind is not Kind.ALLOCATE:
        raise IllegalSite(f"{name} is not a tile that is made once")
    others = [s for s in code.statements() if s.body is None and name in s.uses | s.written and s is not writer]
    if len(others) != 1 or others[0].kind is not Kind.INSTRUCTION or others[0].block is not writer.block:
        raise IllegalSite(f"{name} is not read by exactly one other instruction of its block")
    order = writer.block.statements
    if name in code.changed_by(others[0]) or order.index(others[0]) < order.index(writer):
        raise IllegalSite(f"line {others[0].line} changes {name}, or comes before it is written")
    return bindings[0], others[0]


def _with(code: KernelCode, tile: PrivateTile, instead: dict[cst.CSTNode, list[cst.CSTNode]]) -> cst.Module:
    """The module with other statements in the place of some of the writer's block, and without the tile."""
    block, gone = tile.writer.block.node, tile.allocation.node
    body: list[cst.CSTNode] = []
    for child in block.body:
        body += instead.get(child, [child])
    if tile.allocation.block is tile.writer.block:
        return code.changed({block: block.with_changes(body=_without(body, body.index(gone)))})
    outer = tile.allocation.block.node
    replaced = replace_nodes(outer, {block: block.with_changes(body=body)})
    assert isinstance(replaced, cst.IndentedBlock)
    return code.changed({outer: replaced.with_changes(body=_without(list(replaced.body), outer.body.index(gone)))})


def _without(body: list[cst.CSTNode], at: int) -> list[cst.CSTNode]:
    """Without one statement; its comments stay before the next."""
    comments = [line for line in getattr(body[at], "leading_lines", ()) if line.comment is not None]
    following = body[at + 1]
    lines = [*comments, *getattr(following, "leading_lines", ())]
    return [*body[:at], following.with_changes(leading_lines=lines), *body[at + 2 :]]


def _is_one(value: cst.BaseExpression) -> bool:
    return isinstance(value, (cst.Integer, cst.Float)) and value.evaluated_value == 1
