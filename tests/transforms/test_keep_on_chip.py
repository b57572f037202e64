"""A buffer of the kernel's own that need not go through HBM: the same numbers, no transfers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.keep_on_chip import KeepOnChip
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

KEEP = KeepOnChip()
X = random(256, 512)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    M, N = x.shape
    T = M // 128
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # between the loops
    scratch = nl.ndarray((T, 128, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for t in nl.affine_range(T):
        tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t * 128 : (t + 1) * 128, 0:N])
        nisa.dma_copy(dst=scratch[t, :, :], src=tile)
    for t in nl.affine_range(T):
        again = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
        # back
        nisa.dma_copy(dst=again, src=scratch[T - 1 - t, 0:128, 0:N])
        nisa.dma_copy(dst=out[t * 128 : (t + 1) * 128, 0:N], src=again)
    return out
"""
)
STORE = "        nisa.dma_copy(dst=scratch[t, :, :], src=tile)\n"
BACK = "src=scratch[T - 1 - t, 0:128, 0:N]"
BLOCKS = (
    KERNEL.replace("(T, 128, N), dtype", "(M, N), dtype")
    .replace("scratch[t, :, :]", "scratch[t * 128 : t * 128 + 128, :]")
    .replace(BACK, "src=scratch[(T - 1 - t) * 128 : (T - t) * 128, 0:N]")
)


@pytest.mark.parametrize("source", [KERNEL, BLOCKS], ids=["an index", "blocks of rows"])
def test_nothing_is_stored_and_loaded_again(source):
    changed = applied(KEEP, source, "scratch")

    np.testing.assert_array_equal(run(changed, X), run(source, X))
    assert count(changed, "dma_copy", X) == 4 and count(source, "dma_copy", X) == 8
    assert "# between the loops" in changed and "# back" in changed
    assert proved_on(changed, source, X).equivalence.finding is Finding.HELD
    predict = predictor(X)
    assert predict(changed) < 0.9 * predict(source)


def test_blocks_that_do_not_come_out_even_are_asserted():
    with pytest.raises(AssertionError, match="blocks of 128 rows must come out even"):
        run(
            applied(KEEP, BLOCKS.replace("scratch = nl.ndarray((M, N)", "scratch = nl.ndarray((M + 1, N)"), "scratch"),
            X,
        )


def test_what_is_returned_is_no_site():
    assert set(sites(KEEP, KERNEL)) == {"scratch"}


REFUSALS = {
    "other rows": (KERNEL.replace(BACK, "src=scratch[0:2, 5, 0:N]"), "same of its rows"),
    "fewer rows": (KERNEL.replace(BACK, "src=scratch[T - 1 - t, 0:64, 0:N]"), "same of its rows"),
    "rows that begin elsewhere": (
        BLOCKS.replace("scratch[(T - 1 - t) * 128 : (T - t) * 128, 0:N]", "scratch[t * 64 : t * 64 + 128, 0:N]"),
        "has other rows",
    ),
    "a view": (
        KERNEL.replace(BACK, "src=view[t]").replace("    for t in", "    view = scratch[0:T]\n    for t in", 2),
        "does more with scratch",
    ),
    "a turned load": (
        KERNEL.replace("dma_copy(dst=again, " + BACK, "dma_transpose(dst=again, src=scratch[t, 0:128, 0:128]"),
        "does more with scratch",
    ),
    "straight on": (KERNEL.replace("dst=again, " + BACK, "dst=out[0:128, 0:N], src=scratch[t, 0:128, 0:N]"),
                    "to or from a tile"),
    "every second row": (KERNEL.replace(BACK, "src=scratch[T - 1 - t, 0:128:2, 0:N]"), "follow one another|elements"),
    "a pattern": (KERNEL.replace(BACK, "src=scratch.ap(pattern=[[N, 128], [1, N]])"), "no buffer with its indices"),
    "on a queue of its own": (KERNEL.replace(STORE, STORE.replace("src=tile", "src=tile, dge_mode=nisa.dge_mode.none")),
                              "does more with scratch"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(KEEP, source, "scratch", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(KEEP, KERNEL, "out")


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Parts stored and loaded in any order, by index or block, over what was there before."""
    form = data.draw(st.sampled_from(("index", "middle", "block")), label="form")
    place = {"index": "{t}, 0:64, {c}", "middle": "{t}, :, 1, {c}", "block": "64 * ({t}) : 64 * ({t}) + 64, {c}"}[form]
    shape = {"index": "(4, 64, 32)", "middle": "(4, 64, 2, 32)", "block": "(256, 32)"}[form]
    lines = []
    for number in range(data.draw(st.integers(1, 4), label="steps")):
        t = data.draw(st.sampled_from(("i", "3 - i", "2", "i // 2")), label="which")
        first = data.draw(st.sampled_from((0, 8, 16)), label="columns")
        part = f"scratch[{place.format(t=t, c=f'{first}:{first + 16}')}]"
        columns = f"[0:64, {first}:{first + 16}]"
        if data.draw(st.booleans(), label="stores"):
            lines.append(f"nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0 * i + {number})")
            lines.append(f"nisa.dma_copy(dst={part}, src=tile{columns})")
        else:
            lines.append(f"nisa.dma_copy(dst=tile{columns}, src={part})")
    body = "".join(f"        {line}\n" for line in lines)
    source = f"""{HEADER}
@nki.jit
def kernel(x):
    out = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    scratch = nl.ndarray({shape}, dtype=x.dtype, buffer=nl.hbm)
    tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for k in range(4):
        nisa.dma_copy(dst=scratch[{place.format(t="k", c="0:32")}], src=tile)
    for i in range(4):
{body}    nisa.dma_copy(dst=out, src=tile)
    return out
"""
    given_x = random(64, 32)
    expected = run(source, given_x)
    assert set(sites(KEEP, source)) == {"scratch"}
    np.testing.assert_array_equal(run(applied(KEEP, source, "scratch"), given_x), expected)
