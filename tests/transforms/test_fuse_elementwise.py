"""Two elementwise steps in one instruction: what is fused, the numbers that come of it, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.fuse_elementwise import FuseElementwise
from infra.tasks.seed_index import load_seed
from nki_sim.profile import measure
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites, trace

FUSE = FuseElementwise()
X, Z = random(128, 64), random(128, 64, seed=1)


def kernel(reader: str, *, scaling: str = "op0=nl.multiply, operand0=2.5", between: str = "", dtype: str = "float32",
           also: str = "") -> str:  # fmt: skip
    return (
        HEADER
        + f"""
@nki.jit
def kernel(x, z):
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:64])
    other = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=other, src=z[0:128, 0:64])
    column = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=other[0:128, 0:1])
    # the step that is taken in
    t = nl.ndarray((128, 64), dtype=nl.{dtype}, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=t, data=a, {scaling})
    {between or "pass"}
    y = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    {reader}
    {also or "pass"}
    nisa.dma_copy(dst=result[0:128, 0:64], src=y)
    return result
"""
    )


READERS = {
    "tensor_tensor": "nisa.tensor_tensor(dst=y, data1=t, data2=other, op=nl.subtract)",
    "tensor_tensor, second": "nisa.tensor_tensor(dst=y, data1=other, data2=t, op=nl.maximum)",
    "tensor_scalar": "nisa.tensor_scalar(dst=y, data=t, op0=nl.add, operand0=column)",
    "activation": "nisa.activation(dst=y, op=nl.exp, data=t)",
    "activation with bias": "nisa.activation(dst=y, op=nl.exp, data=t, bias=column)",
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("operand", ["-0.25", "column"])
def test_one_instruction_does_what_two_did(reader, operand):
    before = kernel(reader, scaling=f"op0=nl.multiply, operand0={operand}")

    after = applied(FUSE, before, "t")

    np.testing.assert_allclose(run(after, X, Z), run(before, X, Z), rtol=1e-6, atol=1e-6)
    assert "# the step that is taken in" in after and " t = nl.ndarray" not in after
    steps = ("tensor_scalar", "tensor_tensor", "scalar_tensor_tensor", "activation")
    assert sum(count(after, step, X, Z) for step in steps) == 1


def test_a_shift_becomes_the_bias_of_an_activation():
    before = kernel(READERS["activation"], scaling="op0=nl.add, operand0=column")

    after = applied(FUSE, before, "t")

    assert "bias=column" in after
    np.testing.assert_allclose(run(after, X, Z), run(before, X, Z), rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(
    first=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]),
    second=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]),
    operand=st.sampled_from(["0.5", "-3.0", "column"]),
    form=st.sampled_from(
        [
            "tensor_tensor(dst=y, data1=t, data2=other, op=nl.{})",
            "tensor_scalar(dst=y, data=t, op0=nl.{}, operand0=1.5)",
        ]
    ),  # fmt: skip
    seed=st.integers(0, 1000),
)
def test_fused_kernels_compute_the_same(first, second, operand, form, seed):
    before = kernel("nisa." + form.format(second), scaling=f"op0=nl.{first}, operand0={operand}")
    x, z = random(128, 64, seed=seed), random(128, 64, seed=seed + 1)

    np.testing.assert_allclose(run(applied(FUSE, before, "t"), x, z), run(before, x, z), rtol=1e-6, atol=1e-6)


PLAIN = READERS["tensor_tensor"]
REFUSED = {
    "rounds": (kernel(PLAIN, dtype="bfloat16"), "not declared float32"),
    "read twice": (kernel(PLAIN, also="nisa.tensor_tensor(dst=y, data1=y, data2=t, op=nl.add)"), "exactly one other"),
    "itself": (kernel("nisa.tensor_tensor(dst=y, data1=t, data2=t, op=nl.add)"), "not one whole operand"),
    "subtracted": (kernel("nisa.tensor_tensor(dst=y, data1=other, data2=t, op=nl.subtract)"), "subtracts from it"),
    "source changes": (kernel(PLAIN, between="nisa.memset(dst=a, value=0.0)"), "changes what t was computed from"),
    "operand changes": (
        kernel(PLAIN, scaling="op0=nl.multiply, operand0=column", between="nisa.memset(dst=column, value=0.0)"),
        "changes what t was computed from",
    ),
    "not understood": (kernel(PLAIN, between="print(a)"), "changes what t was computed from"),
    "in place": (kernel("nisa.tensor_tensor(dst=a, data1=t, data2=other, op=nl.add)"), "writes what t was computed"),
    "two steps already": (
        kernel(PLAIN, scaling="op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0"), "more than one step"
    ),
    "scaled already": (kernel("nisa.activation(dst=y, op=nl.exp, data=t, scale=2.0)"), "no room for multiply"),
    "a number as bias": (kernel(READERS["activation"], scaling="op0=nl.add, operand0=1.0"), "no room for add"),
    "engine": (kernel(PLAIN, scaling="op0=nl.add, operand0=1.0, engine=nisa.engine.gpsimd"), "given an engine"),
    "a slice": (kernel("nisa.tensor_tensor(dst=y, data1=t[:, 0:64], data2=other, op=nl.add)"), "not one whole operand"),
    "operator": (kernel(PLAIN, scaling="op0=nl.power, operand0=2.0"), "power is none of"),
    "another reader": (kernel("nisa.tensor_copy(dst=y, src=t)"), "cannot take a step"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_could_change_the_result_is_refused_by_name_and_not_offered(source, reason):
    check_refused(FUSE, source, "t", reason)


def test_a_site_that_is_not_there_is_gone():
    with pytest.raises(SiteGone, match="nothing"):
        applied(FUSE, kernel(PLAIN), "nothing")


def test_the_normalization_of_a_seed_is_one_pass():
    seed = load_seed("matmul_add_rmsnorm")

    assert set(sites(FUSE, seed.kernel_source)) == {"normed"}
    assert "scalar_tensor_tensor(dst=out, data=y" in applied(FUSE, seed.kernel_source, "normed")


def test_the_vector_engine_works_less():
    before = kernel(PLAIN, scaling="op0=nl.multiply, operand0=column")
    sources = (before, applied(FUSE, before, "t"))

    busy = [measure(trace(source, X, Z)).fields["vector_engine_active_time"] for source in sources]

    assert busy[1] < 0.8 * busy[0]
