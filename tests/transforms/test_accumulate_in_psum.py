"""Products of a loop added up in PSUM: the same sums, no additions on Vector, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.accumulate_in_psum import AccumulateInPsum
from accelopt_core.transforms.base import SiteGone
from nki_sim.profile import measure
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites, trace

ACCUMULATE = AccumulateInPsum()

SUM = (
    HEADER
    + """
@nki.jit
def kernel(lhs_t, rhs):
    K, M = lhs_t.shape
    _, N = rhs.shape
    result = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(M // 128):
        total = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for k in nl.sequential_range(K // 128):
            left = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=lhs_t[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
            right = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=rhs[k * 128 : (k + 1) * 128, 0:N])
            # one product
            product = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=left, moving=right)
            nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)
        nisa.dma_copy(dst=result[m * 128 : (m + 1) * 128, 0:N], src=total)
    return result
"""
)


@settings(max_examples=8, deadline=None)
@given(k=st.integers(1, 3), m=st.integers(1, 2), n=st.sampled_from([64, 256, 512]), seed=st.integers(0, 1000))
def test_the_sum_is_the_same_and_vector_adds_nothing(k, m, n, seed):
    left, right = random(128 * k, 128 * m, seed=seed), random(128 * k, n, seed=seed + 1)

    after = applied(ACCUMULATE, SUM, "total")

    np.testing.assert_allclose(run(after, left, right), run(SUM, left, right), rtol=1e-5, atol=1e-5)
    assert count(after, "tensor_tensor", left, right) == 0
    assert count(after, "tensor_copy", left, right) == m
    assert "# one product" in after


def test_it_is_offered_once_and_relieves_the_vector_engine():
    left, right = random(512, 128), random(512, 512, seed=1)
    sources = (SUM, applied(ACCUMULATE, SUM, "total"))

    busy = [measure(trace(source, left, right)).fields["vector_engine_active_time"] for source in sources]

    assert list(sites(ACCUMULATE, SUM)) == ["total"]
    assert busy[1] < 0.5 * busy[0]


def test_the_other_order_of_operands_is_the_same_addition():
    swapped = SUM.replace("data1=total, data2=product", "data1=product, data2=total")

    assert list(sites(ACCUMULATE, swapped)) == ["total"]


ADD = "nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)"
PRODUCT = "product = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.psum)"
MATMUL = "nisa.nc_matmul(dst=product, stationary=left, moving=right)"
REFUSED = {
    "a difference": (ADD, ADD.replace("nl.add", "nl.subtract"), "only add up"),
    "does not start at zero": ("value=0.0", "value=1.0", "does not start at zero"),
    "used in the loop": (ADD, ADD + "\n            nisa.tensor_copy(dst=left, src=total[:, 0:128])", "otherwise too"),
    "product used again": (ADD, ADD + "\n            nisa.tensor_copy(dst=right, src=product)", "this addition alone"),
    "two products": (MATMUL, MATMUL + "\n            " + MATMUL, "one nc_matmul"),
    "a part of the product": (MATMUL, MATMUL.replace("dst=product", "dst=product[:, 0:N]"), "whole of product"),
    "accumulates itself": (MATMUL, MATMUL.replace("moving=right", "moving=right, accumulate=False"), "says itself"),
    "rounds": ("total = nl.ndarray((128, N), dtype=nl.float32", "total = nl.ndarray((128, N), dtype=nl.bfloat16",
               "not a float32 tile of SBUF"),
    "another shape": (PRODUCT, PRODUCT.replace("(128, N)", "(128, 1 * N)"), "same shape"),
    "a shape of the loop": (PRODUCT, PRODUCT.replace("(128, N)", "(128, N + 0 * k)"), "changes from one iteration"),
    "set twice": ("        nisa.memset(dst=total, value=0.0)\n", "        nisa.memset(dst=total, value=0.0)\n" * 2,
                  "not just set to zero"),
    "leaves early": (ADD, ADD + "\n            break", "runs to its end"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_plain_sum_is_refused_by_name_and_not_offered(old, new, reason):
    source = SUM.replace(old, new)
    assert source != SUM

    check_refused(ACCUMULATE, source, "total", reason)
    assert sites(ACCUMULATE, source) == {}


def test_a_site_that_is_not_there_is_gone():
    with pytest.raises(SiteGone, match="nothing"):
        applied(ACCUMULATE, SUM, "nothing")
