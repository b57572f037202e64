"""Small kernels to hold against each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from nki_sim.program.program import Program
from nki_sim.proofs.equivalence import Original, Proofs, prove
from nki_sim.proofs.execution import Input
from tests.kernel_texts import HEADER, trace

P, N = 128, 64


def kernel(body: str, *, more: str = "") -> str:
    """Of two inputs x, y [P, N], which are in SBUF as a and b; `out` is a tile that is stored; t1 to t3 [P, N] and
    c1 to c3 [P, 1] are free."""
    lines = [
        "def kernel(x, y):",
        f"    result = nl.ndarray(({P}, {N}), dtype=nl.float32, buffer=nl.shared_hbm)",
        *[
            f"    {name} = nl.ndarray(({P}, {N}), dtype=nl.float32, buffer=nl.sbuf)"
            for name in ("a", "b", "out", "t1", "t2", "t3")
        ],
        *[f"    {name} = nl.ndarray(({P}, 1), dtype=nl.float32, buffer=nl.sbuf)" for name in ("c1", "c2", "c3")],
        "    nisa.dma_copy(dst=a, src=x)",
        "    nisa.dma_copy(dst=b, src=y)",
        textwrap.indent(textwrap.dedent(body).strip(), "    "),
        "    nisa.dma_copy(dst=result, src=out)" if "result" not in body else "",
        "    return result",
    ]
    return HEADER + more + "\n".join(lines) + "\n"


def traced(body: str, dtype: Any = np.float32) -> Program:
    """`dtype`: of both inputs, which are widened on their way into SBUF."""
    return trace(kernel(body), *(np.zeros((P, N), dtype),) * 2)


def compared(body: str, original: str, seed: int = 5, inputs: Sequence[Input] = (Input(None),) * 2) -> Proofs:
    return prove(traced(body), Original(lambda: traced(original), inputs, seed))
