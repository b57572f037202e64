"""Engine state that outlives an instruction: accumulator registers and random generators.

It is a buffer like any other (region `register`), so the program carries it, dependencies through it
are seen, and a replay finds the same values. One float32 per lane; lane p serves partition p.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_sim.dtypes import DType, float32
from nki_sim.isa.constants import reduce_cmd
from nki_sim.machine import ISA
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Engine
from nki_sim.tracing.session import current
from nki_sim.tracing.tensor import NkiTensor

ACCESS = {
    reduce_cmd.idle: "r",
    reduce_cmd.reset: "w",
    reduce_cmd.reset_reduce: "w",
    reduce_cmd.load_reduce: "w",
    reduce_cmd.reduce: "u",
}
"""How an instruction touches the accumulators: whoever starts anew waits for nobody's sum."""


def access(attrs: Any) -> str:
    """`attrs` has a `reduce_cmd`."""
    return ACCESS[attrs.reduce_cmd]


def lanes(engine: Engine, data: NkiTensor) -> NkiTensor:
    """The accumulator registers [partitions, 1] of the lanes that process `data`."""
    start = data.partition_start
    stop = min(start + data.pattern[0][1], ISA.partitions)
    cache = current().cache
    key = (engine, start, stop)
    view = cache.get(key)
    if view is None:
        view = cache[key] = state(engine, "accumulators", 1, float32)[start:stop]
    return view


def state(engine: Engine, name: str, words: int, dtype: DType, contents: np.ndarray | None = None) -> NkiTensor:
    """State of the running kernel's engine: [128, words], made at the first use with these contents."""
    tracer = current()
    key = (engine, name)
    tensor = tracer.cache.get(key)
    if tensor is None:
        label = f"{engine.name} {name}"
        tensor = tracer.allocate((ISA.partitions, words), dtype, MemoryRegion.register, label, contents)
        if contents is not None:
            tracer.constants[tensor.storage.allocation.id] = contents.copy()
        tracer.cache[key] = tensor
    return tensor
