"""Scalar registers: 32-bit integers that steer addresses and device loops."""

from __future__ import annotations

import numpy as np

from nki_sim.dtypes import int32
from nki_sim.errors import DeviceValueMisused
from nki_sim.memory import MemoryRegion
from nki_sim.session import Tracer
from nki_sim.tensor import NkiTensor


class VirtualRegister(NkiTensor):
    """One int32 that an engine's sequencer can branch on and add to an address."""

    __slots__ = ("_runs",)

    def __init__(self, tensor: NkiTensor, runs: bool) -> None:
        super().__init__(tensor.storage, tensor.offset, tensor.pattern, tensor.dtype)
        self._runs = runs

    def value(self) -> int:
        """The content, while a kernel runs with numbers. Raises DeviceValueMisused while it is only traced."""
        if not self._runs:
            raise DeviceValueMisused(
                "a register's value is not known while tracing: loop with nl.fori_loop or nl.while_loop instead of "
                "Python's if and while"
            )
        return int(self.storage.readable().view(np.int32)[0])

    def __bool__(self) -> bool:
        return self.value() != 0


def new_register(tracer: Tracer, value: int | None) -> VirtualRegister:
    """A register of the running kernel, with a first value when one is given and the kernel runs with numbers."""
    contents = None if value is None else np.array([[value]], np.int32)
    tensor = tracer.allocate((1, 1), int32, MemoryRegion.register, "register", contents if tracer.numbers else None)
    return VirtualRegister(tensor, tracer.numbers)
