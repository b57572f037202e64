"""Two iterations side by side on the partitions: only elementwise work that treats every partition alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.fill_partitions import FillPartitions
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

FILL = FillPartitions()

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    rows = x.shape[0]
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    # time goes by
    for t in nl.affine_range(x.shape[1] // 32):
        a = nl.ndarray((rows, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[0:rows, t * 32 : (t + 1) * 32])
        b = nl.ndarray((rows, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=b, src=y[0:rows, t * 32 : t * 32 + 32])
        c = nl.ndarray((rows, 32), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.multiply)
        nisa.dma_copy(dst=out[0:rows, t * 32 : (t + 1) * 32], src=c)
    return out
"""
)
X, Y = random(64, 256), random(64, 256, seed=1)


def test_half_as_many_instructions_do_the_same_work():
    filled = applied(FILL, KERNEL, "t#0")

    np.testing.assert_array_equal(run(filled, X, Y), run(KERNEL, X, Y))
    assert (count(KERNEL, "tensor_tensor", X, Y), count(filled, "tensor_tensor", X, Y)) == (8, 4)
    assert "# time goes by" in filled


def test_the_result_states_the_shapes_it_needs():
    filled = applied(FILL, KERNEL, "t#0")

    with pytest.raises(AssertionError, match="must be even"):
        run(filled, X[:, :96], Y[:, :96])


def test_what_does_not_fit_does_not_run():
    assert predictor(random(128, 64), random(128, 64))(applied(FILL, KERNEL, "t#0")) is None


def test_the_rope_seed_gets_faster_and_stays_right():
    source = load_seed("rope_single_freq_apply").kernel_source
    x, cos, sin = random(128, 8192), random(64, 8192, seed=1), random(64, 8192, seed=2)

    filled = applied(FILL, source, "t#0")

    np.testing.assert_array_equal(run(filled, x, cos, sin), run(source, x, cos, sin))
    predict = predictor(x, cos, sin)
    assert predict(filled) < predict(source)


def test_overlapping_stores_keep_their_order():
    source = KERNEL.replace(
        "    return out",
        "        nisa.dma_copy(dst=out[0:rows, (t * 32 + 32) % 256 : (t * 32 + 32) % 256 + 32], src=a)\n    return out",
    )

    np.testing.assert_array_equal(run(applied(FILL, source, "t#0"), X, Y), run(source, X, Y))


MULTIPLY = "        nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.multiply)\n"
REFUSALS = {
    "work across the partitions": (
        KERNEL.replace(MULTIPLY, "        nisa.nc_transpose(dst=c, data=a)\n"),
        "does not treat every partition alone",
    ),
    "work that depends on the iteration": (
        KERNEL.replace(MULTIPLY, "        nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=t)\n"),
        "depends on the iteration",
    ),
    "a tile from outside": (
        KERNEL.replace("    # time", "    z = nl.ndarray((64, 1), dtype=x.dtype, buffer=nl.sbuf)\n    # time").replace(
            MULTIPLY, "        nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=z)\n"
        ),
        "from outside the loop",
    ),
    "part of a tile": (KERNEL.replace("data1=a", "data1=a[0:64, 0:32]"), "part of a tile"),
    "part of a tile is loaded": (KERNEL.replace("dst=a, src", "dst=a[0:64, 0:32], src"), "one whole tile"),
    "a copy on chip": (
        KERNEL.replace(MULTIPLY, "        nisa.dma_copy(dst=c, src=a)\n"),
        "one whole tile",
    ),
    "tiles of different partitions": (
        KERNEL.replace("c = nl.ndarray((rows, 32)", "c = nl.ndarray((64, 32)"),
        "same partitions",
    ),
    "a shape that depends on the iteration": (
        KERNEL.replace("c = nl.ndarray((rows, 32)", "c = nl.ndarray((rows, 32 + 0 * t)"),
        "depends on the iteration",
    ),
    "the loop reads what it writes": (KERNEL.replace("src=y[", "src=out["), "which it writes"),
    "a stored tile is written again": (
        KERNEL.replace("    return out", "        nisa.memset(dst=c, value=0.0)\n    return out"),
        "written again",
    ),
    "a number of rows": (
        KERNEL.replace(MULTIPLY, "        nisa.tensor_scalar(dst=c, data=a, op0=nl.multiply, operand0=a.shape[0])\n"),
        "asks for the shape of a",
    ),
    "a loop inside": (
        KERNEL.replace(MULTIPLY, "        for i in range(1):\n            nisa.memset(dst=c, value=0.0)\n"),
        "more than a tile",
    ),
    "it does not count from 0": (
        KERNEL.replace("nl.affine_range(x.shape[1] // 32)", "range(0, 8)"),
        "count up from 0",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    check_refused(FILL, source, "t#0", reason)


@pytest.mark.parametrize("key", ["t#1", "u#0", "t"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(FILL, KERNEL, key)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Any chain of elementwise work on tiles of any height, stored once or twice: same numbers, side by side."""
    rows = data.draw(st.sampled_from((1, 8, 64)), label="rows")
    trips = data.draw(st.sampled_from((2, 4, 6)), label="trips")
    lines = [
        "@nki.jit",
        "def kernel(x, y):",
        f"    out = nl.ndarray((2, {rows}, {8 * trips}), dtype=x.dtype, buffer=nl.shared_hbm)",
        f"    for t in nl.affine_range({trips}):",
    ]
    tiles: list[str] = []
    for source in data.draw(st.lists(st.sampled_from("xy"), min_size=1, max_size=3), label="loads"):
        tiles.append(f"t{len(tiles)}")
        lines += [
            f"        {tiles[-1]} = nl.ndarray(({rows}, 8), dtype=x.dtype, buffer=nl.sbuf)",
            f"        nisa.dma_copy(dst={tiles[-1]}, src={source}[0:{rows}, t * 8 : (t + 1) * 8])",
        ]
    for step in data.draw(st.lists(st.sampled_from(("add", "scale", "exp", "copy")), max_size=4), label="steps"):
        one, two = (data.draw(st.sampled_from(tiles)) for _ in range(2))
        new = f"t{len(tiles)}"
        lines.append(f"        {new} = nl.ndarray(({rows}, 8), dtype=x.dtype, buffer=nl.sbuf)")
        lines.append("        " + {
            "add": f"nisa.tensor_tensor(dst={new}, data1={one}, data2={two}, op=nl.add)",
            "scale": f"nisa.tensor_scalar(dst={new}, data={one}, op0=nl.multiply, operand0=0.5)",
            "exp": f"nisa.activation(dst={new}, op=nl.tanh, data={one})",
            "copy": f"nisa.tensor_copy(dst={new}, src={one})",
        }[step])  # fmt: skip
        tiles.append(new)
    for half in range(2):
        chosen = data.draw(st.sampled_from(tiles), label="stored")
        lines.append(f"        nisa.dma_copy(dst=out[{half}, 0:{rows}, t * 8 : (t + 1) * 8], src={chosen})")
    source = HEADER + "\n".join([*lines, "    return out"]) + "\n"
    x, y = random(rows, 8 * trips), random(rows, 8 * trips, seed=1)

    found = sites(FILL, source)

    for key in found:
        np.testing.assert_array_equal(run(applied(FILL, source, key), x, y), run(source, x, y))
