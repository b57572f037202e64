"""CUDA's driver interface, through NVIDIA's Python bindings: the calls that are made, and what their errors mean.

`cuda.bindings.driver` returns (error, results...) of every call. After an error that the context does not survive, the
process has to end: CUDA C++ Programming Guide, Error Handling, and the driver interface's page on CUresult, which marks
those that leave the process in an inconsistent state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

STICKY = frozenset(
    [
        "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_TENSOR_MEMORY_LEAK", "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_EXTERNAL_DEVICE",
    ]
)  # fmt: skip
"""After these every further call in the process fails the same way."""

OF_THE_KERNEL = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "it reads or writes memory that is not there",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "it reads or writes at an address that is no multiple of the access",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "it comes to an instruction that the GPU does not have",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "it takes an address of one kind of memory for another",
    "CUDA_ERROR_INVALID_PC": "it jumps to where no code is",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "its stack overflows",
    "CUDA_ERROR_ASSERT": "an assertion of its failed",
    "CUDA_ERROR_LAUNCH_FAILED": "it crashes",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "it runs longer than the system lets a kernel run",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "its blocks need more registers or threads than a multiprocessor has",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "its clusters (num_ctas) do not fit on the GPU",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": "it leaves tensor memory allocated",
}
"""What a kernel can cause, in words."""


class CudaError(Exception):
    """A call failed: its name, and CUDA's name for why."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(f"{call}: {error}")
        self.call = call
        self.error = error

    @property
    def is_sticky(self) -> bool:
        return self.error in STICKY


class Cuda:
    """The calls by their names without `cu`, e.g. `cuda("MemAlloc", 1024)`. Raises CudaError."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver: Any = driver

    def __call__(self, call: str, *arguments: Any) -> Any:
        """The result: none, one, or a tuple."""
        answer = getattr(self.driver, f"cu{call}")(*arguments)
        error, *results = answer if isinstance(answer, tuple) else (answer,)
        if error != self.driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"cu{call}", getattr(error, "name", str(error)))
        return results[0] if len(results) == 1 else tuple(results) or None


@contextlib.contextmanager
def releasing(release: Callable[[], object]) -> Iterator[None]:
    """`release` at the end, but not after an error after which every call fails: that error is the one to tell."""
    try:
        yield
    except CudaError as error:
        if not error.is_sticky:
            release()
        raise
    except BaseException:
        release()
        raise
    release()
