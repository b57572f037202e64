"""An access pattern that is a box of its buffer is slices of it; any other stays."""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.transforms.base import parse_kernel
from accelopt_core.transforms.drop_copy import DropCopy
from accelopt_core.transforms.normalize import normalized
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, random, run, sites

X = random(256, 96)


def kernel(shape: str, line: str) -> str:
    return f"""{HEADER}
@nki.jit
def kernel(x):
    N, W = x.shape
    out = nl.ndarray({shape}, dtype=x.dtype, buffer=nl.shared_hbm)
    big = nl.ndarray((128, 4, 24), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=big, src=x[0:128, 0:96])
    for i in range(2):
        rows = i * 64
        tile = nl.ndarray({shape}, dtype=x.dtype, buffer=nl.sbuf)
        {line}
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out, src=tile)
    return out
"""


BOXES = {
    "all of an argument": ("(128, 192)", "dma_copy", "x.ap(pattern=[[W, N], [1, W]])", "x"),
    "a row of each": (
        "(128, 24)",
        "tensor_copy",
        "big.ap([[96, 128], [1, 24]], offset=24 * 2)",
        "big[0 : 128, 2, 0 : 24]",
    ),
    "every second": (
        "(128, 2, 10)",
        "tensor_copy",
        "big.ap([[96, 128], [48, 2], [2, 10]], offset=i * 24 + 3)",
        "big[0 : 128, i : i + 3 : 2, 3 : 22 : 2]",
    ),
    "some partitions": (
        "(64, 4, 24)",
        "tensor_copy",
        "big.ap([[96, 64], [24, 4], [1, 24]], offset=rows * 96)",
        "big[64 * i : 64 * i + 64, 0 : 4, 0 : 24]",
    ),
    "one partition": ("(1, 24)", "tensor_copy", "big.ap([[1, 1], [1, 24]], offset=96 * 32)", "big[32 : 33, 0, 0 : 24]"),
}


@pytest.mark.parametrize("box", BOXES)
def test_a_box_is_slices(box):
    shape, operation, pattern, slices = BOXES[box]
    source = kernel(shape, f"nisa.{operation}(dst=tile, src={pattern})")
    made = normalized(parse_kernel(source)).text
    assert f"src={slices})" in made, made
    assert normalized(parse_kernel(made)).text == made
    assert proved_on(made, source, X).equivalence.finding is Finding.HELD


STAY = {
    "it goes on in the next row": "big.ap([[96, 128], [1, 30]], offset=24 * 2)",
    "its rows overlap": "big.ap([[96, 128], [1, 2], [1, 15]])",
    "its dimensions are in another order": "big.ap([[96, 128], [1, 15], [24, 2]])",
    "it repeats": "big.ap([[96, 128], [0, 2], [1, 15]])",
    "how far it goes does not show": "big.ap([[96, 128], [1, min(W, 24) + 6]])",
}


@pytest.mark.parametrize("why", STAY)
def test_what_is_no_box_stays(why):
    shape = "(128, 2, 15)" if STAY[why].count("[") == 4 else "(128, 30)"
    source = kernel("(128, 15, 2)" if "order" in why else shape, f"nisa.tensor_copy(dst=tile, src={STAY[why]})")
    made = normalized(parse_kernel(source)).text
    assert f"src={STAY[why]})" in made
    np.testing.assert_array_equal(run(made, X), run(source, X))


def test_what_reads_a_copy_of_a_box_can_read_the_box():
    shape, _, pattern, _ = BOXES["a row of each"]
    source = kernel(shape, f"nisa.tensor_copy(dst=tile, src={pattern})").replace(
        "nisa.tensor_scalar(dst=tile, data=tile", "more = nl.ndarray(tile.shape, dtype=x.dtype, buffer=nl.sbuf)\n"
        "        nisa.tensor_scalar(dst=more, data=tile"
    ).replace("src=tile)\n    return", "src=more)\n    return")  # fmt: skip
    assert sites(DropCopy(), source) == {}
    assert sites(DropCopy(), normalized(parse_kernel(source)).text)
