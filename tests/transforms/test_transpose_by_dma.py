"""A tile that is turned while it is loaded; and when it must be turned on the Tensor engine after all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.transpose_by_dma import TransposeByDma
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites

TURN = TransposeByDma()
KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    R, C = x.shape
    result = nl.ndarray((C, R), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(R // 128):
        # as it lies in HBM
        tile = nl.ndarray((128, C), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, 0:C])
        turned = nl.ndarray((C, 128), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=tile)
        tile_t = nl.ndarray((C, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile_t, src=turned)
        nisa.dma_copy(dst=result[0:C, i * 128 : (i + 1) * 128], src=tile_t)
    return result
"""
)


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 3), columns=st.sampled_from([32, 64, 128]), seed=st.integers(0, 1000))
def test_the_tile_is_the_same_and_the_tensor_engine_rests(rows, columns, seed):
    x = random(128 * rows, columns, seed=seed)

    after = applied(TURN, KERNEL, "tile")

    np.testing.assert_array_equal(run(after, x), x.T)
    assert count(after, "dma_transpose", x) == rows
    assert count(after, "nc_transpose", x) == count(after, "tensor_copy", x) == 0
    assert "# as it lies in HBM" in after


def test_both_operands_of_lora_can_be_turned():
    assert {"x_tile", "xa_tile"} <= set(sites(TURN, load_seed("lora").kernel_source))


COPY = "nisa.tensor_copy(dst=tile_t, src=turned)"
LOAD = "nisa.dma_copy(dst=tile, src=x[i * 128 : (i + 1) * 128, 0:C])"
TRANSPOSE = "nisa.nc_transpose(dst=turned, data=tile)"
AGAIN = "\n        nisa.dma_copy(dst=result[0:128, 0:C], src=tile)"
REFUSED = {
    "read again": (COPY, COPY + AGAIN, "exactly one other"),
    "turned is read again": (COPY, COPY + "\n        " + COPY, "exactly one other"),
    "scaled": (COPY, "nisa.tensor_scalar(dst=tile_t, data=turned, op0=nl.multiply, operand0=2.0)", "not just copied"),
    "a part": (TRANSPOSE, "nisa.nc_transpose(dst=turned, data=tile[:, 0:C])", "takes a part of tile"),
    "not turned": (TRANSPOSE, "nisa.tensor_copy(dst=turned, src=tile)", "not turned"),
    "another dtype": ("tile_t = nl.ndarray((C, 128), dtype=x.dtype", "tile_t = nl.ndarray((C, 128), dtype=nl.bfloat16",
                      "different dtypes"),
    "priority": (LOAD, LOAD.replace("0:C])", "0:C], priority=1)"), "says more"),
    "the source is written": (TRANSPOSE, TRANSPOSE + "\n        nisa.dma_copy(dst=x[0:128, 0:C], src=x[128:256, 0:C])",
                              "changes what tile was computed from"),
    "on chip": (LOAD, "nisa.dma_copy(dst=tile, src=spare)", "does not load from HBM"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_more_than_a_turned_load_is_refused_by_name_and_not_offered(old, new, reason):
    source = KERNEL.replace(old, new)
    assert source != KERNEL

    check_refused(TURN, source, "tile", reason)


def test_a_site_that_is_not_there_is_gone():
    with pytest.raises(SiteGone, match="nothing"):
        applied(TURN, KERNEL, "nothing")
