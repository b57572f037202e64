"""One execution of a launch program that may be believed: twice, with other memory around and other programs first.

What nobody wrote holds one pattern in the first execution and another in the second, and so do the guard zones around
every buffer. So an output element that shows both patterns was never written; an output that differs depends on memory
that nobody wrote, on what lies outside its tensors, or on which program is first; inputs and guard zones must be as
they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16 and the 8-bit floats by name
import numpy as np

from accelopt_core.toolchain import RunError
from nki_optimizer_triton.program.elements import BY_NAME
from nki_optimizer_triton.program.launch_program import LaunchProgram, TensorValue

PATTERNS = (0xFF, 0x3F)
"""Bytes of memory that nobody wrote: of floats NaN, and numbers near 1, which no sum swallows; of integers -1, and
much."""

_ATOMIC_SLACK = 1e-2
"""Of the largest value of an output: sums whose order is left to chance may differ that much, and nothing else may."""


@dataclass(frozen=True)
class Executed:
    """What one execution left."""

    outputs: dict[int, np.ndarray]
    """By number of the buffer: its bytes."""
    changed: tuple[int, ...]
    """Tensor arguments that are not what they were, and are not returned."""
    outside: tuple[str, ...]
    """Guard zones that are not what they were, in words."""


Execute = Callable[[int, bool], Executed]
"""(pattern, last programs first) -> what is left."""


def verified(
    program: LaunchProgram, execute: Execute, adds_floats_atomically: bool, order_is_ours: bool
) -> tuple[list[np.ndarray], list[str]]:
    """Outputs as the function returns them, and the digest of each one's bits. Raises RunError for what the module
    says.

    `order_is_ours`: programs are executed in the order that is asked for, and a second one of the same kind is the
    same.
    """
    first = execute(PATTERNS[0], False)
    second = execute(PATTERNS[1], order_is_ours and not adds_floats_atomically)
    for each in (first, second):
        _check_surroundings(each)
    for number, output in enumerate(program.outputs):
        one, two = bits_of(first, output), bits_of(second, output)
        if output.buffer >= program.arguments:
            _check_written(number, output, one, two)
        if not np.array_equal(one, two):
            if adds_floats_atomically and _close(output, one, two):
                continue
            raise _differs(program, number, output, first, execute, adds_floats_atomically, order_is_ours)
    found = [bits_of(first, output) for output in program.outputs]
    return [bits.view(np.dtype(output.dtype)) for bits, output in zip(found, program.outputs)], [
        digest_of([bits]) for bits in found
    ]


def _check_surroundings(executed: Executed) -> None:
    if executed.outside:
        raise RunError(f"out of bounds: memory next to {executed.outside[0]} was written")
    if executed.changed:
        raise RunError(
            f"the kernels write to tensor argument {executed.changed[0]}, which the function does not return: write "
            "to a tensor that it allocates, or return what is updated in place"
        )


def _check_written(number: int, output: TensorValue, one: np.ndarray, two: np.ndarray) -> None:
    size = BY_NAME[output.dtype].bytes
    patterns = [int.from_bytes(bytes([pattern]) * size, "little") for pattern in PATTERNS]
    never = (one == patterns[0]) & (two == patterns[1])
    if never.any():
        at = np.unravel_index(int(np.flatnonzero(never.reshape(-1))[0]), never.shape)
        where = "[" + ", ".join(str(int(index)) for index in at) + "]"
        raise RunError(
            f"output {number}: {int(never.sum()):,} of {never.size:,} elements are never written, the first at "
            f"{where}, or only with what lay there before"
        )


def _differs(
    program: LaunchProgram,
    number: int,
    output: TensorValue,
    first: Executed,
    execute: Execute,
    adds_floats_atomically: bool,
    order_is_ours: bool,
) -> RunError:
    again = execute(PATTERNS[0], order_is_ours and not adds_floats_atomically)
    same = np.array_equal(bits_of(first, output), bits_of(again, output))
    if same:
        return RunError(
            f"output {number} depends on memory that nobody wrote, or that lies outside its tensors: write all of a "
            "tensor before it is read, and mask what lies beyond its end"
        )
    if order_is_ours:
        return RunError(f"output {number} depends on which program of a grid is first: programs race for one element")
    return RunError(f"output {number}: the same inputs give different bits: programs race for one element")


def _close(output: TensorValue, one: np.ndarray, two: np.ndarray) -> bool:
    a, b = (np.asarray(bits.view(output.dtype), np.float64) for bits in (one, two))
    scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= _ATOMIC_SLACK * scale
    return bool((near | (a == b) | (np.isnan(a) & np.isnan(b))).all())


# --- views of buffers -------------------------------------------------------------------------------


def bits_of(executed: Executed, output: TensorValue) -> np.ndarray:
    """The elements of an output as unsigned numbers of their size, contiguous."""
    size = BY_NAME[output.dtype].bytes
    buffer = executed.outputs[output.buffer]
    whole = buffer[: buffer.size // size * size].view(np.dtype(f"u{size}"))
    if not prod(output.shape):
        return np.zeros(output.shape, whole.dtype)
    strides = tuple(stride * size for stride in output.strides)
    view = np.lib.stride_tricks.as_strided(whole[output.offset :], output.shape, strides, writeable=False)
    return np.ascontiguousarray(view)


def bytes_of(tensors: Sequence[np.ndarray]) -> list[memoryview]:
    """Of each, in C order."""
    return [np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data for tensor in tensors]


def digest_of(arrays: Sequence[np.ndarray | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest.update(f"{contents.size};".encode())
        digest.update(contents.data)
    return digest.hexdigest()
