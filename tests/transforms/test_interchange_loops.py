"""Exchanging loops: only when nothing passes between iterations, and only to keep a tile that way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads
from accelopt_core.transforms.interchange_loops import InterchangeLoops
from infra.tasks.seed_index import load_seed
from nki_sim.capacity import peak, usable_bytes
from nki_sim.memory import MemoryRegion
from tests.transforms.running import (
    HEADER,
    KEEPS_LOADS,
    applied,
    check_refused,
    count,
    predictor,
    random,
    run,
    sites,
    trace,
)

EXCHANGE = InterchangeLoops()

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # rows
    for m in nl.affine_range(M // 16):
        m0 = m * 16
        # columns
        for n in nl.affine_range(N // 8):
            # the same for all rows
            right = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=y[0:16, n * 8 : n * 8 + 8])
            left = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=x[m0 : m0 + 16, n * 8 : n * 8 + 8])
            total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)
            nisa.dma_copy(dst=out[m0 : m0 + 16, n * 8 : n * 8 + 8], src=total)  # done
    return out
"""
)
KEY = "m,n#0/right"
STORE = "            nisa.dma_copy(dst=out[m0 : m0 + 16, n * 8 : n * 8 + 8], src=total)  # done\n"
ADD = "            nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)\n"
X, Y = random(64, 32), random(16, 32, seed=1)


def test_what_depends_on_the_inner_loop_alone_is_loaded_once():
    exchanged = applied(EXCHANGE, KERNEL, KEY)

    np.testing.assert_array_equal(run(exchanged, X, Y), run(KERNEL, X, Y))
    assert count(KERNEL, "dma_copy", X, Y) - count(exchanged, "dma_copy", X, Y) == 4 * 4 - 4
    assert exchanged.index("for n in") < exchanged.index("src=y[") < exchanged.index("for m in")
    assert ".append(" not in exchanged
    for comment in ("# rows", "# columns", "# the same for all rows", "# done"):
        assert comment in exchanged


def test_the_matmul_seed_keeps_a_panel_of_the_right_hand_side():
    source = load_seed("transpose_matmul").kernel_source
    lhs, rhs = random(256, 512), random(256, 1536, seed=1)

    assert set(sites(EXCHANGE, source)) == {"m,n#0/rhs_tile"}
    exchanged = applied(EXCHANGE, source, "m,n#0/rhs_tile")

    np.testing.assert_array_equal(run(exchanged, lhs, rhs), run(source, lhs, rhs))
    predict = predictor(lhs, rhs, core=KEEPS_LOADS)
    assert predict(exchanged) < 0.9 * predict(source)


def test_a_panel_fits_where_the_whole_operand_does_not():
    source = load_seed("transpose_matmul").kernel_source
    lhs, rhs = random(1024, 256), random(1024, 8192, seed=1)

    def most_bytes(changed: str) -> float:
        return peak(trace(changed, lhs, rhs), MemoryRegion.sbuf).live_bytes

    usable = usable_bytes("trn2", MemoryRegion.sbuf)
    assert most_bytes(applied(HoistInvariantLoads(), source, "rhs_tile/m")) > usable
    assert most_bytes(applied(EXCHANGE, source, "m,n#0/rhs_tile")) <= usable


REFUSALS = {
    "iterations write the same place": (KERNEL.replace("dst=out[m0 : m0 + 16", "dst=out[0:16"), "the same part of out"),
    "the loop reads what it writes": (KERNEL.replace("src=x[m0", "src=out[m0"), "reads out, which the loop"),
    "something happens between the loops": (
        KERNEL.replace(
            "        # columns", "        nisa.memset(dst=nl.ndarray((1, 1)), value=0.0)\n        # columns"
        ),
        "stands between the loops",
    ),
    "something follows the inner loop": (
        KERNEL.replace(STORE, STORE.replace("            nisa", "        nisa")),
        "follows the inner loop",
    ),
    "the inner length depends on the outer loop": (
        KERNEL.replace("nl.affine_range(N // 8)", "nl.affine_range(m + 1)"),
        "is set in the loop over m",
    ),
    "the inner length is defined in the outer loop": (
        KERNEL.replace("nl.affine_range(N // 8)", "nl.affine_range(m0 // 16)"),
        "is set in the loop over m",
    ),
    "a sum runs through all iterations": (
        KERNEL.replace("    # rows", "    total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)\n    # rows")
        .replace("            total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)\n", "")
        .replace("data1=left", "data1=total"),
        "reads total, which the loop",
    ),
    "the loop can be left early": (KERNEL.replace(STORE, STORE + "            break\n"), "left early"),
    "something unknown": (KERNEL.replace(ADD, "            helper(total)\n"), "not understood"),
    "it does not count from 0": (KERNEL.replace("nl.affine_range(N // 8)", "range(0, 4)"), "count up from 0"),
    "no tile would stay": (KERNEL.replace("src=y[0:16, n * 8", "src=y[0:16, m * 0 + n * 8"), "gain nothing"),
    "one loop only": (
        KERNEL.replace("for n in nl.affine_range(N // 8):", "if M > 0:\n            n = 0"),
        "holds 0 loops",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    assert sites(EXCHANGE, source) == {}
    check_refused(EXCHANGE, source, KEY, reason)


@pytest.mark.parametrize("key", ["m,n#5/right", "k,n#0/right", "m,k#0/right", "m"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(EXCHANGE, KERNEL, key)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Two or three loops, loads by any subset of their variables, in-place work, stores that may clash."""
    tile = data.draw(st.sampled_from((4, 8)), label="tile")
    depth = data.draw(st.sampled_from((2, 3)), label="loops")
    variables = "abc"[:depth]
    lines = ["@nki.jit", "def kernel(x):", "    out = nl.ndarray((4, 4, 4, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)"]
    for level, variable in enumerate(variables):
        pad = "    " * (level + 1)
        lines.append(f"{pad}for {variable} in nl.affine_range({data.draw(st.integers(1, 4), label=variable)}):")
        if data.draw(st.booleans(), label=f"{variable} is defined anew"):
            lines.append(f"{pad}    {variable}0 = {variable} * 4")
        else:
            lines.append(f"{pad}    {variable}0 = 4 * {variable} + 1")
    pad = "    " * (depth + 1)
    names = ["t0", "t1", "t2"]
    for name in names:
        used = [v for v in variables if data.draw(st.booleans(), label=f"{name} uses {v}")]
        lines += [
            f"{pad}{name} = nl.ndarray((8, {tile}), dtype=x.dtype, buffer=nl.sbuf)",
            f"{pad}nisa.dma_copy(dst={name}, src=x[{' + '.join(f'{v}0' for v in used) or '0'}, 0:8, 0:{tile}])",
        ]
    lines.append(f"{pad}nisa.tensor_tensor(dst=t0, data1=t0, data2={data.draw(st.sampled_from(names))}, op=nl.add)")
    lines.append(f"{pad}nisa.tensor_tensor(dst=t0, data1=t1, data2=t0, op=nl.subtract)")
    third = "c" if depth == 3 else "0"
    place = data.draw(
        st.sampled_from((f"a, b, {third}", f"b, {third}, a", f"a, 0, {third}", f"0, b, {third}", "a, b, 0"))
    )
    lines.append(f"{pad}nisa.dma_copy(dst=out[{place}, 0:8, 0:{tile}], src=t0)")
    source = HEADER + "\n".join([*lines, "    return out"]) + "\n"
    x = random(48, 8, 8)
    expected = run(source, x)

    for key in sites(EXCHANGE, source):
        np.testing.assert_array_equal(run(applied(EXCHANGE, source, key), x), expected)
