"""Kernels for whole tiles only: the same program where tiles are whole, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.normalize import NORMALIZE
from tests.transforms.running import HEADER, applied, random, run, sites, trace

X = random(256, 96)
WHOLE = "kernel whole"

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    N, W = x.shape
    out = nl.ndarray((N, W), dtype=x.dtype, buffer=nl.shared_hbm)
    # rows
    for i in range((N + 127) // 128):
        start = i * 128
        stop = min(start + 128, N)  # the last may be shorter
        rows = stop - start
        tile = nl.ndarray((rows, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start:stop, 0:W])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : min(N, i * 128 + 128), 0:W], src=tile)
    return out
"""
)


def test_sizes_no_longer_change_with_the_loop():
    changed = applied(NORMALIZE, KERNEL, WHOLE)

    np.testing.assert_array_equal(run(changed, X), run(KERNEL, X))
    assert np.array_equal(trace(changed, X).template_ids, trace(KERNEL, X).template_ids)
    assert "min(" not in changed and "rows = 128\n" in changed and "# rows" in changed and "may be shorter" in changed


def test_the_result_states_which_shapes_it_is_for():
    with pytest.raises(AssertionError, match="the last iteration over i must be a whole one"):
        run(applied(NORMALIZE, KERNEL, WHOLE), X[:200])
    run(KERNEL, X[:200])


def test_again_there_is_nothing_to_do():
    changed = applied(NORMALIZE, KERNEL, WHOLE)

    assert not sites(NORMALIZE, changed)
    with pytest.raises(IllegalSite, match="no bound"):
        applied(NORMALIZE, changed, WHOLE)


@pytest.mark.parametrize("key", ["kernel half", "kernel whole whole", "whole", "kernel x=float32 whole"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(NORMALIZE, KERNEL, key)


KEPT = {
    "of a size": KERNEL.replace("min(start + 128, N)", "min(N, 4096)").replace("min(N, i * 128 + 128)", "N"),
    "its own min": KERNEL.replace("    N, W = ", "    min = max\n    N, W = "),
    "the file's min": KERNEL.replace("@nki.jit", "def min(a, b):\n    return b if a > b else a\n\n\n@nki.jit"),
    "another's min": KERNEL.replace("import nki\n", "import nki\nfrom operator import add as min\n"),
    "three of them": KERNEL.replace("+ 128, N)", "+ 128, N, 999)").replace("+ 128)", "+ 128, 999)"),
    "left early": KERNEL.replace("        rows =", "        if i > 7:\n            break\n        rows ="),
    "what grows with a square": KERNEL.replace("start + 128, N)", "i * i + 128, N)").replace(
        "min(N, i * 128 + 128)", "N"
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_no_cut_of_a_last_tile_stays(case):
    assert KEPT[case] != KERNEL and WHOLE not in sites(NORMALIZE, KEPT[case])


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_where_tiles_are_whole_it_is_the_same_kernel(data):
    """Nested loops, bounds of either, in either order, used by name or where they stand; or an assertion fails."""
    rows, columns = data.draw(st.sampled_from((64, 96, 128, 160)), "rows"), data.draw(st.integers(24, 64), "columns")
    high, wide = data.draw(st.sampled_from((32, 64)), "height"), data.draw(st.sampled_from((8, 12, 16)), "width")
    down = data.draw(
        st.sampled_from((f"min(r + {high}, N)", f"min(N, i * {high} + {high})", f"r + min({high}, N - r)"))
    )
    across = data.draw(st.sampled_from((f"min(W, c + {wide})", f"c + min(W - c, {wide})", f"min(c + {wide}, W)")))
    inline = data.draw(st.booleans(), "inline")
    stop, end = (down, across) if inline else ("stop", "end")
    source = f"""{HEADER}
@nki.jit
def kernel(x):
    N, W = x.shape
    out = nl.ndarray((N, W), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range((N + {high - 1}) // {high}):
        r = i * {high}
        stop = {down}
        for j in range((W + {wide - 1}) // {wide}):
            c = j * {wide}
            end = {across}
            tile = nl.ndarray((stop - r, end - c), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[r:{stop}, c:{end}])
            nisa.dma_copy(dst=out[r:{stop}, c:{end}], src=tile)
    return out
"""
    given_x = random(rows, columns)
    changed = applied(NORMALIZE, source, WHOLE)
    if rows % high == 0 and columns % wide == 0:
        np.testing.assert_array_equal(run(changed, given_x), run(source, given_x))
        assert np.array_equal(trace(changed, given_x).template_ids, trace(source, given_x).template_ids)
    else:
        with pytest.raises(AssertionError, match="must be a whole one"):
            run(changed, given_x)
