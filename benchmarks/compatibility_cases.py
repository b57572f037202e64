"""A public kernel to try: how to call it and what it must compute, in NumPy; the cases of one repository are a file.

A case is a function that takes the loaded kernel, calls it and returns (result, expected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Result = tuple[np.ndarray, np.ndarray]
Register = Callable[[Callable[[Any], Result]], Callable[[Any], Result]]
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    repository: str
    """sdk, autocomp or library."""
    file: str
    function: str
    what: str
    run: Callable[[Any], Result]
    """Takes the loaded kernel."""
    tolerance: float = 1e-4
    """Largest difference, relative to the largest expected magnitude."""
    rejected: str = ""
    """For a file that breaks a rule of the current dialect: what the error has to say."""


CASES: list[Case] = []


def case(repository: str, file: str, function: str, what: str, tolerance: float = 1e-4, rejected: str = "") -> Register:
    def register(run: Callable[[Any], Result]) -> Callable[[Any], Result]:
        CASES.append(Case(repository, file, function, what, run, tolerance, rejected))
        return run

    return register


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def f32(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


def rotated(x: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Rotary embedding with the dimensions on axis 0, first half paired with the second."""
    half = len(x) // 2
    a, b = x[:half], x[half:]
    return np.concatenate([a * c - b * s, b * c + a * s])


def selective_scan(delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """y[channel, step] of one batch of Mamba: delta, u [1, channels, steps]; a [channels, states]; b, c [1, states,
    steps]."""
    h, y = np.zeros(a.shape), np.zeros(delta.shape)
    for t in range(delta.shape[-1]):
        h = np.exp(delta[0, :, t, None] * a) * h + delta[0, :, t, None] * b[0, :, t] * u[0, :, t, None]
        y[0, :, t] = (h * c[0, :, t]).sum(-1)
    return y
