"""Tiles of several iterations in one transfer: what is done at once, what stays in order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.group_loads import GroupLoads
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

GROUP = GroupLoads()
A, B = random(1024, 64), random(1024, 256, seed=1)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(a, b):
    K, M = a.shape
    K2, N = b.shape
    out = nl.ndarray((M, N), dtype=a.dtype, buffer=nl.shared_hbm)
    # loaded first
    tiles = []
    for k in nl.affine_range(K // 128):
        loaded = nl.ndarray((128, M), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=loaded, src=a[k * 128 : (k + 1) * 128, 0:M])
        left = nl.ndarray((128, M), dtype=nl.bfloat16, buffer=nl.sbuf)
        # rounded
        nisa.tensor_copy(dst=left, src=loaded)
        tiles.append(left)
    total = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
    for k in nl.affine_range(K // 128):
        # its partner
        right = nl.ndarray((128, N), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=b[k * 128 : (k + 1) * 128, 0:N])
        nisa.nc_matmul(dst=total, stationary=tiles[k], moving=right)
    result = nl.ndarray((M, N), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out[0:M, 0:N], src=result)
    return out
"""
)
APPEND = "        tiles.append(left)\n"
LOAD = "        nisa.dma_copy(dst=right, src=b[k * 128 : (k + 1) * 128, 0:N])\n"
PRODUCT = "        nisa.nc_matmul(dst=total, stationary=tiles[k], moving=right)\n"


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_one_transfer_for_several_tiles_and_products_in_their_order(factor):
    grouped = applied(GROUP, applied(GROUP, KERNEL, f"k#0x{factor}"), f"k#2x{factor}")

    np.testing.assert_array_equal(run(grouped, A, B), run(KERNEL, A, B))
    assert count(grouped, "dma_copy", A, B) == 2 * 8 // factor + 1
    assert count(grouped, "tensor_copy", A, B) == 8 // factor + 1
    assert count(grouped, "nc_matmul", A, B) == count(KERNEL, "nc_matmul", A, B)
    assert proved_on(grouped, KERNEL, A, B).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(A, B)
    assert predict(applied(GROUP, KERNEL, "k#0x4")) < 0.97 * predict(KERNEL)


def test_a_list_holds_each_tile_as_before():
    """Read whole, in parts, and by a computed index."""
    source = KERNEL.replace("stationary=tiles[k]", "stationary=tiles[K // 128 - 1 - k][:, 0:M]")

    np.testing.assert_array_equal(run(applied(GROUP, source, "k#0x4"), A, B), run(source, A, B))


def test_a_list_that_grows_at_two_places_keeps_its_order():
    """What is appended stays in turns; the load between may not be merged past it."""
    twice = KERNEL.replace(APPEND, APPEND * 2)
    source = twice.replace("tiles[k]", "tiles[2 * k + 1]")
    early = source.replace("        # rounded\n", "        tiles.append(left)\n        # rounded\n", 1).replace(
        APPEND + APPEND, APPEND
    )

    for kernel in (source, early):
        np.testing.assert_array_equal(run(applied(GROUP, kernel, "k#0x2"), A, B), run(kernel, A, B))


def test_comments_stay_and_no_name_is_taken_twice():
    grouped = applied(GROUP, KERNEL.replace("    # loaded", "    i = 0\n    k_group = 0\n    # loaded"), "k#0x2")

    for comment in ("# loaded first", "# rounded", "# its partner"):
        assert comment in grouped
    assert "k_group2" in grouped and "for i2 in" in grouped
    np.testing.assert_array_equal(run(grouped, A, B), run(KERNEL, A, B))


def test_the_result_states_the_shapes_it_needs():
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(GROUP, KERNEL, "k#0x8"), A[:512], B[:512])


RIGHT = "        right = nl.ndarray((128, N), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
REFUSALS = {
    "nothing is loaded": (
        "k#1x2", KERNEL.replace(LOAD, "        nisa.memset(dst=right, value=1.0)\n"), "loads nothing"
    ),
    "a tile from before the loop": (
        "k#1x2",
        KERNEL.replace("        # its partner\n" + RIGHT, "").replace("    total = ", RIGHT[4:] + "    total = "),
        "can be loaded at once|works on several",
    ),
    "where it lies is not linear": (
        "k#1x2", KERNEL.replace("b[k * 128 : (k + 1) * 128", "b[k * k * 128 : k * k * 128 + 128"), "works on several"
    ),
    "what is loaded has a name": (
        "k#1x2",
        KERNEL.replace(PRODUCT, "        view = right[:, 0:N]\n" + PRODUCT.replace("moving=right", "moving=view")),
        "a name",
    ),
    "a list of lists": (
        "k#0x2",
        KERNEL.replace(APPEND, "        pair = [left, left]\n        tiles.append(pair)\n"),
        "a name|how many dimensions|no buffer",
    ),
    "left early": ("k#1x2", KERNEL.replace(PRODUCT, PRODUCT + "        break\n"), "left early"),
    "a branch": ("k#1x2", KERNEL.replace(PRODUCT, "        if k > 0:\n    " + PRODUCT), "stands in the loop"),
    "its source is written in the loop": (
        "k#1x2",
        KERNEL.replace(PRODUCT, PRODUCT + "        nisa.dma_copy(dst=b[0:128, 0:N], src=right)\n"),
        "can be loaded at once|works on several",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    key, source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(GROUP, source, key, reason)


@pytest.mark.parametrize("key", ["m#1x2", "k#9x2", "k#0", "k"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(GROUP, KERNEL, key)


def test_a_tile_that_what_stays_uses_by_a_pattern_is_not_offered():
    """Of the tiles of several iterations, a pattern would be another one."""
    source = KERNEL.replace("moving=right)", "moving=right.ap(pattern=[[N, 128], [1, N]]))").replace(
        "        nisa.nc_matmul",
        "        nisa.tensor_scalar(dst=right, data=right, op0=nl.add, operand0=1.0)\n        nisa.nc_matmul",
    )

    check_refused(GROUP, source, "k#1x2", "no buffer with its indices")


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Whole tiles and parts, more than one load, lists, work that adds up and work that does not, in any order."""
    steps = data.draw(
        st.lists(
            st.sampled_from(
                (
                    "nisa.dma_copy(dst=right, src=b[k * 128 : (k + 1) * 128, 0:N])",
                    "nisa.dma_copy(dst=right, src=b[(K // 128 - 1 - k) * 128 : (K // 128 - k) * 128, 0:N])",
                    "nisa.dma_copy(dst=right[0:128, 0:N], src=b[0:128, 0:N])",
                    "nisa.tensor_scalar(dst=right, data=right, op0=nl.add, operand0=1.0)",
                    "nisa.tensor_tensor(dst=right, data1=right, data2=right, op=nl.multiply)",
                    "nisa.tensor_scalar(dst=right, data=right, op0=nl.add, operand0=1.0 * k)",
                    "nisa.tensor_copy(dst=right[:, 0:1], src=right[:, 1:2])",
                    "nisa.nc_matmul(dst=total, stationary=tiles[k], moving=right)",
                    "kept.append(right)",
                )
            ),
            max_size=4,
        ),
        label="steps",
    )
    body = "".join(f"        {step}\n" for step in ("nisa.memset(dst=right, value=2.0)", *steps))
    source = KERNEL.replace(LOAD, body).replace("    total = ", "    kept = []\n    total = ")
    if "kept.append(right)" in steps:
        source = source.replace(
            "    result = ", "    nisa.nc_matmul(dst=total, stationary=tiles[0], moving=kept[1])\n    result = "
        )
    given_a, given_b = np.abs(A[:512, :16]), np.abs(B[:512, :32])
    expected = run(source, given_a, given_b)
    for key in sites(GROUP, source):
        if not key.endswith("x8"):
            np.testing.assert_array_equal(run(applied(GROUP, source, key), given_a, given_b), expected, err_msg=key)
