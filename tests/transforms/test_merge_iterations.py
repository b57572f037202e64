"""One instruction for all iterations: where it is right, in any spelling, the same numbers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.merge_iterations import MergeIterations
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

MERGE = MergeIterations()
X = random(64, 48)

KERNEL = (
    HEADER
    + """
@nki.jit
def kernel(x):
    P, N = x.shape
    out = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.shared_hbm)
    s = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=s, src=x)
    t = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
    col = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=col, src=s[0:P, 0:1])
    nisa.dma_copy(dst=out, src=s)
    # column by column
    for j in nl.affine_range(N):
        BODY
        # out
        nisa.dma_copy(dst=out[0:P, j : j + 1], src=t[:, j : j + 1])
    return out
"""
)


STORE = "        # out\n        nisa.dma_copy(dst=out[0:P, j : j + 1], src=t[:, j : j + 1])\n"


def kernel(*body: str, count: str = "nl.affine_range(N)", store: str = "") -> str:
    source = KERNEL.replace("BODY", "\n        ".join(body)).replace("nl.affine_range(N)", count)
    return source.replace("dst=out[0:P, j : j + 1], src=t[:, j : j + 1]", store) if store else source


def nest(*body: str, count: str) -> str:
    """The loop stores nothing but what its inner loop does."""
    return kernel(*body, count=count).replace(STORE, "")


COPY = "nisa.tensor_copy(dst=t[:, j : j + 1], src=s[:, j : j + 1])"

OFFERED = {
    "a copy": kernel(COPY),
    "an index": kernel("nisa.tensor_copy(dst=t[:, j], src=s[:, j])"),
    "nl.ds, by position": kernel("nisa.tensor_copy(t[:, nl.ds(j, 1)], s[0:P, nl.ds(j, 1)])"),
    "dots": kernel("nisa.tensor_copy(dst=t[..., j : 1 + j], src=s[..., j : j + 1])"),
    "a number in between": kernel("k = 2 * j", "nisa.activation(dst=t[:, k - j : j + 1], op=nl.exp, data=s[:, j])"),
    "several": kernel(
        "nisa.memset(t[:, j : j + 1], 0.5)",
        "nisa.tensor_tensor(dst=t[:, j : j + 1], data1=t[:, j : j + 1], data2=s[:, j : j + 1], op=nl.add)",
        "nisa.tensor_scalar(dst=t[:, j : j + 1], data=t[:, j : j + 1], op0=nl.multiply, operand0=col)",
    ),
    "one column for all": kernel("nisa.tensor_tensor(t[:, j], s[:, j], col, nl.multiply)"),
    "backwards in pairs": kernel(
        "nisa.scalar_tensor_tensor(dst=t[:, 2 * j], data=s[:, 2 * j + 1], op0=nl.multiply, operand0=2.0, op1=nl.add, "
        "operand1=s[:, 2 * j])",
        "nisa.reciprocal(dst=t[:, 2 * j + 1], data=s[:, 2 * j])",
        count="range(N // 2)",
        store="dst=out[:, 2 * j : 2 * (j + 1)], src=t[:, 2 * j : 2 * j + 2]",
    ),
    "a window, and its sum": kernel(
        "part = nl.ndarray((P, 4), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.tensor_tensor(dst=part, data1=s[:, j : j + 4], data2=s[:, 0:4], op=nl.multiply)",
        "total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.tensor_reduce(dst=total, op=nl.add, data=part, axis=1, keepdims=True)",
        count="range(N - 4)",
        store="dst=out[:, j : j + 1], src=total",
    ),
    "a load": kernel(
        "tile = nl.ndarray((P, 8), dtype=nl.float32, buffer=nl.sbuf)",
        "nisa.dma_copy(dst=tile, src=x[:, 8 * j : 8 * j + 8])",
        "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)",
        count="range(N // 8)",
        store="dst=out[:, j * 8 : (j + 1) * 8], src=tile",
    ),
    "bounds that cut nothing": kernel(
        "end = min(8 * j + 8, N)",
        "width = min(8, N - 8 * j)",
        "nisa.tensor_copy(dst=t[:, 8 * j : end], src=s[:, 8 * j : 8 * j + width])",
        count="range(N // 8)",
        store="dst=out[:, 8 * j : end], src=t[:, 8 * j : end]",
    ),
    "rows": kernel(
        "nisa.tensor_copy(dst=t[32 * j : 32 * (j + 1)], src=s[32 * j : 32 * (j + 1), :])",
        count="range(2)",
        store="dst=out[32 * j : 32 * j + 32, :], src=t[32 * j : 32 * j + 32, :]",
    ),
    "rows to columns": kernel(
        "nisa.tensor_copy(dst=t[:, j], src=s[:, j])",
        store="dst=out[0:P, j], src=t[0:P, N - N + j]",
    ),
    "an inner loop with a part of each": kernel(
        "for i in range(2):",
        "    nisa.tensor_copy(dst=t[:, 8 * j + 4 * i : 8 * j + 4 * i + 3], src=s[:, 4 * i : 4 * i + 3])",
        "    nisa.dma_copy(dst=out[:, 8 * j + 4 * i], src=t[:, 8 * j + 4 * i + 2])",
        count="range(6)",
    ).replace(STORE, ""),
    "a nest, turned inside out": kernel(
        "m = 6 * j",
        "for i in range(6):",
        "    nisa.tensor_copy(dst=t[:, 8 * i + j], src=s[:, m + i])",
        "    nisa.dma_copy(dst=out[:, 8 * i + j], src=t[:, 8 * i + j])",
        count="range(8)",
    ).replace(STORE, ""),
}  # fmt: skip


def issued(source: str) -> int:
    return sum(
        count(source, opcode, X)
        for opcode in ("tensor_copy", "tensor_tensor", "tensor_scalar", "activation", "memset", "dma_copy")
    )


@pytest.mark.parametrize("case", OFFERED)
def test_the_same_numbers_from_one_instruction_each(case):
    source = OFFERED[case]
    keys = list(sites(MERGE, source))

    assert "j#0" in keys
    for key in keys:
        merged = applied(MERGE, source, key)
        covered = run(merged, X)
        expected = run(source, X)
        np.testing.assert_array_equal(covered, expected)
        assert issued(merged) < issued(source)
        proofs = proved_on(merged, source, X)
        assert proofs.equivalence.finding is Finding.HELD, proofs.equivalence


def test_a_kernel_that_goes_column_by_column_gets_many_times_faster():
    predict = predictor(X)
    assert predict(applied(MERGE, OFFERED["a copy"], "j#0")) < 0.3 * predict(OFFERED["a copy"])


def test_a_nest_becomes_one_instruction_in_two_steps():
    source = OFFERED["a nest, turned inside out"]

    once = applied(MERGE, source, "i#1")
    twice = applied(MERGE, once, "j#0")

    assert "for " not in twice
    np.testing.assert_array_equal(run(twice, X), run(source, X))


def test_comments_and_the_rest_of_the_kernel_stay():
    merged = applied(MERGE, OFFERED["a copy"], "j#0")

    assert "# column by column" in merged and "# out" in merged
    assert "nisa.tensor_copy(dst=t, src=s)" in merged


def test_the_result_states_what_it_takes_for_granted():
    merged = applied(MERGE, OFFERED["bounds that cut nothing"].replace("N // 8", "(N + 7) // 8"), "j#0")

    np.testing.assert_array_equal(run(merged, X), X)
    with pytest.raises(AssertionError, match="must be a whole one"):
        run(merged, X[:, :45])


REFUSALS = {
    "a sum over the columns": (
        kernel("nisa.tensor_tensor(dst=col, data1=col, data2=s[:, j : j + 1], op=nl.add)", COPY),
        "may touch the same part of col",
    ),
    "a column reads its neighbour": (
        kernel("nisa.tensor_copy(dst=t[:, j + 1], src=t[:, j])", COPY, count="range(N - 1)"),
        "may touch the same part of t",
    ),
    "a later column overwrites": (
        kernel("nisa.memset(dst=t[:, j : j + 2], value=1.0)", count="range(N - 1)"),
        "may touch the same part of t",
    ),
    "an inner loop reaches the next column's": (
        nest("for i in range(3):", "    nisa.tensor_copy(dst=t[:, 2 * j + i], src=s[:, j])", count="range(8)"),
        "may touch the same part of t",
    ),
    "an inner loop takes the same column later": (
        nest("for i in range(3):", "    nisa.tensor_copy(dst=t[:, j + 2 * i], src=s[:, j])", count="range(4)"),
        "may touch the same part of t",
    ),
    "a number that counts": (
        kernel("nisa.tensor_scalar(dst=t[:, j], data=s[:, j], op0=nl.add, operand0=1.0 * j)"),
        "operand0 changes with j",
    ),
    "a column for each column": (
        kernel("nisa.tensor_scalar(dst=t[:, j], data=s[:, j], op0=nl.add, operand0=s[:, j])"),
        "operand0 changes with j",
    ),
    "not linear": (kernel("nisa.tensor_copy(dst=t[:, j], src=s[:, j * j])", count="range(6)"), "s.*j \\* j|not linear"),
    "backwards": (kernel("nisa.tensor_copy(dst=t[:, j], src=s[:, N - 1 - j])"), "backwards"),
    "from the end": (kernel("nisa.tensor_copy(dst=t[:, j], src=s[:, j - 1])"), "from the end"),
    "wider and wider": (
        kernel("nisa.tensor_reduce(dst=t[:, j], op=nl.add, data=s[:, 0 : j + 1], axis=1)"),
        "how much it takes changes",
    ),
    "a sum within the activation": (
        kernel(
            "nisa.activation(dst=t[:, j], op=nl.exp, data=s[:, j], reduce_op=nl.add, reduce_res=col, "
            "reduce_cmd=nisa.reduce_cmd.reset_reduce)"
        ),
        "col|more than its elements",
    ),
    "a transpose": (
        kernel("nisa.nc_transpose(dst=t[0:32, 32 * j : 32 * j + 32], data=s[0:32, 0:32])", count="range(1)"),
        "element by element|touch the same",
    ),
    "a part with a name": (kernel("v = s[:, j : j + 1]", "nisa.tensor_copy(dst=t[:, j], src=v)"), "a name"),
    "a list": (kernel("kept = []", "kept.append(j)", COPY), "not understood|stands in the loop"),
    "a branch": (kernel("if j > 0:", "    " + COPY), "stands in the loop"),
    "left early": (kernel(COPY, "break"), "left early"),
    "from 1": (kernel(COPY, count="range(1, N)"), "count up from 0"),
    "a check of each": (kernel("assert j < N", COPY), "checks each iteration"),
    "nobody knows how long": (
        kernel(COPY).replace("    t = nl.ndarray((P, N)", "    both = (P, N)\n    t = nl.ndarray(both").replace(
            "dst=t[:, j : j + 1]", "dst=t"
        ),
        "does not show",
    ),
    "a tile with a place": (
        kernel("c = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))", COPY), "place of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    assert "j#0" not in sites(MERGE, source)
    check_refused(MERGE, source, "j#0", reason)


@pytest.mark.parametrize("key", ["j#1", "i#0", "j"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(MERGE, kernel(COPY), key)


def test_a_wrong_number_of_indices_is_not_taken_for_columns():
    """x[:, j] of three dimensions is a row of matrices: the result says that it must not be one."""
    source = kernel(COPY, store="dst=out[0:P, j], src=x[0:P, j]").replace("P, N = x.shape", "P, N = x.shape[0:2]")
    merged = applied(MERGE, source, "j#0")

    np.testing.assert_array_equal(run(merged, X), run(source, X))
    assert "assert len(x.shape) == 2" in merged


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Columns, windows, interleaved and common parts; own tiles; in place; one loop or two; in one line or several."""
    width = data.draw(st.sampled_from((1, 2, 4)), label="width")
    trips = data.draw(st.sampled_from((2, 3, 6)), label="trips")
    nested = data.draw(st.booleans(), label="nested")
    span = width * trips
    base = f"{span} * i + " if nested else ""
    lines = [
        "@nki.jit", "def kernel(x, y):", "    out = nl.ndarray((32, 96), dtype=x.dtype, buffer=nl.shared_hbm)",
        "    a = nl.ndarray((32, 96), dtype=nl.float32, buffer=nl.sbuf)", "    nisa.dma_copy(dst=a, src=x)",
        "    b = nl.ndarray((32, 96), dtype=nl.float32, buffer=nl.sbuf)", "    nisa.dma_copy(dst=b, src=y)",
        "    nisa.dma_copy(dst=out, src=y)", "    c = nl.ndarray((32, 1), dtype=nl.float32, buffer=nl.sbuf)",
        "    nisa.tensor_copy(dst=c, src=a[:, 0:1])",
    ]  # fmt: skip
    pad = "    "
    if nested:
        lines.append(f"{pad}for i in range(2):")
        pad += "    "
    lines.append(f"{pad}for j in nl.affine_range({trips}):")
    pad += "    "
    own = (f"{base}{width} * j : {base}{width} * (j + 1)", f"nl.ds({base}j * {width}, {width})")
    spread = (f"{base}j : {base}j + {trips * (width - 1) + 1} : {trips}",)
    anywhere = (*own, *spread, f"{base}j : {base}j + {width}", f"0:{width}", f"nl.ds({base}2 * j, {width})")
    here = data.draw(st.sampled_from((*own, *spread)), label="written part")
    tiles: list[str] = []
    for number in range(data.draw(st.integers(1, 4), label="steps")):
        if data.draw(st.booleans(), label="a tile of its own"):
            name = f"t{number}"
            lines.append(f"{pad}{name} = nl.ndarray((32, {width}), dtype=nl.float32, buffer=nl.sbuf)")
            dst = data.draw(st.sampled_from((name, f"{name}[:, 0:{width}]")))
        else:
            name, dst = "", f"b[0:32, {here}]"
        first, second = (
            data.draw(st.sampled_from((f"a[:, {data.draw(st.sampled_from(anywhere))}]", f"b[:, {here}]", *tiles)))
            for _ in range(2)
        )
        step = data.draw(
            st.sampled_from(
                (
                    f"nisa.tensor_copy(dst={dst}, src={first})",
                    f"nisa.tensor_tensor({dst}, {first}, {second}, nl.add)",
                    f"nisa.tensor_scalar(dst={dst}, data={first}, op0=nl.multiply, operand0=c, op1=nl.add, operand1=2)",
                    f"nisa.activation(dst={dst}, op=nl.square, data={first}, bias=c)",
                    f"nisa.memset(dst={dst}, value=3.0)",
                    f"nisa.dma_copy(dst={dst}, src=x[0:32, {data.draw(st.sampled_from(anywhere))}])",
                )
            ),
            label=f"step {number}",
        )
        lines.append(pad + step)
        if name:
            tiles += [name, f"{name}[0:32, 0:{width}]"]
    result = data.draw(st.sampled_from(tiles or [f"b[:, {here}]"]), label="stored")
    lines.append(f"{pad}nisa.dma_copy(dst=out[:, {here}], src={result})")
    source = HEADER + "\n".join([*lines, "    return out"]) + "\n"
    x, y = random(32, 96), random(32, 96, seed=1)
    expected = run(source, x, y)

    found = sites(MERGE, source)
    for key in found:
        merged = applied(MERGE, source, key)
        np.testing.assert_array_equal(run(merged, x, y), expected)
        assert proved_on(merged, source, x, y).equivalence.finding is Finding.HELD
        for again in sites(MERGE, merged):
            np.testing.assert_array_equal(run(applied(MERGE, merged, again), x, y), expected)
