"""A launch program with its kernels, put so that a process can carry it out that knows nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16 and the 8-bit floats by name
import numpy as np

from infra.triton.compiling.compiled import CompiledKernel, Runtime, runtime_arguments
from infra.triton.program.elements import BY_NAME
from infra.triton.program.launch_program import DescriptorValue, Fill, Launch, LaunchProgram, TensorValue


def plan_of(program: LaunchProgram, kernels: Sequence[CompiledKernel]) -> dict[str, Any]:
    """As JSON. `kernels`: one for each launch; in the plan each stands once, by its number in `distinct`."""
    known = distinct(kernels)
    numbers = {id(kernel): number for number, kernel in enumerate(known)}
    launched = iter(kernels)
    steps = []
    for step in program.steps:
        if isinstance(step, Fill):
            steps.append(_fill(step))
            continue
        kernel = next(launched)
        if step.programs:
            steps.append(_launch(step, kernel, numbers[id(kernel)]))
    return {
        "buffers": [
            {"bytes": buffer.nbytes, "name": _name(program, number), "element": BY_NAME[buffer.dtype].bytes}
            for number, buffer in enumerate(program.buffers)
        ],
        "inputs": program.arguments,
        "in_place": sorted(program.in_place),
        "outputs": sorted({output.buffer for output in program.outputs}),
        "steps": steps,
    }


def distinct(kernels: Sequence[CompiledKernel]) -> list[CompiledKernel]:
    return list({id(kernel): kernel for kernel in kernels}.values())


def _name(program: LaunchProgram, number: int) -> str:
    if number < program.arguments:
        return f"tensor argument {number}"
    return f"the tensor allocated in line {program.buffers[number].line}"


def _fill(step: Fill) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        element = np.array([step.value]).astype(step.tensor.dtype).tobytes()
    return {
        "fill": step.tensor.buffer,
        "offset": step.tensor.byte_offset,
        "element": element.hex(),
        "count": step.tensor.elements,
    }


def _launch(step: Launch, kernel: CompiledKernel, number: int) -> dict[str, Any]:
    values = tuple(value for _, value in step.arguments)
    return {
        "launch": number,
        "grid": list(step.grid),
        "arguments": [_argument(type_, value) for type_, value in runtime_arguments(kernel, values)],
        "names": {str(n): name for name, value in step.arguments if (n := _buffer(value)) is not None},
        "line": step.line,
    }


def _buffer(value: Any) -> int | None:
    if isinstance(value, TensorValue):
        return value.buffer
    return value.tensor.buffer if isinstance(value, DescriptorValue) else None


def _argument(type_: str, value: Runtime) -> dict[str, Any]:
    if isinstance(value, TensorValue):
        return {"kind": "pointer", "buffer": value.buffer, "offset": value.byte_offset}
    if isinstance(value, DescriptorValue):
        tensor = value.tensor
        return {
            "kind": "descriptor",
            "buffer": tensor.buffer,
            "offset": tensor.byte_offset,
            "shape": list(tensor.shape),
            "strides": list(tensor.strides),
            "block": list(value.block_shape),
            "element": BY_NAME[tensor.dtype].bytes,
            "padding": value.padding,
        }
    if isinstance(value, float):
        return {"kind": "float", "type": type_, "value": value.hex()}
    return {"kind": "int", "type": type_, "value": int(value)}
