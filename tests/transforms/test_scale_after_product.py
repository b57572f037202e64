"""Rows of a product scaled instead of rows of its operand: the same up to rounding, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.scale_after_product import ScaleAfterProduct
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

SCALE = ScaleAfterProduct()
X, V = random(256, 512), random(512, 64, seed=1)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, v):
    M, N = x.shape
    N2, D = v.shape
    out = nl.ndarray((M, D), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(M // 128):
        e = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=e, src=x[m * 128 : (m + 1) * 128, 0:N])
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.maximum, data=e, axis=1)
        s = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=s, data=total)
        w = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        # divided
        nisa.tensor_scalar(dst=w, data=e, op0=nl.multiply, operand0=s)
        product = nl.ndarray((128, D), dtype=nl.float32, buffer=nl.psum)
        for j in range(N // 128):
            t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=t, data=w[0:128, j * 128 : (j + 1) * 128])
            u = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=u, src=t)
            right = nl.ndarray((128, D), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=v[j * 128 : (j + 1) * 128, 0:D])
            nisa.nc_matmul(dst=product, stationary=u, moving=right)
        result = nl.ndarray((128, D), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=product)
        nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, 0:D], src=result)
    return out
"""
)
DIVIDE = "        nisa.tensor_scalar(dst=w, data=e, op0=nl.multiply, operand0=s)\n"
TURN = "            nisa.nc_transpose(dst=t, data=w[0:128, j * 128 : (j + 1) * 128])\n"
PRODUCT = "            nisa.nc_matmul(dst=product, stationary=u, moving=right)\n"
COPY = "        nisa.tensor_copy(dst=result, src=product)\n"


def test_the_product_is_scaled_and_the_operand_is_not():
    scaled = applied(SCALE, KERNEL, "w")

    np.testing.assert_allclose(run(scaled, X, V), run(KERNEL, X, V), rtol=1e-4, atol=1e-4)
    assert "w = nl" not in scaled and "# divided" in scaled
    assert count(scaled, "tensor_copy", X, V) == count(KERNEL, "tensor_copy", X, V) - 2
    assert count(scaled, "tensor_scalar", X, V) == count(KERNEL, "tensor_scalar", X, V)
    assert proved_on(scaled, KERNEL, X, V).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(random(256, 4096), random(4096, 64))
    assert predict(applied(SCALE, KERNEL, "w")) < 0.97 * predict(KERNEL)


def test_the_copy_keeps_its_engine():
    source = KERNEL.replace("src=product)", "src=product, engine=nisa.engine.scalar)")
    assert "operand0=s, engine=nisa.engine.scalar)" in applied(SCALE, source, "w")


OTHER = PRODUCT + "            nisa.nc_matmul(dst=product, stationary=right[:, 0:64], moving=right)\n"
REFUSALS = {
    "nothing is turned": (KERNEL.replace(TURN, "            nisa.memset(dst=t, value=1.0)\n"), "is not turned"),
    "a number is added": (KERNEL.replace("op0=nl.multiply, operand0=s", "op0=nl.add, operand0=s"), "does not multiply"),
    "one number for all": (KERNEL.replace("operand0=s", "operand0=2.0"), "one number for each partition"),
    "two steps": (KERNEL.replace("operand0=s)", "operand0=s, op1=nl.add, operand1=s)"), "more than one step"),
    "scaled in place": (KERNEL.replace("dst=w, data=e", "dst=w, data=w"), "into another"),
    "it rounds": (
        KERNEL.replace("w = nl.ndarray((128, N), dtype=nl.float32", "w = nl.ndarray((128, N), dtype=nl.bfloat16"),
        "the same dtype",
    ),
    "it is needed elsewhere": (
        KERNEL.replace(COPY, COPY + "        nisa.tensor_copy(dst=result[:, 0:1], src=w[:, 0:1])\n"),
        "more with w than turn",
    ),
    "not all partitions": (KERNEL.replace("w[0:128, j", "w[0:64, j"), "all partitions"),
    "the scale changes": (KERNEL.replace(COPY, "        nisa.memset(dst=s, value=1.0)\n" + COPY), "s is written again"),
    "what is scaled changes": (
        KERNEL.replace("        product = ", "        nisa.memset(dst=e, value=1.0)\n        product = "),
        "e is written again",
    ),
    "the turned tile is changed": (
        KERNEL.replace(PRODUCT, "            nisa.activation(dst=u, op=nl.exp, data=u)\n" + PRODUCT),
        "stationary operand",
    ),
    "it is the moving operand": (
        KERNEL.replace("stationary=u, moving=right", "stationary=right[:, 0:64], moving=u"), "stationary operand"
    ),
    "the sum holds something else": (KERNEL.replace(PRODUCT, OTHER), "more than products of w"),
    "the product is read twice": (KERNEL.replace(COPY, COPY + COPY), "by one copy alone"),
    "the product is changed on its way out": (
        KERNEL.replace(COPY, "        nisa.activation(dst=result, op=nl.exp, data=product)\n"), "by one copy alone"
    ),
    "a part of the product": (KERNEL.replace("src=product)", "src=product[:, 0:D])"), "more than copy"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(SCALE, source, "w", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(SCALE, KERNEL, "e")


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Other widths, dtypes and orders, with and without more of the same before and after."""
    source = KERNEL
    if data.draw(st.booleans(), label="scale first"):
        source = source.replace(DIVIDE, "").replace("        product = ", DIVIDE + "        product = ")
    if data.draw(st.booleans(), label="two products"):
        source = source.replace(PRODUCT, PRODUCT + PRODUCT)
    if data.draw(st.booleans(), label="whole at once"):
        source = source.replace("range(N // 128)", "range(1)").replace("N)", "128)").replace("0:N]", "0:128]")
    if data.draw(st.booleans(), label="rounded on the way"):
        for tile in ("u = nl.ndarray((128, 128), dtype=nl.", "right = nl.ndarray((128, D), dtype=nl."):
            source = source.replace(f"{tile}float32", f"{tile}bfloat16")
    keys = sites(SCALE, source)
    assert set(keys) == {"w"}
    changed, expected = run(applied(SCALE, source, "w"), X, V), run(source, X, V)
    assert np.linalg.norm(changed - expected) < 0.01 * np.linalg.norm(expected)
