"""Windows of rows that overlap: which loops load them again, what is loaded once, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.load_rows_once import LoadRowsOnce
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

ONCE = LoadRowsOnce()
X = random(300, 24)


def kernel(body: str, out: str = "(R - 2, N)", before: str = "", rows: str = "R - 2") -> str:
    lines = [
        "R, N = x.shape",
        "P = 128",
        f"out = nl.ndarray({out}, dtype=x.dtype, buffer=nl.shared_hbm)",
        *before.strip("\n").splitlines(),
        "# window by window",
        f"for i in range(({rows} + P - 1) // P):",
        *(f"    {line}" for line in body.strip("\n").splitlines()),
        "return out",
    ]
    return f"{HEADER}@nki.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in lines)


BOUND = "r = i * P\nn = min(P, R - 2 - r)\n"


def load(tile: str, further: int) -> str:
    return (
        f"{tile} = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)\n"
        f"nisa.dma_copy(dst={tile}[0:n, :], src=x[r + {further} : r + {further} + n, 0:N])\n"
    )


LARGER = "nisa.tensor_tensor(dst=best[0:n, :], data1=a[0:n, :], data2=b[0:n, :], op=nl.maximum)\n"
BEST = "best = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)\n"
STORE = "nisa.dma_copy(dst=out[r : r + n, 0:N], src=best[0:n, :])\n"
POOLED = kernel(
    BOUND + load("a", 0) + load("b", 1) + load("c", 2) + BEST + LARGER
    + "# and the third\nnisa.tensor_tensor(dst=best[0:n, :], data1=best[0:n, :], data2=c[0:n, :], op=nl.maximum)\n"
    + STORE
)  # fmt: skip
TWO = BOUND + load("a", 0) + load("b", 2) + BEST + LARGER + STORE
PAIR = kernel(TWO)
EVEN = kernel(
    TWO.replace(BOUND, "r = i * P\n").replace("0:n", "0:P").replace("+ n", "+ P"), "(256, N)", rows="256"
)  # fmt: skip
SOME = (
    PAIR.replace("0:N]", "4:20]")
    .replace("(P, N)", "(P, 16)")
    .replace("(R - 2, N)", "(R - 2, 16)")
    .replace("n, 4:20], src=best", "n, 0:16], src=best")
)
IN_PARTS = kernel(TWO.replace(LARGER, "for k in range(3):\n    " + LARGER.replace(":]", "k * 8 : k * 8 + 8]")))
TWO_TENSORS = kernel(
    TWO.replace(
        STORE,
        load("d", 0).replace("src=x", "src=y")
        + load("e", 1).replace("src=x", "src=y")
        + "".join(LARGER.replace("a[", "best[").replace("b[", f"{tile}[") for tile in "de")
        + STORE,
    )
).replace("def kernel(x)", "def kernel(x, y)")
COLUMN_BY_COLUMN = kernel(
    BOUND
    + "for j in range(3):\n    c = j * 8\n"
    + "".join(
        f"    {line}\n"
        for line in TWO[len(BOUND) :].replace("(P, N)", "(P, 8)").replace("0:N", "c : c + 8").splitlines()
    )
)
ROW_OF_A_LOOP = load("a", 0).replace("+ 0", "+ k") + LARGER.replace("b[", "best[")
IN_A_LOOP = kernel(
    BOUND
    + BEST
    + "nisa.memset(dst=best, value=-9.0)\nfor k in range(3):\n"
    + "".join(f"    {line}\n" for line in ROW_OF_A_LOOP.splitlines())
    + STORE
)
BY_LENGTH = PAIR.replace("out[r : r + n", "out[nl.ds(r, n)").replace("x[r + 2 : r + 2 + n", "x[nl.ds(r + 2, n)")
AS_FAR_AS_THERE_ARE_ROWS = PAIR.replace(
    "dst=a[0:n, :], src=x[r + 0 : r + 0 + n", "dst=a[0 : min(P, R - r), :], src=x[r : min(r + P, R)"
)
RIGHT = {
    "pooled": POOLED, "two rows apart": PAIR, "some columns": SOME, "columns in turn": IN_PARTS,
    "columns of a loop inside": COLUMN_BY_COLUMN, "rows of a loop inside": IN_A_LOOP, "lengths": BY_LENGTH,
    "more rows than are needed": AS_FAR_AS_THERE_ARE_ROWS,
}  # fmt: skip


@pytest.mark.parametrize("rows", (130, 257, 258, 259, 300, 2 + 3 * 128))
@pytest.mark.parametrize("name", RIGHT)
def test_the_same_numbers_from_rows_that_are_loaded_once(name, rows):
    source, x = RIGHT[name], random(rows, 24)

    assert list(sites(ONCE, source)) == ["i#0"]
    made = applied(ONCE, source, "i#0")
    np.testing.assert_array_equal(run(made, x), run(source, x))
    assert "# window by window" in made and made.count("# and") == source.count("# and")
    if rows == 300:
        assert proved_on(made, source, x).equivalence.finding is Finding.HELD
        assert proved_on(made, source, x).coverage.finding is Finding.HELD


def test_rows_that_fill_every_iteration():
    made = applied(ONCE, EVEN, "i#0")

    np.testing.assert_array_equal(run(made, X), run(EVEN, X))
    assert "i_taken" not in made


def test_rows_of_two_tensors():
    y = random(300, 24, seed=1)

    made = applied(ONCE, TWO_TENSORS, "i#0")

    np.testing.assert_array_equal(run(made, X, y), run(TWO_TENSORS, X, y))
    assert made.count("append(") == 2


def test_what_windows_share_comes_from_hbm_once_and_sooner():
    x = random(1026, 1024)

    made = applied(ONCE, POOLED, "i#0")

    assert (count(POOLED, "dma_copy", x), count(made, "dma_copy", x)) == (8 * 3 + 8, 8 + 2 + 8)
    assert predictor(x)(made) < 0.85 * predictor(x)(POOLED)


def test_where_an_iteration_had_no_rows_it_does_not_run():
    with pytest.raises(AssertionError, match="every iteration over i must have rows"):
        run(applied(ONCE, POOLED.replace("(R - 2, N)", "(R, N)"), "i#0"), random(2, 24))


def first(line: str) -> str:
    """It stands before the maximum."""
    return kernel(TWO.replace(LARGER, f"{line}\n{LARGER}"))


def other(old: str, new: str, *more: str) -> str:
    """A pair of windows, with that and whatever follows put in its place."""
    pairs = [old, new, *more]
    source = PAIR
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert old in source, old
        source = source.replace(old, new)
    return source


OUTSIDE = "top = nl.ndarray((P, N), dtype=x.dtype, buffer=nl.sbuf)\nnisa.memset(dst=top, value=0.0)"
LAST = "    return out"
REFUSALS = {
    "work across the partitions": (
        first("nisa.nc_transpose(dst=best[0:n, :], data=b[0:n, :])"), "does not treat every partition by itself",
    ),
    "what counts the partitions": (
        first("nisa.iota(dst=best, pattern=[[1, 24]], offset=0, channel_multiplier=1)"),
        "does not treat every partition by itself",
    ),
    "rows are reduced": (
        first("nisa.tensor_reduce(dst=best[0:n, :], op=nl.add, data=a[0:n, :], axis=AXIS)").replace(
            "\n@nki.jit", "\nAXIS = 1\n\n\n@nki.jit"
        ),
        "that no rows are reduced does not show",
    ),
    "a number of the iteration": (first("nisa.memset(dst=best[0:n, :], value=i)"), "value changes with i"),
    "part of a tile has a name": (first("left = a[0:n, 0:8]"), "may give part of a buffer a name"),
    "a tile's rows are set": (first("nisa.memset(dst=a[0:1, :], value=0.0)"), "loads no tile again"),
    "some rows of a tile": (first("nisa.memset(dst=best[0:1, :], value=0.0)"), "takes some rows of best"),
    "it can be left early": (first("if i > 3:\n    break"), "can be left early"),
    "a tile from outside": (
        kernel(TWO.replace("data1=a[0:n", "data1=top[0:n"), before=OUTSIDE), "needs top from outside of the loop",
    ),
    "rows are stored over one another": (
        other("out[r : r + n", "out[r // 2 : r // 2 + n"), "may write the same part of out",
    ),
    "it writes what it loads": (other("dst=out[r", "dst=x[r"), "reads x, which the loop over i writes"),
    "what is stored does not end where the loads do": (
        other("(R - 2, N)", "(R + 128, N)", "out[r : r + n, 0:N], src=best[0:n, :]", "out[r : r + P, 0:N], src=best"),
        "the rows of a end at R - 2, what is stored at the end of an iteration",
    ),
    "fewer rows are loaded": (
        other("r + 2 + n, 0:N]", "r + 2 + min(P, R - 3 - r), 0:N]", "dst=b[0:n", "dst=b[0 : min(P, R - 3 - r)"),
        "the rows of b end at R - 3, what is stored at R - 2",
    ),
    "two stores end at two places": (
        other(LAST, f"        nisa.dma_copy(dst=more[r : r + P, 0:N], src=best)\n{LAST}",
              "    # window", "    more = nl.ndarray((R + 128, N), dtype=x.dtype, buffer=nl.shared_hbm)\n    # window"),
        "stores end at R - 2 and at the end of an iteration",
    ),
    "rows of a loop inside are not counted": (
        IN_A_LOOP.replace("range(3)", "range(N // 8)"), "loads no tile again",
    ),
    "a triangle": (
        other("0:N]", "0:n]", "[0:n, :]", "[0:n, 0:n]", "range((R - 2 + P - 1) // P)", "range(1)"),
        "which columns of a it takes changes with i",
    ),
    "every other window": (
        other("x[r + 0 : r + 0 + n", "x[2 * r : 2 * r + n", "x[r + 2 : r + 2 + n", "x[2 * r + 2 : 2 * r + 2 + n"),
        "do not follow those of the iteration before",
    ),
    "a tile is set before it is loaded": (
        other("    nisa.dma_copy(dst=b", "    nisa.memset(dst=b, value=0.0)\n        nisa.dma_copy(dst=b"),
        "loads no tile again",
    ),
    "loads of one place": (other("r + 2", "r + 0"), "loads no tile again"),
    "a tile in PSUM": (other(BEST.strip(), BEST.strip().replace("sbuf", "psum")), "is not in SBUF"),
    "a place of its own": (other("buffer=nl.sbuf)", "buffer=nl.sbuf, address=(0, 0))"), "has a place of its own"),
    "a loaded tile is used afterwards": (
        other(LAST, f"    nisa.dma_copy(dst=out[0:1, 0:N], src=a[0:1, :])\n{LAST}"), "a is used on line",
    ),
    "a bound is used afterwards": (
        other(LAST, f"    nisa.dma_copy(dst=out[0:n, 0:N], src=x[0:n, 0:N])\n{LAST}"), "n is used on line",
    ),
    "a tile's rows are asked for": (
        other("nl.maximum", "nl.maximum if a.shape[0] else nl.add"), "asks for the shape of a",
    ),
    "max is another function": (
        other("\n@nki.jit", "\nmax = min\n\n\n@nki.jit"), "gives max or range another meaning",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSALS)
def test_refuses(why):
    source, reason = REFUSALS[why]

    check_refused(ONCE, source, "i#0", reason)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Any number of windows of one tensor or two, any distance apart, tiles of any height, rows to spare or none, in
    one piece or in columns, single or in loops of their own."""
    height = data.draw(st.sampled_from((1, 2, 5, 32)), label="height")
    trips = data.draw(st.integers(1, 6), label="trips")
    spare = data.draw(st.integers(0, height - 1), label="rows that the last one lacks")
    parts = data.draw(st.sampled_from((1, 1, 2, 4)), label="parts of the columns")
    rows, width = height * trips - spare, 8 // parts
    single = st.tuples(st.sampled_from("xy"), st.integers(0, 9), st.sampled_from((0, 4)), st.just(1), st.just(0))
    several = st.tuples(
        st.sampled_from("xy"), st.integers(0, 3), st.sampled_from((0, 4)), st.integers(2, 4), st.integers(1, 2)
    )
    windows = data.draw(st.lists(single | single | several, min_size=2, max_size=5), label="windows")
    whole = data.draw(st.booleans(), label="whole")
    body = [
        f"best = nl.ndarray(({height}, {width}), dtype=x.dtype, buffer=nl.sbuf)",
        f"nisa.memset(dst={'best' if whole else 'best[0:n, :]'}, value=-9.0)",
    ]
    for at, (tensor, further, column, times, step) in enumerate(windows):
        row = f"i * {height} + {further}" + (f" + k * {step}" if times > 1 else "")
        lines = [
            f"t{at} = nl.ndarray(({height}, {width}), dtype=x.dtype, buffer=nl.sbuf)",
            f"nisa.dma_copy(dst=t{at}[0:n, 0:{width}], src={tensor}[{row} : {row} + n, c + {column} : "
            f"c + {column} + {width}])",
            f"nisa.tensor_tensor(dst=best[0:n, :], data1=best[0:n, :], data2=t{at}[0:n, :], op=nl.maximum)",
        ]
        if data.draw(st.booleans(), label="in part"):
            lines.append(f"nisa.tensor_copy(dst=best[0:n, 0:1], src=t{at}[0:n, 1:2])")
        body += lines if times == 1 else [f"for k in range({times}):", *(f"    {line}" for line in lines)]
    body.append(f"nisa.dma_copy(dst=out[i * {height} : i * {height} + n, c : c + {width}], src=best[0:n, :])")
    if parts == 1:
        body = ["c = 0", *body]
    else:
        body = [f"for j in range({parts}):", f"    c = j * {width}", *(f"    {line}" for line in body)]
    lines = [
        "@nki.jit",
        "def kernel(x, y):",
        f"    out = nl.ndarray(({rows}, 8), dtype=x.dtype, buffer=nl.shared_hbm)",
        f"    for i in nl.affine_range({trips}):",
        f"        n = min({height}, {rows} - i * {height})",
        *(f"        {line}" for line in body),
        "    return out",
    ]
    source = HEADER + "\n".join(lines) + "\n"
    x, y = random(rows + 9, 12), random(rows + 9, 12, seed=1)
    ends = {(tensor, column): set[int]() for tensor, _, column, _, _ in windows}
    for tensor, further, column, times, step in windows:
        ends[tensor, column] |= {further, further + (times - 1) * step}

    found = sites(ONCE, source)

    assert ("i#0" in found) == any(len(rows) > 1 for rows in ends.values())
    for key in found:
        made = applied(ONCE, source, key)
        np.testing.assert_array_equal(run(made, x, y), run(source, x, y))
