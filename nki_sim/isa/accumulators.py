"""Engine state that outlives an instruction: accumulator registers and random generators.

It is a buffer like any other (region `register`), so the program carries it, dependencies through it
are seen, and a replay finds the same values. One float32 per lane; lane p serves partition p.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

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


def state(engine: Engine, name: str, words: int, dtype: DType) -> NkiTensor:
    """State of the running kernel's engine: [128, words], made at the first use."""
    tracer = current()
    buffers = _state.setdefault(tracer, {})
    tensor = buffers.get((engine, name))
    if tensor is None:
        tensor = tracer.allocate((MAX_PARTITIONS, words), dtype, MemoryRegion.register, f"{engine.name} {name}")
        buffers[engine, name] = tensor
    return tensor
