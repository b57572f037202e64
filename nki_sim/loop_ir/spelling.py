"""Instructions as calls: the keywords of `nki.isa` that give an instruction its attributes back."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Union

from nki_sim.contract.opcodes import OPCODES
from nki_sim.dtypes import int32, uint32
from nki_sim.isa.arithmetic.ops import ALU
from nki_sim.loop_ir.tree import Access, Instruction
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine

Argument = Union[Access, list[Access], str]
"""Operands, or the text of anything else."""

_RENAMED = {
    "dma_copy": {"queue": "engine"},
    "tensor_reduce": {"axes": "axis"},
    "nc_match_replace8": {"value": "imm"},
    "nc_stream_shuffle": {"mask": "shuffle_mask"},
    "select_reduce": {"reverse": "reverse_pred"},
    "tensor_copy_predicated": {"value": "src", "reverse": "reverse_pred"},
    "tensor_scalar_reduce": {"negate": "reduce_res_negate"},
    "register_set": {"value": "src"},
}
"""Attributes whose keyword has another name."""
_UNSPOKEN = frozenset({"exact", "sources", "onezero"})
"""Attributes that follow from the operands, or are written in a way of their own."""
_GENERATED = {"dma_compute": frozenset({"dge_mode"})}
"""Attributes that nobody can choose."""
_FUNCTIONS = {"register_set": "register_move", "register_copy": "register_move"}
_OPERATORS = frozenset({"op", "op0", "op1", "cmp_op", "comp_op0", "comp_op1", "reduce_op"})
_ADDS_UP = frozenset({"activation", "range_select", "select_reduce"})
"""Instructions whose reduce_op is not an attribute: there is one that they know."""
_REDUCE = {"activation": "add", "range_select": "maximum", "select_reduce": "maximum"}


class NotWritable(Exception):
    """What a kernel does has no text; why, in one line."""


def function_of(node: Instruction) -> str:
    """The function's name in `nki.isa`."""
    return _FUNCTIONS.get(node.opcode, node.opcode)


def arguments(node: Instruction, region: Callable[[Access], MemoryRegion]) -> dict[str, Argument]:
    """Keyword by keyword. Raises NotWritable."""
    function = function_of(node)
    parameters = _parameters(function)
    given: dict[str, Argument] = {}
    several: dict[str, list[Access]] = {}
    implicit = {slot.role for slot in OPCODES[node.opcode].contract.operands if slot.lanes is not None}
    for operand in node.operands:
        role, bracket, _ = operand.role.partition("[")
        if operand.role in implicit or operand.role.endswith(".index"):
            continue
        if bracket:
            several.setdefault(role, []).append(operand)
        else:
            given[role] = operand
    given.update(several)
    renamed = _RENAMED.get(node.opcode, {})
    for name in getattr(node.attrs, "_fields", ()):
        value = getattr(node.attrs, name)
        keyword = renamed.get(name, name)
        if name in _UNSPOKEN or name in _GENERATED.get(node.opcode, ()) or keyword in given:
            continue
        text = _text(name, value)
        if text is None and keyword in parameters and parameters[keyword].default is inspect.Parameter.empty:
            text = "None"
        if text is not None and not _is_default(parameters, keyword, value):
            given[keyword] = text
    _special(node, given, region)
    unknown = [name for name in given if name not in parameters]
    if unknown:
        raise NotWritable(f"line {node.line}: {node.opcode} has no keyword {unknown[0]}")
    return {name: given[name] for name in parameters if name in given}


def _special(node: Instruction, given: dict[str, Argument], region: Callable[[Access], MemoryRegion]) -> None:
    if node.opcode == "scalar_load":
        given.pop("dst")  # what it returns
    if node.opcode == "nc_matmul":
        for keyword, holds in zip(("is_stationary_onezero", "is_moving_onezero"), node.attrs.onezero):
            if holds:
                given[keyword] = "True"
    if node.opcode in _ADDS_UP and ("reduce_res" in given or "reduce_cmd" in given):
        given["reduce_op"] = f"nl.{_REDUCE[node.opcode]}"
    if node.opcode == "activation" and _is_a_number(given.get("scale")) and float(str(given["scale"])) == 1.0:
        given.pop("scale", None)
    if node.opcode == "activation" and _is_a_number(given.get("bias")) and float(str(given["bias"])) == 0.0:
        given.pop("bias", None)
    if "engine" in _parameters(function_of(node)) and node.opcode not in ("dma_copy",):
        if node.engine is not _usual_engine(node, region):
            given["engine"] = f"nisa.engine.{node.engine.name}"
    if node.opcode == "dma_copy" and node.attrs.queue is Engine.unknown:
        given.pop("engine", None)
    if any(operand.indirection is not None for operand in node.operands):
        vector = any(o.indirection is not None and o.indirection[0] == "vector" for o in node.operands)
        if vector and str(given.get("dge_mode")).endswith("swdge"):
            given.pop("dge_mode", None)


def _is_a_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _usual_engine(node: Instruction, region: Callable[[Access], MemoryRegion]) -> Engine:
    """The engine that runs it where the call names none."""
    if node.opcode == "core_barrier" or node.opcode in ("rand_get_state", "rand_set_state"):
        return Engine.gpsimd
    if node.opcode == "nc_transpose":
        data = node.operand("data")
        dst = node.operand("dst")
        assert data is not None and dst is not None
        into_psum = region(data) is MemoryRegion.sbuf and region(dst) is MemoryRegion.psum
        return Engine.tensor if into_psum else Engine.vector
    in_sbuf = all(region(operand) is not MemoryRegion.psum for operand in node.operands[:3])
    if node.opcode == "tensor_tensor":
        integers = all(operand.dtype in (int32, uint32) for operand in node.operands)
        if (integers or node.attrs.op == "power") and in_sbuf and not ALU[node.attrs.op].bitvec:
            return Engine.gpsimd
    if node.opcode == "tensor_scalar" and "rsqrt" in (node.attrs.op0, node.attrs.op1) and in_sbuf:
        return Engine.gpsimd
    return Engine.vector


@cache
def _parameters(function: str) -> Mapping[str, inspect.Parameter]:
    from nki_sim.nki import isa  # once all instructions are defined

    found = getattr(isa, function, None)
    if not inspect.isfunction(found):
        raise NotWritable(f"nothing in nki.isa is called {function}")
    return inspect.signature(found).parameters


def _is_default(parameters: Mapping[str, inspect.Parameter], keyword: str, value: Any) -> bool:
    parameter = parameters.get(keyword)
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return False
    return type(parameter.default) is type(value) and parameter.default == value


def _text(name: str, value: Any) -> str | None:
    """None for what is left out."""
    if value is None:
        return None
    if isinstance(value, Engine):
        return f"nisa.engine.{value.name}"
    if isinstance(value, Enum):
        kind = type(value).__name__.lstrip("_")
        return f"nisa.{kind}.{value.name}"
    if name in _OPERATORS:
        return f"nl.{value}"
    if name == "axes" and len(value) == 1:
        return repr(value[0])
    if isinstance(value, float):
        return number_text(value)
    return repr(value)


def number_text(value: float) -> str:
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)
