"""Long kernels are priced by a few of their iterations; that must not decide what is planned."""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.transforms.registry import transform_named
from infra.tasks.seed_index import load_seed
from nki_sim.profile import measure
from tests.transforms.running import applied, trace

SITES = {
    "block-tiles": "n#1x2",
    "widen-dma-rows": "k#2x4",
    "interchange-loops": "m,n#0/rhs_tile",
}


@pytest.mark.parametrize(
    "technique", [pytest.param(each, marks=pytest.mark.slow) if each == "block-tiles" else each for each in SITES]
)
def test_the_gain_that_extrapolated_loops_promise_is_the_exact_one_within_a_quarter(technique):
    source = load_seed("matmul").kernel_source
    lhs, rhs = np.zeros((2048, 5120), np.float32), np.zeros((5120, 4096), np.float32)
    programs = [
        trace(text, lhs, rhs) for text in (source, applied(transform_named(technique), source, SITES[technique]))
    ]

    cheap = [measure(program, exact=False) for program in programs]
    exact = [measure(program, exact=True) for program in programs]

    assert not cheap[0].exact
    cheap_us, exact_us = (before.latency_us - after.latency_us for before, after in (cheap, exact))
    assert cheap_us == pytest.approx(exact_us, rel=0.25)
