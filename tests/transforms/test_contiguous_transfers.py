"""Whole rows in place of every n-th element: the same numbers, which elements are picked, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.contiguous_transfers import ContiguousTransfers
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

CONTIGUOUS = ContiguousTransfers()
X = random(128, 64, 8)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    P, N, D = x.shape
    out = nl.ndarray((P, D, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for d in nl.affine_range(D):
        tile = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)
        # one channel
        nisa.dma_copy(dst=tile, src=x[0:P, 0:N, d])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[0:P, d, 0:N], src=tile)
    return out
"""
)
LOAD = "nisa.dma_copy(dst=tile, src=x[0:P, 0:N, d])"
STORE = "nisa.dma_copy(dst=out[0:P, d, 0:N], src=tile)"
PATTERN = KERNEL.replace("x[0:P, 0:N, d]", "x.ap(pattern=[[N * D, P], [D, N]], offset=d)")
PACKED = (
    HEADER
    + """
@nki.jit
def kernel(x):
    P, N, D = x.shape
    even = nl.ndarray((P, N // 2), dtype=x.dtype, buffer=nl.shared_hbm)
    odd = nl.ndarray((P, N // 2), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:P, 0:N, 0])
    nisa.dma_copy(dst=even[0:P, 0 : N // 2], src=tile[0:P, 0:N:2])
    nisa.dma_copy(dst=odd, src=tile.ap(pattern=[[N, P], [2, N // 2]], offset=1))
    return even, odd
"""
)


@pytest.mark.parametrize("source", [KERNEL, PATTERN], ids=["index", "pattern"])
def test_rows_are_loaded_whole_once_for_all_iterations(source):
    changed = applied(CONTIGUOUS, source, "tile")

    np.testing.assert_array_equal(run(changed, X), run(source, X))
    assert "# one channel" in changed and proved_on(changed, source, X).equivalence.finding is Finding.HELD
    hoisted = applied(HoistInvariantLoads(), changed, "tile_wide/d")
    np.testing.assert_array_equal(run(hoisted, X), run(source, X))
    assert count(hoisted, "dma_copy", X) == 1 + 8


def test_they_take_less_time():
    predict = predictor(X)
    assert predict(applied(CONTIGUOUS, KERNEL, "tile")) < 0.8 * predict(KERNEL)
    assert predict(applied(CONTIGUOUS, PACKED, "tile#2")) < 0.95 * predict(PACKED)


@pytest.mark.parametrize("key", ["tile", "tile#2", "tile#3"])
def test_elements_of_a_tile_are_packed_before_they_are_stored(key):
    changed = applied(CONTIGUOUS, PACKED, key)

    for got, expected in zip(run(changed, X), run(PACKED, X)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("last", ["d:N:8", "d + 0 : N : 8", "3:N:8", "0 : 61 : 4"])
def test_which_elements_a_stride_takes(last):
    """Counted by the loop or not; the rest of the row need not come out even."""
    source = KERNEL.replace("x[0:P, 0:N, d]", f"x[0:P, {last}, 0]").replace("x.shape\n", "x.shape\n    W = 8\n")
    width = 16 if last.endswith("4") else 8
    source = source.replace("(P, N), dtype", f"(P, {width}), dtype").replace("(P, D, N)", f"(P, D, {width})")
    source = source.replace("d, 0:N", f"d, 0:{width}").replace(", 0]", "]").replace("N, D = x.shape", "N = x.shape")
    source = source.replace("    W = 8\n", "    D = 8\n")
    flat = X[:, :, 0]

    changed = applied(CONTIGUOUS, source, "tile")

    np.testing.assert_array_equal(run(changed, flat), run(source, flat))
    assert ("0 : N]" in changed) == last.startswith("d")


def test_a_load_on_a_condition_takes_its_own_elements_only():
    """What lies before the first may be no part of the tensor."""
    on_condition = PATTERN.replace(f"        {LOAD}", "").replace(
        "        nisa.dma_copy(dst=tile, src=x.ap", "        if d > 3:\n            nisa.dma_copy(dst=tile, src=x.ap"
    )
    changed = applied(CONTIGUOUS, on_condition, "tile")

    assert "offset=d)" in changed


def test_the_result_states_how_many_dimensions_it_needs():
    assert 'assert len(x.shape) == 3, "x must have 3 dimensions"' in applied(CONTIGUOUS, KERNEL, "tile")


REFUSALS = {
    "neighbours": ("tile", KERNEL.replace("x[0:P, 0:N, d]", "x[0:P, d, 0:N:1]"), None),
    "a priority": (
        "tile", KERNEL.replace(LOAD, LOAD.replace("d])", "d], oob_mode=nisa.oob_mode.skip)")), "leave something out"
    ),
    "backwards": ("tile", PATTERN.replace("[D, N]]", "[-1, N]]"), "backwards|does not load rows"),
    "one row": ("tile", PATTERN.replace("[[N * D, P], [D, N]]", "[[D, N]]"), "not written out"),
    "what the kernel makes itself": (
        "tile",
        KERNEL.replace(
            "    for d", "    own = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)\n"
            "    nisa.dma_copy(dst=own, src=x)\n    for d"
        ).replace("src=x[0:P", "src=own[0:P"),
        "may be unwritten",
    ),
    "an argument that is written": (
        "tile", KERNEL.replace(STORE, STORE.replace("out[0:P, d, 0:N]", "x[0:P, 0:N, d]")), "may be unwritten"
    ),
    "a pattern by name": (
        "tile", PATTERN.replace("    for d", "    rows = [N * D, P]\n    for d").replace("[[N * D, P],", "[rows,"), None
    ),
    "a store": (
        "tile#2",
        KERNEL.replace(STORE, "nisa.dma_copy(dst=out.ap(pattern=[[N * D, P], [D, N]], offset=d), src=tile)"),
        "between them is not its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    key, source, reason = REFUSALS[case]

    assert source != KERNEL
    if reason is None:
        assert key not in sites(CONTIGUOUS, source)
    else:
        check_refused(CONTIGUOUS, source, key, reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(CONTIGUOUS, KERNEL, "other")


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Any start, stride, length and form, loaded and stored, in a loop that may count the places or something else."""
    stride = data.draw(st.integers(2, 5), label="stride")
    taken = data.draw(st.integers(1, 7), label="taken")
    trips = data.draw(st.integers(1, 5), label="trips")
    start = data.draw(st.sampled_from(("d", "0", "1", "d + 1", "2 * d", "d * d")), label="start")
    form = data.draw(st.sampled_from(("slice", "pattern", "index")), label="form")
    stop = f"{start} + {(taken - 1) * stride + 1}"
    if form == "index":
        load = f"x[0:128, 0:{taken}, {start}]"
    elif form == "slice":
        load = f"x[0:128, 0, {start} : {stop} : {stride}]"
    else:
        load = f"x.ap(pattern=[[N * D, 128], [{stride}, {taken}]], offset={start} + 3)"
    source = f"""{HEADER}
@nki.jit
def kernel(x):
    P, N, D = x.shape
    out = nl.ndarray((P, {trips}, {taken}), dtype=x.dtype, buffer=nl.shared_hbm)
    for d in range({trips}):
        tile = nl.ndarray((P, {taken}, {stride}), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=3.0)
        nisa.dma_copy(dst=tile[0:P, 0:{taken}, {stride - 1}], src={load})
        nisa.dma_copy(dst=out[0:P, d, 0:{taken}], src=tile[0:P, 0:{taken}, {stride - 1}])
    return out
"""
    given_x = random(128, 7, 60)
    expected = run(source, given_x)
    found = sites(CONTIGUOUS, source)
    assert set(found) == {"tile", "tile#2"}
    for key in found:
        once = applied(CONTIGUOUS, source, key)
        np.testing.assert_array_equal(run(once, given_x), expected, err_msg=key)
    twice = applied(CONTIGUOUS, applied(CONTIGUOUS, source, "tile"), "tile_packed")
    np.testing.assert_array_equal(run(twice, given_x), expected)
