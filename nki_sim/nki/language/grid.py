"""Where a program runs: its core in the launch grid `kernel[lnc]`, and scheduling regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nki_sim.errors import NkiValidationError
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import NkiTensor


def program_id(axis: int = 0) -> int:
    """This core's number along `axis` of the launch grid; 0 without a grid."""
    _check_axis(axis)
    return current().core


def num_programs(axes: Any = 0) -> int:
    """Cores along `axes` of the launch grid; 1 without a grid."""
    for axis in axes if isinstance(axes, (tuple, list)) else () if axes is None else (axes,):
        _check_axis(axis)
    return current().cores or 1


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 when the kernel was called without `[lnc]`, else 1."""
    return 0 if current().cores is None else 1


def _check_axis(axis: Any) -> None:
    if axis != 0:
        raise NkiValidationError(f"axis {axis!r} of the launch grid: it has one dimension, the cores of kernel[lnc]")


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions issued in the block run in program order. No device loops inside."""
    tracer = current()
    start, loops = tracer.issued, len(tracer.loops)
    yield
    if len(tracer.loops) > loops:
        raise NkiValidationError("device loops (nl.fori_loop, nl.while_loop) cannot be inside nl.no_reorder()")
    for after in range(start + 1, tracer.issued):
        tracer.add_edge(after - 1, after)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor when the kernel runs with numbers; a traced program does not print."""
    if not isinstance(print_prefix, str) or not isinstance(tensor, NkiTensor):
        raise NkiValidationError("device_print takes a constant string and a tensor")
    if current().numbers:
        print(f"{print_prefix} {tensor.array()}")
