"""Hoisting a load: where it is offered, what it leaves behind, and where it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, NotAKernel, SiteGone, parse_kernel
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads, HoistInvariantPreparation
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites

HOIST = HoistInvariantLoads()
PREPARE = HoistInvariantPreparation()

ADD_ROWS = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(x.shape[0] // 128):
        for n in nl.affine_range(x.shape[1] // 64):
            # the row that every m adds
            row = nl.ndarray((128, 64), dtype=y.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=row, src=y[0:128, n * 64 : (n + 1) * 64])  # from HBM
            tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[m * 128 : (m + 1) * 128, n * 64 : (n + 1) * 64])
            total = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=tile, data2=row, op=nl.add)
            nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, n * 64 : (n + 1) * 64], src=total)
    return out
"""
)


def test_given_the_matmul_seed_then_both_operands_are_offered_and_nothing_else():
    source = load_seed("matmul").kernel_source

    assert set(sites(HOIST, source)) == {"lhs_t/n", "rhs_tile/m"}


def test_when_the_turned_lhs_is_hoisted_then_it_is_loaded_and_turned_once_per_row_of_tiles():
    source = load_seed("matmul").kernel_source
    lhs, rhs = random(256, 384), random(384, 1024, seed=1)

    hoisted = applied(HOIST, source, "lhs_t/n")

    np.testing.assert_array_equal(run(hoisted, lhs, rhs), run(source, lhs, rhs))
    assert count(source, "nc_transpose", lhs, rhs) == 2 * 2 * 3
    assert count(hoisted, "nc_transpose", lhs, rhs) == 2 * 3


def test_when_a_load_depends_on_two_inner_loops_then_lists_are_nested():
    source = load_seed("add_rmsnorm_matmul").kernel_source

    hoisted = applied(HOIST, source, "w_tile/m")

    assert "moving=w_tiles[n][k]" in hoisted
    inputs = (random(256, 512), random(512, 1024, seed=1), 1e-5, random(256, 512, seed=2), random(512, seed=3))
    np.testing.assert_array_equal(run(hoisted, *inputs), run(source, *inputs))


def test_work_on_chip_is_hoisted_like_a_load_and_offered_apart():
    source = load_seed("add_rmsnorm_matmul").kernel_source
    inputs = (random(256, 512), random(512, 1024, seed=1), 1e-5, random(256, 512, seed=2), random(512, seed=3))

    assert set(sites(PREPARE, source)) == {"scaled_t/n"}
    hoisted = applied(PREPARE, source, "scaled_t/n")

    np.testing.assert_array_equal(run(hoisted, *inputs), run(source, *inputs))
    assert count(source, "nc_transpose", *inputs) == 2 * 2 * 4
    assert count(hoisted, "nc_transpose", *inputs) == 2 * 4
    with pytest.raises(IllegalSite, match="loaded from memory"):
        applied(PREPARE, source, "w_tile/m")


def test_when_a_load_sits_directly_in_the_loop_then_no_list_is_made():
    source = ADD_ROWS.replace("n * 64 : (n + 1) * 64])  # from HBM", "0:64])  # from HBM")

    once = applied(HOIST, source, "row/n")

    assert ".append(" not in once
    assert once.index("src=y[") < once.index("for n in")
    x, y = random(256, 128), random(128, 128, seed=1)
    np.testing.assert_array_equal(run(once, x, y), run(source, x, y))
    everywhere = applied(HOIST, once, "row/m")
    assert count(everywhere, "dma_copy", x, y) == 2 * 4 + 1


def test_comments_and_formatting_survive():
    hoisted = applied(HOIST, ADD_ROWS, "row/m")

    assert "# the row that every m adds" in hoisted
    assert "# from HBM" in hoisted
    kept = [line for line in ADD_ROWS.splitlines() if "row" not in line]
    assert [line for line in hoisted.splitlines() if line in kept][: len(kept)]
    x, y = random(256, 128), random(128, 128, seed=1)
    np.testing.assert_array_equal(run(hoisted, x, y), run(ADD_ROWS, x, y))


def test_a_name_that_is_taken_is_not_used_for_the_list():
    source = ADD_ROWS.replace("    out = ", "    row_tiles = 3\n    out = ")

    hoisted = applied(HOIST, source, "row/m")

    assert "row_tiles2 = []" in hoisted
    x, y = random(256, 128), random(128, 128, seed=1)
    np.testing.assert_array_equal(run(hoisted, x, y), run(source, x, y))


def test_a_number_that_the_load_and_others_need_is_copied():
    source = ADD_ROWS.replace(
        "            # the row that every m adds\n", "            at = n * 64\n            # the row\n"
    ).replace("n * 64 : (n + 1) * 64", "at : at + 64")

    hoisted = applied(HOIST, source, "row/m")

    assert hoisted.count("at = n * 64") == hoisted.count("at_2 = n * 64") == 1, "and every name is bound once"
    x, y = random(256, 128), random(128, 128, seed=1)
    np.testing.assert_array_equal(run(hoisted, x, y), run(source, x, y))


def test_definitions_of_the_loops_in_between_are_copied_in_their_order():
    source = load_seed("transpose_matmul").kernel_source
    lhs, rhs = random(256, 256), random(256, 704, seed=1)

    hoisted = applied(HOIST, source, "rhs_tile/m")

    assert hoisted.count("width = min(") == hoisted.count("width_2 = min(") == 1
    np.testing.assert_array_equal(run(hoisted, lhs, rhs), run(source, lhs, rhs))


def test_the_import_style_does_not_matter():
    source = ADD_ROWS.replace("import nki.isa as nisa", "from nki import isa as nisa")

    assert set(sites(HOIST, source)) == set(sites(HOIST, ADD_ROWS)) == {"row/m"}


ALLOCATE = "            row = nl.ndarray((128, 64), dtype=y.dtype, buffer=nl.sbuf)\n"
STORE = "            nisa.dma_copy(dst=out[m * 128 : (m + 1) * 128, n * 64 : (n + 1) * 64], src=total)\n"
LOAD = "            nisa.dma_copy(dst=row, src=y[0:128, n * 64 : (n + 1) * 64])  # from HBM\n"

REFUSALS = {
    "the load uses the loop variable": (
        ADD_ROWS.replace("src=y[0:128", "src=y[m * 128 : (m + 1) * 128"),
        "row/m",
        "depends on m",
    ),
    "the tile is written elsewhere in the loop": (
        ADD_ROWS.replace("dst=total, data1=tile", "dst=row, data1=tile").replace("src=total", "src=row"),
        "row/m",
        "depends on m",
    ),
    "the tile is written again, through a view, after it was used": (
        ADD_ROWS.replace(
            STORE,
            "            view = row[0:128, 0:64]\n            nisa.memset(dst=view, value=0.0)\n" + STORE,
        ),
        "row/m",
        "before it has its last contents",
    ),
    "the source is written in the loop": (
        ADD_ROWS.replace("src=y[", "src=out["),
        "row/m",
        "the source out is written in the loop",
    ),
    "the tile's name is bound twice": (
        ADD_ROWS.replace("            total = ", "            row = tile\n            total = "),
        "row/m",
        "bound 2 times",
    ),
    "the load is conditional": (
        ADD_ROWS.replace(
            "            tile = ",
            "            if n > 0:\n                late = nl.ndarray((128, 64), dtype=y.dtype, buffer=nl.sbuf)\n"
            "                nisa.dma_copy(dst=late, src=y[0:128, 0:64])\n            tile = ",
        ),
        "late/m",
        "only on a condition",
    ),
    "one of the fills is conditional": (
        ADD_ROWS.replace(LOAD, LOAD + "            if m > 0:\n                nisa.memset(dst=row, value=0.0)\n"),
        "row/m",
        "cannot be moved .branch",
    ),
    "an unknown function gets the tile": (
        ADD_ROWS.replace("            total = ", "            helper(row)\n            total = ", 1).replace(
            "@nki.jit", "def helper(t):\n    nisa.memset(dst=t, value=0.0)\n\n\n@nki.jit"
        ),
        "row/m",
        "cannot be moved .not understood",
    ),
    "a nested function captures the tile": (
        ADD_ROWS.replace("            total = ", "            peek = lambda: row\n            total = "),
        "row/m",
        "nested function",
    ),
    "the loop can be left early": (
        ADD_ROWS.replace("            total = ", "            if n > 2:\n                break\n            total = "),
        "row/m",
        "left early",
    ),
    "the inner loop does not count from 0": (
        ADD_ROWS.replace("for n in nl.affine_range(x.shape[1] // 64)", "for n in range(0, x.shape[1] // 64)"),
        "row/m",
        "count up from 0",
    ),
    "the inner loop's length changes": (
        ADD_ROWS.replace("nl.affine_range(x.shape[1] // 64)", "nl.affine_range(m + 1)"),
        "row/m",
        "changes with m",
    ),
    "an activation that accumulates across calls": (
        ADD_ROWS.replace(
            LOAD,
            LOAD + "            nisa.activation(dst=row, op=nl.exp, data=row, reduce_cmd=nisa.reduce_cmd.reduce)\n",
        ),
        "row/m",
        "depends on earlier instructions",
    ),
    "nested loops share a variable": (
        ADD_ROWS.replace("for m in", "for n in", 1),
        "row/n",
        "exactly one loop over n",
    ),
    "the loop variable is changed in the loop": (
        ADD_ROWS.replace("            # the row", "            n = n + 0\n            # the row"),
        "row/m",
        "both a loop variable and something else",
    ),
    "the tile is in PSUM": (
        ADD_ROWS.replace(ALLOCATE, ALLOCATE.replace("sbuf", "psum")),
        "row/m",
        "not a tile allocated in SBUF",
    ),
    "something that is no load": (
        ADD_ROWS.replace(LOAD, "            nisa.memset(dst=row, value=1.0)\n"),
        "row/m",
        "not loaded from memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, key, reason = REFUSALS[case]

    check_refused(HOIST, source, key, reason)


SCALED = ADD_ROWS.replace(
    LOAD,
    LOAD + "            twice = nl.ndarray((128, 64), dtype=y.dtype, buffer=nl.sbuf)\n"
    "            nisa.tensor_scalar(dst=twice, data=row, op0=nl.multiply, operand0=2.0)\n",
).replace("data2=row", "data2=twice")
HOISTED = applied(HOIST, SCALED.replace("data2=twice", "data2=row"), "row/m")
PREPARATION_REFUSALS = {
    "a load": (ADD_ROWS, "row/m", "loaded from memory"),
    "what it is made of changes": (SCALED.replace("data=row", "data=tile"), "twice/m", "."),
    "it is written again": (
        SCALED.replace(STORE, "            nisa.memset(dst=twice, value=0.0)\n" + STORE), "twice/m", "."
    ),
    "the loop can be left early": (
        SCALED.replace("            total = ", "            if n > 2:\n                break\n            total = "),
        "twice/m",
        "left early",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PREPARATION_REFUSALS)
def test_preparation_stays_where_it_is(case):
    source, key, reason = PREPARATION_REFUSALS[case]

    check_refused(PREPARE, source, key, reason)


def test_a_site_of_another_kernel_is_gone():
    with pytest.raises(SiteGone):
        applied(HOIST, ADD_ROWS, "w_tile/m")


@pytest.mark.parametrize(
    "text", ["x = 1\n", "def kernel(x): return x\n", "def kernel(x):\n    return x\n\n\ndef kernel(y):\n    return y\n"]
)
def test_text_without_one_kernel_is_refused_by_name(text):
    with pytest.raises(NotAKernel):
        HOIST.analyze(parse_kernel(text), None)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_loop_nest_keeps_the_result(data):
    """Three loops, loads that use any subset of their variables, optional preparation: same numbers, always."""
    variables = ("a", "b", "c")
    lines = [
        "@nki.jit", "def kernel(x, y):",
        "    out = nl.ndarray((24, 8, 4), dtype=x.dtype, buffer=nl.shared_hbm)",
        *("    " * (depth + 1) + f"for {v} in nl.affine_range({data.draw(st.integers(1, 3), label=v)}):"
          for depth, v in enumerate(variables)),
    ]  # fmt: skip
    pad = "    " * 4
    tiles = []
    for number, source in enumerate(("x", "y", "x")):
        used = [v for v in variables if data.draw(st.booleans())]
        row = " + ".join([f"{v} * {3**i}" for i, v in enumerate(used)] or ["0"])
        lines += [
            f"{pad}t{number} = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)",
            f"{pad}nisa.dma_copy(dst=t{number}, src={source}[{row}, 0:8, 0:4])",
        ]
        if data.draw(st.booleans()):
            lines += [
                f"{pad}p{number} = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)",
                f"{pad}nisa.tensor_scalar(dst=p{number}, data=t{number}, op0=nl.multiply, operand0={number + 2}.0)",
            ]
            tiles.append(f"p{number}")
        else:
            tiles.append(f"t{number}")
    lines += [
        f"{pad}s = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)",
        f"{pad}nisa.tensor_tensor(dst=s, data1={tiles[0]}, data2={tiles[1]}, op=nl.add)",
        f"{pad}r = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)",
        f"{pad}nisa.tensor_tensor(dst=r, data1=s, data2={tiles[2]}, op=nl.multiply)",
        f"{pad}nisa.dma_copy(dst=out[(a * 3 + b) % 8 * 3 + c, 0:8, 0:4], src=r)",
        "    return out",
    ]
    source = HEADER + "\n".join(lines) + "\n"
    x, y = random(27, 8, 4), random(27, 8, 4, seed=1)
    expected = run(source, x, y)

    found = sorted((t.name, key) for t in (HOIST, PREPARE) for key in sites(t, source))
    if found:
        name, key = data.draw(st.sampled_from(found), label="site")
        hoisted = applied(HOIST if name == HOIST.name else PREPARE, source, key)
        np.testing.assert_array_equal(run(hoisted, x, y), expected)
        again = sorted(sites(HOIST, hoisted))
        if again:
            twice = applied(HOIST, hoisted, data.draw(st.sampled_from(again), label="second site"))
            np.testing.assert_array_equal(run(twice, x, y), expected)
