"""A launch program with its kernels, put so that a process can carry it out that knows nothing else of them.

Every launch has both of its forms: `arguments`, for whoever executes the kernels' IR, and `parameters`, the bytes
that a GPU's kernel is handed, held against what its PTX declares: sizes, and how many of them. Triton's own pointers
to scratch memory follow (one since 3.4, two since 3.5: triton/backends/nvidia/driver.c, launchKernel).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16 and the 8-bit floats by name
import numpy as np

from accelopt_core.toolchain import CompileError
from nki_optimizer_triton.compiling.compiled import CompiledKernel, Runtime, argument_slots, runtime_arguments
from nki_optimizer_triton.ir.numbers import encoded, rounded
from nki_optimizer_triton.ir.types import FLOATS, Descriptor, Scalar, Type
from nki_optimizer_triton.program.launch_program import DescriptorValue, Fill, Launch, LaunchProgram, TensorValue

MOST_SCRATCH_POINTERS = 2
TENSOR_MAP_BYTES = 128
"""sizeof(CUtensorMap), cuda.h."""


def plan_of(program: LaunchProgram, kernels: Sequence[CompiledKernel]) -> dict[str, Any]:
    """As JSON. `kernels`: one for each launch; in the plan each stands once, by its number in `distinct`.

    Raises CompileError where a kernel does not fit its launch.
    """
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
        "buffers": [{"bytes": buffer.nbytes, "name": _name(program, n)} for n, buffer in enumerate(program.buffers)],
        "inputs": program.arguments,
        "in_place": sorted(program.in_place),
        "outputs": sorted({output.buffer for output in program.outputs}),
        "steps": steps,
        "kernels": [
            {
                "name": kernel.name,
                "warps": kernel.num_warps,
                "blocks_per_cluster": kernel.num_ctas,
                "shared": kernel.shared_bytes,
                "scratch": list(kernel.global_scratch),
            }
            for kernel in known
        ],
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
    values = runtime_arguments(kernel, tuple(value for _, value in step.arguments))
    parameters = _parameters(kernel, values)
    extra = len(kernel.parameters) - len(parameters)
    if not 0 <= extra <= MOST_SCRATCH_POINTERS or any(
        size_of(kind) != 8 for kind in kernel.parameters[len(parameters) :]
    ):
        raise CompileError(
            f"the machine code of {kernel.name} takes {len(kernel.parameters)} parameters and {len(parameters)} are "
            "known: this version of Triton hands them over in another way"
        )
    return {
        "launch": number,
        "grid": list(step.grid),
        "arguments": [_argument(type_, value) for type_, value in values],
        "parameters": parameters,
        "scratch_pointers": extra,
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
            "padding": value.padding,
        }
    if isinstance(value, float):
        return {"kind": "float", "type": type_, "value": value.hex()}
    return {"kind": "int", "type": type_, "value": int(value)}


# --- parameters of machine code ---------------------------------------------------------------------


def size_of(kind: str) -> int:
    """Bytes of a PTX parameter: `u64`, `b8[128]`."""
    found = re.fullmatch(r"[a-z]+(\d+)(?:\[(\d+)\])?", kind)
    if found is None:
        raise CompileError(f"a parameter of the type {kind[:40]!r}, which is not known")
    return int(found.group(1)) // 8 * int(found.group(2) or 1)


def _parameters(kernel: CompiledKernel, values: Sequence[tuple[str, Runtime]]) -> list[list[Any]]:
    """`["pointer", buffer, bytes]`, `["number", hex]`, `["map", ...]`; each of the size that the PTX declares."""
    types = [type_ for _, type_ in kernel.module.kernel.arguments]
    layouts = iter(kernel.descriptors or [None] * len(values))
    found: list[list[Any]] = []
    for (_, value), (first, flags) in zip(values, argument_slots(kernel, values)):
        if isinstance(value, TensorValue):
            found.append(["pointer", value.buffer, value.byte_offset])
        elif isinstance(value, DescriptorValue):
            found += _descriptor(types, first, flags, value, next(layouts, None))
        else:
            found.append(["number", _bytes(types[first], value)])
    for kind, parameter in zip(kernel.parameters, found):
        size = {"pointer": 8, "map": TENSOR_MAP_BYTES}.get(parameter[0]) or len(bytes.fromhex(parameter[1]))
        if size != size_of(kind):
            raise CompileError(f"a parameter of {kernel.name} has {size_of(kind)} bytes, and {size} are handed over")
    return found


def _descriptor(types: Sequence[Type], first: int, flags: int, value: DescriptorValue, layout: Any) -> list[list[Any]]:
    tensor = value.tensor
    geometry: list[int] = [*tensor.shape, *tensor.strides]
    if isinstance(types[first], Descriptor):
        if layout is None:
            raise CompileError("a tensor descriptor of which Triton does not say how the hardware is told of it")
        found: list[list[Any]] = [
            [
                "map",
                {
                    "buffer": tensor.buffer,
                    "offset": tensor.byte_offset,
                    "shape": list(tensor.shape),
                    "strides": list(tensor.strides),
                    "block": list(layout.block),
                    "element_bytes": layout.element_bytes,
                    "element_type": layout.element_type,
                    "swizzle": layout.swizzle,
                    "nan": value.padding == "nan",
                },
            ]
        ]
        numbers = geometry
    else:
        found = [["pointer", tensor.buffer, tensor.byte_offset]]
        numbers = [*geometry, *[int(value.padding == "nan"), 0][:flags], *geometry]
    return found + [["number", _bytes(types[first + 1 + n], number)] for n, number in enumerate(numbers)]


def _bytes(type_: Type, value: int | float | bool) -> str:
    assert isinstance(type_, Scalar) and isinstance(type_.element, str)
    if type_.element in FLOATS:
        return encoded(rounded(np.full(1, value, np.float64), type_.element), type_.element).tobytes().hex()
    size = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}[type_.element]
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little").hex()
