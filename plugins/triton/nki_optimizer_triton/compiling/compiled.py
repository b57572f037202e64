"""A compiled kernel as the judge has it: IR, machine code, and how both are to be launched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accelopt_core.toolchain import CompileError
from nki_optimizer_triton.compiling.resources import Resources
from nki_optimizer_triton.ir.arguments import slots
from nki_optimizer_triton.ir.types import IrError, Module
from nki_optimizer_triton.program.launch_program import DescriptorValue, TensorValue, TupleValue, Value


@dataclass(frozen=True)
class DescriptorLayout:
    """How the hardware is told of a host's tensor descriptor (Triton's tensordesc_meta): numbers of CUDA's enums."""

    swizzle: int
    element_bytes: int
    element_type: int
    block: tuple[int, ...]
    fp4_padded: bool


@dataclass(frozen=True)
class CompiledKernel:
    name: str
    """Of the entry in the cubin."""
    module: Module
    """TTIR, read and checked."""
    ttir: str
    cubin: bytes
    num_warps: int
    num_ctas: int
    shared_bytes: int
    global_scratch: tuple[int, int]
    """Bytes for each block of the grid, and their alignment."""
    signature: tuple[Any, ...]
    """Of each parameter, as Triton says it: `*fp32`, `i32`, `constexpr`; nested for tuples."""
    parameters: tuple[str, ...]
    """Of the entry, by its PTX: types in the order of a launch."""
    descriptors: tuple[DescriptorLayout | None, ...]
    resources: Resources

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.cubin).hexdigest()[:16]

    @property
    def threads(self) -> int:
        """Of one block."""
        return 32 * self.num_warps


Runtime = int | float | bool | TensorValue | DescriptorValue
"""What a launch hands over when it happens."""


def runtime_arguments(kernel: CompiledKernel, values: tuple[Value, ...]) -> list[tuple[str, Runtime]]:
    """(type, value) of every argument that is no constant of the compilation, in their order.

    Raises CompileError where values and signature do not fit.
    """
    found: list[tuple[str, Runtime]] = []
    if len(values) != len(kernel.signature):
        raise CompileError(
            f"the kernel {kernel.name} has {len(kernel.signature)} parameters, and {len(values)} are given"
        )
    for type_, value in zip(kernel.signature, values):
        _flatten(kernel, type_, value, found)
    try:
        argument_slots(kernel, found)
    except IrError as error:
        raise CompileError(f"the kernel {kernel.name} does not fit its launch: {error.message}") from None
    return found


def argument_slots(kernel: CompiledKernel, arguments: Sequence[tuple[str, Runtime]]) -> list[tuple[int, int]]:
    """As `slots`, of a launch. Raises IrError."""
    axes = [len(value.block_shape) if isinstance(value, DescriptorValue) else 0 for _, value in arguments]
    return slots([type_ for _, type_ in kernel.module.kernel.arguments], axes)


def _flatten(kernel: CompiledKernel, type_: Any, value: Value, found: list[tuple[str, Runtime]]) -> None:
    if type_ == "constexpr":
        return
    if isinstance(type_, (list, tuple)):
        if not isinstance(value, TupleValue) or len(value.items) != len(type_):
            raise CompileError(f"the kernel {kernel.name} was compiled for another tuple than is given")
        for inner, item in zip(type_, value.items):
            _flatten(kernel, inner, item, found)
        return
    if isinstance(value, (bool, int, float, TensorValue, DescriptorValue)):
        is_pointer = str(type_).startswith("*")
        if is_pointer != isinstance(value, TensorValue):
            raise CompileError(f"the kernel {kernel.name} takes {type_}, and is given a {type(value).__name__}")
        found.append((str(type_), value))
        return
    raise CompileError(f"the kernel {kernel.name} takes {type_}, and is given {type(value).__name__}")
