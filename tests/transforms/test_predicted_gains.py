"""What the planner expects of a change is what the judge then measures, within a quarter; and the result is right."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Measured
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from accelopt_core.transforms.registry import transform_named
from infra.predictor import Predictor
from infra.seed_index import load_seed
from infra.targets import LocalTarget
from nki_sim.profile import measure
from tests.transforms.running import applied, trace

SHAPES = {
    "matmul": {"M": 512, "K": 512, "N": 1024},
    "silu": {"M": 512, "N": 3584},
}


def silu_with_one_buffer() -> str:
    """The silu seed with its tiles made once, before the loops."""
    source = load_seed("silu").kernel_source
    lines = source.splitlines(True)
    made = [line for line in lines if line.startswith("            ") and "nl.ndarray" in line]
    assert len(made) == 2
    kept = "".join(line for line in lines if line not in made)
    before, loops, after = kept.partition("    for m in ")
    return before + "".join(line[8:] for line in made) + "\n" + loops + after


CASES = {
    "block-tiles": ("matmul", "n#1x2"),
    "widen-dma-rows": ("matmul", "k#2x4"),
    "interchange-loops": ("matmul", "m,n#0/rhs_tile"),
    "rotate-buffers": ("silu", "tile/n#1"),
}


@functools.cache
def task_of(name: str) -> Task:
    seed = load_seed(name)
    return dataclasses.replace(seed.task(), presets=(ShapePreset("only", tuple(SHAPES[name].items())),))


@functools.cache
def judged_us(name: str, source: str) -> float:
    result = LocalTarget().evaluate(EvaluationRequest(task_of(name), Candidate("c", source)), lambda step, detail: None)
    assert isinstance(result, Measured), result
    return result.latency_us


@pytest.mark.parametrize("technique", CASES)
def test_the_predicted_gain_is_the_simulated_one_within_a_quarter(technique):
    name, key = CASES[technique]
    source = silu_with_one_buffer() if technique == "rotate-buffers" else load_seed(name).kernel_source
    changed = applied(transform_named(technique), source, key)
    predictor = Predictor(task_of(name), "trn2")
    try:
        before_us, after_us = predictor([source, changed]).values()
    finally:
        predictor.close()
    assert before_us is not None and after_us is not None
    predicted_us = before_us - after_us

    simulated_us = judged_us(name, source) - judged_us(name, changed)

    assert predicted_us > 0.01 * before_us
    assert predicted_us == pytest.approx(simulated_us, rel=0.25)


@pytest.mark.parametrize("technique", [technique for technique, (name, _) in CASES.items() if name == "matmul"])
def test_the_gain_that_extrapolated_loops_promise_is_the_exact_one_within_a_quarter(technique):
    """Long kernels are priced by a few of their iterations; that must not decide what is planned."""
    source = load_seed("matmul").kernel_source
    lhs, rhs = np.zeros((2048, 5120), np.float32), np.zeros((5120, 4096), np.float32)
    programs = [
        trace(text, lhs, rhs) for text in (source, applied(transform_named(technique), source, CASES[technique][1]))
    ]

    cheap = [measure(program, exact=False) for program in programs]
    exact = [measure(program, exact=True) for program in programs]

    assert not cheap[0].exact
    cheap_us, exact_us = (before.latency_us - after.latency_us for before, after in (cheap, exact))
    assert cheap_us == pytest.approx(exact_us, rel=0.25)
