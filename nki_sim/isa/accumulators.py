"""Engine state that outlives an instruction: accumulator registers and random generators.

It is a buffer like any other (region `register`), so the program carries it, dependencies through it
are seen, and a replay finds the same values. One float32 per lane; lane p serves partition p.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from nki_sim.dtypes import DType, float32
from nki_sim.memory import MAX_PARTITIONS, MemoryRegion
from nki_sim.program import Engine
from nki_sim.session import Tracer, current
from nki_sim.tensor import NkiTensor

_state: WeakKeyDictionary[Tracer, dict[tuple[Engine, str], NkiTensor]] = WeakKeyDictionary()


def lanes(engine: Engine, data: NkiTensor) -> NkiTensor:
    """The accumulator registers [partitions, 1] of the lanes that process `data`."""
    whole = state(engine, "accumulators", 1, float32)
    start = data.partition_start
    return whole[start : min(start + data.shape[0], MAX_PARTITIONS)]


def state(engine: Engine, name: str, words: int, dtype: DType, contents: np.ndarray | None = None) -> NkiTensor:
    """State of the running kernel's engine: [128, words], made at the first use with these contents."""
    tracer = current()
    buffers = _state.setdefault(tracer, {})
    tensor = buffers.get((engine, name))
    if tensor is None:
        label = f"{engine.name} {name}"
        tensor = tracer.allocate((MAX_PARTITIONS, words), dtype, MemoryRegion.register, label, contents)
        if contents is not None:
            tracer.constants[tensor.storage.allocation.id] = contents.copy()
        buffers[engine, name] = tensor
    return tensor
