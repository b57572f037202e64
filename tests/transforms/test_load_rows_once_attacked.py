"""Kernels on which loading rows once came to something else, when it was attacked: refused, or the same numbers now."""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.transforms.load_rows_once import LoadRowsOnce
from tests.transforms.running import applied, run, sites

ONCE = LoadRowsOnce()

HEADER = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    R, N = x.shape
    P = 128
    out = nl.ndarray((R - 2, 8), dtype=x.dtype, buffer=nl.shared_hbm)
"""
LOOP = """    for i in range((R - 2 + P - 1) // P):
        r = i * P
        n = min(P, R - 2 - r)
        best = nl.ndarray((P, 8), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=best, value=0.0)
"""
STORE = """        nisa.dma_copy(dst=out[r : r + n, 0:8], src=best[0:n, :])
    return out
"""


def window(name: str, rows: str, columns: str, indent: int = 8) -> str:
    lines = (
        f"{name} = nl.ndarray((P, 8), dtype=x.dtype, buffer=nl.sbuf)",
        f"nisa.dma_copy(dst={name}[0:n, :], src=x[{rows} : {rows} + n, {columns}])",
        f"nisa.tensor_tensor(dst=best[0:n, :], data1=best[0:n, :], data2={name}[0:n, :], op=nl.add)",
    )
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


TWO = window("a", "r", "0:8") + window("b", "r + 2", "0:8")
SHADOWED = window("a", "r + k", "0:8", 12).replace(
    "            nisa.tensor", "            for k in range(1):\n                nisa.tensor"
)
KERNELS = {
    "rows and columns by one variable": HEADER
    + "    for k in range(2):\n        pass\n"
    + LOOP
    + "        for k in range(3):\n"
    + window("a", "r + k", "k : k + 8", 12)
    + STORE,
    "columns by a number made of it": HEADER
    + LOOP
    + "        for k in range(3):\n            c = k + 1\n"
    + window("a", "r + k", "c : c + 8", 12)
    + STORE,
    "a bound moves where rows begin": HEADER
    + LOOP
    + "        s = min(r, R - 2 - P)\n"
    + TWO.replace("x[r", "x[s").replace(": r", ": s").replace("[0:n, :], src=x", ", src=x").replace("+ n", "+ P")
    + STORE,
    "a loop hides the one around it": HEADER + LOOP + "        for k in range(3):\n" + SHADOWED + STORE,
    "a loop around all of that name": HEADER
    + "    for k in range(2):\n"
    + "".join(
        f"    {line}\n"
        for line in (LOOP + "        for k in range(3):\n" + window("a", "r + k", "0:8", 12) + STORE).splitlines()[:-1]
    )
    + "    return out\n",
    "how long the inner loop is changes": HEADER
    + LOOP
    + "        for j in range(3):\n            for k in range(j + 1):\n"
    + window("a", "r", "j * 4 + k : j * 4 + k + 8", 16)
    + window("b", "r + 2", "j * 4 + k : j * 4 + k + 8", 16)
    + STORE,
    "a comment above a number": HEADER
    + LOOP
    + "        # the column\n        c = 8\n"
    + TWO.replace("0:8", "c : c + 8", 1).replace("n, 0:8", "n, c : c + 8")
    + STORE,
    "the height is made in the loop": HEADER.replace("P = 128", "Q = 128")
    + LOOP.replace("P", "Q").replace("        r = i * Q", "        P = 128\n        r = i * P")
    + TWO
    + STORE,
    "the count is bound again": HEADER
    + "    T = (R - 2 + P - 1) // P\n"
    + LOOP.replace("range((R - 2 + P - 1) // P)", "range(T)")
    + TWO
    + STORE.replace("    return", "        T = 1\n    return"),
}


@pytest.mark.parametrize("why", KERNELS)
def test_it_is_refused_or_the_numbers_stay(why: str) -> None:
    source = KERNELS[why]
    x = np.random.default_rng(7).standard_normal((2 + 2 * 128 + 7, 32)).astype(np.float32)
    expected = run(source, x)
    for key in sites(ONCE, source):
        np.testing.assert_array_equal(run(applied(ONCE, source, key), x), expected)


def test_a_tensor_of_unknown_rank_taken_whole_rows_is_not_for_it() -> None:
    source = KERNELS["the count is bound again"].replace("0:8], src", "0:8], src").replace(", 0:8])", "])")
    assert not sites(ONCE, source)
