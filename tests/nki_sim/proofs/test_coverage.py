"""Every output element is written, and none of memory that nothing wrote, nor of which core is first."""

from __future__ import annotations

import re

import pytest
from kernels_in_fields import compared

from nki_sim.proofs.proof import Finding

SUM = "nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.add)"
STORE = "nisa.dma_copy(dst=result, src=out)"

REFUTED = {
    "a row is not stored": (
        SUM + "\nnisa.dma_copy(dst=result[0:127, :], src=out[0:127, :])",
        r"output 0 is not written at \[127, 0\], one of 64 such elements",
    ),
    "half of a tile is stored that was never written": (
        "nisa.tensor_copy(dst=out[:, 0:32], src=a[:, 0:32])",
        r"output 0 depends at \[0, 32\] on memory that nothing wrote: line \d+ reads tensor\[128, 64\]",
    ),
    "one column of a sum": (
        """
        nisa.tensor_copy(dst=t1[:, 0:63], src=a[:, 0:63])
        nisa.tensor_reduce(dst=c1, op=nl.add, data=t1, axis=1)
        nisa.tensor_scalar(dst=out, data=a, op0=nl.multiply, operand0=c1)
        """,
        "depends at .* on memory that nothing wrote",
    ),
    "compared, which NaN survives": (
        "nisa.tensor_scalar(dst=out, data=t1, op0=nl.greater, operand0=0.0)",
        "depends at .* on memory that nothing wrote",
    ),
    "made an integer, which hides NaN": (
        """
        whole = nl.ndarray((128, 64), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=whole, src=t1)
        nisa.tensor_copy(dst=out, src=whole)
        """,
        "depends at .* on memory that nothing wrote",
    ),
    "added to PSUM that no product began": (
        """
        acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=a, moving=b, accumulate=True)
        nisa.tensor_copy(dst=out, src=a)
        nisa.tensor_copy(dst=out[0:64, :], src=acc)
        """,
        "depends at .* on memory that nothing wrote",
    ),
}

HELD = {
    "once": (SUM, "every output element is written, nothing unwritten is read"),
    "in two halves": (
        SUM + "\nnisa.dma_copy(dst=result[0:64, :], src=out[0:64, :])"
        "\nnisa.dma_copy(dst=result[64:128, :], src=out[64:128, :])",
        "every output element is written, nothing",
    ),
    "twice": (f"{SUM}\n{STORE}\n{STORE}", r"\(8,192 are stored again later\)"),
    "twice, by reading it": (
        f"{SUM}\n{STORE}\nnisa.dma_compute(dst=result, srcs=[result, out], reduce_op=nl.add)",
        "every output element is written, nothing",
    ),
    "read and thrown away": (
        f"{SUM}\nnisa.tensor_copy(dst=t2, src=t1)",
        r"line \d+ reads memory that nothing wrote, and no output depends on it",
    ),
    "read, thrown away and only then written": (
        f"{SUM}\nnisa.dma_copy(dst=t1, src=result)\n{STORE}",
        r"line \d+ reads memory that nothing wrote, and no output depends on it",
    ),
    "summed up in PSUM from the first product on": (
        """
        acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        for k in range(2):
            nisa.nc_matmul(dst=acc, stationary=a, moving=b)
        nisa.tensor_copy(dst=out, src=a)
        nisa.tensor_copy(dst=out[0:64, :], src=acc)
        """,
        "nothing unwritten is read",
    ),
}


@pytest.mark.parametrize("case", REFUTED)
def test_it_is_refuted_with_the_place(case):
    body, reason = REFUTED[case]

    proofs = compared(body, SUM)

    assert proofs.coverage.finding is Finding.REFUTED
    assert proofs.equivalence.finding is Finding.NOT_PROVABLE
    assert _matches(reason, proofs.coverage.reason)


@pytest.mark.parametrize("case", HELD)
def test_it_holds(case):
    body, reason = HELD[case]

    coverage = compared(body, SUM).coverage

    assert coverage.finding is Finding.HELD
    assert _matches(reason, coverage.reason)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None or pytest.fail(text)
