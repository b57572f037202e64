"""Runs and prices kernels given as text on the simulator, in this process (the kernels are the tests' own)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import nki_sim
from accelopt_core.ports import Predict
from nki_sim.errors import NkiError
from nki_sim.machine import TRN2
from nki_sim.program.program import Program
from nki_sim.timing.capacity import check_capacity
from nki_sim.timing.schedule import schedule
from nki_sim.tracing import repeated

nki_sim.install()

HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"


def kernel_of(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "kernel_under_test"}
    exec(repeated.compiled(source, "/nowhere/kernel.py", names), names)
    kernel: Callable[..., Any] = names["kernel"]
    return kernel


def run(source: str, *arrays: np.ndarray) -> Any:
    return nki_sim.simulate(kernel_of(source))(*arrays)


def trace(source: str, *arrays: np.ndarray) -> Program:
    return nki_sim.trace(kernel_of(source), *arrays)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def predictor(*arrays: np.ndarray) -> Predict:
    """Simulated µs of sources on these arguments, as the catalogue asks for them; None for what cannot run."""

    @functools.cache
    def price(source: str) -> float | None:
        try:
            program = trace(source, *arrays)
            check_capacity(program)
        except (NkiError, AssertionError):
            return None
        return schedule(program, TRN2).latency_us

    def prices(sources: Sequence[str], limit_s: float = 0.0) -> Mapping[str, float | None]:
        return {source: price(source) for source in sources}

    return prices
