"""Products by one stationary tile, for several iterations at once: inner loops and all, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.widen_products import WidenProducts
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, run, sites, whole

WIDEN = WidenProducts()
X, W = whole(128, 34, 16), whole(3, 128, 64, seed=1)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, w):
    C, H, W = x.shape
    T, C2, O = w.shape
    R = H - T + 1
    out = nl.ndarray((O, R, W), dtype=x.dtype, buffer=nl.shared_hbm)
    image = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=image, src=x)
    taps = nl.ndarray((C, T, O), dtype=x.dtype, buffer=nl.sbuf)
    for t in range(T):
        nisa.dma_copy(dst=taps[:, t, :], src=w[t])
    # row by row
    for r in range(R):
        total = nl.ndarray((O, W), dtype=nl.float32, buffer=nl.psum)
        # every tap
        for t in range(T):
            at = r + t
            nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, at, :])
        row = nl.ndarray((O, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=row, data=total, op0=nl.maximum, operand0=0.0)
        nisa.dma_copy(dst=out[:, r, :], src=row)
    return out
"""
)
PRODUCT = "            nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, at, :])\n"


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_the_rows_of_several_iterations_in_one_product(factor):
    widened = applied(WIDEN, KERNEL, f"r#1x{factor}")

    np.testing.assert_array_equal(run(widened, X, W), run(KERNEL, X, W))
    for operation in ("nc_matmul", "tensor_scalar"):
        assert factor * count(widened, operation, X, W) == count(KERNEL, operation, X, W)
    assert "at = " not in widened and "# every tap" in widened and "# row by row" in widened
    assert proved_on(widened, KERNEL, X, W).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(X, W)
    assert predict(applied(WIDEN, KERNEL, "r#1x8")) < 0.8 * predict(KERNEL)


def test_products_without_an_inner_loop():
    nest = "        for t in range(T):\n            at = r + t\n" + PRODUCT
    alone = PRODUCT[4:].replace("taps[:, t, :]", "taps[:, 0, :]").replace("image[:, at, :]", "image[:, r, :]")
    source = KERNEL.replace(nest, alone)
    assert source != KERNEL
    widened = applied(WIDEN, source, "r#1x4")

    np.testing.assert_array_equal(run(widened, X, W), run(source, X, W))
    assert count(widened, "nc_matmul", X, W) == 8


def test_what_else_stands_there_stays_in_its_order():
    """A sum over all rows is none of any single one."""
    source = KERNEL.replace(
        "    # row by row\n", "    sums = nl.zeros((O, W), dtype=nl.float32, buffer=nl.sbuf)\n    # row by row\n"
    ).replace(
        "        nisa.dma_copy(dst=out[:, r, :], src=row)\n",
        "        nisa.tensor_tensor(dst=sums, data1=sums, data2=row, op=nl.add)\n"
        "        nisa.dma_copy(dst=out[:, r, :], src=sums)\n",
    )
    widened = applied(WIDEN, source, "r#1x4")

    np.testing.assert_array_equal(run(widened, X, W), run(source, X, W))
    assert count(widened, "tensor_tensor", X, W) == count(source, "tensor_tensor", X, W)
    assert 4 * count(widened, "nc_matmul", X, W) == count(source, "nc_matmul", X, W)


def test_the_result_states_the_shapes_it_needs():
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(WIDEN, KERNEL, "r#1x8"), X[:, :14], W)


REFUSALS = {
    "nothing is multiplied": ("t#0x2", KERNEL, "multiplies nothing"),
    "every iteration has a stationary tile of its own": (
        "r#1x2", KERNEL.replace("taps[:, t, :], moving", "taps[:, r - r // 3 * 3, :], moving"), "one stationary tile"
    ),
    "the stationary tile moves on": (
        "r#1x2", KERNEL.replace("stationary=taps[:, t, :]", "stationary=image[:, at, :]"), "one stationary tile"
    ),
    "where it lies is not linear": (
        "r#1x2", KERNEL.replace("at = r + t", "at = r * r % 32 + t"), "linear|one stationary tile|not understood"
    ),
    "one sum of all": (
        "r#1x2",
        KERNEL.replace("        total = nl.ndarray((O, W), dtype=nl.float32, buffer=nl.psum)\n", "").replace(
            "    # row by row\n",
            "    total = nl.ndarray((O, W), dtype=nl.float32, buffer=nl.psum)\n    # row by row\n",
        ),
        "one stationary tile|fills total|bound|works on several",
    ),
    "a part of the array": (
        "r#1x2", KERNEL.replace("moving=image[:, at, :])", "moving=image[:, at, :], is_transpose=False)"),
        "one stationary tile",
    ),
    "as many products as the iteration counts": (
        "r#1x2", KERNEL.replace("for t in range(T):\n            at", "for t in range(1 + r % 3):\n            at"),
        "one stationary tile",
    ),
    "left early": ("r#1x2", KERNEL.replace(PRODUCT, PRODUCT + "            break\n"), "left early|not understood"),
    "a branch": (
        "r#1x2", KERNEL.replace(PRODUCT, "            if t > 0:\n    " + PRODUCT), "stands in the loop|one stationary"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    key, source, reason = REFUSALS[case]

    check_refused(WIDEN, source, key, reason)


@pytest.mark.parametrize("key", ["m#1x2", "r#9x2", "r#1", "r"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(WIDEN, KERNEL, key)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Products of one tile and of several, sums that go on from row to row, work beside them, in any order."""
    steps = data.draw(
        st.lists(
            st.sampled_from(
                (
                    "nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, r + t, :])",
                    "nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, R - 1 - r + t, :])",
                    "nisa.nc_matmul(dst=total, stationary=taps[:, 1, :], moving=image[:, r, :])",
                    "nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, t, :])",
                    "nisa.nc_matmul(dst=total[:, 0:4], stationary=taps[:, t, :], moving=image[:, r, 4:8])",
                    "nisa.nc_matmul(dst=total, stationary=taps[:, t, :], moving=image[:, r + t, :], accumulate=False)",
                    "nisa.tensor_scalar(dst=image[:, r, :], data=image[:, r, :], op0=nl.multiply, operand0=0.5)",
                    "nisa.tensor_scalar(dst=kept[:, r, :], data=image[:, r, :], op0=nl.multiply, operand0=0.5)",
                )
            ),
            max_size=4,
        ),
        label="steps",
    )
    first = "nisa.nc_matmul(dst=total, stationary=taps[:, 0, :], moving=image[:, r, :])"
    body = "".join(f"            {step}\n" for step in steps) or "            pass\n"
    source = KERNEL.replace("            at = r + t\n" + PRODUCT, body).replace(
        "        # every tap\n", f"        {first}\n"
    )
    source = source.replace(
        "    # row by row\n", "    kept = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)\n    # row by row\n"
    )
    x, w = X[:, :10], W[:, :, :16]
    expected = run(source, x, w)
    for key in sites(WIDEN, source):
        np.testing.assert_array_equal(run(applied(WIDEN, source, key), x, w), expected, err_msg=key)
