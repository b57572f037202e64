"""A memset that nobody reads is left out: the same numbers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.drop_memset import DropMemset
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

DROP = DropMemset()
X = random(256, 2048)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    M, N = x.shape
    rows = 100
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(M // rows):
        tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        # zeros below
        nisa.memset(dst=tile, value=0.0)
        # then the rows
        nisa.dma_copy(dst=tile[0:rows, 0:N], src=x[m * rows : (m + 1) * rows, 0:N])
        nisa.tensor_scalar(dst=tile[0:rows, 0:N], data=tile[0:rows, 0:N], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[m * rows : (m + 1) * rows, 0:N], src=tile[0:rows, 0:N])
    return out
"""
)
LOAD = "        nisa.dma_copy(dst=tile[0:rows, 0:N], src=x[m * rows : (m + 1) * rows, 0:N])\n"
SCALED = "nisa.tensor_scalar(dst=tile[0:rows, 0:N], data=tile[0:rows, 0:N]"


def same(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_array_equal(left[:200], right[:200])


def test_nothing_is_set_that_is_loaded_anyway():
    changed = applied(DROP, KERNEL, "tile")

    same(run(changed, X), run(KERNEL, X))
    assert count(changed, "memset", X) == 0 and "# zeros below" in changed and "# then the rows" in changed
    assert proved_on(changed, KERNEL, X[:200]).equivalence.finding is Finding.HELD
    predict = predictor(X)
    assert predict(changed) < 0.99 * predict(KERNEL)


def test_less_may_be_read_than_is_written():
    source = KERNEL.replace(SCALED, "nisa.tensor_scalar(dst=tile[0:32, 0:N], data=tile[0:32, 0:N]")

    same(run(applied(DROP, source, "tile"), X), run(source, X))


REFUSALS = {
    "more is read": (KERNEL.replace(SCALED, "nisa.tensor_scalar(dst=tile, data=tile"), "may use elements"),
    "more is stored": (
        KERNEL.replace("src=tile[0:rows, 0:N])", "src=tile[1 : rows + 1, 0:N])"), "may use elements"
    ),
    "a column beyond": (KERNEL.replace("tile[0:rows, 0:N], src=x[m * rows : (m + 1) * rows, 0:N]",
                                       "tile[0:rows, 1:N], src=x[m * rows : (m + 1) * rows, 1:N]"), "may use elements"),
    "added to": (
        KERNEL.replace(LOAD, "        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)\n" + LOAD),
        "does not only overwrite",
    ),
    "on a condition": (KERNEL.replace(LOAD, "        if m > 0:\n    " + LOAD), "does not only overwrite|otherwise"),
    "before the loop": (
        KERNEL.replace("        tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)\n", "").replace(
            "    for m", "    tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)\n    for m"
        ),
        "another block",
    ),
    "leaves out": (
        KERNEL.replace(LOAD, LOAD.replace("0:N])\n", "0:N], oob_mode=nisa.oob_mode.skip)\n")), "as it was"
    ),
    "has a name": (KERNEL.replace(LOAD, LOAD + "        view = tile[0:rows, 0:N]\n"), "otherwise than"),
    "read before": (
        KERNEL.replace("        # zeros below\n", "        nisa.dma_copy(dst=tile, src=x[0:128, 0:N])\n"),
        "otherwise than|does not only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(DROP, source, "tile", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(DROP, KERNEL, "other")


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Parts written and read in any order, in loops or not."""
    part = st.sampled_from(("", "[0:128, 0:8]", "[0:64, 0:16]", "[0:128, 8 * j : 8 * j + 8]", "[0:128, 4:12]"))
    steps = data.draw(
        st.lists(
            st.one_of(
                part.map(lambda p: f"nisa.memset(dst=tile{p}, value=3.0)"),
                part.map(lambda p: f"nisa.tensor_copy(dst=tile{p}, src=given{p})"),
                part.map(lambda p: f"nisa.tensor_scalar(dst=tile{p}, data=tile{p}, op0=nl.add, operand0=1.0)"),
                part.map(lambda p: f"nisa.tensor_tensor(dst=sum{p}, data1=sum{p}, data2=tile{p}, op=nl.add)"),
            ),
            min_size=1,
            max_size=4,
        ),
        label="steps",
    )
    body = "".join(f"        {step}\n" for step in steps)
    source = f"""{HEADER}
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    given = nl.ndarray((128, 16), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=given, src=x)
    sum = nl.ndarray((128, 16), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=sum, value=0.0)
    for j in range(2):
        tile = nl.ndarray((128, 16), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=2.0)
{body}    nisa.dma_copy(dst=out, src=sum)
    return out
"""
    given_x = random(128, 16)
    expected = run(source, given_x)
    for key in sites(DROP, source):
        np.testing.assert_array_equal(run(applied(DROP, source, key), given_x), expected, err_msg=key)
