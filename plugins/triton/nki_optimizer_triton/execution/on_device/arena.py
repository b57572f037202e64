"""Memory of one execution on a GPU: every buffer between two guard zones, in one allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_optimizer_triton.execution.on_device.calls import Cuda

GUARD_BYTES = 64 << 10
"""On either side of a buffer: what a kernel writes that far beyond its tensors is seen."""
ALIGNMENT = 256
"""As cuMemAlloc aligns, and as torch does: kernels are compiled for pointers that are multiples of 16."""


class Arena:
    """`buffers` in one piece of device memory, with `guard` bytes around each; `extra` bytes of scratch at its end."""

    def __init__(self, cuda: Cuda, sizes: Sequence[int], guard: int, extra: int = 0) -> None:
        self._cuda = cuda
        self.sizes = list(sizes)
        self._guard = _up(guard)
        self.offsets = []
        at = 0
        for size in sizes:
            at += self._guard
            self.offsets.append(at)
            at = _up(at + max(size, 1))
        at += self._guard
        self._scratch = at
        self.nbytes = max(at + _up(extra), ALIGNMENT)
        self._base = int(cuda("MemAlloc", self.nbytes))

    def address(self, buffer: int, offset: int = 0) -> int:
        return self._base + self.offsets[buffer] + offset

    @property
    def scratch(self) -> int:
        return self._base + self._scratch

    def fill(self, pattern: int, stream: Any) -> None:
        """All of it."""
        self._cuda("MemsetD8Async", self._base, pattern, self.nbytes, stream)

    def write(self, buffer: int, contents: bytes | bytearray | memoryview, stream: Any) -> None:
        """In the stream: a copy outside it may still be under way when its call returns, and kernels do not wait for it
        (CUDA driver interface, API synchronization behavior)."""
        if self.sizes[buffer]:
            source = np.frombuffer(contents, np.uint8)
            self._cuda("MemcpyHtoDAsync", self.address(buffer), source.ctypes.data, self.sizes[buffer], stream)
            self._cuda("StreamSynchronize", stream)

    def copy_from(self, other: Arena, buffer: int, stream: Any) -> None:
        if self.sizes[buffer]:
            self._cuda("MemcpyDtoDAsync", self.address(buffer), other.address(buffer), self.sizes[buffer], stream)

    def read(self, buffer: int) -> np.ndarray:
        return self._read(self.offsets[buffer], self.sizes[buffer])

    def _read(self, offset: int, size: int) -> np.ndarray:
        found = np.empty(size, np.uint8)
        if size:
            self._cuda("MemcpyDtoH", found.ctypes.data, self._base + offset, size)
        return found

    def guards_changed(self, pattern: int) -> list[int]:
        """Numbers of buffers next to which something else lies than the pattern."""
        changed = []
        for number, (offset, size) in enumerate(zip(self.offsets, self.sizes)):
            before = self._read(offset - self._guard, self._guard)
            end = offset + size
            after = self._read(end, _up(end) - end + self._guard)
            if (before != pattern).any() or (after != pattern).any():
                changed.append(number)
        return changed

    def free(self) -> None:
        self._cuda("MemFree", self._base)


def _up(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT
