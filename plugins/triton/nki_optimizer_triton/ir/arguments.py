"""How many of a kernel's parameters each argument of a launch takes: one, unless it is a tensor descriptor of the host.

For compute capability 9.0 and higher that is the descriptor, then its sizes and strides. Below, Triton takes it apart:
base, sizes, strides, up to two flags (padding is NaN; round to tf32), then sizes and strides once more
(triton/backends/nvidia/driver.py, make_tensordesc_arg, 3.4 to 3.9: the flags came one by one).
"""

from __future__ import annotations

from collections.abc import Sequence

from nki_optimizer_triton.ir.types import Descriptor, IrError, Pointer, Scalar, Type

MOST_FLAGS = 2


def slots(parameters: Sequence[Type], dimensions: Sequence[int]) -> list[tuple[int, int]]:
    """(first parameter, how many flags) of each argument. `dimensions`: of a descriptor its axes, of all else 0.

    Raises IrError where parameters and arguments do not fit.
    """
    found, at = [], 0
    for axes in dimensions:
        if at >= len(parameters):
            raise IrError(f"{len(dimensions)} arguments for {len(parameters)} parameters")
        type_, flags = parameters[at], 0
        if not axes:
            if not isinstance(type_, Scalar):
                raise IrError(f"parameter {at} is a descriptor, and is given a number")
            size = 1
        elif isinstance(type_, Descriptor):
            size = 1 + 2 * axes
        elif isinstance(type_, Scalar) and isinstance(type_.element, Pointer):
            flags = _flags(parameters[at + 1 + 2 * axes :])
            size = 1 + 4 * axes + flags
        else:
            raise IrError(f"parameter {at} is a number, and is given a descriptor")
        found.append((at, flags))
        at += size
    if at != len(parameters):
        raise IrError(f"{len(dimensions)} arguments take {at} parameters, and the kernel has {len(parameters)}")
    return found


def _flags(parameters: Sequence[Type]) -> int:
    count = 0
    while count < min(MOST_FLAGS, len(parameters)) and parameters[count] == Scalar("i1"):
        count += 1
    return count
