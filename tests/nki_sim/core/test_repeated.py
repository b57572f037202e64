"""Loops of which a few passes are run: the program is the one that all passes make, to the byte."""

from __future__ import annotations

import linecache
import textwrap
import types

import pytest

import nki_sim
from accelopt_core.toolchain import ConstantArgument, TensorArgument
from infra.prediction.predictor import kernel_arguments
from infra.tasks.seed_index import load_seed, seed_index
from nki_sim.dtypes import as_dtype, float32
from nki_sim.encoding import program_file
from nki_sim.errors import NkiError
from nki_sim.tracing import marks, repeated
from nki_sim.tracing.session import TensorSpec, count_lines_of
from tests.slow import without

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl

TILE = 128


@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
"""
X, Y = TensorSpec((2048, 1024), float32), TensorSpec((128, 512), float32)


@pytest.fixture
def written(monkeypatch):
    """How many passes were written down, loop by loop."""
    passes = []
    write = repeated._Step.write

    def noted(step, tracer, number, since):
        passes.append(number)
        write(step, tracer, number, since)

    monkeypatch.setattr(repeated._Step, "write", noted)
    return passes


@pytest.fixture(autouse=True)
def _lines_of_any_file():
    yield
    count_lines_of("")


def traced(source, *arguments, few_passes):
    nki_sim.install()
    module = types.ModuleType("candidate")
    file = "candidate_of_a_test.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    count_lines_of(file)
    compiled = repeated.compiled if few_passes else marks.compiled
    code = compiled(source, file, module.__dict__)
    exec(code, module.__dict__)
    return program_file.dumps(nki_sim.trace(module.kernel, *arguments, machine="trn2"))


def kernel_with(body):
    return HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n    return out\n"


def same_program(body):
    source = kernel_with(body)
    return traced(source, X, Y, few_passes=True) == traced(source, X, Y, few_passes=False)


COPY = """
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * TILE : (i + 1) * TILE, 0:1024])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE, 0:1024], src=tile)
"""

PLAIN = {
    "slices": f"""
    for i in range(16):{COPY}
    """,
    "the language's range": f"""
    for i in nl.affine_range(16):{COPY}
    """,
    "a range that goes down": f"""
    for i in range(15, -1, -1):{COPY}
    """,
    "a name for where it begins": """
    for i in range(16):
        low = i * TILE
        high = low + TILE
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[low:high])
        nisa.dma_copy(dst=out[nl.ds(low, TILE)], src=tile)
    """,
    "rows that are left at the end": """
    for i in range(17):
        rows = min(TILE, 2048 - 124 * i)
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:rows], src=x[i * 124 : i * 124 + rows])
        nisa.dma_copy(dst=out[nl.ds(i * 124, rows)], src=tile[0:rows])
    """,
    "an offset of a pattern": """
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap(pattern=[[x.shape[1], TILE], [1, 1024]], offset=TILE * x.shape[1] * i))
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "the first pass and the last are others": """
    acc = nl.ndarray((TILE, 512), dtype=nl.float32, buffer=nl.psum)
    for i in range(16):
        left = nl.ndarray((TILE, TILE), dtype=x.dtype, buffer=nl.sbuf)
        right = nl.ndarray((TILE, 512), dtype=x.dtype, buffer=nl.sbuf)
        if i == 0:
            nisa.memset(dst=left, value=0.0)
        nisa.dma_copy(dst=left, src=x[i * TILE : (i + 1) * TILE, 0:TILE])
        nisa.dma_copy(dst=right, src=y)
        nisa.nc_matmul(dst=acc, stationary=left, moving=right, accumulate=i > 0)
        if i == 16 - 1:
            nisa.dma_copy(dst=out[0:TILE, 0:512], src=right)
    """,
    "a list that is made in the pass": """
    for i in range(16):
        tiles = []
        for j in range(4):
            tile = nl.ndarray((TILE, 256), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * TILE : (i + 1) * TILE, j * 256 : (j + 1) * 256])
            tiles.append(tile)
        for j in range(4):
            nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE, j * 256 : (j + 1) * 256], src=tiles[3 - j])
    """,
    "a list from before": """
    tiles = [nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf) for i in range(16)]
    for i in range(16):
        nisa.memset(dst=tiles[i], value=0.0)
    for i in range(16):
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tiles[15 - i])
    """,
    "heads in groups": """
    QH, KH = 16, 8
    for h in range(QH):
        kv = h // (QH // KH)
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[kv * TILE : (kv + 1) * TILE])
        nisa.dma_copy(dst=out[h * TILE : (h + 1) * TILE], src=tile)
    """,
    "two buffers in turns, twelve bytes on": """
    tiles = [nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf) for i in range(2)]
    for i in range(1, 47, 2):
        nisa.dma_copy(dst=tiles[(3 * i + 1) // 2 % 2][:, 3 * i : 3 * i + 3], src=x[0:TILE, 3 * i : 3 * i + 3])
        nisa.dma_copy(dst=out[i // 4 * TILE : (i // 4 + 1) * TILE], src=tiles[-i % 2])
    """,
    "a division, and passes that are left": """
    for i in range(15):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[(i // 2) * TILE : (i // 2 + 1) * TILE])
        if i == 15 - 1 or i == 0:
            nisa.memset(dst=tile, value=0.0)
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a division of what a division gave": """
    for i in range(32):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[(i + 1) // 2 % 2 * TILE : ((i + 1) // 2 % 2 + 1) * TILE])
        nisa.dma_copy(dst=out[i // 2 * TILE : (i // 2 + 1) * TILE], src=tile)
    """,
    "what the language makes once": """
    for i in range(16):
        tile = nl.load(x[i * TILE : (i + 1) * TILE])
        nl.store(out[i * TILE : (i + 1) * TILE], nl.softmax(nl.multiply(tile, 2.0), axis=1))
    """,
}

RUN_PASS_BY_PASS = {
    "a branch": f"""
    for i in range(16):{COPY}
        if i == 7:
            nisa.memset(dst=tile, value=1.0)
    """,
    "a remainder, and too few turns": """
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[(i % 4) * TILE : (i % 4 + 1) * TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a division by what a pass assigns": """
    group = 2
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i // group * TILE : (i // group + 1) * TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
        group = 1 if i > 8 else 2
    """,
    "a division by a number below zero": """
    group = -1
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[-(i // group) * TILE : (1 - i // group) * TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a product of two that a division gave": """
    tile = nl.ndarray((1, 1024), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(16):
        nisa.dma_copy(dst=tile, src=x[(i // 2) * (i % 2) : (i // 2) * (i % 2) + 1])
        nisa.dma_copy(dst=out[i : i + 1], src=tile)
    """,
    "a number that a division of a lesser one gave": """
    for i in range(16):
        row = min(i, 9) // 2
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row * TILE : (row + 1) * TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a division that decides a branch": f"""
    for i in range(16):{COPY}
        if i // 2 == 0:
            nisa.memset(dst=tile, value=0.0)
    """,
    "a square": """
    tile = nl.ndarray((1, 1024), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(16):
        nisa.dma_copy(dst=tile, src=x[i * i : i * i + 1])
        nisa.dma_copy(dst=out[i : i + 1], src=tile)
    """,
    "a list with gaps": """
    tiles = [nl.ndarray((TILE, 1024 if i == 9 else 512), dtype=x.dtype, buffer=nl.sbuf) for i in range(16)]
    for i in range(16):
        nisa.memset(dst=tiles[i], value=0.0)
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE, 0:512], src=tiles[i][:, 0:512])
    """,
    "where it begins is the lesser of two": """
    for i in range(16):
        low = min(i * TILE, 9 * TILE)
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[low : low + TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "rows that grow and shrink again": """
    for i in range(16):
        rows = 8 + max(0, i - 5) - max(0, i - 7)
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile[0:rows], value=0.0)
        nisa.dma_copy(dst=out[i * TILE : i * TILE + 8], src=tile[0:8])
    """,
    "rows that are fewer before the end": """
    for i in range(20):
        rows = min(TILE, 124 * (20 - i))
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile[0:rows], value=0.0)
        nisa.dma_copy(dst=out[0:8], src=tile[0:8])
    """,
    "two of a list changed places": """
    tiles = [nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf) for i in range(16)]
    tiles[8], tiles[9] = tiles[9], tiles[8]
    for i in range(16):
        nisa.memset(dst=tiles[i], value=0.0)
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tiles[i])
    """,
    "what the pass before left": """
    last = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=last, value=0.0)
    for i in range(16):
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=last)
        last = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=last, src=x[i * TILE : (i + 1) * TILE])
    """,
    "a list that grows": f"""
    tiles = []
    for i in range(16):{COPY}
        tiles.append(tile)
        if len(tiles) == 9:
            nisa.memset(dst=tile, value=1.0)
    """,
    "a list that grows under another name": f"""
    tiles = []
    for i in range(16):{COPY}
        others = tiles
        others.append(tile)
    """,
    "a function of its own": f"""
    seen = []
    def odd(tile):
        seen.append(tile)
        if len(seen) == 9:
            nisa.memset(dst=tile, value=1.0)
    for i in range(16):{COPY}
        odd(tile)
    """,
    "an index on the other side of zero": """
    tile = nl.ndarray((1, 1024), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(16):
        nisa.dma_copy(dst=tile, src=x[i - 9])
        nisa.dma_copy(dst=out[i : i + 1], src=tile)
    """,
    "a name in a text": """
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf, name=f"tile_{i}")
        nisa.dma_copy(dst=tile, src=x[i * TILE : (i + 1) * TILE])
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a number that an instruction is given": """
    tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(16):
        nisa.memset(dst=tile, value=i)
        nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE], src=tile)
    """,
    "a number that is another one from its fifth pass on": """
    tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
    steps = [0, 0, 0, 0, 0] + [1] * 11
    for i in range(16):
        nisa.memset(dst=tile, value=0.0)
        nisa.dma_copy(dst=out[steps[i] * TILE : (steps[i] + 1) * TILE], src=tile)
    """,
    "a range of its own": f"""
    def range(number):
        return [0, 1, 2, 3, 4, 5, 9, 7, 8, 6]
    for i in range(10):{COPY}
    """,
    "too few passes": f"""
    for i in range(6):{COPY}
    """,
}


GOES_BACK = ("an index on the other side of zero", "rows that are fewer before the end")
"""Plain by the text of the loop; what was written down is taken back."""


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_loop_is_written_down(name, written):
    assert same_program(PLAIN[name])
    assert sum(written) >= 2


@pytest.mark.parametrize("name", RUN_PASS_BY_PASS)
def test_any_other_loop_is_run_pass_by_pass(name, written):
    body = RUN_PASS_BY_PASS[name]
    kept = traced(kernel_with(body), X, Y, few_passes=False)
    passes = len(written)
    assert traced(kernel_with(body), X, Y, few_passes=True) == kept
    assert passes == 0 and (not written or name in GOES_BACK)


def test_loops_in_loops_are_plain_by_themselves(written):
    assert same_program(
        """
    for i in range(16):
        for j in range(8):
            tile = nl.ndarray((TILE, 128), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[i * TILE : (i + 1) * TILE, j * 128 : (j + 1) * 128])
            nisa.dma_copy(dst=out[i * TILE : (i + 1) * TILE, j * 128 : (j + 1) * 128], src=tile)
    """
    )
    assert written == [5, 5, 13, 5]


def test_what_fails_between_the_passes_that_are_run_still_fails():
    source = kernel_with(
        """
    for i in range(20):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i * TILE : (i + 1) * TILE])
    """
    )
    for few_passes in (True, False):
        with pytest.raises(NkiError, match="out-of-bound"):
            traced(source, X, Y, few_passes=few_passes)


def test_what_a_pass_raises_is_told_from_what_is_raised_while_passes_are_compared(monkeypatch):
    def body(view):
        return kernel_with(
            f"""
    for i in range(16):
        tile = nl.ndarray((TILE, 1024), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src={view})
    """
        )

    with pytest.raises(NkiError) as raised:
        traced(body("x[(i + 1) * TILE : (i + 2) * TILE]"), X, Y, few_passes=True)
    assert not repeated.gave_rise_to(raised.value)

    def fails(*given):
        raise ValueError("at fault itself")

    monkeypatch.setattr(repeated._Step, "between", fails)
    with pytest.raises(ValueError, match="at fault itself") as raised:
        traced(body("x[i * TILE : (i + 1) * TILE]"), X, Y, few_passes=True)
    assert repeated.gave_rise_to(raised.value)


def given(argument):
    if isinstance(argument, TensorArgument):
        return TensorSpec(tuple(argument.shape), as_dtype(argument.dtype))
    assert isinstance(argument, ConstantArgument)
    return argument.value


LONG = ("lora", "matmul", "adamw", "gqa_full", "rope_single_freq_apply", "transpose_matmul")


@pytest.mark.parametrize("name", without(*LONG, of=(seed.name for seed in seed_index())))
def test_every_shipped_kernel_at_its_published_shape(name, written):
    seed = load_seed(name)
    arguments = [given(each) for each in kernel_arguments(seed.task())[-1]]
    kept = traced(seed.kernel_source, *arguments, few_passes=False)
    assert traced(seed.kernel_source, *arguments, few_passes=True) == kept
    assert written or name == "adamw"  # its rows are a shape, its columns four
