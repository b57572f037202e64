"""What a loop stores apart, stored in whole rows after it: the same numbers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.staged_stores import StagedStores
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

STAGED = StagedStores()
X = random(8, 256, 32)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    D, M, N = x.shape
    out = nl.ndarray((M, N, D), dtype=x.dtype, buffer=nl.shared_hbm)
    # channels
    for d in nl.affine_range(D):
        for m in nl.affine_range(M // 128):
            start = m * 128
            tile = nl.ndarray((128, N), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[d, start : start + 128, 0:N])
            # one of them
            nisa.dma_copy(dst=out[start : start + 128, 0:N, d], src=tile)
    return out
"""
)
STORE = "            nisa.dma_copy(dst=out[start : start + 128, 0:N, d], src=tile)\n"
PATTERN = KERNEL.replace(
    "out[start : start + 128, 0:N, d]", "out.ap(pattern=[[N * D, 128], [D, N]], offset=start * N * D + d)"
)


@pytest.mark.parametrize("source", [KERNEL, PATTERN], ids=["index", "pattern"])
def test_one_store_for_all_iterations(source):
    changed = applied(STAGED, source, "tile")

    np.testing.assert_array_equal(run(changed, X), run(source, X))
    assert count(changed, "dma_copy", X) == 16 + 2 and count(source, "dma_copy", X) == 32
    assert changed.index("# channels") < changed.index("out_staged = ") < changed.index("# one of them")
    assert proved_on(changed, source, X).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(X)
    assert predict(applied(STAGED, KERNEL, "tile")) < 0.8 * predict(KERNEL)


def test_halves_that_take_turns():
    source = KERNEL.replace("(M, N, D)", "(M, 2 * N)").replace("affine_range(D)", "affine_range(2)")
    source = source.replace("start + 128, 0:N, d]", "start + 128, d : 2 * N : 2]", 2).replace(
        "x[d, start : start + 128, d : 2 * N : 2]", "x[d, start : start + 128, 0:N]"
    )

    changed = applied(STAGED, source, "tile")

    assert "0 : 2 * N]" in changed
    np.testing.assert_array_equal(run(changed, X), run(source, X))


LATER = "            nisa.dma_copy(dst=tile, src=out[0:128, 0:N, 0])\n"
REFUSALS = {
    "neighbours": (KERNEL.replace("0:N, d], src=tile", "0:N, 0:1], src=tile"), None),
    "channels are left out": (KERNEL.replace("affine_range(D)", "affine_range(D - 1)"), "no loop around it stores all"),
    "two apart": (KERNEL.replace("0:N, d], src=tile", "0:N, 2 * d], src=tile"), "no loop around it stores all"),
    "read in the loop": (KERNEL.replace(STORE, STORE + LATER), "touches out"),
    "written twice": (KERNEL.replace(STORE, STORE + STORE), "touches out"),
    "on a condition": (KERNEL.replace(STORE, "            if d > 1:\n    " + STORE), "no loop|in every iteration"),
    "left early": (KERNEL.replace(STORE, STORE + "            break\n"), "no loop|in every iteration"),
    "where it goes changes": (
        KERNEL.replace("start = m * 128", "start = (m + d * 0 + d // 64) * 128"),
        "changes in the loop|another way|all that lies",
    ),
    "a length that changes": (
        KERNEL.replace("affine_range(M // 128)", "affine_range(min(d, M // 128))"), "length of the loop over m"
    ),
    "an argument": (KERNEL.replace("dst=out[", "dst=x["), "of the kernel's own|all that lies"),
    "a mode": (KERNEL.replace("src=tile)", "src=tile, oob_mode=nisa.oob_mode.skip)"), "from where to where"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    if reason is None:
        assert not sites(STAGED, source)
    else:
        check_refused(STAGED, source, "tile", reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(STAGED, KERNEL, "other")


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Loops in any order, in the store's address or not, and stores that overlap."""
    stride = data.draw(st.integers(2, 4), label="stride")
    taken = data.draw(st.integers(1, 5), label="taken")
    order = data.draw(st.permutations(("d", "m", "k")), label="order")
    counts = {"d": stride, "m": 2, "k": 2}
    moved = data.draw(st.sampled_from(("m", "m + k", "k * m", "0")), label="which rows")
    form = data.draw(st.sampled_from(("index", "slice", "pattern")), label="form")
    width = taken * stride
    rows = f"128 * ({moved}) : 128 * ({moved}) + 128"
    shape, store = {
        "index": (f"(384, {taken}, {stride})", f"out[{rows}, 0:{taken}, d]"),
        "slice": (f"(384, {width})", f"out[{rows}, d : {width} : {stride}]"),
        "pattern": (
            f"(384, {width})",
            f"out.ap(pattern=[[{width}, 128], [{stride}, {taken}]], offset=128 * ({moved}) * {width} + d)",
        ),
    }[form]
    lines = [f"out = nl.ndarray({shape}, dtype=x.dtype, buffer=nl.shared_hbm)"]
    lines += [
        f"zeros = nl.ndarray((128, {width}), dtype=x.dtype, buffer=nl.sbuf)",
        "nisa.memset(dst=zeros, value=0.0)",
        "for r in range(3):",
        f"    nisa.dma_copy(dst=out.ap(pattern=[[{width}, 128], [1, {width}]], offset=r * 128 * {width}), src=zeros)",
    ]
    for depth, name in enumerate(order):
        lines.append("    " * depth + f"for {name} in range({counts[name]}):")
    lines += [
        f"            tile = nl.ndarray((128, {taken}), dtype=x.dtype, buffer=nl.sbuf)",
        f"            nisa.dma_copy(dst=tile, src=x[0:128, d : d + {taken}])",
        "            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0 * k + 10.0 * m)",
        f"            nisa.dma_copy(dst={store}, src=tile)",
    ]
    source = HEADER + "\n@nki.jit\ndef kernel(x):\n    " + "\n    ".join([*lines, "return out"]) + "\n"
    given_x = random(128, 16)
    expected = run(source, given_x)
    for key in sites(STAGED, source):
        np.testing.assert_array_equal(run(applied(STAGED, source, key), given_x), expected, err_msg=key)
