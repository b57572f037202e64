"""A buffer for every iteration: only where each iteration overwrites all of it before it reads any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.rotate_buffers import RotateBuffers
from tests.transforms.running import HEADER, applied, check_refused, predictor, random, run, sites

ROTATE = RotateBuffers()

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    # one tile for all rows
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)

    for m in nl.affine_range(x.shape[0] // 128):
        # load
        nisa.dma_copy(dst=tile, src=x[m * 128 : (m + 1) * 128, 0 : x.shape[1]])
        done = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=done, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, 0 : x.shape[1]], src=done)
    return out
"""
)
LOAD = "        nisa.dma_copy(dst=tile, src=x[m * 128 : (m + 1) * 128, 0 : x.shape[1]])\n"
MADE = "    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)\n"
X = random(1024, 512)

ACCUMULATING = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    out = nl.ndarray((x.shape[0] // 128, 128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=y)
    acc = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    for m in nl.affine_range(x.shape[0] // 128):
        left = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=x[m * 128 : (m + 1) * 128, 0:128])
        nisa.nc_matmul(dst=acc, stationary=left, moving=right)
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=acc)
        nisa.dma_copy(dst=out[m], src=tile)
    return out
"""
)


def test_the_next_load_need_not_wait_for_the_readers_of_the_last():
    rotated = applied(ROTATE, KERNEL, "tile/m#0")

    np.testing.assert_array_equal(run(rotated, X), run(KERNEL, X))
    assert "# one tile for all rows" in rotated and "# load" in rotated
    assert rotated.index("for m in") < rotated.index("tile = nl.ndarray(")


def test_it_gains_where_a_tile_is_filled_in_parts_and_nothing_where_the_compiler_renames_it():
    in_parts = KERNEL.replace(
        LOAD,
        """        for k in nl.affine_range(2):
            nisa.dma_copy(
                dst=tile[0:128, k * 256 : (k + 1) * 256],
                src=x[m * 128 : (m + 1) * 128, k * 256 : (k + 1) * 256],
            )
""",
    ).replace("(128, x.shape[1])", "(128, 512)")
    assert in_parts != KERNEL
    predict = predictor(X)
    assert predict(applied(ROTATE, in_parts, "tile/m#0")) < 0.9 * predict(in_parts)
    assert predict(applied(ROTATE, KERNEL, "tile/m#0")) == predict(KERNEL)


def test_once_done_it_is_not_offered_again():
    assert set(sites(ROTATE, KERNEL)) == {"tile/m#0"}
    assert sites(ROTATE, applied(ROTATE, KERNEL, "tile/m#0")) == {}


def test_an_accumulator_that_starts_anew_in_every_iteration_is_rotated():
    source = ACCUMULATING.replace("moving=right)", "moving=right, accumulate=False)")
    x, y = random(512, 128), random(128, 64, seed=1)

    assert set(sites(ROTATE, source)) == {"acc/m#0"}
    np.testing.assert_array_equal(run(applied(ROTATE, source, "acc/m#0"), x, y), run(source, x, y))


def test_the_innermost_loop_that_may_have_it_gets_it():
    source = KERNEL.replace("    for m in", "    for again in range(2):\n      for m in").replace(
        "\n        ", "\n            "
    )

    assert set(sites(ROTATE, source)) == {"tile/m#1"}
    np.testing.assert_array_equal(run(applied(ROTATE, source, "tile/m#1"), X), run(source, X))


REFUSALS = {
    "the reverse: it is made in the loop": (
        KERNEL.replace(MADE, "").replace(LOAD, "    " + MADE + LOAD),
        "anew in every iteration already",
    ),
    "it is filled before the loop too": (
        KERNEL.replace(LOAD, "        nisa.activation(dst=tile, op=nl.exp, data=tile)\n" + LOAD).replace(
            "\n\n    for", "\n    nisa.memset(dst=tile, value=0.0)\n\n    for"
        ),
        "outside the loop",
    ),
    "an iteration reads what the last one left": (
        KERNEL.replace(LOAD, "        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)\n" + LOAD),
        "also reads it",
    ),
    "only part of it is overwritten": (KERNEL.replace("dst=tile, src", "dst=tile[0:128], src"), "all of it"),
    "it is overwritten on a condition": (
        KERNEL.replace(LOAD, "        if m > 0:\n    " + LOAD),
        "no instruction that overwrites",
    ),
    "a transfer that may leave rows out": (
        KERNEL.replace("0 : x.shape[1]])\n        done", "0 : x.shape[1]], oob_mode=nisa.oob_mode.skip)\n        done"),
        "oob_mode",
    ),
    "it is used after the loop": (
        KERNEL.replace("    return out", "    nisa.dma_copy(dst=out[0:128, 0 : x.shape[1]], src=tile)\n    return out"),
        "outside the loop",
    ),
    "a view of it is used after the loop": (
        KERNEL.replace("        # load", "        view = tile[0:128]\n        # load").replace(
            "    return out", "    nisa.dma_copy(dst=out[0:128, 0 : x.shape[1]], src=view)\n    return out"
        ),
        "outside the loop",
    ),
    "a list keeps it": (
        KERNEL.replace("    # one", "    kept = []\n    # one").replace(
            "        done =", "        kept.append(tile)\n        done =", 1
        ),
        "may keep",
    ),
    "it has an address": (
        KERNEL.replace("buffer=nl.sbuf)\n\n", "buffer=nl.sbuf, address=(0, 0))\n\n"),
        "a place of its own",
    ),
    "its size changes": (
        KERNEL.replace("    # one", "    width = x.shape[1]\n    # one")
        .replace("tile = nl.ndarray((128, x.shape[1])", "tile = nl.ndarray((128, width)")
        .replace("        # load", "        width = 4\n        # load"),
        "bound again",
    ),
    "it is in HBM": (KERNEL.replace(MADE, MADE.replace("sbuf", "private_hbm")), "not on chip"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    check_refused(ROTATE, source, "tile/m#0", reason)


def test_an_accumulator_that_may_go_on_adding_is_refused():
    assert sites(ROTATE, ACCUMULATING) == {}
    with pytest.raises(IllegalSite, match="accumulate=False"):
        applied(ROTATE, ACCUMULATING, "acc/m#0")


@pytest.mark.parametrize("key", ["tile/m#1", "tile/n#0", "other/m#0", "tile"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(ROTATE, KERNEL, key)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Hoisted tiles, filled in any order, from memory or from one another, whole or in part."""
    width = data.draw(st.sampled_from((8, 32, 100)), label="width")
    trips = data.draw(st.integers(1, 4), label="trips")
    names = [f"t{number}" for number in range(data.draw(st.integers(1, 4), label="tiles"))]
    lines = ["@nki.jit", "def kernel(x):", "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)"]
    for name in names:
        lines += [
            f"    {name} = nl.ndarray((16, {width}), dtype=x.dtype, buffer=nl.sbuf)",
            f"    nisa.memset(dst={name}, value=1.0)" if data.draw(st.booleans(), label=f"{name} used before") else "",
        ]
    lines.append(f"    for i in nl.affine_range({trips}):")
    filled = [name for name, line in zip(names, lines[4::2]) if line]
    for name in [*data.draw(st.permutations(names), label="order"), *names]:
        source = data.draw(st.sampled_from([None, *filled]), label=f"source of {name}")
        part = "[0:8]" if name in filled and data.draw(st.booleans(), label="in part") else ""
        if source is None or not part and source == name:
            lines.append(f"        nisa.dma_copy(dst={name}{part}, src=x[i{', 0:8' if part else ''}])")
        else:
            lines.append(
                f"        nisa.tensor_scalar(dst={name}{part}, data={source}{part}, op0=nl.add, operand0=i + 1)"
            )
        filled.append(name)
    last = data.draw(st.sampled_from(filled), label="stored")
    source = HEADER + "\n".join([*lines, f"        nisa.dma_copy(dst=out[i], src={last})", "    return out"]) + "\n"
    x = random(trips, 16, width)
    expected = run(source, x)

    for key in sites(ROTATE, source):
        np.testing.assert_array_equal(run(applied(ROTATE, source, key), x), expected)


PARTS = KERNEL.replace(
    LOAD,
    """        for c in range(x.shape[1] // 64):
            start = c * 64
            nisa.dma_copy(dst=tile[0:128, start : start + 64], src=x[m * 128 : (m + 1) * 128, start : start + 64])
""",
)
PART = "            nisa.dma_copy(dst=tile[0:128, start : start + 64]"


def test_a_tile_that_a_loop_fills_part_by_part_is_rotated():
    rotated = applied(ROTATE, PARTS, "tile/m#0")

    np.testing.assert_array_equal(run(rotated, X), run(PARTS, X))
    predict = predictor(X)
    assert predict(rotated) < 0.9 * predict(PARTS)
    assert rotated.index("for m in") < rotated.index("tile = nl.ndarray(") < rotated.index("for c in")


def test_that_its_parts_are_the_whole_is_stated():
    with pytest.raises(AssertionError, match="all of the tile"):
        run(applied(ROTATE, PARTS, "tile/m#0"), X[:, :480])
    source = (
        PARTS.replace("x.shape[1] // 64", "4").replace("(128, x.shape[1])", "(128, 256)").replace("x.shape[1]", "256")
    )
    assert "all of the tile" not in applied(ROTATE, source, "tile/m#0"), "it shows"


NOT_ALL_PARTS = {
    "gaps": (PARTS.replace("start = c * 64", "start = c * 128"), "may leave some of it out"),
    "from the second on": (PARTS.replace("start = c * 64", "start = c * 64 + 64"), "may leave some of it out"),
    "not all partitions": (PARTS.replace("tile[0:128, start", "tile[0:64, start"), "all of it"),
    "read while it is filled": (
        PARTS.replace(PART, "            nisa.activation(dst=tile, op=nl.exp, data=tile)\n" + PART),
        "does more than fill",
    ),
    "it reads what it fills": (
        PARTS.replace(PART, "            nisa.tensor_copy(dst=tile[0:128, start : start + 64]").replace(
            "], src=x[m * 128 : (m + 1) * 128, start", "], src=tile[0:128, start"
        ),
        "also reads it",
    ),
    "only under a condition": (PARTS.replace(PART, "            if c > 0:\n    " + PART), "does more than fill"),
    "left early": (PARTS.replace(PART, "            if c > 3:\n                break\n" + PART), "does more than fill"),
    "as many parts as the iteration says": (PARTS.replace("range(x.shape[1] // 64)", "range(m)"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_ALL_PARTS)
def test_refuses_what_may_not_be_all_parts(case):
    source, reason = NOT_ALL_PARTS[case]

    assert source != PARTS
    if reason is not None:
        check_refused(ROTATE, source, "tile/m#0", reason)
    else:
        with pytest.raises(AssertionError, match="all of the tile"):
            run(applied(ROTATE, source, "tile/m#0"), X)
