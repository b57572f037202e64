"""More forms of old kernels, each with a rewrite: meshes, reshapes, views of blocks, statistics, sizes that vary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nki_sim.beta1 import running
from tests.migrate.kernels import attempt, beta1, check_form, computed, migrated, normal

OUT = "out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"

FORMS = """
## grids of a mesh have names | 16x32 | !mgrid
OUT
i = nl.mgrid[0:16, 0:32]
nl.store(out[i.p, i.x], nl.load(x[i.p, i.x]))
return out
## reshapes on chip are views | 16x32 | t.reshape((16, 4, 2, 4))
out = nl.ndarray((16, 4, 2), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.load(x)
wide = t.reshape(shape=(16, 4, 2, 4))
nl.store(out, value=nl.max(wide, axis=[3]))
return out
## a helper takes some of a tiles blocks | 3x16x8 | fill(tiles[:, i, :, :], x) | dst=rows[:, j, :]
def fill(rows, source):
    for j in nl.affine_range(3):
        rows[j, :, :] = nl.load(source[j])
out = nl.ndarray((2, 3, 16, 8), dtype=x.dtype, buffer=nl.shared_hbm)
tiles = nl.ndarray((2, 3, nl.par_dim(16), 8), dtype=x.dtype, buffer=nl.sbuf)
for i in nl.affine_range(2):
    fill(tiles[i], x)
for i in nl.affine_range(2):
    for j in nl.affine_range(3):
        nl.store(out[i, j], value=tiles[i, j])
return out
## an expression over two lines keeps parentheses | 16x4 | if i > 0 else 0)
OUT
t = nl.load(x)
for i in nl.sequential_range(2):
    first = (t[0:16, 0]
             if i > 0 else 0)
    y = nisa.tensor_tensor_scan(t, t, initial=first, op0=np.multiply, op1=np.add)
nl.store(out, y)
return out
## a column of a tile keeps two dimensions | 16x4
def double(column):
    column[:, 0] = column[:, 0] * 2.0
out = nl.ndarray((16, 4), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.load(x)
double(t[:, 1])
nl.store(out, value=t)
return out
## products added under a name start from zeros | 16x16 | nl.zeros
out = nl.ndarray((16, 16), dtype=np.float32, buffer=nl.shared_hbm)
t = nl.load(x)
acc = nl.zeros((16, 16), np.float32, buffer=nl.psum)
for k in nl.affine_range(2):
    product = nisa.nc_matmul(t, t)
    acc += product
nl.store(out, value=nl.copy(acc))
return out
## limits of types are numbers | 16x32 | !finfo | !fp32 | -3.40282
OUT
t = nl.load(x)
low = nl.full((16, 32), nl.finfo(x.dtype).min, dtype=nl.float32)
high = nl.maximum(low, nl.full((16, 32), nl.fp32.min, dtype=np.float32))
nl.store(out, value=nl.maximum(t, high))
return out
## integers of numpy index like any others | 16x32 | t[:, start:start + 8]
out = nl.ndarray((16, 4), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.load(x)
starts = np.arange(4) * 8
for k in range(4):
    start = starts[k]
    nl.store(out[:, k:k + 1], value=nl.max(t[:, start:start + 8], axis=[1]))
return out
## a transposing load of more rows than partitions | 256x32 | for part in range(0, 256, 128):
out = nl.ndarray((32, 256), dtype=x.dtype, buffer=nl.shared_hbm)
nl.store(out, value=nl.load_transpose2d(x))
return out
## a column and a row make a tile | 16x1 1x32
out = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.shared_hbm)
nl.store(out, value=nl.load(x) + nl.load(w).broadcast_to((1, 32)))
nl.store(out, value=nl.add(nl.load(x), nl.load(w)))
return out
## a condition of which no branch is left is still python | 16x8
out = nl.ndarray((2, 16, 8), dtype=x.dtype, buffer=nl.shared_hbm)
if nisa.get_nc_version() >= nisa.nc_version.gen3:
    t = nl.ndarray((2, nl.par_dim(16), 8), dtype=x.dtype)
else:
    t = nl.ndarray((2, nl.par_dim(16), 8), dtype=np.float32)
for i in nl.affine_range(2):
    t[i] = nl.load(x)
    nl.store(out[i], value=t[i])
return out
## an accumulator that does not fit into psum starts from zeros | 32x16 32x512 | sums = nl.zeros( | buffer=nl.sbuf
out = nl.ndarray((16, 16, 512), dtype=np.float32, buffer=nl.shared_hbm)
a = nl.load(x)
b = nl.load(w)
sums = nl.ndarray((16, nl.par_dim(16), 512), dtype=np.float32, buffer=nl.psum)
for k in nl.affine_range(2):
    for i in nl.affine_range(16):
        sums[i] += nisa.nc_matmul(a, b)
for i in nl.affine_range(16):
    nl.store(out[i], value=nl.copy(sums[i]))
return out
"""


@pytest.mark.parametrize("form", FORMS.split("## ")[1:], ids=lambda form: form.split(" | ")[0])
def test_a_form_has_its_rewrite(form: str) -> None:
    check_form(form)


@pytest.mark.parametrize("columns", [512, 300])
def test_statistics(columns: int) -> None:
    new = migrated(
        f"""
        out = nl.ndarray((16, 2), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        f = nl.arange(512)[None, :]
        p = nl.arange(16)[:, None]
        parts = nl.ndarray((16, 12), dtype=np.float32)
        for j in nl.affine_range(2):
            inside = j * 512 + f < {512 + columns}
            parts[p, j * 6 + nl.arange(6)[None, :]] = nisa.bn_stats(t[p, j * 512 + f], mask=inside)
        both = nisa.bn_aggr(parts)
        nl.store(out, value=both)
        return out
        """,
        normal(16, 512 + columns),
    )
    assert "nisa.bn_stats(dst=" in new and "nisa.bn_aggr(dst=" in new


def test_a_mask_over_two_axes_that_cuts_needs_a_person() -> None:
    body = (
        OUT + "p, f = nl.mgrid[0:16, 0:32]\nm = p * 32 + f < 500\n"
        "nl.store(out[p, f], nl.load(x[p, f], mask=m), mask=m)\nreturn out\n"
    )
    assert not attempt(body, normal(16, 32)).done


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("nl.where(m, t, -1.0)", lambda x, p, f: np.where(p >= f, x, -1)),
        ("nl.where(m & (f > 2), t, t * 2.0)", lambda x, p, f: np.where((p >= f) & (f > 2), x, 2 * x)),
        ("nl.where(p == np.int64(3), 1.0, t)", lambda x, p, f: np.where(p == 3, 1, x)),
        ("nisa.affine_select(m, t, 0.0)", lambda x, p, f: np.where(p >= f, x, 0)),
    ],
)
def test_a_comparison_of_index_grids_chooses(value: str, reference: Callable[..., np.ndarray]) -> None:
    x = normal(16, 32)
    new = migrated(
        OUT + f"p, f = nl.mgrid[0:16, 0:32]\nm = p >= f\nt = nl.load(x)\nnl.store(out, {value})\nreturn out", x
    )
    assert np.array_equal(computed(new, x), reference(x, np.arange(16)[:, None], np.arange(32)))


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("nl.divide(t, e)", lambda x, e: x / e),
        ("nisa.tensor_tensor(t, e, op=nl.divide)", lambda x, e: x / e),
        ("nisa.tensor_scalar(t, op0=np.divide, operand0=nl.sum(e, axis=1))", lambda x, e: x / e.sum(1, keepdims=True)),
        ("nisa.tensor_scalar(t, np.add, 1.0, op1=np.divide, operand1=4.0)", lambda x, e: (x + 1) / 4),
        ("nisa.scalar_tensor_tensor(t, np.multiply, 2.0, np.divide, e)", lambda x, e: 2 * x / e),
    ],
)
def test_divisions_multiply_by_the_reciprocal(value: str, reference: Callable[..., np.ndarray]) -> None:
    x = normal(16, 32)
    new = migrated(OUT + f"t = nl.load(x)\ne = nl.exp(t)\nnl.store(out, {value})\nreturn out\n", x)
    assert np.allclose(computed(new, x), reference(x, np.exp(x)), atol=1e-5)


def test_an_index_of_more_dimensions_than_an_instruction_walks_is_copied_in_pieces() -> None:
    x = normal(16, 4, 4, 4)
    new = migrated(
        """
        out = nl.ndarray((16, 8, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        u = nl.zeros((16, 8, 8, 8), dtype=x.dtype)
        p, a, b, c, i, j, k = nl.mgrid[0:16, 0:2, 0:2, 0:2, 0:3, 0:3, 0:3]
        u[p, 2 * i + 1 + a, 2 * j + 1 + b, 2 * k + 1 + c] = t[p, i + a, j + b, k + c] + t[p, i + 1 - a, j + b, k + c]
        nl.store(out, value=u)
        return out
        """,
        x,
    )
    wanted = np.zeros((16, 8, 8, 8), np.float32)
    for a, b, c, i, j, k in np.ndindex(2, 2, 2, 3, 3, 3):
        both = x[:, i + a, j + b, k + c] + x[:, i + 1 - a, j + b, k + c]
        wanted[:, 2 * i + 1 + a, 2 * j + 1 + b, 2 * k + 1 + c] = both
    assert np.array_equal(computed(new, x), wanted)


def test_axes_of_a_view_in_another_order() -> None:
    x = normal(2, 16, 9, 4)
    new = migrated(
        """
        out = nl.ndarray((16, 4, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        best = nl.ndarray((16, 1, 3), dtype=x.dtype, buffer=nl.shared_hbm)
        p, a, b = nl.mgrid[0:16, 0:4, 0:8]
        q, one, k, f = nl.mgrid[0:16, 0:1, 0:2, 0:3]
        for i in range(2):
            t = nl.load(x[i])
            part = t[:, 1:9, :]
            nl.store(out, value=nl.load(x[i][p, b, a]) + part[p, b, a])
        nl.store(best, value=nl.max(t[q, one + 2 * k, f + k], axis=[2]))
        return out, best
        """,
        x,
    )
    out, best = computed(new, x)
    assert np.array_equal(out, (x[1, :, :8] + x[1, :, 1:]).swapaxes(1, 2))
    assert np.array_equal(best[:, 0], np.maximum(x[1, :, 0, :3], x[1, :, 2, 1:]))


def test_instruction_constants_under_their_modules_name() -> None:
    x = normal(16, 16)
    new = migrated(
        """
        from neuronxcc.nki.isa.constants import dge_mode, engine
        mode = dge_mode.none
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nisa.tensor_copy(nl.load(x), engine=engine.gpsimd)
        nisa.dma_copy(dst=out, src=nisa.nc_transpose(t, engine=nki.isa.constants.engine.vector), dge_mode=mode)
        return out
        """,
        x,
    )
    assert "engine=nisa.engine.vector" in new and np.array_equal(computed(new, x), x.T)


def test_numbers_and_slices_are_stored_in_hbm() -> None:
    x = normal(64, 32)
    new = migrated(
        OUT + "t = nl.load(x)\nout[0:32] = 2.0\nout[32:64, 0:16] = t[32:64, 0:16]\n"
        "out[32:64, 16:32] = nl.add(t[32:64, 16:32], 1.0)\nreturn out\n",
        x,
    )
    wanted = x.copy()
    wanted[:32], wanted[32:, 16:] = 2, x[32:, 16:] + 1
    assert np.array_equal(computed(new, x), wanted)


BY_COUNTER = """
r = 0
while r < n:
    nl.store(out[r:r + 16], value=nl.load(x[r:r + 16]))
    r += 16
"""
BY_PAIRS = """
for i, start in enumerate(range(0, n, 16)):
    nl.store(out[16 * i:16 * i + 16], value=nl.load(x[start:start + 16]))
"""
BY_LEAST = """
for i in nl.affine_range((n + 15) // 16):
    t = nl.load(x[16 * i:min(n, 16 * i + 16)])
    nl.store(out[16 * i:16 * i + min(16, n - 16 * i)], value=t)
"""
BY_CHOICE = """
for i in nl.affine_range(n // 16):
    w = nl.load(x[16 * i:16 * i + 16])
    w[:, 0:(4 if n > 16 else 8)] = 0.0
    nl.store(out[16 * i:16 * i + 16], value=w)
"""
BY_PARTS = """
r = 0
p, f = nl.mgrid[0:16, 0:16]
for k in range(2):
    nl.store(out[r + p, f], nl.load(x[r + p, f], mask=(r + p < n)), mask=(r + p < n))
    r = r + 16
    nl.store(out[r + p, f], nl.load(x[r + p, f], mask=(r + p < n)), mask=(r + p < n))
    r = r + 16
"""
BY_PRODUCT = """
acc = nl.ndarray((16, 16), np.float32, buffer=nl.psum)
for i in nl.affine_range(n // 16):
    t = nl.load(x[16 * i:16 * i + 16])
    acc[...] = nisa.nc_matmul(t, t)
    nl.store(out[16 * i:16 * i + 16], value=nl.copy(acc))
"""


@pytest.mark.parametrize(
    ("body", "rows", "others"),
    [
        (BY_COUNTER, 16, [32, 48]),
        (BY_PAIRS, 16, [32]),
        (BY_LEAST, 8, [16, 24]),
        (BY_CHOICE, 16, [32]),
        (BY_PARTS, 56, [50, 60]),
        (BY_PRODUCT, 16, [32]),
    ],
)
def test_what_was_seen_once_holds_for_other_sizes(body: str, rows: int, others: list[int]) -> None:
    whole = f"{OUT}n, m = x.shape\n{body}return out\n"
    new = migrated(whole, normal(rows, 16))
    for size in others:
        x = normal(size, 16)
        old = running.run(running.parsed(beta1(whole)), "kernel", [x]).outputs
        assert np.allclose(computed(new, x), old, atol=1e-4)


STORED = "nl.store(out[p, f], value=t, mask={})"
COPIED = "t[p, f] = nl.copy(u[p, f], mask={})\nnl.store(out[p, f], value=t)"


@pytest.mark.parametrize(
    ("statement", "seen", "holds", "refused"),
    [
        (STORED.format("f < a"), {"a": 32}, [{"a": 40}], [{"a": 20}]),
        (
            STORED.format("(p < a) & (p < b)"),
            {"a": 12, "b": 8},
            [{"a": 6, "b": 8}, {"a": 9, "b": 16}],
            [{"a": 0, "b": 1}],
        ),
        (STORED.format("(p < a) & (f < b)"), {"a": 4, "b": 32}, [{"a": 6, "b": 33}], [{"a": 4, "b": 8}]),
        (STORED.format("(f >= b) & (f < a)"), {"a": 8, "b": 0}, [{"a": 9, "b": -1}], [{"a": 8, "b": 2}]),
        (STORED.format("(f < 8) & (a + p * 0 > b)"), {"a": 1, "b": 0}, [{"a": 9, "b": 8}], [{"a": 1, "b": 2}]),
        (STORED.format("a * f < b"), {"a": 2, "b": 9}, [{"a": 3, "b": 20}], [{"a": 3, "b": 0}]),
        (COPIED.format("p < a"), {"a": 4}, [{"a": 6}], [{"a": -3}]),
        ("nl.store(out[p, f], t + nisa.iota(a * p + f + b, nl.float32))", {"a": 1, "b": 0}, [{"a": 3, "b": -2}], []),
        ("nl.store(out[p, a * g], value=t[p, a * g])", {"a": 1}, [{"a": 2}], []),
    ],
)
def test_what_was_seen_holds_for_other_numbers_or_is_refused(statement, seen, holds, refused) -> None:
    body = (
        OUT + "p, f, g = nl.arange(16)[:, None], nl.arange(32)[None, :], nl.arange(8)[None, :]\n"
        f"t = nl.load(x)\nu = nl.exp(t)\nnl.store(out, value=u)\n{statement}\nreturn out\n"
    )
    x = normal(16, 32)
    new = migrated(body, x, parameters="x, a, b=0", **seen)
    for other in holds:
        old = running.run(running.parsed(beta1(body, "x, a, b=0")), "kernel", [x], other).outputs
        assert np.array_equal(computed(new, x, **other), old)
    for other in refused:
        with pytest.raises(AssertionError, match="not migrated: a mask"):
            computed(new, x, **other)


def test_dtypes_of_outputs_have_to_agree() -> None:
    new = migrated(OUT + "nl.store(out, value=nl.load(x))\nreturn out\n", normal(4, 4, dtype=np.float16))
    assert "dtype=x.dtype" in new
