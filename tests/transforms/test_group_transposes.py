"""Several transposes into one tile of PSUM: what is done at once, what stays in order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.group_transposes import GroupTransposes
from infra.tasks.seed_index import load_seed
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

GROUP = GroupTransposes()
X = random(64, 8, 32)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    P, M, N = x.shape
    out = nl.ndarray((M, N, P), dtype=x.dtype, buffer=nl.shared_hbm)
    # tile by tile
    for m in nl.affine_range(M):
        tile = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0:P, m, 0:N])
        # turned
        turned = nl.ndarray((N, P), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=tile)
        result = nl.ndarray((N, P), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=turned)
        # done
        nisa.dma_copy(dst=out[m, 0:N, 0:P], src=result)
    return out
"""
)
COPY = "        nisa.tensor_copy(dst=result, src=turned)\n"
STORE = "        nisa.dma_copy(dst=out[m, 0:N, 0:P], src=result)\n"
TURN = "        nisa.nc_transpose(dst=turned, data=tile)\n"
TILE = "        tile = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)\n"


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_psum_is_copied_once_for_all_and_so_are_load_and_store(factor):
    grouped = applied(GROUP, KERNEL, f"m#0x{factor}")

    np.testing.assert_array_equal(run(grouped, X), X.transpose(1, 2, 0))
    for opcode in ("tensor_copy", "dma_copy"):
        assert count(grouped, opcode, X) == count(KERNEL, opcode, X) // factor
    assert count(grouped, "nc_transpose", X) == count(KERNEL, "nc_transpose", X)
    assert proved_on(grouped, KERNEL, X).equivalence.finding is Finding.HELD


def test_it_takes_less_time():
    predict = predictor(X)
    assert predict(applied(GROUP, KERNEL, "m#0x4")) < 0.7 * predict(KERNEL)


def test_what_needs_its_order_keeps_it():
    """Products are summed up in PSUM, one after the other, while the tiles that they need are turned together."""
    source = load_seed("matmul").kernel_source
    lhs, rhs = random(128, 1024), random(1024, 512, seed=1)

    grouped = applied(GROUP, source, "k#2x4")

    np.testing.assert_array_equal(run(grouped, lhs, rhs), run(source, lhs, rhs))
    assert count(grouped, "nc_transpose", lhs, rhs) == count(source, "nc_transpose", lhs, rhs)
    assert count(grouped, "nc_matmul", lhs, rhs) == count(source, "nc_matmul", lhs, rhs)
    assert count(grouped, "tensor_copy", lhs, rhs) == 1 + 2


def test_inner_loops_stay_with_their_iteration():
    source = KERNEL.replace(
        STORE,
        "        half = P // 2\n        at = m\n        for h in range(2):\n"
        "            here = h * half\n"
        "            nisa.dma_copy(dst=out[at, 0:N, here : half + here], src=result[:, here : here + half])\n",
    )

    grouped = applied(GROUP, source, "m#0x4")

    np.testing.assert_array_equal(run(grouped, X), run(source, X))
    assert count(grouped, "tensor_copy", X) == count(source, "tensor_copy", X) // 4
    assert count(grouped, "dma_copy", X) == 2 + 16


def test_a_nest_of_tiles_with_bounds_is_grouped_by_its_outer_loop():
    source = KERNEL.replace(
        "    for m in nl.affine_range(M):\n",
        "    T = 16\n    for m in nl.affine_range(M):\n      for n in range((N + T - 1) // T):\n"
        "        first = n * T\n        last = min(first + T, N)\n",
    )
    source = source.replace("(P, N)", "(P, T)").replace("((N, P)", "((T, P)")
    source = source.replace("x[0:P, m, 0:N]", "x[0:P, m, first:last]").replace("m, 0:N, 0:P", "m, first:last, 0:P")

    for key in ("m#0x4", "n#1x2"):
        grouped = applied(GROUP, source, key)
        np.testing.assert_array_equal(run(grouped, X), run(source, X))
        assert count(grouped, "tensor_copy", X) < count(source, "tensor_copy", X)


def test_a_list_holds_each_tile_as_before():
    source = KERNEL.replace(BEFORE, "    kept = []\n" + BEFORE).replace(STORE, "        kept.append(result)\n")
    source = source.replace(AFTER, "    for m in range(M):\n    " + STORE[4:].replace("result", "kept[m]") + AFTER)

    grouped = applied(GROUP, source, "m#0x4")

    np.testing.assert_array_equal(run(grouped, X), run(KERNEL, X))
    assert count(grouped, "tensor_copy", X) == count(KERNEL, "tensor_copy", X) // 4


def test_comments_stay_and_no_name_is_taken_twice():
    source = KERNEL.replace("    # tile", "    i = 0\n    m_group = 0\n    # tile")

    grouped = applied(GROUP, source, "m#0x2")

    for comment in ("# tile by tile", "# turned", "# done"):
        assert comment in grouped
    assert "m_group2" in grouped and "for i2 in" in grouped
    np.testing.assert_array_equal(run(grouped, X), run(KERNEL, X))


def test_the_result_states_the_shapes_it_needs():
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(GROUP, KERNEL, "m#0x8"), X[:, :4])


SUM = "nisa.tensor_tensor(dst=result, data1=result, data2=turned, op=nl.add)"
RESULT = "    result = nl.ndarray((N, P), dtype=x.dtype, buffer=nl.sbuf)\n"
PSUM = "    turned = nl.ndarray((N, P), dtype=nl.float32, buffer=nl.psum)\n"
BEFORE, AFTER = "    # tile by tile\n", "    return out\n"
REFUSALS = {
    "nothing is turned": (KERNEL.replace(TURN, "        nisa.memset(turned, 0.0)\n"), "that the loop over m turns"),
    "turned straight to SBUF": (
        KERNEL.replace("nl.psum", "nl.sbuf").replace("data=tile)", "data=tile, engine=nisa.engine.vector)"),
        "copied with others",
    ),
    "a tile from before the loop": (
        KERNEL.replace("    " + PSUM, "").replace(BEFORE, PSUM + BEFORE), "copied with others|works on several"
    ),
    "a copy that adds up": (
        KERNEL.replace("    " + RESULT, "")
        .replace(BEFORE, RESULT + "    nisa.memset(dst=result, value=0.0)\n" + BEFORE)
        .replace(COPY, f"        {SUM}\n"),
        "copied with others|works on several",
    ),
    "a part with a name": (KERNEL.replace(STORE, "        v = result[0:N, 0:P]\n" + STORE), "a name"),
    "left early": (KERNEL.replace(STORE, STORE + "        break\n"), "left early"),
    "a branch": (KERNEL.replace(STORE, "        if m > 0:\n    " + STORE), "stands in the loop"),
    "used after the loop": (KERNEL.replace(AFTER, STORE[4:].replace("[m", "[0") + AFTER), "after the loop"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    assert sites(GROUP, source) == {}
    check_refused(GROUP, source, "m#0x2", reason)


@pytest.mark.parametrize("key", ["m#1x2", "n#0x2", "m#0", "m"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(GROUP, KERNEL, key)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Whole tiles and parts, loads before or in the loop, work before and after, sums that need their order."""
    rows, columns = data.draw(st.sampled_from((16, 32)), label="rows"), data.draw(st.sampled_from((16, 32, 64)))
    in_part = data.draw(st.booleans(), label="in part")
    tile = f"tile[0:{rows}, 0:{columns}]" if in_part else "tile"
    wide, deep = (columns + 4, rows + 4) if in_part else (columns, rows)
    turned = f"turned[0:{columns}, 0:{rows}]" if in_part else "turned"
    result = f"result[0:{columns}, 0:{rows}]" if in_part else "result"
    evacuate = data.draw(
        st.sampled_from(
            (
                f"nisa.tensor_copy(dst={result}, src={turned})",
                f"nisa.tensor_scalar({result}, {turned}, nl.multiply, 2.0)",
                f"nisa.activation(dst={result}, op=nl.square, data={turned}, bias=one[0:{columns}, :])",
            )
        ),
        label="evacuate",
    )
    tail = data.draw(
        st.lists(
            st.sampled_from(
                (
                    f"nisa.dma_copy(dst=out[m, 0:{columns}, 0:{rows}], src={result})",
                    f"nisa.dma_copy(dst=out[7 - m, 0:{columns}, 0:{rows}], src={result})",
                    f"nisa.tensor_tensor(dst=total, data1=total, data2={result}, op=nl.add)",
                    f"nisa.tensor_scalar(dst={result}, data={result}, op0=nl.add, operand0=1.0 * m)",
                    f"nisa.tensor_scalar(dst={result}, data={result}, op0=nl.add, operand0=3.0)",
                )
            ),
            min_size=1,
            max_size=3,
        ),
        label="tail",
    )
    body = [
        f"tile = nl.ndarray(({rows}, {wide}), dtype=nl.float32, buffer=nl.sbuf)",
        data.draw(
            st.sampled_from(
                (
                    f"nisa.dma_copy(dst={tile}, src=x[m, 0:{rows}, 0:{columns}])",
                    f"nisa.dma_copy({tile}, x[2, 0:{rows}, nl.ds(m * 8, {columns})])",
                    f"nisa.dma_copy(dst={tile}, src=x[at % 3, 0:{rows}, 0:{columns}])",
                )
            ),
            label="load",
        ),
        f"turned = nl.ndarray(({columns}, {deep}), dtype=nl.float32, buffer=nl.psum)",
        f"nisa.nc_transpose(dst={turned}, data={tile})",
        f"result = nl.ndarray(({columns}, {deep}), dtype=nl.float32, buffer=nl.sbuf)",
        evacuate, *tail,
    ]  # fmt: skip
    lines = [
        "@nki.jit", "def kernel(x, y):", "    out = nl.ndarray((9, 64, 32), dtype=x.dtype, buffer=nl.shared_hbm)",
        "    nisa.dma_copy(dst=out, src=y)",
        "    one = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)", "    nisa.memset(dst=one, value=1.0)",
        f"    total = nl.ndarray(({columns}, {rows}), dtype=nl.float32, buffer=nl.sbuf)",
        "    nisa.memset(dst=total, value=0.0)", "    for m in nl.affine_range(8):", "        at = m + 1",
        *("        " + line for line in body),
        f"    nisa.dma_copy(dst=out[8, 0:{columns}, 0:{rows}], src=total)", "    return out",
    ]  # fmt: skip
    source = HEADER + "\n".join(lines) + "\n"
    x, y = random(9, 32, 128), random(9, 64, 32, seed=1)
    expected = run(source, x, y)

    for key in sites(GROUP, source):
        grouped = applied(GROUP, source, key)
        np.testing.assert_array_equal(run(grouped, x, y), expected)
        assert proved_on(grouped, source, x, y).equivalence.finding is Finding.HELD
