"""What the compiler of the old dialect (`neuronxcc.nki`) decided by itself and the current one has a kernel state.

For kernels measured there and written anew here. The choices are the renderings that fit the measurements best
(`data/README.md`), not documented facts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki_sim
from nki_sim import dtypes
from nki_sim.nki import isa as nisa
from nki_sim.nki import language as nl
from nki_sim.program.program import Engine, Program
from nki_sim.tracing.session import TensorSpec

P, COLUMNS = 128, 512
"""Partitions; float32 columns of a PSUM bank, the widest product."""

_QUEUES = (Engine.sync, Engine.scalar)
_COPYING = (Engine.scalar, Engine.vector)


class Rotation:
    """Tiles of one shape, used in turn: a load waits until the tile's last reader is done.

    `buffers` 0: a fresh tile every time, which waits for nothing but space.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, buffers: int) -> None:
        self._shape, self._dtype = shape, dtype
        self._tiles = [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(buffers)]
        self._at = -1

    def tile(self) -> Any:
        if not self._tiles:
            return nl.ndarray(self._shape, dtype=self._dtype, buffer=nl.sbuf)
        self._at = (self._at + 1) % len(self._tiles)
        return self._tiles[self._at]


class Decisions:
    """Queues and engines of one kernel, chosen instruction by instruction."""

    def __init__(self) -> None:
        self._transfers = 0
        self._copies = 0

    def transfer(self, dst: Any, src: Any) -> None:
        """Two queues in turn, descriptors prepared in memory: that compiler ran with generation on the device off."""
        queue = _QUEUES[self._transfers % len(_QUEUES)]
        self._transfers += 1
        nisa.dma_copy(dst=dst, src=src, engine=queue, dge_mode=nisa.dge_mode.none)

    def copy(self, dst: Any, src: Any) -> None:
        """On Scalar and Vector in turn. All of mamba's v4 (K034, K035) on Vector would take it longer than the device
        took, all on Scalar leave 12 % of that unexplained."""
        engine = _COPYING[self._copies % len(_COPYING)]
        self._copies += 1
        nisa.tensor_copy(dst=dst, src=src, engine=engine)

    def tensor_tensor(self, dst: Any, data1: Any, data2: Any, op: Any) -> None:
        nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=op)

    def activation(self, dst: Any, op: Any, data: Any, scale: Any = 1.0) -> None:
        nisa.activation(dst=dst, op=op, data=data, scale=scale)

    def scan(self, dst: Any, factors: Any, terms: Any, initial: Any) -> None:
        """The recurrence h = factors * h + terms along the columns."""
        nisa.tensor_tensor_scan(dst=dst, data0=factors, data1=terms, initial=initial, op0=nl.multiply, op1=nl.add)

    def constant(self, values: np.ndarray) -> Any:
        """In SBUF, loaded once."""
        tile = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
        self.transfer(tile, nl.shared_constant(values.astype(np.float32)))
        return tile


def trace(kernel: Any, *shapes: tuple[int, ...]) -> Program:
    """Of float32 inputs."""
    return nki_sim.trace(kernel, *(TensorSpec(shape, dtypes.float32) for shape in shapes))
