"""Several iterations at once: only when they are independent of one another and share a tile of an inner loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.block_tiles import BlockTiles
from accelopt_core.transforms.fuse_row_sum import FuseRowSum
from accelopt_core.transforms.hoist_invariant_loads import HoistInvariantLoads
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, KEEPS_LOADS, applied, check_refused, count, predictor, random, run, sites

BLOCK = BlockTiles()
HOIST = HoistInvariantLoads()

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    M, N = x.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # rows
    for m in nl.affine_range(M // 16):
        # columns
        for n in nl.affine_range(N // 8):
            n0 = n * 8
            # the same for all rows
            right = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=y[0:16, n0 : n0 + 8])
            left = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=x[m * 16 : (m + 1) * 16, n0 : n0 + 8])
            total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)
            nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, n0 : n0 + 8], src=total)  # done
    return out
"""
)
STORE = "            nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, n0 : n0 + 8], src=total)  # done\n"
ADD = "            nisa.tensor_tensor(dst=total, data1=left, data2=right, op=nl.add)\n"
SUM = (
    "            row = nl.ndarray((16, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
    "            nisa.activation(dst=left, op=nl.exp, data=left, reduce_op=nl.add, reduce_res=row, COMMAND)\n"
    "            nisa.tensor_scalar(dst=left, data=left, op0=nl.multiply, operand0=row)\n"
)
"""Multiplies by a sum that the activation leaves in the Scalar engine's registers."""
SUMS_ANEW = KERNEL.replace(ADD, SUM.replace("COMMAND", "reduce_cmd=nisa.reduce_cmd.reset_reduce") + ADD)
ACTIVATION_REDUCE = SUMS_ANEW.replace("nisa.activation(", "nisa.activation_reduce(").replace(
    ", reduce_cmd=nisa.reduce_cmd.reset_reduce", ""
)
GOES_ON = SUM.replace("            row =", "            more =").replace("=row", "=more")
GOES_ON = GOES_ON.replace("COMMAND", "reduce_cmd=nisa.reduce_cmd.reduce")
X, Y = random(64, 32), random(16, 32, seed=1)


@pytest.mark.parametrize(("factor", "loads"), [(2, 2), (4, 1)])
def test_what_iterations_share_is_loaded_once_for_a_block_of_them(factor, loads):
    blocked = applied(BLOCK, KERNEL, f"m#0x{factor}")

    np.testing.assert_array_equal(run(blocked, X, Y), run(KERNEL, X, Y))
    per_tile = 2  # x in, out out
    assert count(KERNEL, "dma_copy", X, Y) == 4 * 4 * (per_tile + 1)
    assert count(blocked, "dma_copy", X, Y) == 4 * 4 * per_tile + 4 * loads


@pytest.mark.parametrize("kernel", [SUMS_ANEW, ACTIVATION_REDUCE], ids=["activation", "activation_reduce"])
def test_a_sum_that_starts_anew_in_each_iteration_passes_nothing_on(kernel):
    blocked = applied(BLOCK, kernel, "m#0x4")

    np.testing.assert_array_equal(run(blocked, X, Y), run(kernel, X, Y))
    assert count(blocked, "dma_copy", X, Y) < count(kernel, "dma_copy", X, Y)


def test_a_row_summed_within_its_activation_does_not_close_the_way_to_blocks():
    """What gqa_full lost 12 % by: the greatest first step had made the next one illegal."""
    source = load_seed("gqa_full").kernel_source
    blocks = sites(BLOCK, source).keys()

    assert "i#2x4" in blocks
    assert sites(BLOCK, applied(FuseRowSum(), source, "total")).keys() == blocks


def test_the_matmul_seed_loads_fewer_tiles_and_gets_faster():
    source = load_seed("matmul").kernel_source
    lhs, rhs = random(512, 1024), random(1024, 2048, seed=1)
    predict = predictor(lhs, rhs, core=KEEPS_LOADS)

    blocked = applied(BLOCK, source, "m#0x4")

    np.testing.assert_array_equal(run(blocked, lhs, rhs), run(source, lhs, rhs))
    assert predict(blocked) < 0.97 * predict(source)
    assert "nisa.nc_matmul(dst=acc_by_m[j], stationary=lhs_t, moving=rhs_tile)" in blocked


def test_it_goes_with_hoisting_in_either_order_and_with_itself():
    source = load_seed("matmul").kernel_source
    lhs, rhs = random(256, 256), random(256, 1024, seed=1)
    expected = run(source, lhs, rhs)

    for steps in (
        ((HOIST, "lhs_t/n"), (BLOCK, "m#0x2")),
        ((BLOCK, "m#0x2"), (HOIST, "lhs_t/n")),
        ((BLOCK, "m#0x2"), (BLOCK, "n#1x2")),
        ((BLOCK, "n#1x2"), (HOIST, "rhs_tile/m")),
    ):
        changed = source
        for transform, key in steps:
            assert key in sites(transform, changed)
            changed = applied(transform, changed, key)
        np.testing.assert_array_equal(run(changed, lhs, rhs), expected)


def test_comments_survive_and_no_name_is_taken_twice():
    source = KERNEL.replace("    # rows", "    j = 0\n    m_block = 1\n    # rows")

    blocked = applied(BLOCK, source, "m#0x2")

    for comment in ("# rows", "# columns", "# the same for all rows", "# done"):
        assert comment in blocked
    assert "for m_block2 in" in blocked and "for j2 in" in blocked
    np.testing.assert_array_equal(run(blocked, X, Y), run(KERNEL, X, Y))


def test_the_result_states_the_shapes_it_needs():
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(BLOCK, KERNEL, "m#0x4"), X[:48], Y)


def test_what_does_not_fit_does_not_run():
    lhs, rhs = random(1024, 256), random(256, 512, seed=1)
    assert predictor(lhs, rhs)(applied(BLOCK, load_seed("matmul").kernel_source, "m#0x8")) is None


REFUSALS = {
    "iterations write the same place": (KERNEL.replace("out[m * 16 : m * 16 + 16", "out[0:16"), "the same part of out"),
    "iterations write places that overlap": (
        KERNEL.replace("out[m * 16 : m * 16 + 16", "out[m * 8 : m * 8 + 16"),
        "the same part of out",
    ),
    "the place is not linear in the iteration": (
        KERNEL.replace("out[m * 16 : m * 16 + 16", "out[m % 2 * 16 : m % 2 * 16 + 16"),
        "the same part of out",
    ),
    "the place moves with an inner loop as well": (
        KERNEL.replace("out[m * 16 : m * 16 + 16", "out[(m + n) % 4 * 16 : (m + n) % 4 * 16 + 16"),
        "the same part of out",
    ),
    "the loop reads what it writes": (KERNEL.replace("src=y[0:16,", "src=out[0:16,"), "reads out, which the loop"),
    "a sum runs through all iterations": (
        KERNEL.replace(
            "    # rows", "    total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)\n    # rows"
        ).replace(
            "            total = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.sbuf)\n            nisa",
            "            nisa",
        ),
        "reads total, which the loop",
    ),
    "a number runs through all iterations": (
        KERNEL.replace("    # rows", "    at = 0\n    # rows").replace(ADD, ADD + "            at = at + 1\n"),
        "before or beside what binds it",
    ),
    "the loop can be left early": (KERNEL.replace(STORE, STORE + "            break\n"), "left early"),
    "a condition": (KERNEL.replace(STORE, "            if n > 0:\n    " + STORE), "is a condition"),
    "something unknown": (KERNEL.replace(ADD, "            helper(total)\n"), "not understood"),
    "a list grows": (
        KERNEL.replace("    # rows", "    kept = []\n    # rows").replace(
            STORE, STORE + "            kept.append(total)\n"
        ),
        "the list kept grows",
    ),
    "nothing is shared": (KERNEL.replace("y[0:16,", "y[m * 0 : m * 0 + 16,"), "share no tile"),
    "a tile is used after the loop": (
        KERNEL.replace("    return out", "    nisa.dma_copy(dst=out[0:16, 0:8], src=total)\n    return out"),
        "after the loop over m",
    ),
    "the variable is used after the loop": (
        KERNEL.replace("    return out", "    last = m\n    return out"),
        "after the loop",
    ),
    "a view hides which part is written": (
        KERNEL.replace(
            STORE,
            "            part = out[m * 16 : m * 16 + 16, n0 : n0 + 8]\n"
            "            nisa.dma_copy(dst=part, src=total)\n",
        ),
        "reads out, which the loop|does not show which part",
    ),
    "it does not count from 0": (KERNEL.replace("nl.affine_range(M // 16)", "range(0, 4)"), "count up from 0"),
    "an instruction with a memory": (
        KERNEL.replace(
            ADD, "            nisa.activation(dst=total, op=nl.exp, data=left, reduce_cmd=nisa.reduce_cmd.reduce)\n"
        ),
        "depends on earlier instructions",
    ),
    "a sum that another goes on from": (
        SUMS_ANEW.replace("    return out", GOES_ON.replace("            ", "    ") + "    return out"),
        "depends on earlier instructions",
    ),
    "a sum of which nobody says where it starts": (
        SUMS_ANEW.replace(", reduce_cmd=nisa.reduce_cmd.reset_reduce", ""),
        "depends on earlier instructions",
    ),
    "a sum beside something unknown": (
        ACTIVATION_REDUCE.replace("    return out", "    helper(out)\n    return out"),
        "depends on earlier instructions",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    assert not [key for key in sites(BLOCK, source) if key.startswith("m#0")]
    check_refused(BLOCK, source, "m#0x2", reason)


def test_fewer_than_two_at_once_is_refused():
    with pytest.raises(IllegalSite, match="at least 2"):
        applied(BLOCK, KERNEL, "m#0x1")


@pytest.mark.parametrize("key", ["m#7x2", "k#0x2", "m#0", "m"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(BLOCK, KERNEL, key)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Three loops, loads by any subset of their variables, definitions and work at any depth, stores that may clash."""
    tile = data.draw(st.sampled_from((4, 8)), label="tile")
    sizes = {v: data.draw(st.sampled_from((2, 4)), label=v) for v in "abc"}
    lines = ["@nki.jit", "def kernel(x):", "    out = nl.ndarray((4, 4, 4, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)"]
    tiles: list[str] = []
    for depth, variable in enumerate("abc"):
        lines.append("    " * (depth + 1) + f"for {variable} in nl.affine_range({sizes[variable]}):")
        pad = "    " * (depth + 2)
        for number in range(data.draw(st.integers(0 if depth < 2 else 1, 2), label=f"tiles at {variable}")):
            name = f"t{depth}{number}"
            used = [v for v in "abc"[: depth + 1] if data.draw(st.booleans(), label=f"{name} uses {v}")]
            lines.append(f"{pad}at_{name} = {' + '.join(f'{v} * {4**i}' for i, v in enumerate(used)) or '0'}")
            lines.append(f"{pad}{name} = nl.ndarray((8, {tile}), dtype=x.dtype, buffer=nl.sbuf)")
            lines.append(f"{pad}nisa.dma_copy(dst={name}, src=x[at_{name}, 0:8, 0:{tile}])")
            if tiles and data.draw(st.booleans(), label=f"{name} is worked on"):
                other = data.draw(st.sampled_from([*tiles, name]))
                lines.append(f"{pad}nisa.tensor_tensor(dst={name}, data1={name}, data2={other}, op=nl.add)")
            if tiles and data.draw(st.booleans(), label=f"{name} changes another"):
                other = data.draw(st.sampled_from(tiles))
                lines.append(f"{pad}nisa.tensor_tensor(dst={other}, data1={other}, data2={name}, op=nl.add)")
            tiles.append(name)
    place = data.draw(st.sampled_from(("a, b, c", "b, a, c", "a, 0, c", "0, b, c", "a, b, 0")), label="stored at")
    lines.append(f"            nisa.dma_copy(dst=out[{place}, 0:8, 0:{tile}], src={data.draw(st.sampled_from(tiles))})")
    source = (
        HEADER
        + "\n".join([*lines, "    return out"]).replace(
            "            nisa.dma_copy(dst=out", " " * 16 + "nisa.dma_copy(dst=out"
        )
        + "\n"
    )
    x = random(64, 8, 8)
    expected = run(source, x)

    found = [key for key in sites(BLOCK, source) if not key.endswith("8") and sizes[key[0]] % int(key[-1]) == 0]
    for key in found:
        np.testing.assert_array_equal(run(applied(BLOCK, source, key), x), expected)
