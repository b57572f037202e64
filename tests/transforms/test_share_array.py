"""Products of few rows side by side on the array: where operands lie, what is copied, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import IllegalSite, SiteGone
from accelopt_core.transforms.share_array import ShareArray
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites, trace

SHARE = ShareArray()
X, Y = random(64, 128), random(64, 2048, seed=1)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x, y):
    K, M = x.shape
    _, N = y.shape
    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    # the left one
    left = nl.ndarray((K, M), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x[0:K, 0:M])
    # each part of the right one
    for n in range(N // 512):
        right = nl.ndarray((K, 512), dtype=y.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=right, src=y[0:K, n * 512 : (n + 1) * 512])
        acc = nl.ndarray((M, 512), dtype=nl.float32, buffer=nl.psum)
        # multiplied
        nisa.nc_matmul(dst=acc, stationary=left, moving=right)
        got = nl.ndarray((M, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=got, src=acc)
        nisa.dma_copy(dst=out[0:M, n * 512 : (n + 1) * 512], src=got)
    return out
"""
)
PRODUCT = "        nisa.nc_matmul(dst=acc, stationary=left, moving=right)\n"
LOAD = "        nisa.dma_copy(dst=right, src=y[0:K, n * 512 : (n + 1) * 512])\n"
STORE = "        nisa.dma_copy(dst=out[0:M, n * 512 : (n + 1) * 512], src=got)\n"


def rows_of_the_array(source: str, *arrays: np.ndarray) -> list[int]:
    """First rows of the products, as issued."""
    program = trace(source, *arrays)
    issued = [program.templates[number] for number in program.template_ids]
    return [each.attrs.tile_position[0] for each in issued if each.opcode == "nc_matmul"]


@pytest.mark.parametrize(("parts", "rows"), [(2, 64), (4, 32)])
def test_products_of_a_group_follow_one_another_on_their_own_rows(parts, rows):
    x = X[:rows], Y[:rows]
    shared = applied(SHARE, KERNEL, f"n#0x{parts}")

    np.testing.assert_array_equal(run(shared, *x), run(KERNEL, *x))
    assert rows_of_the_array(shared, *x) == [rows * part for part in range(parts)] * (4 // parts)
    assert proved_on(shared, KERNEL, *x).equivalence.finding is Finding.HELD


def test_what_is_made_before_the_loop_is_loaded_once_and_copied():
    shared = applied(SHARE, KERNEL, "n#0x2")

    assert count(shared, "dma_copy", X, Y) == count(KERNEL, "dma_copy", X, Y)
    assert count(shared, "tensor_copy", X, Y) == count(KERNEL, "tensor_copy", X, Y) + 1
    assert "left[64 : K + 64, 0 : M], src=left[0 : K, 0 : M]" in shared


def test_it_takes_less_time():
    predict = predictor(random(64, 128), random(64, 512 * 64))
    assert predict(applied(SHARE, KERNEL, "n#0x2")) < 0.85 * predict(KERNEL)


def test_a_product_of_less_rows_than_a_part_has_stays_apart():
    shared = applied(SHARE, KERNEL, "n#0x2")
    np.testing.assert_array_equal(run(shared, X[:40], Y[:40]), run(KERNEL, X[:40], Y[:40]))


def test_the_result_states_what_it_rests_on():
    shared = applied(SHARE, KERNEL, "n#0x2")

    with pytest.raises(AssertionError, match="at most 64 rows"):
        run(shared, random(96, 128), random(96, 2048))
    with pytest.raises(AssertionError, match="must come out even"):
        run(shared, X, Y[:, : 3 * 512])


def test_iterations_that_need_one_another_keep_their_order():
    """The second loads what the first has stored."""
    source = KERNEL.replace(LOAD, LOAD.replace("y[0:K", "out[0:K")).replace(
        "    # the left", "    nisa.dma_copy(dst=out, src=y)\n    # the left"
    ).replace("src=out[0:K, n * 512 : (n + 1) * 512]", "src=out[0:K, 0:512]").replace(
        "dst=out[0:M, n * 512 : (n + 1) * 512], src=got", "dst=out[0:M, 0:512], src=got"
    )  # fmt: skip
    x = random(64, 64), random(64, 2048, seed=1)

    shared = applied(SHARE, source, "n#0x2")

    np.testing.assert_array_equal(run(shared, *x), run(source, *x))
    assert shared.index("src=got)") < shared.index("n_1 = "), "one iteration after the other"


def test_iterations_that_store_in_one_place_go_in_step():
    source = KERNEL.replace(STORE, STORE.replace("n * 512 : (n + 1) * 512", "0:512"))
    shared = applied(SHARE, source, "n#0x2")

    np.testing.assert_array_equal(run(shared, X, Y)[:, :512], run(source, X, Y)[:, :512])
    assert shared.index("n_1 = 2 * n_pair + 1") < shared.index("nc_matmul") < shared.index("nc_matmul(dst=acc_1")


def test_tiles_of_a_list_are_copied_where_they_are_made():
    built = "    lefts = []\n    for k in range(2):\n        left = nl.ndarray((K, M), dtype=x.dtype, buffer=nl.sbuf)\n"
    built += "        nisa.dma_copy(dst=left, src=x[0:K, 0:M])\n        lefts.append(left)\n"
    built += "        nisa.tensor_scalar(dst=left, data=left, op0=nl.multiply, operand0=2.0)\n"
    before, after = KERNEL.split("    # the left one\n")[0], KERNEL[KERNEL.index("    # each") :]
    for operand in ("lefts[n % 2]", "lefts[n % 2][:, 0:M]"):
        source = before + built + after.replace("stationary=left", f"stationary={operand}")
        shared = applied(SHARE, source, "n#1x2")

        np.testing.assert_array_equal(run(shared, X, Y), run(source, X, Y))
        assert count(shared, "tensor_copy", X, Y) == count(source, "tensor_copy", X, Y) + 4
        assert "lefts[n % 2][0 : K, 0 : M]" in shared


def test_comments_stay_and_no_name_is_taken_twice():
    source = KERNEL.replace("    # the left", "    got_1 = 1\n    # the left")
    shared = applied(SHARE, source, "n#0x2")

    for comment in ("# the left one", "# each part of the right one", "# multiplied"):
        assert shared.count(comment) == 1
    assert "got_12 = nl" in shared and "(n + (N // 512) // 2) * 512" in shared
    np.testing.assert_array_equal(run(shared, X, Y), run(KERNEL, X, Y))


def test_a_loop_within_goes_along():
    inner = "        for i in range(2):\n            nisa.tensor_scalar(dst=right[:, 256 * i : 256 * (i + 1)], "
    inner += "data=right[:, 256 * i : 256 * (i + 1)], op0=nl.add, operand0=1.0)\n"
    source = KERNEL.replace(LOAD, LOAD + inner)
    shared = applied(SHARE, source, "n#0x2")

    np.testing.assert_array_equal(run(shared, X, Y), run(source, X, Y))
    assert "for i_1 in range(2)" in shared and "right[64 : K + 64, 256 * i_1" in shared


def test_a_known_number_of_iterations_or_rows_needs_no_assertion():
    source = KERNEL.replace("N // 512", "4").replace("(K, ", "(64, ").replace("0:K", "0:64")
    shared = applied(SHARE, source, "n#0x2")

    assert "assert" not in shared and "for n in range(2)" in shared and "(n + 2) * 512" in shared
    assert not any("x4" in key for key in sites(SHARE, source)), "64 rows do not fit into 32"


@pytest.mark.parametrize("key", ["m#0x2", "n#1x2", "n#0"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(SHARE, KERNEL, key)


def test_the_array_has_no_tiles_of_other_sizes():
    with pytest.raises(IllegalSite, match="64 or 32 rows"):
        applied(SHARE, KERNEL, "n#0x8")


def in_a_list(then: str) -> str:
    """The left tile is taken from a list, to which something else is done before the loop."""
    listed = f"    lefts = []\n    lefts.append(left)\n    {then}\n    # each"
    return KERNEL.replace("    # each", listed).replace("stationary=left", "stationary=lefts[0]")


ACC = "        acc = nl.ndarray((M, 512), dtype=nl.float32, buffer=nl.psum)\n"
REFUSALS = {
    "summed over the iterations": (
        KERNEL.replace(ACC, "").replace("    # each", ACC[4:] + "    # each"), "is not made in the loop over n alone"
    ),
    "a part of the array already": (
        KERNEL.replace("moving=right)", "moving=right, tile_position=(0, 0), tile_size=(64, 128))"),
        "says more than what is multiplied",
    ),
    "a full product": (KERNEL.replace("(K, ", "(128, ").replace("0:K", "0:128"), "multiplies 128 rows"),
    "no product": (KERNEL.replace(PRODUCT, "        nisa.memset(dst=acc, value=0.0)\n"), "no product"),
    "an odd number of iterations": (KERNEL.replace("N // 512", "3"), "do not come out even"),
    "a loop that is left": (KERNEL.replace(STORE, STORE + "        break\n"), "in turn"),
    "a branch": (KERNEL.replace(STORE, "        if n:\n    " + STORE), "in turn"),
    "written in the loop": (
        KERNEL.replace(LOAD, LOAD + LOAD.replace("right", "left[:, 0:512]")), "and written on line"
    ),
    "used after the loop": (
        KERNEL.replace("    return", "    nisa.dma_copy(dst=out[0:K, 0:512], src=right)\n    return"), "after the loop"
    ),
    "left behind": (KERNEL.replace("    return", "    last = n + 1\n    return"), "leaves behind"),
    "another name": (KERNEL.replace("    # each", "    again = left\n    # each"), "has another name too"),
    "a single partition": (
        KERNEL.replace(LOAD, LOAD + "        nisa.memset(dst=right[0], value=0.0)\n"), "single partitions"
    ),
    "its shape is asked for": (
        KERNEL.replace(LOAD, LOAD + "        width = right.shape[1]\n"), "other than as an operand"
    ),
    "a nested function uses it": (
        KERNEL.replace("    # each", "    def peek():\n        return right\n    # each"), "nested function"
    ),
    "tiles of a list that holds others too": (in_a_list("lefts.append(left)"), "is not a tile"),
    "the list is asked for its length": (in_a_list("much = len(lefts)"), "has another name too"),
    "filled by way of the list": (in_a_list("nisa.memset(dst=lefts[0], value=1.0)"), "does more than fill left"),
    "some tiles of a list": (
        in_a_list("").replace("stationary=lefts[0]", "stationary=lefts[0:1][0]"), "neither a tile nor one of a list"
    ),
    "from PSUM": (
        KERNEL.replace(
            "left = nl.ndarray((K, M), dtype=x.dtype, buffer=nl.sbuf)", "left = nl.ndarray((K, M), x.dtype, nl.psum)"
        ),
        "not a tile of SBUF",
    ),
    "a sum goes along": (
        KERNEL.replace(
            "    # each",
            "    most = nl.ndarray((K, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
            "    nisa.activation(dst=left, op=nl.exp, data=left, reduce_op=nl.add, reduce_res=most)\n    # each",
        ),
        "does more than fill left",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert source != KERNEL
    check_refused(SHARE, source, "n#0x2", reason)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Operands made before the loop or in it, worked on before the product, iterations that read what others store."""
    rows, tiles = data.draw(st.sampled_from([8, 32, 64])), data.draw(st.sampled_from([2, 4]))
    before, inside, operands = [], [], {"a": "a", "b": "b"}
    for name, source, width in (("a", "x", 32), ("b", "y", 64)):
        made = f"{name} = nl.ndarray((K, {width}), dtype=nl.float32, buffer=nl.sbuf)"
        hoisted = data.draw(st.booleans(), label=f"{name} before the loop")
        at = "0" if hoisted else data.draw(st.sampled_from(["n", "0"]))
        lines = [made, f"nisa.dma_copy(dst={name}, src={source}[0:K, {at} * {width} : {at} * {width} + {width}])"]
        if data.draw(st.booleans(), label=f"work on {name}"):
            lines.append(f"nisa.tensor_scalar(dst={name}, data={name}, op0=nl.multiply, operand0=0.5)")
        if hoisted and data.draw(st.booleans(), label=f"{name} in a list"):
            lines += [f"held_{name} = []", f"held_{name}.append({name})"]
            operands[name] = data.draw(st.sampled_from([f"held_{name}[n * 0]", f"held_{name}[0][:, 0:{width}]"]))
        (before if hoisted else inside).extend(lines)
    inside += ["acc = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.psum)"]
    product = f"nisa.nc_matmul(dst=acc, stationary={operands['a']}, moving={operands['b']})"
    inside += [product] * data.draw(st.integers(1, 2), label="products")
    inside += ["got = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)", "nisa.tensor_copy(dst=got, src=acc)"]
    if data.draw(st.booleans(), label="reads what another iteration stores"):
        inside += ["old = nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.sbuf)"]
        inside += ["nisa.dma_copy(dst=old, src=out[0:32, 0:64])"]
        inside += ["nisa.tensor_tensor(dst=got, data1=got, data2=old, op=nl.add)"]
    where = data.draw(st.sampled_from(["n * 64 : (n + 1) * 64", "0:64"]))
    inside.append(f"nisa.dma_copy(dst=out[0:32, {where}], src=got)")
    lines = ["K, M = x.shape", "out = nl.ndarray((32, y.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)"]
    lines += ["zero = nl.ndarray((32, y.shape[1]), dtype=x.dtype, buffer=nl.sbuf)", "nisa.memset(dst=zero, value=0.0)"]
    lines += ["nisa.dma_copy(dst=out, src=zero)", *before, f"for n in range({tiles}):", *("    " + s for s in inside)]
    source = f"{HEADER}@nki.jit\ndef kernel(x, y):\n" + "".join(f"    {line}\n" for line in [*lines, "return out"])
    x, y = random(rows, 32 * tiles), random(rows, 64 * tiles, seed=1)
    expected = run(source, x, y)
    found = sites(SHARE, source)
    assert "n#0x2" in found
    for key in found:
        if rows > 32 and key.endswith("x4"):
            with pytest.raises(AssertionError, match="at most 32 rows"):
                run(applied(SHARE, source, key), x, y)
        else:
            np.testing.assert_array_equal(run(applied(SHARE, source, key), x, y), expected, err_msg=key)
