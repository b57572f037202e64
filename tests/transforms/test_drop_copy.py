"""A copy that only stands between a tile and its reader goes; one that serves a purpose stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.drop_copy import DropCopy
from tests.transforms.running import HEADER, applied, check_refused, count, random, run

DROP = DropCopy()
PSUM = (
    HEADER
    + """
@nki.jit
def kernel(x, z):
    result = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:128])
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=z[0:128, 0:64])
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=tile, stationary=a, moving=b)
    # out of PSUM
    copy = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    y = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=y, data1=copy, data2=b, op=nl.add)
    nisa.dma_copy(dst=result, src=y)
    return result
"""
)
SBUF = PSUM.replace("src=tile)", "src=b)")
READ = "nisa.tensor_tensor(dst=y, data1=copy, data2=b, op=nl.add)"
READERS = [
    READ,
    "nisa.tensor_scalar(dst=y, data=copy, op0=nl.multiply, operand0=2.0)",
    "nisa.activation(dst=y, op=nl.tanh, data=copy)",
    "nisa.tensor_scalar(dst=y, data=copy, op0=nl.add, operand0=1.0, engine=nisa.engine.scalar)",
]


@settings(max_examples=12, deadline=None)
@given(source=st.sampled_from([PSUM, SBUF]), reader=st.sampled_from(READERS), seed=st.integers(0, 1000))
def test_the_same_numbers_come_of_one_pass_less(source, reader, seed):
    before = source.replace(READ, reader)
    x, z = random(128, 128, seed=seed), random(128, 64, seed=seed + 1)

    after = applied(DROP, before, "copy")

    np.testing.assert_allclose(run(after, x, z), run(before, x, z), rtol=1e-6, atol=1e-6)
    assert count(after, "tensor_copy", x, z) == count(before, "tensor_copy", x, z) - 1
    assert "# out of PSUM" in after and "copy" not in after.replace("dma_copy", "")


def test_a_copy_within_sbuf_serves_no_transfer():
    before = SBUF.replace("nisa.dma_copy(dst=result, src=y)", "nisa.dma_copy(dst=result, src=copy)")

    assert "dst=result, src=b" in applied(DROP, before, "copy")


REFUSED = {
    "transfer": (PSUM, "src=y)", "src=copy)", "does not read from PSUM"),
    "matmul": (PSUM, READ, "nisa.nc_matmul(dst=tile, stationary=a, moving=copy)", "changes tile"),
    "gpsimd": (PSUM, READ, READ.replace("op=nl.add", "op=nl.add, engine=nisa.engine.gpsimd"), "no path to PSUM"),
    "two from PSUM": (PSUM, READ, READ.replace("data2=b", "data2=tile"), "two tiles from PSUM"),
    "another dtype": (PSUM, "copy = nl.ndarray((128, 64), dtype=nl.float32", "copy = nl.ndarray((128, 64), "
                      "dtype=nl.bfloat16", "same dtype"),
    "another shape": (PSUM, "copy = nl.ndarray((128, 64)", "copy = nl.ndarray((128, 2 * 32)", "same shape"),
    "source changes": (SBUF, READ, "nisa.memset(dst=b, value=0.0)\n    " + READ, "changes b while"),
    "copy is changed": (SBUF, READ, "nisa.memset(dst=copy, value=0.0)\n    " + READ, "more with copy than read"),
    "a view of it": (SBUF, READ, "view = copy[:, 0:64]\n    " + READ, "more with copy than read"),
    "not understood": (SBUF, READ, "print(b)\n    " + READ, "changes b while"),
    "read in a loop": (SBUF, READ, "for i in nl.affine_range(2):\n        " + READ, "outside the statements"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "old", "new", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_copy_with_a_purpose_stays_and_is_not_offered(source, old, new, reason):
    changed = source.replace(old, new)
    assert changed != source

    check_refused(DROP, changed, "copy", reason)


PARTS = (
    HEADER
    + """
@nki.jit
def kernel(x, z):
    result = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[0:128, 0:128])
    for h in range(2):
        start = h * 64
        part = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=part, src=a[0:128, start : start + 64])
        more = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=more, data1=part, data2=part, op=nl.add)
        nisa.dma_copy(dst=result[0:128, start : start + 64], src=more)
    return result
"""
)
ADDS = "nisa.tensor_tensor(dst=more, data1=part, data2=part, op=nl.add)"


def test_a_part_of_a_tile_is_read_where_it_is():
    x, z = random(128, 128), random(128, 64, seed=1)

    after = applied(DROP, PARTS, "part")

    np.testing.assert_array_equal(run(after, x, z), run(PARTS, x, z))
    assert count(after, "tensor_copy", x, z) == 0 and "data1=a[0:128, start : start + 64]" in after


def test_an_index_takes_a_dimension_away_and_a_shape_may_be_another():
    """As kernels of older dialects have them."""
    deep = (
        PARTS.replace("a = nl.ndarray((128, 128)", "a = nl.ndarray((128, 2, 64)")
        .replace("dst=a, src=x[0:128, 0:128]", "dst=a, src=x.reshape((128, 2, 64))")
        .replace("src=a[0:128, start : start + 64]", "src=a[0:128, h, 0:64]")
    )
    flat = PARTS.replace("part = nl.ndarray((128, 64)", "whole = nl.ndarray((128, 2, 32), dtype=nl.float32, "
                         "buffer=nl.sbuf)\n        nisa.dma_copy(dst=whole, src=x[:, 0:64].reshape((128, 2, 32)))\n"
                         "        part = nl.ndarray((128, 64)")  # fmt: skip
    flat = flat.replace("src=a[0:128, start : start + 64]", "src=whole.reshape((128, 64))")
    x, z = random(128, 128), random(128, 64, seed=1)
    for source, read in ((deep, "data1=a[0:128, h, 0:64]"), (flat, "data2=whole.reshape((128, 64))")):
        after = applied(DROP, source, "part")

        np.testing.assert_array_equal(run(after, x, z), run(source, x, z))
        assert count(after, "tensor_copy", x, z) == 0 and read in after


REFUSED_PARTS = {
    "a part of the part": (ADDS, ADDS.replace("data1=part", "data1=part[0:128, 0:64]"), "which is a part itself"),
    "written meanwhile": (ADDS, f"nisa.memset(dst=a, value=0.0)\n        {ADDS}", "changes a while"),
    "its place changes": ("start = h * 64\n", "start = h * 64\n        start = start + 0\n", "may have changed"),
    "other dimensions": (
        "(128, 64), dtype=nl.float32, buffer=nl.sbuf)\n        nisa.tensor_copy",
        "(128, 1, 64), dtype=nl.float32, buffer=nl.sbuf)\n        nisa.tensor_copy",
        "other dimensions",
    ),
    "an index": ("src=a[0:128, start", "src=a[0:128, 0, start", "other dimensions"),
    "it rounds": ("part = nl.ndarray((128, 64), dtype=nl.float32", "part = nl.ndarray((128, 64), dtype=nl.bfloat16",
                  "the same dtype"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), REFUSED_PARTS.values(), ids=REFUSED_PARTS)
def test_a_part_with_a_purpose_stays(old, new, reason):
    assert old in PARTS
    check_refused(DROP, PARTS.replace(old, new), "part", reason)


def test_a_site_that_is_not_there_is_gone():
    with pytest.raises(SiteGone, match="nothing"):
        applied(DROP, PSUM, "nothing")
