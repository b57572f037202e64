"""A row loaded to all partitions at once: the same numbers without work on chip, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.broadcast_by_dma import BroadcastByDma
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

BY_DMA = BroadcastByDma()
X, G = random(256, 512), random(4, 512, seed=1)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, g):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(M // 128):
        tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[m * 128 : (m + 1) * 128, 0:N])
        row = nl.ndarray((1, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=g[m : m + 1, 0:N])
        # to all
        weights = nl.broadcast_to(row, (128, N))
        result = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=tile, data2=weights, op=nl.multiply)
        nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, 0:N], src=result)
    return out
"""
)
ROW = "        row = nl.ndarray((1, N), dtype=nl.float32, buffer=nl.sbuf)\n"
LOAD = "        nisa.dma_copy(dst=row, src=g[m : m + 1, 0:N])\n"
BROADCAST = "        weights = nl.broadcast_to(row, (128, N))\n"


def test_the_row_is_read_by_the_transfer_as_often_as_it_is_needed():
    changed = applied(BY_DMA, KERNEL, "weights")

    np.testing.assert_array_equal(run(changed, X, G), run(KERNEL, X, G))
    assert "row = nl" not in changed and "# to all" in changed
    assert count(changed, "nc_stream_shuffle", X, G) == 0 < count(KERNEL, "nc_stream_shuffle", X, G)
    assert count(changed, "dma_copy", X, G) == count(KERNEL, "dma_copy", X, G)
    assert proved_on(changed, KERNEL, X, G).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(X, G)
    assert predict(applied(BY_DMA, KERNEL, "weights")) < 0.95 * predict(KERNEL)


@pytest.mark.parametrize("before", ["row", "row and view"])
def test_a_row_that_others_need_or_that_is_loaded_before_the_loop_stays(before):
    source = KERNEL.replace(ROW + LOAD, "").replace(
        "    for m", (ROW + LOAD.replace("m : m + 1", "1:2"))[4:] + "    for m"
    )
    source = source.replace("\n        nisa.dma_copy(dst=row", "\n    nisa.dma_copy(dst=row")
    if before == "row and view":
        source = source.replace("src=g[1:2, 0:N]", "src=view").replace(
            "    row = ", "    view = g[1:2, 0:N]\n    row = "
        )

    changed = applied(BY_DMA, source, "weights")

    assert "row = nl" in changed
    np.testing.assert_array_equal(run(changed, X, G), run(source, X, G))


CHANGE = "        nisa.tensor_scalar(dst=row, data=row, op0=nl.add, operand0=1.0)\n"
VIEW = "        view = g[m : m + 1, 0:N]\n"
REFUSALS = {
    "the row is changed": (
        KERNEL.replace(BROADCAST, CHANGE + BROADCAST),
        "not filled by one transfer alone",
    ),
    "a part of the row is loaded": (
        KERNEL.replace("dst=row, src=g", "dst=row[0:1, 0:N], src=g"), "loads a part of row"
    ),
    "the row comes from a tile": (
        KERNEL.replace("src=g[m : m + 1, 0:N]", "src=tile[0:1, 0:N]"), "not a buffer of HBM"
    ),
    "where it comes from is written": (
        KERNEL.replace("src=g[m : m + 1, 0:N]", "src=out[m : m + 1, 0:N]"), "from where the row comes, is written"
    ),
    "another dtype": (KERNEL.replace("(row, (128, N))", "(row, (128, N), nl.bfloat16)"), "does more than"),
    "a shape by name": (KERNEL.replace("(row, (128, N))", "(row, x[0:128].shape)"), "written out"),
    "where it lies may have changed": (
        KERNEL.replace(LOAD, VIEW + LOAD.replace("g[m : m + 1, 0:N]", "view")).replace(
            BROADCAST, "        view = g[0:1, 0:N]\n" + BROADCAST
        ),
        "may have changed",
    ),
    "a nested function uses it": (
        KERNEL.replace("    for m", "    def peek():\n        return weights\n    for m"), "nested function"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(BY_DMA, source, "weights", reason)


PRODUCT = KERNEL.replace(
    "    for m",
    "    ones = nl.ndarray((1, 128), dtype=nl.float32, buffer=nl.sbuf)\n"
    "    nisa.memset(dst=ones, value=1.0)\n    for m",
).replace(
    BROADCAST,
    "        weights = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.psum)\n"
    "        nisa.nc_matmul(dst=weights, stationary=ones, moving=row)\n",
)


def test_a_column_of_ones_times_the_row_is_a_broadcast():
    changed = applied(BY_DMA, PRODUCT, "weights")

    np.testing.assert_array_equal(run(changed, X, G), run(PRODUCT, X, G))
    assert count(changed, "nc_matmul", X, G) == 0 and "row = nl" not in changed
    assert count(changed, "dma_copy", X, G) == count(PRODUCT, "dma_copy", X, G)
    assert proved_on(changed, PRODUCT, X, G).equivalence.finding is Finding.HELD


AGAIN = "nisa.nc_matmul(dst=weights, stationary=ones, moving=row)"
NO_BROADCASTS = {
    "not of ones": (PRODUCT.replace("value=1.0", "value=2.0"), None),
    "ones on two partitions": (PRODUCT.replace("(1, 128)", "(2, 128)"), None),
    "ones and something else": (
        PRODUCT.replace("    for m", "    nisa.memset(dst=ones[0:1, 0:1], value=2.0)\n    for m"), None
    ),
    "rounded": (PRODUCT.replace(ROW, ROW.replace("float32", "bfloat16")), "the same dtype"),
    "a part of the row": (PRODUCT.replace("moving=row", "moving=row[0:1, 0:N]"), "a whole row"),
    "summed up": (
        PRODUCT.replace("        nisa.nc_matmul", f"        {AGAIN}\n        nisa.nc_matmul"),
        "written elsewhere",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_BROADCASTS)
def test_refuses_products(case):
    source, reason = NO_BROADCASTS[case]

    assert source != PRODUCT
    if reason is None:
        assert sites(BY_DMA, source) == {}
    else:
        check_refused(BY_DMA, source, "weights", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(BY_DMA, KERNEL, "row")


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Rows by index, by slice and by view, used once or twice, to all partitions or to some."""
    where = data.draw(st.sampled_from(("g[m : m + 1, 0:N]", "g[0:1, 0:N]", "g[m + 1 : m + 2, 0:N]", "view")))
    rows = data.draw(st.sampled_from((128, 64, 32)), label="rows")
    source = KERNEL.replace("g[m : m + 1, 0:N]", where).replace("(128, N)", f"({rows}, N)")
    source = source.replace("m * 128 : (m + 1) * 128", f"m * {rows} : (m + 1) * {rows}")
    if where == "view":
        source = source.replace(ROW, VIEW + ROW)
    if data.draw(st.booleans(), label="twice"):
        again = "nisa.tensor_scalar(dst=result, data=weights, op0=nl.add, operand0=1.0)"
        source = source.replace("        nisa.tensor_tensor", f"        {again}\n        nisa.tensor_tensor")
    if data.draw(st.booleans(), label="row needed"):
        add = "nisa.tensor_tensor(dst=result[0:1, :], data1=result[0:1, :], data2=row, op=nl.add)"
        source = source.replace("        nisa.dma_copy(dst=out", f"        {add}\n        nisa.dma_copy(dst=out")
    for key in sites(BY_DMA, source):
        np.testing.assert_array_equal(run(applied(BY_DMA, source, key), X, G), run(source, X, G), err_msg=key)


PARTS = (
    PRODUCT.replace(
        "    ones =",
        "    everything = nl.ndarray((1, N), dtype=nl.float32, buffer=nl.sbuf)\n"
        "    nisa.dma_copy(everything, src=h)\n    ones =",
    )
    .replace("src=g[m : m + 1, 0:N]", "src=everything[0:1, 0:N]")
    .replace("    M, N = x.shape\n", "    M, N = x.shape\n    h = g.reshape((1, 4 * N))[0:1, 0:N]\n")
)


def test_part_of_a_row_that_was_loaded_before_comes_from_where_that_lies():
    changed = applied(BY_DMA, PARTS, "weights")

    np.testing.assert_array_equal(run(changed, X, G), run(PARTS, X, G))
    assert "src=h[0:1, 0:N].broadcast(0, 128)" in changed and "row = nl" not in changed


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(everything, src=h)", "(everything[0:1, 0:N], src=h)", "loads a part of everything"),
        ("(everything, src=h)", "(everything, src=h[0:1, 0:N])", "not a buffer of HBM loaded whole"),
        ("(1, N), dtype=nl.float32", "(1, N), dtype=nl.bfloat16", "same dtype"),
        ("    ones =", "    nisa.memset(dst=everything, value=0.0)\n    ones =", "not filled by one transfer alone"),
    ],
)
def test_part_of_a_row_that_was_not_simply_loaded_stays(old, new, reason):
    assert old in PARTS
    check_refused(BY_DMA, PARTS.replace(old, new, 1), "weights", reason)
