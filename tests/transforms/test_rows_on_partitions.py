"""Single rows, each on a partition of its own: what may stand below one another, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.rows_on_partitions import RowsOnPartitions
from infra.tasks.seed_index import load_seed
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

ROWS = RowsOnPartitions()
X, FEW = random(256, 24), random(200, 24)


def kernel(body: str, out: str = "x.shape", before: str = "") -> str:
    lines = [
        "R, N = x.shape",
        f"out = nl.ndarray({out}, dtype=x.dtype, buffer=nl.shared_hbm)",
        *before.strip("\n").splitlines(),
        "# one row after the other",
        "for i in range(R):",
        *(f"    {line}" for line in body.strip("\n").splitlines()),
        "return out",
    ]
    return f"{HEADER}@nki.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in lines)


LOAD = """
row = nl.ndarray((1, N), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=row, src=x[i : i + 1, 0:N])
"""
STORE = "nisa.dma_copy(dst=out[i : i + 1, 0:N], src=row)\n"
HALF = "nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=0.5)\n"
NORM = kernel(
    LOAD
    + """
# its largest
top = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_reduce(dst=top, op=nl.maximum, data=row, axis=1)
nisa.tensor_scalar(dst=row, data=row, op0=nl.subtract, operand0=top[0:1, 0:1])
nisa.activation(dst=row, op=nl.square, data=row)
total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_reduce(dst=total, op=nl.add, data=row[0, 0:N], axis=(1,))
nisa.reciprocal(dst=total, data=total)
nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=total)
"""
    + STORE
)
TAPS = kernel(
    LOAD
    + """
acc = nl.ndarray((1, N - 2), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(acc, 0.0)
for k in range(3):
    nisa.tensor_tensor(dst=acc, data1=acc, data2=row[:, k : k + N - 2], op=nl.add)
nisa.dma_copy(dst=out[i], src=acc)
""",
    "(R, N - 2)",
)
TURNED = kernel(LOAD + HALF + "nisa.dma_copy(dst=out[0:N, i], src=row)\n", "(N, R)")
SHARED = kernel(
    LOAD
    + """
last = nl.ndarray((1, N), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=last, src=x[7:8, 0:N])
nisa.tensor_tensor(dst=row, data1=row, data2=last, op=nl.add)
"""
    + STORE
)
FLAT = kernel(LOAD + HALF + "nisa.dma_copy(dst=out[i * N : (i + 1) * N], src=row)\n", "(R * N,)")
BACKWARDS = kernel(
    "at = 2 * i\n" + LOAD.replace("x[i : i + 1,", "x[at : at + 1,") + HALF + STORE, "(R // 2, N)"
).replace("range(R)", "range(R // 2)")
FOURS = kernel(
    LOAD.replace("(1, N)", "(4, N)").replace("i : i + 1", "4 * i : 4 * (i + 1)")
    + HALF.replace("data=row", "data=row[0:4, :]")
    + STORE.replace("i : i + 1", "i * 4 : i * 4 + 4")
).replace("range(R)", "range(R // 4)")
SCALED = kernel(
    LOAD + "nisa.tensor_tensor(dst=row, data1=row, data2=scale, op=nl.multiply)\n" + STORE,
    before="scale = nl.ndarray((1, N), dtype=x.dtype, buffer=nl.sbuf)\nnisa.dma_copy(dst=scale, src=x[7:8, 0:N])",
)
RIGHT = {
    "norm": NORM, "taps": TAPS, "turned": TURNED, "one row for all": SHARED, "flat": FLAT,
    "every other row": BACKWARDS, "four rows": FOURS, "a row from outside": SCALED,
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_the_same_numbers_from_as_many_rows_as_there_are_partitions(name):
    source = RIGHT[name]

    assert list(sites(ROWS, source)) == ["i#0", "i#0/rest"]
    for key in sites(ROWS, source):
        made = applied(ROWS, source, key)
        np.testing.assert_array_equal(run(made, X), run(source, X))
        assert proved_on(made, source, X).equivalence.finding is Finding.HELD
        assert proved_on(made, source, X).coverage.finding is Finding.HELD
        assert "# one row after the other" in made


def test_rows_that_are_left_are_done_in_the_end():
    made = applied(ROWS, NORM, "i#0/rest")

    np.testing.assert_array_equal(run(made, FEW), run(NORM, FEW))
    assert proved_on(made, NORM, FEW).equivalence.finding is Finding.HELD
    assert (count(NORM, "reciprocal", FEW), count(made, "reciprocal", FEW)) == (200, 2)
    with pytest.raises(AssertionError, match="must come out even"):
        run(applied(ROWS, NORM, "i#0"), FEW)


def test_a_row_from_outside_is_loaded_to_every_partition_of_what_has_two_dimensions():
    source = SCALED.replace("x[7:8, 0:N]", "x[7:8]")
    assert "scale_rows = nl.ndarray((128, N)" in applied(ROWS, source, "i#0")

    with pytest.raises(AssertionError, match="x must have 1 dimensions"):
        run(applied(ROWS, source, "i#0"), X)


def test_a_tile_of_four_rows_is_put_below_the_last():
    made = applied(ROWS, FOURS, "i#0")

    assert (count(FOURS, "tensor_scalar", X), count(made, "tensor_scalar", X)) == (64, 2)
    assert "(128, N)" in made and "32 * i_group" not in made


def test_two_rows_are_faster_than_two_hundred():
    predict = predictor(X)

    assert predict(applied(ROWS, NORM, "i#0")) < 0.1 * predict(NORM)


def test_one_row_of_a_shipped_kernel_after_the_other():
    source = single_rows(load_seed("silu").kernel_source)
    x = random(256, 512)

    made = applied(ROWS, source, "m#0")

    np.testing.assert_array_equal(run(made, x), run(source, x))
    assert predictor(x)(made) < 0.2 * predictor(x)(source)


def single_rows(silu: str) -> str:
    """A tile holds one row."""
    assert silu.count("TILE_M = 128\n") == 1
    return silu.replace("TILE_M = 128\n\n", "").replace("TILE_M = 128\n", "").replace("TILE_M", "1")


TAPS_OF_ITS_OWN = f"""{HEADER}@nki.jit
def kernel(x, w):
    C, W = x.shape
    S = w.shape[1]
    Q = W - S + 1
    out = nl.ndarray((C, Q), dtype=x.dtype, buffer=nl.shared_hbm)
    loaded = nl.ndarray((C, S), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=w[0:C, 0:S])
    turned = nl.ndarray((S, C), dtype=w.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=loaded)
    taps = nl.ndarray((S, C), dtype=w.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=taps, src=turned)
    for c in nl.affine_range(C):
        windows = nl.ndarray((S, Q), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=windows[0:S, 0:Q], src=x.ap(pattern=[[1, S], [1, Q]], offset=c * W))
        for q in range(2):
            first = q * (Q // 2)
            total = nl.ndarray((1, Q // 2), dtype=nl.float32, buffer=nl.psum)
            # the sum
            nisa.nc_matmul(
                dst=total[0:1, 0 : Q // 2], stationary=taps[0:S, c : c + 1], moving=windows[0:S, first : first + Q // 2]
            )
            row = nl.ndarray((1, Q // 2), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=row, src=total)
            nisa.dma_copy(dst=out.ap(pattern=[[1, 1], [1, Q // 2]], offset=c * Q + first), src=row)
    return out
"""
IN_LISTS = TAPS_OF_ITS_OWN.replace(
    "        for q in", "        parts = []\n        parts.append(windows)\n        for q in"
).replace("moving=windows[", "moving=parts[0][").replace(
    "            # the sum\n", "            nisa.memset(dst=total, value=0.0)\n            # the sum\n"
)  # fmt: skip
SUMMED = """            nisa.nc_matmul(
                dst=total[0:1, 0 : Q // 2], stationary=taps[0:S, c : c + 1], moving=windows[0:S, first : first + Q // 2]
            )
"""
IN_STEPS = TAPS_OF_ITS_OWN.replace(
    SUMMED,
    "            for k in range(S // 2):\n"
    "                nisa.nc_matmul(\n"
    "                    dst=total[0:1, 0 : Q // 2], stationary=taps[0 : 2 * k + 2, c : c + 1],\n"
    "                    moving=windows[0 : 2 * k + 2, first : first + Q // 2],\n"
    "                )\n",
)
PLAIN_STORES = TAPS_OF_ITS_OWN.replace(
    "out.ap(pattern=[[1, 1], [1, Q // 2]], offset=c * Q + first)", "out[c : c + 1, first : first + Q // 2]"
)
PRODUCTS = {"patterns": TAPS_OF_ITS_OWN, "lists": IN_LISTS, "several sums": IN_STEPS, "plain stores": PLAIN_STORES}
SIGNALS, FILTERS = random(128, 35), random(128, 4, seed=1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_single_rows_are_multiplications_on_the_partitions(name):
    source = PRODUCTS[name]

    assert list(sites(ROWS, source)) == ["c#0", "c#0/rest"]
    for key in sites(ROWS, source):
        made = applied(ROWS, source, key)
        np.testing.assert_allclose(run(made, SIGNALS, FILTERS), run(source, SIGNALS, FILTERS), rtol=1e-4, atol=1e-5)
        assert proved_on(made, source, SIGNALS, FILTERS).equivalence.finding is Finding.HELD
        assert proved_on(made, source, SIGNALS, FILTERS).coverage.finding is Finding.HELD
        assert count(made, "nc_matmul", SIGNALS, FILTERS) == 0
        assert made.count("# the sum") == 1 and made.count("# one") == source.count("# one")
    assert predictor(SIGNALS, FILTERS)(made) < 0.1 * predictor(SIGNALS, FILTERS)(source)


def test_stores_that_overlap_do_not_run():
    source = TAPS_OF_ITS_OWN.replace("c * Q + first), src=row", "c * (Q // 2) + first), src=row")

    with pytest.raises(AssertionError, match="a part of its own"):
        run(applied(ROWS, source, "c#0"), SIGNALS, FILTERS)


REFUSALS = {
    "work across the partitions": (
        kernel(LOAD + "nisa.nc_transpose(dst=row, data=row)\n" + STORE),
        "does not treat every partition by itself",
    ),
    "what counts the partitions": (
        kernel(LOAD + "nisa.iota(dst=row, pattern=[[1, 24]], offset=0, channel_multiplier=1)\n" + STORE),
        "does not treat every partition by itself",
    ),
    "rows are added up": (
        kernel(
            LOAD + "nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)\n" + STORE,
            before="total = nl.ndarray((1, 24), dtype=x.dtype, buffer=nl.sbuf)\nnisa.memset(dst=total, value=0.0)",
        ),
        "reads total, which the loop over i writes",
    ),
    "a row that is computed before": (
        SCALED.replace("for i in", "nisa.tensor_scalar(dst=scale, data=scale, op0=nl.add, operand0=1.0)\n    for i in"),
        "scale, which is made outside of the loop over i, is more than loaded",
    ),
    "a row that is not loaded": (
        SCALED.replace("nisa.dma_copy(dst=scale, src=x[7:8, 0:N])", "nisa.memset(dst=scale, value=2.0)"),
        "is more than loaded",
    ),
    "a row that is loaded in part": (
        SCALED.replace("dst=scale, src=x[7:8, 0:N]", "dst=scale[0:1, 0:8], src=x[7:8, 0:8]"),
        "not a row that is loaded whole",
    ),
    "a row of what is stored": (SCALED.replace("src=x[7:8", "src=out[7:8"), "reads out|what the kernel writes"),
    "a row that was another": (
        SCALED.replace("for i in", "at = 7\n    for i in")
        .replace("    scale =", "    at = 3\n    scale =", 1)
        .replace("x[7:8", "x[at : at + 1"),
        "may have changed",
    ),
    "a row that is loaded later": (
        SCALED.replace("    nisa.dma_copy(dst=scale, src=x[7:8, 0:N])\n", "").replace(
            "    return out", "    nisa.dma_copy(dst=scale, src=x[7:8, 0:N])\n    return out"
        ),
        "may not be loaded by then",
    ),
    "several rows from outside": (
        SCALED.replace(
            "(1, N), dtype=x.dtype, buffer=nl.sbuf)\n    nisa", "(2, N), dtype=x.dtype, buffer=nl.sbuf)\n    nisa", 1
        )
        .replace("x[7:8", "x[7:9")
        .replace("data2=scale", "data2=scale[0:1, :]"),
        "not a row that is loaded whole",
    ),
    "a number of rows": (
        kernel(LOAD + HALF.replace("0.5", "0.5 * row.shape[0]") + STORE),
        "asks for the shape of row",
    ),
    "a number of rows that has a name": (
        kernel(LOAD + "h = row.shape[0]\n" + HALF.replace("0.5", "h") + STORE),
        "asks for the shape of row",
    ),
    "as often as there are rows": (
        kernel(LOAD + "for k in range(row.shape[0]):\n    " + HALF + STORE),
        "asks for the shape of row",
    ),
    "a list of rows": (
        SCALED.replace("for i in", "scales = [scale]\n    for i in").replace("data2=scale", "data2=scales[0]"),
        "from outside of the loop|is no tile",
    ),
    "a row needs the one before": (
        kernel(LOAD.replace("x[i : i + 1,", "out[i : i + 1,") + HALF + STORE),
        "reads out, which the loop over i writes",
    ),
    "two rows at the same place": (
        kernel(LOAD + HALF + STORE.replace("i : i + 1", "i // 2 : i // 2 + 1")),
        "may write the same part of out",
    ),
    "overlapping rows": (
        kernel(LOAD.replace("(1, N)", "(2, N)").replace("i + 1", "i + 2") + STORE.replace("i + 1", "i + 2")).replace(
            "range(R)", "range(R - 1)"
        ),
        "may write the same part of out",
    ),
    "overlapping rows are loaded": (
        kernel(
            LOAD.replace("(1, N)", "(2, N)").replace("i + 1", "i + 2") + STORE.replace("i : i + 1", "2 * i : 2 * i + 2")
        ).replace("range(R)", "range(R // 2)"),
        "the rows of x do not follow one another",
    ),
    "a number of the iteration": (
        kernel(LOAD + HALF.replace("0.5", "i") + STORE),
        "operand0 changes with i",
    ),
    "columns of the iteration": (
        kernel(LOAD + "nisa.memset(dst=row[0:1, i % 8 : i % 8 + 1], value=0.0)\n" + STORE),
        "not linear in i",
    ),
    "columns that move on": (
        kernel(LOAD + "nisa.memset(dst=row[0:1, i : i + 1], value=0.0)\n" + STORE).replace("range(R)", "range(24)"),
        "which columns of row it takes changes with i",
    ),
    "a triangle": (
        kernel(LOAD + "for k in range(i):\n    " + HALF + STORE),
        "how long this loop is changes with i",
    ),
    "columns as many as the iteration": (
        kernel(LOAD + STORE.replace("0:N], src=row", "0:i], src=row[0:1, 0:i]")),
        "how much it takes changes with i",
    ),
    "some rows of a tile": (
        kernel(
            LOAD.replace("(1, N)", "(2, N)").replace("i : i + 1", "2 * i : 2 * i + 2")
            + HALF.replace("dst=row, data=row", "dst=row[1:2, :], data=row[1:2, :]")
            + STORE.replace("i : i + 1", "2 * i : 2 * i + 2")
        ).replace("range(R)", "range(R // 2)"),
        "takes some rows of row",
    ),
    "the rows are reduced": (
        kernel(
            LOAD
            + """
top = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_reduce(dst=top, op=nl.maximum, data=row, axis=AXIS)
nisa.dma_copy(dst=out[i : i + 1, 0:1], src=top)
"""
        ).replace("\n@nki.jit", "\nAXIS = 1\n\n\n@nki.jit"),
        "that no rows are reduced does not show",
    ),
    "tiles of different rows": (
        kernel(LOAD + "other = nl.ndarray((2, N), dtype=x.dtype, buffer=nl.sbuf)\n" + STORE),
        "the same few rows",
    ),
    "a tile in PSUM": (kernel(LOAD.replace("nl.sbuf", "nl.psum") + STORE), "is not in SBUF"),
    "a place of its own": (
        kernel(LOAD.replace("buffer=nl.sbuf)", "buffer=nl.sbuf, address=(0, 0))") + STORE),
        "has a place of its own",
    ),
    "part of a tile has a name": (
        kernel(LOAD + "left = row[0:1, 0:8]\nnisa.memset(dst=left, value=0.0)\n" + STORE),
        "gives part of a buffer a name",
    ),
    "the tile is used afterwards": (
        kernel(LOAD + STORE).replace("    return out", "    nisa.dma_copy(dst=out[0:1, 0:N], src=row)\n    return out"),
        "row is used on line",
    ),
    "it can be left early": (
        kernel(LOAD + "if i > 3:\n    break\n" + STORE),
        "can be left early",
    ),
    "it does not count from 0": (
        kernel(LOAD + STORE).replace("range(R)", "range(0, R)"),
        "count up from 0",
    ),
    "min is another function": (
        kernel(LOAD + STORE).replace("\n@nki.jit", "\nmin = max\n\n\n@nki.jit"),
        "gives min another meaning",
    ),
    "all partitions are in use": (kernel(LOAD.replace("(1, N)", "(128, N)") + STORE), "fill the partitions"),
}


PRODUCT = "stationary=taps[0:S, c : c + 1]"
REFUSED_PRODUCTS = {
    "one filter for all": (PRODUCT, "stationary=taps[0:S, 0:1]", "column after column"),
    "several rows": (PRODUCT, "stationary=taps[0:S, c : c + 2]", "column after column"),
    "every other column": (PRODUCT, "stationary=taps[0:S, 2 * c : 2 * c + 1]", "column after column"),
    "other rows": (PRODUCT, "stationary=taps[1:S, c : c + 1]", "the same rows of both"),
    "its own way to add up": (PRODUCT, PRODUCT + ", accumulate=False", "more than multiply and add up"),
    "filters of the loop": (PRODUCT, "stationary=windows[0:S, c : c + 1]", "what is stationary is made in the loop"),
    "a sum that begins elsewhere": (
        "            # the sum",
        "            nisa.memset(dst=total, value=1.0)\n            # the sum",
        "does not begin at zero",
    ),
    "a sum that is changed": (
        "            row =",
        "            nisa.memset(dst=total, value=1.0)\n            row =",
        "more than cleared, summed up and read",
    ),
    "a sum of bfloat16": ("dtype=nl.float32, buffer=nl.psum", "dtype=nl.bfloat16, buffer=nl.psum", "float32"),
    "what moves is worked on": (
        "        for q in",
        "        nisa.tensor_scalar(dst=windows, data=windows, op0=nl.multiply, operand0=2.0)\n        for q in",
        "more than loaded and moved",
    ),
    "what moves is summed": (
        "        for q in",
        "        nisa.tensor_copy(dst=windows, src=windows)\n        for q in",
        "more than loaded and moved",
    ),
    "what moves is of all iterations": (
        "moving=windows[0:S, first : first + Q // 2]",
        "moving=taps[0:S, 0 : Q // 2]",
        "is not made in the loop",
    ),
    "columns of the iteration": (
        "moving=windows[0:S, first : first + Q // 2]",
        "moving=windows[0:S, c : c + Q // 2]",
        "changes with c",
    ),
    "a pattern that grows": ("[1, S], [1, Q]]", "[1, S], [c, Q]]", "how much it takes changes with c"),
    "steps that change": (
        "offset=c * Q + first), src=row",
        "offset=c * first), src=row",
        "from the next does not show",
    ),
    "all store to one place": (
        "offset=c * Q + first), src=row",
        "offset=first), src=row",
        "from the next does not show",
    ),
    "two stores": (
        "offset=c * Q + first), src=row)\n",
        "offset=c * Q + first), src=row)\n            nisa.dma_copy(dst=out[c : c + 1, 0 : Q // 2], src=row)\n",
        "writes out in a way that does not show which part",
    ),
    "the output is loaded": ("src=x.ap(", "src=out.ap(", "reads out, which the loop over c writes"),
}


@pytest.mark.parametrize("case", REFUSED_PRODUCTS)
def test_refuses_a_product(case):
    old, new, reason = REFUSED_PRODUCTS[case]
    assert TAPS_OF_ITS_OWN.count(old) == 1

    check_refused(ROWS, TAPS_OF_ITS_OWN.replace(old, new), "c#0", reason)


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    check_refused(ROWS, source, "m#0" if "for m in" in source else "i#0", reason)


@pytest.mark.parametrize("key", ["i#1", "j#0", "i", "i#0/last"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(ROWS, NORM, key)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Any chain of work on tiles of a few rows, whose columns are taken in part and before all are written, in loops
    and out of them, stored twice: the same numbers, or NaN where nothing was written."""
    height = data.draw(st.sampled_from((1, 1, 2, 32, 50)), label="height")
    trips = data.draw(st.sampled_from((2, 3, 64, 128, 130)) if height == 1 else st.integers(2, 6), label="trips")
    rows = height * trips
    place = f"i * {height} : (i + 1) * {height}"
    if height == 1 and data.draw(st.booleans(), label="indexed"):
        place = "i"
    lines = [
        "@nki.jit",
        "def kernel(x, y):",
        f"    out = nl.ndarray((2, {rows}, 8), dtype=x.dtype, buffer=nl.shared_hbm)",
        f"    for i in nl.affine_range({trips}):",
        "        where = i + 0",
    ]
    tiles: list[str] = []

    def made(columns: str, line: str) -> None:
        tiles.append(f"t{len(tiles)}")
        lines.append(f"        {tiles[-1]} = nl.ndarray(({height}, {columns}), dtype=x.dtype, buffer=nl.sbuf)")
        lines.append("        " + line.replace("NEW", tiles[-1]))

    for source in data.draw(st.lists(st.sampled_from("xy"), min_size=1, max_size=3), label="loads"):
        turned = height == 1 and data.draw(st.booleans(), label="turned")
        part = f"[0:8, {place.replace('i', 'where')}]" if turned else f"[{place}, 0:8]"
        made("8", f"nisa.dma_copy(dst=NEW, src={source}{'_turned' if turned else ''}{part})")
    steps = st.sampled_from(("add", "scale", "part", "sum", "shift", "loop"))
    for step in data.draw(st.lists(steps, max_size=5), label="steps"):
        one, two = (data.draw(st.sampled_from(tiles)) for _ in range(2))
        if step == "part":
            a = data.draw(st.integers(0, 6), label="column")
            lines.append(
                f"        nisa.tensor_copy(dst={one}[:, {a} : {a + 2}], src={two}[0:{height}, {6 - a} : {8 - a}])"
            )
        elif step == "loop":
            lines.append("        for k in range(3):")
            lines.append(
                f"            nisa.tensor_tensor(dst={one}[:, k : k + 4], data1={one}[:, k : k + 4], "
                f"data2={two}[:, 1 : 8 : 2], op=nl.add)"
            )
        elif step == "sum":
            made("1", f"nisa.tensor_reduce(dst=NEW, op=nl.add, data={one}, axis=1)")
            total = tiles.pop()
            lines.append(
                f"        nisa.tensor_scalar(dst={two}, data={one}, op0=nl.subtract, operand0={total}[:, 0:1])"
            )
            tiles.append(two)
            lines.append(f"        t{len(tiles)} = nl.ndarray(({height}, 8), dtype=x.dtype, buffer=nl.sbuf)")
            tiles.append(f"t{len(tiles)}")
        else:
            made("8", {
                "add": f"nisa.tensor_tensor(dst=NEW, data1={one}, data2={two}, op=nl.add)",
                "scale": f"nisa.tensor_scalar(dst=NEW, data={one}, op0=nl.multiply, operand0=0.5)",
                "shift": f"nisa.tensor_copy(dst=NEW[:, 2:8], src={one}[:, 0:6])",
            }[step])  # fmt: skip
    for half in range(2):
        chosen = data.draw(st.sampled_from(tiles), label="stored")
        lines.append(f"        nisa.dma_copy(dst=out[{half}, {place}, 0:8], src={chosen})")
    source = HEADER + "\n".join([*lines, "    return out"]) + "\n"
    x, y = random(rows, 8), random(rows, 8, seed=1)
    source = source.replace("x_turned", "y").replace("y_turned", "y").replace("y[0:8, where", "z[0:8, where")
    source = source.replace("def kernel(x, y)", "def kernel(x, y, z)")
    z = random(8, rows, seed=2)

    found = sites(ROWS, source)

    assert found
    for key in found:
        if key.endswith("/rest") or trips % (128 // height) == 0:
            np.testing.assert_array_equal(run(applied(ROWS, source, key), x, y, z), run(source, x, y, z))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_every_site_of_a_random_product_kernel_keeps_the_result(data):
    """Filters of any length, columns from anywhere on, sums in one piece or several, cleared or not, with a row of work
    behind them: equal in exact arithmetic, and close in floating point."""
    trips = data.draw(st.sampled_from((3, 64, 128, 130)), label="trips")
    taps = data.draw(st.integers(2, 9), label="taps")
    shift = data.draw(st.integers(0, 2), label="first column")
    pieces = data.draw(st.sampled_from((1, 2, 4)), label="pieces")
    cleared = data.draw(st.booleans(), label="cleared")
    listed = data.draw(st.booleans(), label="in lists")
    pattern = data.draw(st.booleans(), label="stored by pattern")
    halves = data.draw(st.booleans(), label="two products a sum")
    columns = trips + shift
    if columns > 128:
        columns, trips = 128, 128 - shift
    width = 16 // pieces
    moving = "tiles[0]" if listed else "m"
    lines = [
        "@nki.jit",
        "def kernel(x, w):",
        f"    out = nl.ndarray(({trips}, 16), dtype=x.dtype, buffer=nl.shared_hbm)",
        f"    taps = nl.ndarray(({taps}, {columns}), dtype=w.dtype, buffer=nl.sbuf)",
        f"    nisa.dma_copy(dst=taps, src=w[0:{taps}, 0:{columns}])",
        f"    for c in nl.affine_range({trips}):",
        f"        m = nl.ndarray(({taps}, 16), dtype=x.dtype, buffer=nl.sbuf)",
        f"        nisa.dma_copy(dst=m, src=x.ap(pattern=[[1, {taps}], [1, 16]], offset=c * 30))",
        *(["        tiles = []", "        tiles.append(m)"] if listed else []),
        f"        for q in range({pieces}):",
        f"            total = nl.ndarray((1, {width}), dtype=nl.float32, buffer=nl.psum)",
        *(["            nisa.memset(dst=total, value=0.0)"] if cleared else []),
        *(["            for again in range(2):"] if halves else []),
        f"{'    ' * halves}            nisa.nc_matmul(dst=total,",
        f"                stationary=taps[0:{taps}, c + {shift} : c + {shift + 1}],",
        f"                moving={moving}[0:{taps}, q * {width} : q * {width} + {width}])",
        f"            row = nl.ndarray((1, {width}), dtype=x.dtype, buffer=nl.sbuf)",
        "            nisa.activation(dst=row, op=nl.relu, data=total, scale=0.5)",
        f"            nisa.dma_copy(dst=out.ap(pattern=[[16, 1], [1, {width}]], offset=16 * c + q * {width}), src=row)"
        if pattern
        else f"            nisa.dma_copy(dst=out[c, q * {width} : (q + 1) * {width}], src=row)",
        "    return out",
    ]
    source = HEADER + "\n".join(lines) + "\n"
    x, w = random(trips, 30), random(taps, columns, seed=1)

    found = sites(ROWS, source)

    assert list(found) == ["c#0", "c#0/rest"]
    keys = ["c#0/rest"] if trips % 128 else list(found)
    for key in keys:
        made = applied(ROWS, source, key)
        np.testing.assert_allclose(run(made, x, w), run(source, x, w), rtol=1e-3, atol=1e-4)
        assert proved_on(made, source, x, w).equivalence.finding is Finding.HELD
