"""The pretend GPU itself: memory, kernels by their IR, an L2 cache, and a clock of its own.

What it does is what a GPU does to whoever looks from outside: memory is one flat space in which a kernel may reach
whatever is allocated; a launch returns before it is done; an error of a kernel is told by a later call, and some errors
by every call from then on. Kernels are known by their cubins: the tests leave each one's IR beside it.

Steered by `state.json` (`gpu.py` has the names).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nki_optimizer_triton.ir.executing import Allowance, DescriptorArgument, Kernel
from nki_optimizer_triton.ir.faults import KernelFault
from nki_optimizer_triton.ir.memory import Buffer, Memory
from nki_optimizer_triton.ir.numbers import decoded, stored
from nki_optimizer_triton.ir.reading import read_module
from nki_optimizer_triton.ir.types import Descriptor, Element, element_bytes
from triton_tests.pretend.enums import CUresult

BASE = 0x7F00_0000_0000
SCRATCH_POINTERS = 2


class CudaFailure(Exception):
    def __init__(self, result: CUresult) -> None:
        super().__init__(result)
        self.result = result


class FlatMemory(Memory):
    """Of the device: whatever is allocated can be reached from anywhere."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.allocations: dict[int, Buffer] = {}
        self.touched: dict[int, float] = {}
        """Of each allocation: how many bytes the cache had seen when it was touched last."""
        self._next = BASE
        self._filler = np.random.default_rng(0)

    def allocate(self, nbytes: int) -> int:
        if sum(buffer.nbytes for buffer in self.allocations.values()) + nbytes > self.limit:
            raise CudaFailure(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        padded = -(-nbytes // 256) * 256
        contents = self._filler.integers(0, 256, padded, dtype=np.uint8)  # as whoever had it before left it
        self.allocations[self._next] = Buffer("", padded, contents)
        self._next += padded + (1 << 20)
        return self._next - padded - (1 << 20)

    def free(self, address: int) -> None:
        if address not in self.allocations:
            raise CudaFailure(CUresult.CUDA_ERROR_INVALID_VALUE)
        del self.allocations[address]
        self.touched.pop(address, None)

    def base(self, address: int, nbytes: int = 1) -> int:
        for base, buffer in self.allocations.items():
            if base <= address and address + nbytes <= base + buffer.nbytes:
                return base
        raise CudaFailure(CUresult.CUDA_ERROR_INVALID_VALUE)

    def at(self, address: int, nbytes: int) -> np.ndarray:
        base = self.base(address, nbytes)
        return self.allocations[base].contents[address - base : address - base + nbytes]

    def _places(self, addresses: Any, mask: Any, element: Element, what: str) -> Any:
        mask = np.ones(addresses.shape, bool) if mask is None else np.broadcast_to(mask, addresses.shape)
        size, left, found = element_bytes(element), mask.copy(), []
        for number, (base, buffer) in enumerate(self.allocations.items()):
            inside = left & (addresses >= base) & (addresses + size <= base + buffer.nbytes)
            if inside.any():
                if ((addresses - base) % size)[inside].any():
                    raise CudaFailure(CUresult.CUDA_ERROR_MISALIGNED_ADDRESS)
                found.append((buffer, number, (addresses - base) // size, inside))
                left &= ~inside
        if left.any():
            raise CudaFailure(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
        return found


class Device:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: dict[str, Any] = json.loads((folder / "state.json").read_text())
        self.memory = FlatMemory(self.state["memory_bytes"])
        self.host_us, self.free_at_us = 0.0, 0.0
        """What time it is for whoever calls, and when the GPU has done all that it was given."""
        self.sticky: CUresult | None = None
        self.late: CUresult | None = None
        """An error of a kernel, which the next call that waits is told."""
        self.capturing: list[Callable[[], None]] | None = None
        self.maps: dict[int, dict[str, Any]] = {}
        self.launches = 0
        self.stuck = False
        self._seen_bytes = 0.0
        self._chance = random.Random(0)
        self._kernels: dict[str, Kernel] = {}

    # --- what is called ------------------------------------------------------------------------------

    def call(self, name: str) -> None:
        """Of every function of the driver."""
        self.host_us += self.state["call_us"]
        if self.sticky is not None:
            raise CudaFailure(self.sticky)
        fails = self.state["fails"].get(name)
        if fails is not None:
            self.fail(CUresult[fails])

    def fail(self, result: CUresult) -> None:
        from nki_optimizer_triton.execution.on_device.calls import STICKY

        if result.name in STICKY:
            self.sticky = result
        raise CudaFailure(result)

    def enqueue(self, work: Callable[[], float]) -> None:
        """`work` does it and says how many µs it takes."""
        if self.capturing is not None:
            self.capturing.append(lambda: self._now(work))
        else:
            self._now(work)

    def _now(self, work: Callable[[], float]) -> None:
        if self.late is not None:
            return
        try:
            took_us = work()
        except CudaFailure as failure:
            self.late = failure.result
            return
        self.free_at_us = max(self.free_at_us, self.host_us) + took_us

    def wait(self) -> None:
        while (self.state["hangs"] or self.stuck) and self.launches:
            time.sleep(0.1)
        self.host_us = max(self.host_us, self.free_at_us)
        if self.late is not None:
            late, self.late = self.late, None
            self.fail(late)

    # --- what takes time ------------------------------------------------------------------------------

    def moved(self, address: int, nbytes: int) -> float:
        """µs of a copy or a fill; it passes through the cache."""
        self._touch(self.memory.base(address, max(1, nbytes)), nbytes)
        return nbytes / (self.state["bytes_per_us"])

    def _touch(self, base: int, nbytes: float) -> bool:
        """Whether it was in the cache; from now on it is."""
        last = self.memory.touched.get(base)
        warm = last is not None and self._seen_bytes - last < self.state["l2_bytes"]
        self._seen_bytes += nbytes
        self.memory.touched[base] = self._seen_bytes
        return warm

    # --- kernels --------------------------------------------------------------------------------------

    def load(self, image: bytes) -> str:
        digest = hashlib.sha256(image).hexdigest()
        path = self.folder / "kernels" / digest
        if not path.is_file():
            sections = (b".text." + path.stem.encode() + b"\0" for path in (self.folder / "kernels").glob("*.ttir"))
            named = next((section for section in sections if section in image), None)
            path = self.folder / "kernels" / (named[6:-1].decode() + ".ttir" if named else digest)
        if not path.is_file():
            raise CudaFailure(CUresult.CUDA_ERROR_INVALID_IMAGE)
        self._kernels[digest] = Kernel(read_module(path.read_text(), "kernels_0.py"))
        return digest

    def kernel(self, digest: str, name: str) -> str:
        if self._kernels[digest].name != name:
            raise CudaFailure(CUresult.CUDA_ERROR_NOT_FOUND)
        return digest

    def launch(self, digest: str, grid: tuple[int, int, int], cluster: int, shared: int, parameters: int) -> None:
        """Parameters are read when it is called, as the driver does."""
        kernel = self._kernels[digest]
        if shared > self.state["shared_bytes"]:
            raise CudaFailure(CUresult.CUDA_ERROR_INVALID_VALUE)
        arguments, bases = self._arguments(kernel, parameters)
        shape = (grid[0] // cluster, grid[1], grid[2])

        def work() -> float:
            self.launches += 1
            self.stuck = self.stuck or kernel.name in self.state["hangs_in"]
            fault = self.state["kernel_fails"].get(kernel.name)
            if fault is not None:
                raise CudaFailure(CUresult[fault])
            try:
                kernel.launch(shape, arguments, self.memory, Allowance())
            except KernelFault:
                raise CudaFailure(CUresult.CUDA_ERROR_LAUNCH_FAILED) from None
            self._misbehave(bases)
            warm = all([self._touch(base, self.memory.allocations[base].nbytes) for base in bases])
            took_us = self.state["us_of"].get(kernel.name, self.state["warm_us"] if warm else self.state["kernel_us"])
            jitter = 1 + self.state["jitter"] * self._chance.uniform(-1, 1)
            return float(took_us * jitter * (1 + self.state["drift"] * self.launches))

        self.enqueue(work)

    def _arguments(self, kernel: Kernel, parameters: int) -> tuple[list[Any], list[int]]:
        types = [type_ for _, type_ in kernel.module.kernel.arguments]
        pointers = (ctypes.c_uint64 * (len(types) + SCRATCH_POINTERS)).from_address(parameters)
        found: list[Any] = []
        bases: list[int] = []
        skip = 0
        for type_, pointer in zip(types, pointers):
            if skip:
                skip -= 1
                continue
            if isinstance(type_, Descriptor):
                layout = self.maps[int.from_bytes(ctypes.string_at(pointer, 8), "little")]
                found.append(DescriptorArgument(**layout))
                bases.append(self.memory.base(layout["address"]))
                skip = 2 * len(layout["sizes"])
                continue
            element = type_.element  # type: ignore[union-attr]
            size = element_bytes(element)
            value = decoded(np.frombuffer(ctypes.string_at(pointer, size), stored(element)), element)[0].item()
            found.append(value)
            if not isinstance(element, str):
                try:
                    bases.append(self.memory.base(int(value)))
                except CudaFailure:
                    pass
        return found, list(dict.fromkeys(bases))

    def _misbehave(self, bases: list[int]) -> None:
        """As a kernel does that reaches outside, or computes otherwise than the last time."""
        if self.state["writes_beyond"]:
            for base in bases:
                self.memory.allocations[base].contents[0] ^= 1
        if self.launches > self.state["right_launches"]:
            contents = self.memory.allocations[bases[-1]].contents
            contents[:] = np.random.default_rng(self.launches).integers(0, 256, contents.size, dtype=np.uint8)


__all__ = ["CudaFailure", "Device"]
