"""A copy out of PSUM that opens the way to another engine; and where no such copy may stand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import AnalysisContext, SiteGone, parse_kernel
from accelopt_core.transforms.drop_copy import DropCopy
from accelopt_core.transforms.evacuate_psum import EvacuatePsum
from accelopt_core.transforms.move_engine import MoveEngine
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites, trace

EVACUATE = EvacuatePsum()
READ = "nisa.tensor_tensor(dst=y, data1=b, data2=product, op=nl.multiply)"
KERNEL = (
    HEADER
    + f"""
@nki.jit
def kernel(x, z):
    W = 64
    result = nl.ndarray((128, W), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:128])
    b = nl.ndarray((128, W), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=z[0:128, 0:W])
    product = nl.ndarray((128, W), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=a, moving=b)
    y = nl.ndarray((128, W), dtype=nl.float32, buffer=nl.sbuf)
    # weighted
    {READ}
    nisa.dma_copy(dst=result, src=y)
    return result
"""
)
READERS = [
    READ,
    "nisa.tensor_tensor(dst=y, data1=product, data2=b, op=nl.subtract)",
    "nisa.tensor_scalar(dst=y, data=product, op0=nl.add, operand0=0.5)",
    "nisa.scalar_tensor_tensor(dst=y, data=product, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=b)",
    READ + "\n    nisa.tensor_tensor(dst=y, data1=y, data2=product, op=nl.add, engine=nisa.engine.vector)",
]


@settings(max_examples=12, deadline=None)
@given(reader=st.sampled_from(READERS), width=st.sampled_from([16, 64, 512]), seed=st.integers(0, 1000))
def test_the_same_numbers_whatever_reads_the_tile(reader, width, seed):
    before = KERNEL.replace(READ, reader).replace("W = 64", f"W = {width}")
    x, z = random(128, 128, seed=seed), random(128, width, seed=seed + 1)
    expected = run(before, x, z)

    for key in sites(EVACUATE, before):
        after = applied(EVACUATE, before, key)

        np.testing.assert_array_equal(run(after, x, z), expected)
        assert count(after, "tensor_copy", x, z) == count(before, "tensor_copy", x, z) + 1
        assert "# weighted" in after


def test_then_the_work_can_move_to_an_engine_without_a_path_to_psum():
    x, z = random(128, 128), random(128, 64, seed=1)
    assert "y@gpsimd" not in sites(MoveEngine(), KERNEL)

    moved = applied(MoveEngine(), applied(EVACUATE, KERNEL, "product"), "y@gpsimd")

    np.testing.assert_array_equal(run(moved, x, z), run(KERNEL, x, z))
    engines = {t.opcode: t.engine.name for t in trace(moved, x, z).templates}
    assert (engines["tensor_copy"], engines["tensor_tensor"]) == ("scalar", "gpsimd")


def test_it_is_what_drop_copy_takes_away():
    evacuated = applied(EVACUATE, KERNEL, "product")

    assert applied(DropCopy(), evacuated, "product_out") == KERNEL


def test_both_products_of_the_scan_can_leave_psum():
    assert {"b_spread", "c_spread"} <= set(sites(EVACUATE, load_seed("mamba").kernel_source))


def test_where_vector_has_less_to_do_than_scalar_it_is_not_offered():
    module = parse_kernel(KERNEL)
    busy = {"vector_engine_active_time": 1e-6, "scalar_engine_active_time": 2e-6}

    assert EVACUATE.analyze(module, AnalysisContext(fields=busy)) == ()
    assert EVACUATE.analyze(module, AnalysisContext(fields={**busy, "vector_engine_active_time": 3e-6})) != ()


MADE = "product = nl.ndarray((128, W), dtype=nl.float32, buffer=nl.psum)"
REFUSED = {
    "by position": (READ, READ.replace("dst=y, ", "y, "), "by position"),
    "on another engine": (READ, READ.replace("op=nl.mul", "engine=nisa.engine.gpsimd, op=nl.mul"), "Vector engine"),
    "in place": (READ, READ.replace("dst=y", "dst=product"), "writes product as well"),
    "a part as well": (READ, READ.replace("data1=b", "data1=product[:, 0:W]"), "reads a part"),
    "another dtype": (MADE, MADE.replace("nl.float32", "x.dtype"), "that it is float32"),
    "no shape": (MADE, MADE.replace("(128, W)", "b.shape"), "does not show its shape"),
    "another width by then": (READ, "W = 32\n    " + READ, "W, which product is made with, may have changed"),
    "bound twice": (READ, READ + f"\n    {MADE}", "bound 2 times"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_copied_for_sure_is_refused_by_name_and_not_offered(old, new, reason):
    source = KERNEL.replace(old, new)
    assert source != KERNEL

    check_refused(EVACUATE, source, "product", reason)


@pytest.mark.parametrize("key", ["nothing", "b", "product#2"])
def test_a_site_that_is_not_there_is_gone(key):
    with pytest.raises(SiteGone, match=key):
        applied(EVACUATE, KERNEL, key)
