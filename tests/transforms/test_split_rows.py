"""Pooling and stencils some rows at a time: what takes turns, what comes first, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import SiteGone
from accelopt_core.transforms.split_rows import SplitRows
from nki_sim.errors import NkiError
from nki_sim.proofs.proof import Finding
from tests.transforms.proving import proved_on
from tests.transforms.running import HEADER, applied, check_refused, count, predictor, random, run, sites

SPLIT = SplitRows()
X = random(32, 24, 16)


def kernel(body: str, out: str = "(C, H, W)") -> str:
    lines = [
        "C, H, W = x.shape",
        f"out = nl.ndarray({out}, dtype=x.dtype, buffer=nl.shared_hbm)",
        *body.strip("\n").splitlines(),
        "return out",
    ]
    return f"{HEADER}@nki.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in lines)


LOAD = """
# the image
tile = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=tile, src=x)
"""
AVERAGE = kernel(
    LOAD
    + """
total = nl.ndarray((C, H // 2, W // 2), dtype=nl.float32, buffer=nl.sbuf)
# every window
nisa.tensor_reduce(
    dst=total, op=nl.add, axis=(3, 4),
    data=tile.ap([[H * W, C], [2 * W, H // 2], [2, W // 2], [W, 2], [1, 2]]),
)
mean = nl.ndarray((C, H // 2, W // 2), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=0.25)
# and out
nisa.dma_copy(dst=out, src=mean)
""",
    "(C, H // 2, W // 2)",
)
MOST = kernel(
    LOAD
    + """
most = nl.ndarray((C, 12, 8), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_copy(dst=most, src=tile[0:C, 0:24:2, 0:16:2])
for i in range(2):
    for j in range(2):
        nisa.tensor_tensor(
            dst=most, data1=most, data2=tile[0:C, i : i + 23 : 2, j : j + 15 : 2], op=nl.maximum
        )
nisa.dma_copy(dst=out, src=most)
""",
    "(C, 12, 8)",
)
PADDED = kernel("""
padded = nl.ndarray((C, H + 2, W + 2), dtype=x.dtype, buffer=nl.sbuf)
nisa.memset(dst=padded, value=0.0)
nisa.dma_copy(dst=padded[0:C, 1 : H + 1, 1 : W + 1], src=x[0:C, 0:H, 0:W])
total = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_scalar(dst=total, data=padded[0:C, 0:H, 0:W], op0=nl.multiply, operand0=0.5)
for i in range(3):
    for j in range(3):
        nisa.scalar_tensor_tensor(
            dst=total, data=padded[0:C, i : i + H, j : j + W], op0=nl.multiply, operand0=0.125,
            op1=nl.add, operand1=total,
        )
nisa.dma_copy(dst=out[0:C, 0:H, 0:W], src=total)
""")
IN_LOOPS = kernel("""
weight = nl.ndarray((C // 2, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=weight, value=3.0)
for c in range(2):
    tile = nl.ndarray((C // 2, H, W), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[c * (C // 2) : (c + 1) * (C // 2)])
    y = nl.ndarray((C // 2, H, W), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=y, data=tile, op0=nl.multiply, operand0=weight)
    nisa.dma_copy(dst=out[c * (C // 2) : (c + 1) * (C // 2), 0:H, 0:W], src=y)
""")
FLAT = kernel("""
flat = nl.ndarray((C, H * W), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=flat, src=x.reshape((C, H * W)))
weights = nl.ndarray((C, 1), dtype=nl.float32, buffer=nl.sbuf)
nisa.memset(dst=weights, value=2.0)
y = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_scalar(dst=y, data=flat.reshape((C, H, W)), op0=nl.multiply, operand0=weights)
nisa.tensor_tensor(dst=y, data1=y, data2=flat.ap(pattern=[[H * W, C], [W, H], [1, W]]), op=nl.add)
nisa.dma_copy(dst=out, src=y)
""")
TWICE = kernel(
    LOAD
    + """
wide = nl.ndarray((C, H, W - 2), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_tensor(dst=wide, data1=tile[0:C, 0:H, 0 : W - 2], data2=tile[0:C, 0:H, 2:W], op=nl.maximum)
high = nl.ndarray((C, H - 2, W - 2), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_tensor(dst=high, data1=wide[0:C, 0 : H - 2, 0 : W - 2], data2=wide[0:C, 2:H, 0 : W - 2], op=nl.maximum)
nisa.dma_copy(dst=out, src=high)
""",
    "(C, H - 2, W - 2)",
)
KERNELS = {
    "windows of an average": (AVERAGE, "tile"),
    "windows shift by shift": (MOST, "tile"),
    "a stencil with a border": (PADDED, "padded"),
    "channels in a loop": (IN_LOOPS, "tile"),
    "flat, in another shape": (FLAT, "flat"),
}


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
@pytest.mark.parametrize("case", KERNELS)
def test_the_same_rows_in_parts(case, parts):
    source, name = KERNELS[case]
    split = applied(SPLIT, source, f"{name}x{parts}")

    np.testing.assert_array_equal(run(split, X), run(source, X))
    assert count(split, "dma_copy", X) > count(source, "dma_copy", X)
    assert count(split, "memset", X) == count(source, "memset", X)
    assert proved_on(split, source, X).equivalence.finding is Finding.HELD
    for comment in ("# the image", "# every window", "# and out"):
        assert (comment in split) == (comment in source)


def test_loads_come_first_and_the_rest_takes_turns():
    split = applied(SPLIT, AVERAGE, "tilex4")

    loops = split[split.index("for part in") :]
    assert loops.index("dma_copy(dst=tile") < loops.index("for part2 in") < loops.index("tensor_reduce")
    assert loops.count("for part") == 2
    assert "# the image" in split and "# every window" in split


def test_it_takes_less_time():
    predict = predictor(random(128, 96, 96))
    assert predict(applied(SPLIT, AVERAGE, "tilex8")) < 0.8 * predict(AVERAGE)
    assert predict(applied(SPLIT, PADDED, "paddedx4")) < 0.9 * predict(PADDED)


def test_a_part_that_needs_the_next_one_is_refused_at_trace_time_and_done_apart():
    """The second maximum looks two rows on in what the first one writes."""
    assert {"tilex4", "tilex4/apart"} <= set(sites(SPLIT, TWICE))
    with pytest.raises(AssertionError, match="must need nothing of the next one|come out even"):
        run(applied(SPLIT, TWICE, "tilex4"), X)
    apart = applied(SPLIT, TWICE, "tilex4/apart")
    np.testing.assert_array_equal(run(apart, X), run(TWICE, X))
    assert proved_on(apart, TWICE, X).equivalence.finding is Finding.HELD


def test_what_a_loop_leaves_behind_is_not_asked_for_before_it():
    scaled = "last = i * 2.0\n    nisa.tensor_scalar(dst=most, data=most, op0=nl.multiply, operand0=last)\n    "
    source = MOST.replace("nisa.dma_copy(dst=out", scaled + "nisa.dma_copy(dst=out")
    assert source != MOST and sites(SPLIT, source)
    for key in sites(SPLIT, source):
        np.testing.assert_array_equal(run(applied(SPLIT, source, key), X), run(source, X))


SHIFTED = kernel(
    LOAD
    + """
nisa.tensor_copy(dst=tile[0:C, {to} : H - 3 + {to}, 0:W], src=tile[0:C, {at} : H - 3 + {at}, 0:W])
nisa.dma_copy(dst=out, src=tile)
"""
)


def test_rows_moved_within_a_tile():
    """To the front: later parts read what no earlier part has written. To the back they would."""
    back = SHIFTED.replace("{to}", "0").replace("{at}", "3")
    split = applied(SPLIT, back, "tilex3/apart")
    np.testing.assert_array_equal(run(split, X), run(back, X))

    forth = SHIFTED.replace("{to}", "3").replace("{at}", "0")
    with pytest.raises(AssertionError, match="must need nothing"):
        run(applied(SPLIT, forth, "tilex3/apart"), X)


def test_windows_that_overlap_in_place_are_refused_at_trace_time():
    rows = "tile.ap(pattern=[[H * W, C], [W, H - 1], [1, 2 * W]])"
    source = kernel(LOAD + f"nisa.tensor_scalar(dst={rows}, data={rows}, op0=nl.add, operand0=1.0)\n"
                    "nisa.dma_copy(dst=out, src=tile)\n")  # fmt: skip
    with pytest.raises(AssertionError, match="must need nothing"):
        run(applied(SPLIT, source, "tilex2/apart"), X)


def test_a_pattern_over_other_partitions_is_refused_at_trace_time():
    """Its rows do not lie where they are counted."""
    source = kernel(
        LOAD
        + """
y = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.sbuf)
nisa.tensor_copy(dst=y, src=tile)
nisa.tensor_copy(dst=y[0:32], src=y.ap(pattern=[[H * W, 32], [W, H], [1, W]], offset=32 * H * W))
nisa.dma_copy(dst=out, src=y)
"""
    )
    x = random(64, 24, 16)
    run(source, x)
    with pytest.raises(AssertionError, match="must need nothing"):
        run(applied(SPLIT, source, "tilex2"), x)


@pytest.mark.parametrize("key", ["totalx2", "tilex1", "tile", "tilex2/alone", "tile#2x2", "tilextwo"])
def test_a_site_of_another_kernel_is_gone(key):
    with pytest.raises(SiteGone):
        applied(SPLIT, AVERAGE, key)


REFUSALS = {
    "an operand for each partition that is made within": (
        AVERAGE.replace("operand0=0.25", "operand0=total[0:C, 0, 0:1]"), "needs every row of total"
    ),
    "stored to what it is loaded from": (
        IN_LOOPS.replace("dst=tile, src=x[", "dst=tile, src=out["), "out, which is written, is touched more than once"
    ),
    "written by way of a view": (
        AVERAGE.replace("    mean = ", "    view = total[0:C]\n    mean = ").replace(
            "data=total,", "data=view[0:C, 0 : H // 2, 0 : W // 2],"
        ), "touched by another name"
    ),
    "a nested function uses it": (
        AVERAGE.replace("    # the image", "    def peek():\n        return total\n    # the image"), "nested function"
    ),
    "rows handed on from iteration to iteration": (
        MOST.replace("data2=tile[0:C, i : i + 23 : 2, j : j + 15 : 2]", "data2=most[0:C, i : i + 12, 0:8]")
        .replace("(C, 12, 8)", "(C, 14, 8)")
        .replace("dst=most, data1=most", "dst=most[0:C, 0:12], data1=most[0:C, 2:14]")
        .replace("dst=most, src", "dst=most[0:C, 0:12], src"), "at other rows, in a loop"
    ),
    "min means something else": (
        AVERAGE.replace("    # the image", "    min = C\n    # the image"), "another meaning"
    ),
    "too few rows": (
        MOST.replace("0:24:2", "0:1").replace("i + 23 : 2", "i + 1").replace("12, 8", "1, 8"), "have no 2 parts"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, reason = REFUSALS[case]

    check_refused(SPLIT, source, "tilex2", reason)


STEPS = (
    "nisa.tensor_tensor(dst={a}, data1={b}, data2={c}, op=nl.maximum)",
    "nisa.tensor_tensor(dst={a}[0:C, 0:{n}, 0:W], data1={b}[0:C, {i} : {i} + {n}, 0:W], "
    "data2={c}[0:C, {j} : {j} + {n}, 0:W], op=nl.add)",
    "nisa.tensor_copy(dst={a}[0:C, {i} : {i} + {n}, 0:W], src={b}[0:C, {j} : {j} + {n}, 0:W])",
    "nisa.tensor_copy(dst={a}[0:C, {i} : {i} + {n}, 0:W], src={a}[0:C, {j} : {j} + {n}, 0:W])",
    "nisa.activation(dst={a}[0:C, 0:H, 1:W], op=nl.square, data={b}[0:C, 0:H, 0 : W - 1])",
    "nisa.tensor_reduce(dst=half, op=nl.add, data={b}.ap([[H * W, C], [2 * W, H // 2], [2, W // 2], [W, 2], [1, 2]]), "
    "axis=(3, 4))",
    "nisa.tensor_copy(dst={a}[0:C, 0:H:2, 0:W:2], src=half)",
    "nisa.tensor_scalar(dst={a}.ap(pattern=[[H * W, C], [W, {n}], [1, W]], offset={i} * W), "
    "data={b}[0:C, {j} : {j} + {n}, 0:W], op0=nl.add, operand0=one)",
    "nisa.tensor_scalar(dst={a}, data={b}.reshape((C, H, W)), op0=nl.subtract, operand0=one)",
    "for k in range(3):\n        nisa.tensor_tensor(dst={a}[0:C, 0:{n}, 0:W], data1={a}[0:C, 0:{n}, 0:W], "
    "data2={b}[0:C, k : k + {n}, 0:W], op=nl.add)",
    "nisa.dma_copy(dst={a}, src=x)",
    "nisa.dma_copy(dst=out, src={b})",
    "nisa.memset(dst={a}[0:C, {i} : {i} + {n}, 0:W], value=0.5)",
)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """Tiles written from one another at shifted rows, by patterns and in windows; what is wrong is not traced."""
    tiles = ("s", "t", "u")
    lines = ["C, H, W = x.shape", "out = nl.ndarray((C, H, W), dtype=x.dtype, buffer=nl.shared_hbm)"]
    lines += ["one = nl.ndarray((C, 1), dtype=nl.float32, buffer=nl.sbuf)", "nisa.memset(dst=one, value=1.0)"]
    lines += [f"{name} = nl.ndarray((C, H, W), dtype=nl.float32, buffer=nl.sbuf)" for name in tiles]
    lines += ["half = nl.ndarray((C, H // 2, W // 2), dtype=nl.float32, buffer=nl.sbuf)"]
    lines += ["nisa.memset(dst=half, value=2.0)", *(f"nisa.dma_copy(dst={name}, src=x)" for name in tiles)]
    for _ in range(data.draw(st.integers(2, 7), label="steps")):
        step = data.draw(st.sampled_from(STEPS))
        a, b, c = data.draw(st.permutations(tiles))
        i, j = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        n = data.draw(st.sampled_from(["H - 3", "6", "4"]))
        if "for k" in step and n == "H - 3":
            n = "6"
        lines.append(step.format(a=a, b=b, c=c, i=i, j=j, n=n))
    lines += [f"nisa.dma_copy(dst=out, src={data.draw(st.sampled_from(tiles))})", "return out"]
    source = f"{HEADER}@nki.jit\ndef kernel(x):\n" + "".join(f"    {line}\n" for line in lines)
    given_x = random(4, 12, 4)
    with np.errstate(all="ignore"):
        try:
            expected = run(source, given_x)
        except NkiError:
            return  # an overlap that no machine orders
        for key in sites(SPLIT, source):
            changed = applied(SPLIT, source, key)
            try:
                result = run(changed, given_x)
            except AssertionError as refused:
                assert "rows" in str(refused) or "must need nothing" in str(refused)
                continue
            np.testing.assert_array_equal(result, expected, err_msg=key)
