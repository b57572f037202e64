"""Two kernels of one shipped task, held against each other in exact arithmetic at its small shape."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import nki_sim
from accelopt_core.judging.verification import Reference
from infra.tasks.seed_index import load_seed
from nki_sim.proofs.equivalence import Original, Proofs, prove
from nki_sim.proofs.execution import Input
from tests.transforms.running import kernel_of

SEED = 20261122
"""Of the drawing; the judge's is secret."""


@functools.cache
def arguments(task: str) -> list[Any]:
    seed = load_seed(task)
    reference = Reference(seed.task(), seed.presets[0])
    return reference.kernel_arguments(reference.inputs(0))


@functools.lru_cache(maxsize=4)
def original(task: str, source: str) -> Original:
    inputs = [Input(None if a.dtype.kind == "f" else a) for a in arguments(task) if isinstance(a, np.ndarray)]
    return Original(lambda: nki_sim.trace(kernel_of(source), *arguments(task)), inputs, SEED)


def proved(task: str, source: str, against: str) -> Proofs:
    """Raises what tracing `source` raises."""
    return prove(nki_sim.trace(kernel_of(source), *arguments(task)), original(task, against))


def proved_on(source: str, against: str, *arrays: np.ndarray) -> Proofs:
    """Two kernels of a test's own, on arguments of these shapes."""
    inputs = [Input(None if array.dtype.kind == "f" else array) for array in arrays]
    return prove(
        nki_sim.trace(kernel_of(source), *arrays),
        Original(lambda: nki_sim.trace(kernel_of(against), *arrays), inputs, SEED),
    )
