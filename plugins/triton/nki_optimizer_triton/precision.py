"""In which types narrower than float32 a launch program computes, by its kernels' IR."""

from __future__ import annotations

from collections.abc import Iterable

from nki_optimizer_triton.artifact import TritonArtifact
from nki_optimizer_triton.ir.types import Module, Operation, Scalar, Tensor, Type, operations_in
from nki_optimizer_triton.program.elements import BY_NAME

_NAMES = {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f16": "float16", "bf16": "bfloat16"}

_MOVING = (
    "tt.splat tt.unsplat tt.expand_dims tt.broadcast tt.reshape tt.trans tt.join tt.split tt.cat tt.gather tt.load "
    "tt.descriptor_load tt.descriptor_gather arith.constant"
)
_MOVES = frozenset(_MOVING.split())
"""What only brings values from one place to another."""

_STORES = frozenset(["tt.store", "tt.atomic_store", "tt.descriptor_store", "tt.descriptor_scatter"])

_PASSING = (
    "arith.extf arith.select scf.for scf.if scf.while scf.yield scf.condition cf.br cf.cond_br tt.call tt.return "
    "tt.bitcast arith.bitcast"
)
_NO_ARITHMETIC = _MOVES | _STORES | frozenset(_PASSING.split())

_ROUNDS = frozenset(["arith.truncf", "tt.fp_to_fp"])

_PRODUCTS = {"tf32": "tf32", "bf16x3": "bfloat16"}
"""Of float32 operands, by `inputPrecision`. Three products of tf32, or six of bfloat16, are as good as one of float32:
Triton's documentation, tl.dot."""


def low_precision(artifact: TritonArtifact) -> tuple[str, ...]:
    """By name, sorted. A task's own narrow tensors may be read and, rounded once, written; whatever is kept in a narrow
    type on the way counts, in a kernel or in memory between two."""
    program = artifact.program
    lasting = {*range(program.arguments), *(output.buffer for output in program.outputs)}
    found = {buffer.dtype for number, buffer in enumerate(program.buffers) if number not in lasting}
    narrow = {name for name in found if BY_NAME[name].kind == "float" and BY_NAME[name].bytes < 4}
    for kernel in artifact.distinct:
        narrow |= _of_module(kernel.module)
    return tuple(sorted(narrow))


def _of_module(module: Module) -> set[str]:
    found: set[str] = set()
    for function in module.functions:
        operations = operations_in(function.body)
        kept = _kept(operations)
        for operation in operations:
            if operation.name in ("tt.dot", "tt.dot_scaled"):
                rounding = _PRODUCTS.get(operation.word("inputPrecision") or "")
                if rounding is not None and _element(operation.operand_types[0]) == "f32":
                    found.add(rounding)
            if operation.name in _ROUNDS:
                if kept.intersection(operation.results):
                    found |= _narrow(operation.result_types)
            elif operation.name not in _NO_ARITHMETIC:
                found |= _narrow((*operation.operand_types, *operation.result_types))
    return found


def _kept(operations: Iterable[Operation]) -> frozenset[str]:
    """Values that are used for anything but storing them, also after they were moved."""
    used: set[str] = set()
    moved: list[Operation] = []
    for operation in operations:
        if operation.name in _MOVES:
            moved.append(operation)
        elif operation.name not in _STORES:
            used.update(operation.operands)
            used.update(name for successor in operation.successors for name in successor.operands)
    while True:
        more = {name for each in moved if used.intersection(each.results) for name in each.operands} - used
        if not more:
            return frozenset(used)
        used |= more


def _narrow(types: Iterable[Type]) -> set[str]:
    return {_NAMES[element] for type_ in types if (element := _element(type_)) in _NAMES}


def _element(type_: Type) -> str:
    element = type_.element if isinstance(type_, (Scalar, Tensor)) else ""
    return element if isinstance(element, str) else ""
