"""Runs kernel text on the simulator, at small shapes, in this process (the kernels are the tests' own)."""

from __future__ import annotations

import functools
import linecache
import re
import types
from dataclasses import replace

import numpy as np
import pytest

import nki_sim
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    NotOfItsKind,
    Refusal,
    Site,
    Transform,
    parse_kernel,
)
from nki_sim.machine import TRN2

nki_sim.install()

HEADER = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"
_count = 0


def kernel_of(source: str):
    global _count
    _count += 1
    name = f"<test kernel {_count}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    module = types.ModuleType("test_kernel")
    exec(compile(source, name, "exec"), module.__dict__)
    return module.kernel


def run(source: str, *arrays: np.ndarray):
    import nki

    return nki.simulate(kernel_of(source))(*arrays)


def trace(source: str, *arrays: np.ndarray):
    return nki_sim.trace(kernel_of(source), *arrays)


def count(source: str, opcode: str, *arrays: np.ndarray) -> int:
    """How often the traced kernel issues an instruction."""
    program = trace(source, *arrays)
    return sum(program.templates[number].opcode == opcode for number in program.template_ids)


def sites(transform: Transform, source: str) -> dict[str, Site]:
    return {site.key: site for site in transform.analyze(parse_kernel(source), AnalysisContext())}


def refusals(transform: Transform, source: str) -> list[Refusal]:
    told: list[Refusal] = []
    transform.analyze(parse_kernel(source), AnalysisContext(told=told.append))
    return told


def check_refused(transform: Transform, source: str, key: str, reason: str) -> None:
    """It is refused by name, not offered, and told to whoever listens, unless there is nothing of the kind there."""
    with pytest.raises(IllegalSite, match=reason) as refused:
        applied(transform, source, key)
    assert key not in sites(transform, source)
    told = [each for each in refusals(transform, source) if re.search(reason, each.why)]
    if isinstance(refused.value, NotOfItsKind):
        assert not told
    else:
        assert told, [each.why for each in refusals(transform, source)]
        lines = len(source.splitlines())
        assert all(each.transform == transform.name and each.key for each in told)
        assert all(0 < line <= lines for each in told for line in each.lines | {each.line})


def applied(transform: Transform, source: str, key: str) -> str:
    return transform.apply(parse_kernel(source), key).code


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers, whose products are exact in whatever order a processor's BLAS adds them up: for a wider
    product it may be another one."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


KEEPS_LOADS = replace(TRN2, reload_window_bytes=0)
"""A machine whose compiler leaves no repeated load out: on small shapes TRN2's leaves out what a transform would."""


def predictor(*arrays, core=TRN2):
    """Simulated µs of a source on these arguments; None when it cannot run."""
    from nki_sim.capacity import check_capacity
    from nki_sim.errors import NkiError
    from nki_sim.schedule import schedule

    @functools.cache
    def price(source: str) -> float | None:
        try:
            program = trace(source, *arrays)
            check_capacity(program)
        except (NkiError, AssertionError):
            return None
        return schedule(program, core).latency_us

    return price


def priced_by(price):
    """The predictor that the catalogue is handed: asks a function about one source after the other."""
    return lambda sources, limit_s=0.0: {source: price(source) for source in sources}
