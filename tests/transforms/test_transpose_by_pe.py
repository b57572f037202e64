"""A tile that the Tensor engine turns after a plain load; and when the transfer has to go on turning it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.transpose_by_dma import TransposeByDma
from accelopt_core.transforms.transpose_by_pe import TransposeByPe
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites

TURN = TransposeByPe()
KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    R, C = x.shape
    W = 128
    result = nl.ndarray((C, R), dtype=x.dtype, buffer=nl.shared_hbm)
    spare = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=spare, value=0.0)
    for i in nl.affine_range(R // 128):
        tile = nl.ndarray((C, W), dtype=x.dtype, buffer=nl.sbuf)
        # turned on its way in
        nisa.dma_transpose(dst=tile, src=x[i * 128 : (i + 1) * 128, 0:C])
        nisa.dma_copy(dst=result[0:C, i * 128 : (i + 1) * 128], src=tile)
    return result
"""
)


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 3), columns=st.sampled_from([16, 64, 128]), seed=st.integers(0, 1000))
def test_the_tile_is_the_same_and_the_transfers_are_plain(rows, columns, seed):
    x = random(128 * rows, columns, seed=seed)

    after = applied(TURN, KERNEL, "tile")

    np.testing.assert_array_equal(run(after, x), x.T)
    assert count(after, "nc_transpose", x) == count(after, "tensor_copy", x) == rows
    assert count(after, "dma_transpose", x) == 0
    assert "# turned on its way in\n        tile_rows = " in after


def test_it_is_the_way_back():
    there = applied(TURN, KERNEL, "tile")

    back = applied(TransposeByDma(), there, "tile_rows")

    assert set(sites(TURN, KERNEL)) == {"tile"} and sites(TURN, there) == {}
    assert sites(TURN, back).keys() == {"tile"}
    x = random(256, 64)
    np.testing.assert_array_equal(run(back, x), run(KERNEL, x))
    assert count(back, "dma_transpose", x) == 2 and count(back, "nc_transpose", x) == 0


LOAD = "nisa.dma_transpose(dst=tile, src=x[i * 128 : (i + 1) * 128, 0:C])"
ALLOCATION = "tile = nl.ndarray((C, W), dtype=x.dtype, buffer=nl.sbuf)"
REFUSED = {
    "axes": (LOAD, LOAD.replace("0:C])", "0:C], axes=(1, 0))"), "says more"),
    "by position": (LOAD, LOAD.replace("dst=tile, src=", "tile, "), "not by name"),
    "on chip": (LOAD, "nisa.dma_transpose(dst=tile, src=spare)", "does not load from HBM"),
    "bound twice": (LOAD, LOAD + "\n        tile = spare", "bound 2 times"),
    "in PSUM": (ALLOCATION, ALLOCATION.replace("nl.sbuf", "nl.psum"), "not in SBUF"),
    "no two dimensions": (ALLOCATION, ALLOCATION.replace("(C, W)", "shape"), "does not show two dimensions"),
    "no dtype": (ALLOCATION, ALLOCATION.replace("dtype=x.dtype, ", ""), "does not show two dimensions and a dtype"),
    "another width by then": (LOAD, "W = 64\n        " + LOAD, "W, which tile is made with, may have changed"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_turned_afterwards_is_refused_by_name_and_not_offered(old, new, reason):
    source = KERNEL.replace(old, new)
    assert source != KERNEL

    check_refused(TURN, source, "tile", reason)


def test_a_part_of_a_tile_is_not_offered():
    source = KERNEL.replace("dst=tile, src=x[i", "dst=tile[0:C, 0:W], src=x[i")

    assert sites(TURN, source) == {}


def test_a_site_that_is_not_there_is_gone():
    with pytest.raises(SiteGone, match="nothing"):
        applied(TURN, KERNEL, "nothing")
