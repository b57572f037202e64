"""Wider transfers: only of columns that provably follow one another, and only where nothing else touches them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.widen_dma_rows import WidenDmaRows
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites, trace

WIDEN = WidenDmaRows()

KERNEL = (
    HEADER
    + """
W = 16


@nki.jit
def kernel(x):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # by columns
    for n in nl.affine_range(N // W):
        # in
        tile = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0:M, n * W : (n + 1) * W])
        # grows to the right
        done = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=done, data=tile, op0=nl.add, operand0=n + 1)
        # out
        nisa.dma_copy(dst=out[0:M, n * W : (n + 1) * W], src=done)
    return out
"""
)
X = random(64, 128)
ADD = "        nisa.tensor_scalar(dst=done, data=tile, op0=nl.add, operand0=n + 1)\n"
LOAD = "        nisa.dma_copy(dst=tile, src=x[0:M, n * W : (n + 1) * W])\n"
STORE = "        nisa.dma_copy(dst=out[0:M, n * W : (n + 1) * W], src=done)\n"


def row_bytes(source: str) -> set[int]:
    """Bytes in a row of the transfers of the traced kernel."""
    program = trace(source, X)
    templates = [program.templates[number] for number in set(program.template_ids)]
    return {t.operands[0].shape[-1] * 4 for t in templates if t.opcode == "dma_copy"}


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_transfers_are_fewer_and_their_rows_longer_while_the_work_stays(factor):
    widened = applied(WIDEN, KERNEL, f"n#0x{factor}")

    np.testing.assert_array_equal(run(widened, X), run(KERNEL, X))
    assert count(widened, "dma_copy", X) == count(KERNEL, "dma_copy", X) // factor
    assert count(widened, "tensor_scalar", X) == count(KERNEL, "tensor_scalar", X)
    assert (row_bytes(KERNEL), row_bytes(widened)) == ({64}, {64 * factor})


def test_all_rows_there_are_need_no_ends():
    source = KERNEL.replace("[0:M, ", "[:, ")

    np.testing.assert_array_equal(run(applied(WIDEN, source, "n#0x2"), X), run(KERNEL, X))


def test_short_rows_cost_time():
    predict = predictor(X)
    assert predict(applied(WIDEN, KERNEL, "n#0x4")) < 0.9 * predict(KERNEL)


def test_the_matmul_seed_gets_faster_although_psum_holds_no_wider_tile():
    source = load_seed("matmul").kernel_source
    lhs, rhs = random(256, 1024), random(1024, 512, seed=1)

    widened = applied(WIDEN, source, "k#2x4")

    np.testing.assert_array_equal(run(widened, lhs, rhs), run(source, lhs, rhs))
    assert predictor(lhs, rhs)(widened) < predictor(lhs, rhs)(source)


def test_what_cannot_be_widened_stays_while_the_rest_is():
    source = KERNEL.replace("dst=done, data=tile", "dst=done[0:M], data=tile")

    widened = applied(WIDEN, source, "n#0x2")

    np.testing.assert_array_equal(run(widened, X), run(source, X))
    assert "tile_wide" in widened and "done_wide" not in widened


def test_comments_survive_and_no_name_is_taken_twice():
    source = KERNEL.replace("    # by", "    j = 0\n    tile_wide = 0\n    n_wide = 0\n    # by")

    widened = applied(WIDEN, source, "n#0x2")

    for comment in ("# by columns", "# in", "# grows to the right", "# out"):
        assert comment in widened
    for name in ("tile_wide2", "n_wide2", "j2"):
        assert name in widened
    np.testing.assert_array_equal(run(widened, X), run(KERNEL, X))


def test_it_can_be_applied_to_its_own_result_s_other_loops():
    source = load_seed("silu").kernel_source
    x = random(256, 4096)

    widened = applied(WIDEN, source, "n#1x2")

    np.testing.assert_array_equal(run(widened, x), run(source, x))
    for key in sites(WIDEN, widened):
        np.testing.assert_array_equal(run(applied(WIDEN, widened, key), x), run(source, x))


def test_the_result_states_the_shapes_it_needs():
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(WIDEN, KERNEL, "n#0x4"), X[:, :96])


REFUSALS = {
    "columns that do not follow one another": (
        KERNEL.replace("n * W : (n + 1) * W", "2 * n * W : 2 * n * W + W"),
        "do not follow one another",
    ),
    "columns that wrap around": (
        KERNEL.replace("n * W : (n + 1) * W", "n % 2 * W : n % 2 * W + W"),
        "do not follow one another",
    ),
    "a row per iteration": (
        KERNEL.replace("n * W : (n + 1) * W", "0:W").replace("0:M,", "n : n + M,"),
        "another dimension",
    ),
    "part of a tile": (
        KERNEL.replace("dst=done, data=tile", "dst=done[0:M], data=tile[0:M]"),
        "works on part of tile; line .* works on part of done",
    ),
    "more columns than the tile has": (
        KERNEL.replace("(n + 1) * W]", "n * W + 2 * W]"),
        "fills the tile row by row",
    ),
    "a tile that something else wrote to": (
        KERNEL.replace(ADD, "        nisa.memset(dst=tile, value=0.0)\n" + ADD).replace(STORE, STORE + STORE),
        "tile is written again on line .*; .* touches what is stored",
    ),
    "the loop writes what it loads": (
        KERNEL.replace("src=x[", "src=out["),
        "writes what is loaded.*touches what is stored",
    ),
    "tiles from before the loop": (
        KERNEL.replace(
            "    # by",
            "    tile = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)\n"
            "    done = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)\n    # by",
        )
        .replace("        tile = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)\n", "")
        .replace("        done = nl.ndarray((M, W), dtype=x.dtype, buffer=nl.sbuf)\n", ""),
        "not made in SBUF by the loop",
    ),
    "the variable is bound again": (KERNEL.replace("        # in\n", "        n = n\n"), "bound again"),
    "the loop can be left early": (KERNEL.replace("    return", "        break\n    return"), "left early"),
    "it does not count from 0": (KERNEL.replace("nl.affine_range(N // W)", "range(0, 8)"), "count up from 0"),
    "lists keep the tiles": (
        KERNEL.replace("    # by", "    kept = []\n    # by").replace(
            STORE, "        kept.append(tile)\n        kept.append(done)\n" + STORE
        ),
        "does more with tile than an instruction does",
    ),
    "it moves nothing itself": (
        KERNEL.replace(LOAD, "        for i in range(1):\n    " + LOAD).replace(
            STORE, "        for i in range(1):\n    " + STORE
        ),
        "moves no tile",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    assert sites(WIDEN, source) == {}
    check_refused(WIDEN, source, "n#0x2", reason)


def test_square_tiles_of_a_deeper_array_are_not_taken_for_columns():
    """x[i, rows] of three dimensions: the one slice counts rows, although a row is as long as there are rows."""
    source = KERNEL.replace("x[0:M, n * W", "x[0, n * W").replace("out[0:M, n * W", "out[0, n * W")
    source = source.replace("(M, W), dtype=x.dtype, buffer=nl.sbuf", "(W, W), dtype=x.dtype, buffer=nl.sbuf")

    with pytest.raises(IllegalSite, match="does not move rows and columns"):
        applied(WIDEN, source, "n#0x2")


@pytest.mark.parametrize("key", ["n#1x2", "m#0x2", "n#0", "n"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(WIDEN, KERNEL, key)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Loads with and without a stride, work on whole tiles, parts and in place, one or two stores."""
    width = data.draw(st.sampled_from((4, 8, 20)), label="width")
    trips = data.draw(st.sampled_from((2, 4, 8)), label="trips")
    lines = [
        "@nki.jit", "def kernel(x, y):", "    out = nl.ndarray((2, 8, 160), dtype=x.dtype, buffer=nl.shared_hbm)",
        "    for m in nl.affine_range(2):", f"        for n in nl.affine_range({trips}):",
    ]  # fmt: skip
    pad = " " * 12
    columns = st.sampled_from(
        (f"n * {width} : (n + 1) * {width}", f"{width} * n : n * {width} + {width}", f"0:{width}")
    )
    tiles: list[str] = []
    for number in range(data.draw(st.integers(1, 3), label="tiles")):
        name = f"t{number}"
        lines.append(f"{pad}{name} = nl.ndarray((8, {width}), dtype=x.dtype, buffer=nl.sbuf)")
        kind = data.draw(st.sampled_from(("load", "work") if tiles else ("load",)), label=name)
        source = data.draw(st.sampled_from(tiles or ["x"]))
        if kind == "load":
            lines.append(
                f"{pad}nisa.dma_copy(dst={name}, src={data.draw(st.sampled_from('xy'))}[m, 0:8, {data.draw(columns)}])"
            )
        else:
            lines.append(f"{pad}nisa.tensor_scalar(dst={name}, data={source}, op0=nl.multiply, operand0=n + 2)")
        if data.draw(st.booleans(), label=f"{name} in part"):
            lines.append(f"{pad}nisa.tensor_scalar(dst={name}[0:4], data={name}[0:4], op0=nl.add, operand0=1.0)")
        tiles.append(name)
    for _ in range(data.draw(st.integers(1, 2), label="stores")):
        place = data.draw(
            st.sampled_from((f"n * {width} : (n + 1) * {width}", f"(7 - n) * {width} : (8 - n) * {width}"))
        )
        lines.append(f"{pad}nisa.dma_copy(dst=out[m, 0:8, {place}], src={data.draw(st.sampled_from(tiles))})")
    source = HEADER + "\n".join([*lines, "    return out"]) + "\n"
    x, y = random(2, 8, 160), random(2, 8, 160, seed=1)
    expected = run(source, x, y)

    for key in sites(WIDEN, source):
        if trips % int(key[-1]) == 0:
            np.testing.assert_array_equal(run(applied(WIDEN, source, key), x, y), expected)
