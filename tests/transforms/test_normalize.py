"""A kernel in normal form is the same kernel: what changes is where tiles are made and what things are called."""

from __future__ import annotations

import io
import tokenize
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.toolchain import ConstantArgument, TensorArgument
from accelopt_core.transforms.base import AnalysisContext, IllegalSite, SiteGone, parse_kernel
from accelopt_core.transforms.drop_copy import DropCopy
from accelopt_core.transforms.kernel_code import KernelCode, Kind
from accelopt_core.transforms.normalize import NORMALIZE, normalized
from infra.tasks.seed_index import load_seed, seed_index
from tests.transforms.running import HEADER, applied, random, run, sites, trace

X = random(64, 32)


def kernel(body: str, before: str = "", parameters: str = "x") -> str:
    indented = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    return (
        f"{HEADER}{before}@nki.jit\ndef kernel({parameters}):\n"
        f"    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n{indented}    return out\n"
    )


def normal(source: str) -> str:
    made = normalized(parse_kernel(source)).tree.code
    assert normalized(parse_kernel(made)).tree.code == made, "normalizing twice changes something"
    assert comments(source) <= comments(made)
    return made


def comments(source: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Counter(token.string.strip() for token in tokens if token.type == tokenize.COMMENT)


def same(source: str, *arrays: np.ndarray) -> str:
    made = normal(source)
    arrays = arrays or (X,)
    np.testing.assert_array_equal(run(made, *arrays), run(source, *arrays))
    return made


REUSED = """
tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)  # for everything
for m in range(x.shape[0] // 16):
    start = m * 16
    nisa.dma_copy(dst=tile, src=x[start : start + 16, 0:32])
    # double it
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out[start : start + 16, 0:32], src=tile)
for m in range(1):
    start = m * 16
    nisa.dma_copy(dst=tile, src=x[start : start + 16, 0:32])
    nisa.dma_copy(dst=out[start : start + 16, 0:32], src=tile)
"""


def test_names_are_bound_once_and_tiles_are_made_where_they_are_used():
    made = same(kernel(REUSED))
    code = KernelCode(parse_kernel(made))
    for name in ("m", "start", "tile", "m_2", "start_2", "tile_2"):
        assert len(code.bindings(name)) == 1, name
    for name in ("tile", "tile_2"):
        (allocation,) = code.bindings(name)
        assert [loop.kind for loop in allocation.block.loops()] == [Kind.LOOP]


STAYS = {
    "the next iteration reads it": """
tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
nisa.memset(dst=tile, value=0.0)
for m in range(4):
    part = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=part, src=x[m * 16 : m * 16 + 16, 0:32])
    nisa.tensor_tensor(dst=tile, data1=tile, data2=part, op=nl.add)
    nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, 0:32], src=tile)
""",
    "it is filled part by part": """
tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
for m in range(4):
    for h in range(2):
        nisa.dma_copy(dst=tile[0:16, h * 16 : h * 16 + 16], src=x[m * 16 : m * 16 + 16, h * 16 : h * 16 + 16])
    nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, 0:32], src=tile)
""",
    "it is read after the loop": """
tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
for m in range(4):
    nisa.dma_copy(dst=tile, src=x[m * 16 : m * 16 + 16, 0:32])
for m in range(4):
    nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, 0:32], src=tile)
""",
    "a list holds a part of it": """
tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
views = [tile[0:16, 0:32]]
for m in range(4):
    nisa.dma_copy(dst=tile, src=x[m * 16 : m * 16 + 16, 0:32])
    nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, 0:32], src=views[0])
""",
    "products add up in it": """
total = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
left = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=left, src=x[0:64, 0:32])
for k in range(2):
    nisa.nc_matmul(dst=total, stationary=left[k * 32 : k * 32 + 32, 0:32], moving=left[k * 32 : k * 32 + 32, 0:32])
tile = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=tile, src=total)
for m in range(2):
    nisa.dma_copy(dst=out[m * 32 : m * 32 + 32, 0:32], src=tile)
""",
}


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_a_tile_stays_where_its_contents_are_handed_on(body):
    made = same(kernel(body))
    code = KernelCode(parse_kernel(made))
    name = "total" if "total" in body else "tile"
    (allocation,) = code.bindings(name)
    assert not allocation.block.loops()


def test_a_branch_keeps_its_bindings_together():
    body = """
for m in range(4):
    if m == 0:
        start = 48
    if m > 0:
        start = m * 16 - 16
    tile = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[start : start + 16, 0:32])
    nisa.dma_copy(dst=out[m * 16 : m * 16 + 16, 0:32], src=tile)
"""
    assert normal(kernel(body)) == kernel(body)


HELPERS = '''
ROWS = 16


def load(source, at, scale=1.0):
    """A tile of it."""
    size = ROWS
    # from HBM
    tile = nl.ndarray((size, source.shape[1]), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[at : at + size, 0 : source.shape[1]])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
    return tile


def twice(source, at):
    first = load(source, at)
    second = load(source, at=at, scale=2.0)
    nisa.tensor_tensor(dst=first, data1=first, data2=second, op=nl.add)
    return first, second


def count(n, by):
    return n // by


def store(target, tile):
    nisa.dma_copy(dst=target, src=tile)


'''


def test_functions_of_the_file_are_written_out():
    body = """
for m in range(count(x.shape[0], ROWS)):
    size = m * ROWS
    both, second = twice(x, size)  # three times it
    store(out[size : size + ROWS, 0:32], both)
"""
    made = same(kernel(body, HELPERS))
    inside = made.partition("def kernel")[2]
    assert not any(f"{name}(" in inside for name in ("load", "twice", "count", "store"))
    assert not [s for s in KernelCode(parse_kernel(made)).statements() if s.kind is Kind.OPAQUE]


THREE_TIMES = "def f(t):\n    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=3.0)\n\n\n"
NOT_WRITTEN_OUT = {
    "it calls itself": "def f(t, n=1):\n    f(t, 0) if n else None\n\n\n",
    "it leaves from a loop": "def f(t):\n    for i in range(2):\n        return\n\n\n",
    "it takes any number": "def f(*t):\n    pass\n\n\n",
    "it has a scope of its own": "def f(t):\n    g = lambda: t\n    g()\n\n\n",
    "it is defined twice": "def f(t):\n    pass\n\n\ndef f(t):\n    pass\n\n\n",
    "its name is bound again": f"{THREE_TIMES}def g(t):\n    pass\n\n\nf = g\n\n\n",
    "another is made in a branch": f"{THREE_TIMES}if nisa:\n\n    def f(t):\n        pass\n\n\n".replace(
        "X", "nl.fp32.max"
    ),
    "another function binds it again": f"{THREE_TIMES}def g():\n    global f\n    f = id\n\n\ng()\n",
    "a global of its is a local here": "size = 1\n\n\ndef f(t):\n    assert size == 1\n\n\n",
}


@pytest.mark.parametrize("helper", NOT_WRITTEN_OUT.values(), ids=NOT_WRITTEN_OUT)
def test_a_function_that_cannot_be_written_out_stays(helper):
    body = """
size = 64
tile = nl.ndarray((size, 32), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=tile, src=x)
f(tile)
nisa.dma_copy(dst=out, src=tile)
"""
    assert "    f(tile)\n" in same(kernel(body, helper))


CHANGING = """
class Sizes:
    def __init__(self, rows):
        self.rows = rows


def grow(sizes):
    sizes.rows *= 2
    return sizes.rows


def grown(sizes, rows):
    grow(sizes)
    nisa.memset(dst=sizes.tile, value=rows)
    return rows


"""


def test_an_element_of_a_list_is_what_it_was_before_the_list_changes():
    helper = "def moved(tiles, first):\n    tiles[0] = tiles[1]\n    nisa.memset(dst=first, value=5.0)\n\n\n"
    body = """
tiles = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for i in range(2)]
kept = tiles[0]
nisa.memset(dst=tiles[1], value=1.0)
moved(tiles, tiles[0])
nisa.dma_copy(dst=out, src=kept)
"""
    assert run(same(kernel(body, helper)), X)[0, 0] == 5


def test_what_a_function_was_given_is_what_it_was_before_an_object_changes():
    body = """
sizes = Sizes(16)
sizes.tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
n = grown(sizes, sizes.rows)
nisa.tensor_scalar(dst=sizes.tile, data=sizes.tile, op0=nl.add, operand0=float(n + sizes.rows))
nisa.dma_copy(dst=out, src=sizes.tile)
"""
    made = same(kernel(body, CHANGING))
    assert run(made, X)[0, 0] == 16 + 16 + 32 and "grown(" not in made.partition("def kernel")[2]


SPELLINGS = """
T = 16
assert x.shape[0] % T == 0
tiles = [nl.ndarray((nl.par_dim(T), 32), dtype=x.dtype, buffer=nl.sbuf) for i in range(4)]  # all of it
total = nl.zeros((T, 1), nl.float32, nl.sbuf)
for r in nl.affine_range(0, x.shape[0] // T):
    nisa.dma_copy(tiles[r], x[r * T : (r + 1) * T, 0:32])
for at in range(0, x.shape[0], T):
    part = nl.ndarray((T, 32), dtype=x.dtype)
    row = nl.ndarray((T, 1), nl.float32)
    nisa.tensor_copy(part[:, :], tiles[at // T], engine=nisa.vector_engine)
    nisa.tensor_reduce(row, nl.add, part[0:T, 0:32], (1,), keepdims=True)
    nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)
    nisa.tensor_scalar(
        dst=part, data=part, op0=nl.add,
        operand0=total[0:T, 0:1],  # of each row
        name="shift",
    )
    nisa.dma_copy(dst=out[at : at + T, 0:32], src=part)
"""


def test_there_is_one_spelling():
    made = same(kernel(SPELLINGS))
    code = KernelCode(parse_kernel(made))
    assert all(loop.count is not None for loop in code.loops())
    for text in ("nl.zeros", "par_dim", "keepdims", "vector_engine", "part[", "total[", "name=", " for i in range(4)]"):
        assert text not in made, text
    for text in (
        "operand0=total,  # of each row\n        )\n",
        "range(x.shape[0] // T)",
        "axis=1",
        "data=part",
        "engine=nisa.engine.vector",
    ):
        assert text in made, text


LEFT = """
def plan(total, per):
    left = total - per
    if left >= per:
        n = min(4, left // per)
        left -= n * per
    else:
        n = 1
        left -= per
    m = 1
    if left >= per:
        m += left // per
        left -= m * per
    return n, m


"""


def test_what_a_name_is_made_of_itself_stays_one_name():
    body = """
left = 0
n, m = plan(32, 4)
tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
nisa.dma_copy(dst=tile, src=x)
for i in range(n):
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0 * m)
nisa.dma_copy(dst=out, src=tile)
"""
    made = same(kernel(body, LEFT))
    assert "plan(" not in made.partition("def kernel")[2]


def test_nested_functions_keep_what_they_see():
    body = """
tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
value = 1.0
def fill():
    nisa.memset(dst=tile, value=value)
value = 2.0
fill()
nisa.dma_copy(dst=out, src=tile)
"""
    assert normal(kernel(body)) == kernel(body)


@pytest.mark.parametrize("seed", seed_index(), ids=lambda seed: seed.name)
def test_shipped_kernels_are_in_normal_form(seed):
    source = load_seed(seed.name).kernel_source
    forms = {site.key for site in NORMALIZE.analyze(parse_kernel(source), AnalysisContext())}
    assert forms == ({"kernel whole"} if "min(" in source else set())
    with pytest.raises(IllegalSite, match="in normal form"):
        NORMALIZE.apply(parse_kernel(source), "kernel")


LOADED = """
tile = nl.load(x[0:64, 0:32])  # all of it
# half of them
half = nl.load(src=x[0:32, 0:32:2], dtype=nl.bfloat16)
again = nl.load(x)
nisa.tensor_tensor(dst=again, data1=again, data2=tile, op=nl.add)
nl.store(out, value=again)
# over that
nl.store(dst=out[0:32, 0:16], value=half)
nl.store(out[32:64, 0:16], tile[0:32, 0:32:2])
"""


def test_loads_and_stores_of_the_language_are_transfers():
    made = same(kernel(LOADED))

    assert "nl.load" not in made and "nl.store" not in made
    assert "tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)" in made
    before, after = trace(kernel(LOADED), X), trace(made, X)
    assert [t.opcode for t in before.templates] == [t.opcode for t in after.templates]


def test_a_file_that_imports_no_instructions_does_then():
    source = kernel("nl.store(out, value=nl.load(x))\ntile = nl.load(x)\n").replace("import nki.isa as nisa\n", "")
    assert "nisa" not in source

    made = same(source)

    named = same(kernel("nl.store(out, value=nl.load(x))").replace("as nisa", "as mine"))
    assert "mine.dma_copy(" in named and "nisa" not in named
    assert made.count("import nki.isa as nisa\n") == 1 and "nisa.dma_copy(dst=out, src=nl.load(x))" in made
    assert "nisa" not in normal(
        source.replace("tile = nl.load(x)", "pass").replace("nl.store(out, value=nl.load(x))", "pass")
    )


@pytest.mark.parametrize(
    "line",
    [
        "tile = nl.load(*[x])",
        "tile = nl.load(x.reshape((32, 64)))",
        "nl.store(out, x, x)",
    ],
)
def test_what_is_no_plain_load_or_store_stays(line):
    body = f"half = nl.ndarray((8, 8), dtype=x.dtype, buffer=nl.sbuf)\nnisa.memset(dst=half, value=1.0)\n{line}\n"
    assert line in normal(kernel(body))


# --- random kernels -----------------------------------------------------------------------------------------

TILES = ("a", "b", "c")


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Tiles made outside that loops fill, change, copy and store, with names bound again and again."""
    lines = [f"{name} = nl.ndarray((8, 16), dtype=x.dtype, buffer=nl.sbuf)" for name in TILES]
    lines += [f"nisa.memset(dst={name}, value={draw(st.integers(1, 9))}.0)" for name in TILES if draw(st.booleans())]

    def block(depth: int, indent: str) -> None:
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["fill", "add", "in place", "part", "store", "loop", "name", "make", "branch"]))
            one, two, three = (draw(st.sampled_from(TILES)) for _ in range(3))
            if kind in ("loop", "branch") and depth < 2:
                head = f"for i{depth} in range({draw(st.integers(1, 2))}):" if kind == "loop" else "if at > 8:"
                lines.append(indent + head)
                lines.append(f"{indent}    at = at + 8 if at < 48 else 0")
                block(depth + 1, indent + "    ")
            elif kind == "fill":
                lines.append(f"{indent}nisa.dma_copy(dst={one}, src=x[at : at + 8, 0:16])")
            elif kind == "add":
                lines.append(f"{indent}nisa.tensor_tensor(dst={one}, data1={two}, data2={three}, op=nl.add)")
            elif kind == "in place":
                lines.append(f"{indent}nisa.tensor_scalar(dst={one}, data={one}, op0=nl.add, operand0=1.0)")
            elif kind == "part":
                lines.append(f"{indent}nisa.tensor_copy(dst={one}[0:8, 0:8], src={two}[0:8, 8:16])")
            elif kind == "store":
                lines.append(f"{indent}nisa.dma_copy(dst=out[at : at + 8, 0:16], src={one})")
            elif kind == "make" and draw(st.booleans()):
                lines.append(f"{indent}{one} = nl.ndarray((8, 16), dtype=x.dtype, buffer=nl.sbuf)")
            else:
                lines.append(f"{indent}at = {8 * draw(st.integers(0, 6))}")

    lines.append("at = 0")
    block(0, "")
    lines += [f"nisa.dma_copy(dst=out[{8 * k} : {8 * k + 8}, 16:32], src={name})" for k, name in enumerate(TILES)]
    return "\n".join(lines)


@settings(max_examples=12, deadline=None)
@given(bodies())
def test_a_random_kernel_issues_the_same_instructions_on_the_same_numbers(body: str) -> None:
    source = kernel(body)
    made = normal(source)
    np.testing.assert_array_equal(run(made, X), run(source, X))
    assert opcodes(made) == opcodes(source)


def opcodes(source: str) -> list[str]:
    program = trace(source, X)
    return [program.templates[at].opcode for at in program.template_ids]


STATED = kernel(
    """
kind = x.dtype
tile = nl.ndarray((64, 32), dtype=kind, buffer=nl.sbuf)
nisa.dma_copy(dst=tile, src=x)
copy = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
nisa.tensor_copy(dst=copy, src=tile)
more = nl.ndarray((64, 32), dtype=tile.dtype, buffer=nl.sbuf)
nisa.tensor_scalar(dst=more, data=copy, op0=nl.add, operand0=eps)
nisa.dma_copy(dst=out, src=more)
""",
    parameters="x, eps",
)


GIVEN = (TensorArgument((64, 32), "float32"), ConstantArgument(1.0))


def test_dtypes_of_arguments_are_stated_and_then_known():
    (site,) = NORMALIZE.analyze(parse_kernel(STATED), AnalysisContext(arguments=(GIVEN,)))
    assert site.key == "kernel x=float32"
    made = NORMALIZE.apply(parse_kernel(STATED), site.key).code
    assert "    assert x.dtype == nl.float32\n" in made
    assert (
        NORMALIZE.analyze(
            parse_kernel(made),
            AnalysisContext(arguments=(GIVEN,)),
        )
        == ()
    )
    assert set(sites(DropCopy(), made)) == {"copy"} and sites(DropCopy(), STATED) == {}
    dropped = applied(DropCopy(), made, "copy")
    np.testing.assert_array_equal(run(dropped, X, 1.0), run(STATED, X, 1.0))
    with pytest.raises(AssertionError):
        run(dropped, X.astype(np.float16), 1.0)


@pytest.mark.parametrize("key", ["other", "kernel x", "kernel x=1"])
def test_there_is_no_other_site(key):
    with pytest.raises(SiteGone):
        NORMALIZE.apply(parse_kernel(STATED), key)
