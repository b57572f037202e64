"""One test for each rewrite from NKI 0.1: the new kernel is run by `migrated` and equals the old one."""

from __future__ import annotations

import numpy as np
import pytest

from nki_sim.migrate.beta1_to_current import migrate_beta1
from tests.migrate.kernels import attempt, beta1, check_form, computed, migrated, normal

OUT = "out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"

FORMS = """
## functional forms write their destination | 16x32 | nisa.activation(dst=y, op=nl.exp, data=t | reverse0=True
OUT
t = nl.load(x)
y = nisa.activation(op=np.exp, data=t, scale=0.5)
z = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.sbuf)
z[...] = nisa.tensor_scalar(data=y, op0=np.subtract, operand0=1.0, reverse0=True)
nl.store(out, value=z)
return out
## a tile private to a loop is allocated there | 4x16x32 | a = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.sbuf)
out = nl.ndarray((4, 16, 32), dtype=np.float32, buffer=nl.shared_hbm)
a = nl.ndarray((4, nl.par_dim(16), 32), dtype=np.float32, buffer=nl.sbuf)
for i in nl.affine_range(4):
    a[i] = nl.load(x[i])
    nl.store(out[i], value=a[i])
return out
## what does not fit into psum goes to sbuf | 128x512 | acc = nl.ndarray((128, 6, 512),
out = nl.ndarray((6, 128, 512), dtype=np.float32, buffer=nl.shared_hbm)
t = nl.load(x[:, 0:128])
w = nl.load(x)
acc = nl.ndarray((6, nl.par_dim(128), 512), dtype=np.float32, buffer=nl.psum)
for i in nl.affine_range(6):
    acc[i] = nisa.nc_matmul(t, w)
for i in nl.affine_range(6):
    nl.store(out[i], value=nl.copy(acc[i]))
return out
## a scan and the number it starts from | 16x4 | op0=nl.multiply, op1=nl.add
OUT
t = nl.load(x)
nl.store(out, value=nisa.tensor_tensor_scan(t, t, initial=0, op0=np.multiply, op1=np.add))
return out
## a product that replaces an earlier one says so | 16x16 | accumulate=False
out = nl.ndarray((3, 16, 16), dtype=np.float32, buffer=nl.shared_hbm)
t = nl.load(x)
p = nl.ndarray((16, 16), dtype=np.float32, buffer=nl.psum)
for i in nl.affine_range(3):
    p[...] = nisa.nc_matmul(t, t)
    nl.store(out[i], value=nl.copy(p))
return out
## mgrid windows become access patterns | 8x8 | .ap(pattern=[[8, 8], [1, 6], [1, 3]]) | op=nl.maximum
out = nl.ndarray((8, 6), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.load(x)
p, f, w = nl.mgrid[0:8, 0:6, 0:3]
nl.store(out, value=nl.max(t[p, f + w], axis=[2]))
return out
## a reduced axis in the middle is permuted to the end | 4x4x6 | .permute((0, 1, 3, 2, 4))
out = nl.ndarray((4, 2, 3), dtype=x.dtype, buffer=nl.shared_hbm)
t = nl.load(x)
p, a, b, c, d = nl.mgrid[0:4, 0:2, 0:2, 0:3, 0:2]
nl.store(out, value=nl.sum(t[p, 2 * a + b, 2 * c + d], axis=[2, 4]) / 4)
return out
## a row is broadcast over partitions | 16x32 1x32 | nl.broadcast_to(g, (16, 32))
OUT
t = nl.load(x)
g = nl.load(w)
nl.store(out, value=t * g.broadcast_to((16, 32)))
return out
## matrix products add up in psum by themselves | 256x64 256x48 | nisa.nc_matmul(dst=acc, stationary=a, moving=b)
out = nl.ndarray((64, 48), dtype=np.float32, buffer=nl.shared_hbm)
acc = nl.zeros((64, 48), np.float32, buffer=nl.psum)
for k in nl.affine_range(2):
    a = nl.load(x[k * 128:(k + 1) * 128, 0:64])
    b = nl.load(w[k * 128:(k + 1) * 128, 0:48])
    acc += nl.matmul(a, b, transpose_x=True)
nl.store(out, value=nl.copy(acc))
return out
## nl matmul transposes what it has to | 64x96 96x48 | nisa.nc_transpose(
out = nl.ndarray((64, 48), dtype=np.float32, buffer=nl.shared_hbm)
nl.store(out, value=nl.matmul(nl.load(x), nl.load(w)))
return out
## loop reduce sets first and adds then | 16x32 | if i == 0: | nisa.tensor_copy(dst=total, src=t)
out = nl.ndarray((16, 8), dtype=np.float32, buffer=nl.shared_hbm)
total = nl.ndarray((nl.par_dim(16), 8), dtype=np.float32, buffer=nl.sbuf)
p, f = nl.arange(16)[:, None], nl.arange(8)[None, :]
for i in nl.sequential_range(4):
    t = nl.load(x[p, 8 * i + f])
    total[p, f] = nl.loop_reduce(t[p, f], op=np.add, loop_indices=[i])
nl.store(out[p, f], value=total[p, f])
return out
## blocks that outlive their loop come after the partitions | 4x16x32 | a = nl.ndarray((16, 4, 32) | a[:, j, :]
out = nl.ndarray((4, 16, 32), dtype=np.float32, buffer=nl.shared_hbm)
a = nl.ndarray((4, nl.par_dim(16), 32), dtype=np.float32, buffer=nl.sbuf)
for i in nl.affine_range(4):
    a[i] = nl.load(x[i])
for j in nl.affine_range(4):
    nl.store(out[3 - j], value=a[j])
return out
## a condition that is none at some visits masks nothing there | 4x16x32 | if wanted is None or wanted:
out = nl.ndarray((16, 32), dtype=np.float32, buffer=nl.shared_hbm)
t = nl.zeros((16, 32), dtype=np.float32, buffer=nl.sbuf)
for i in nl.affine_range(4):
    wanted = None if i < 2 else i == 3
    t[...] = nl.load(x[i], mask=wanted)
nl.store(out, value=t)
return out
## a mask that is a condition becomes an if | 4x16x32 | if i < 2:
out = nl.ndarray((16, 32), dtype=np.float32, buffer=nl.shared_hbm)
t = nl.zeros((16, 32), dtype=np.float32, buffer=nl.sbuf)
for i in nl.affine_range(4):
    t[...] = nl.load(x[i], mask=i < 2)
nl.store(out, value=t)
return out
## affine select and iota take patterns | 16x16 | channel_multiplier=1 | pattern=[[-1, 16]]
OUT
p, f = nl.arange(16)[:, None], nl.arange(16)[None, :]
t = nl.load(x)
kept = nisa.affine_select(pred=(p >= f), on_true_tile=t, on_false_value=-9.0)
at = nisa.iota(3 * p + 2 * f + 1, dtype=np.float32)
nl.store(out, value=kept + at)
return out
## a helper that makes grids goes with them | 2x16x32 | !def grids | x[z, :, :]
def grids(n, m):
    return [nl.arange(n)[:, None], nl.arange(m)[None, :], 0]
out = nl.ndarray((16, 32), dtype=np.float32, buffer=nl.shared_hbm)
p, f, z = grids(16, 32)
nl.store(out[p, f], value=nl.load(x[z, p, f]))
return out
"""
"""Each is a name, the shapes of its arguments, what its new text has (or, `!`, lacks); then the kernel."""


@pytest.mark.parametrize("form", FORMS.split("## ")[1:], ids=lambda form: form.split(" | ")[0])
def test_a_form_has_its_rewrite(form: str) -> None:
    """`migrated` runs the new kernel, which gives what the old one gave."""
    check_form(form)


def test_a_load_under_a_mask_becomes_a_slice_with_a_bound() -> None:
    new = migrated(
        OUT
        + """
        rows, columns = x.shape
        p = nl.arange(128)[:, None]
        f = nl.arange(64)[None, :]
        for i in nl.affine_range((rows + 127) // 128):
            # what is left of the rows
            t = nl.load(x[i * 128 + p, f], mask=(i * 128 + p < rows))
            nl.store(out[i * 128 + p, f], value=nl.exp(t), mask=(i * 128 + p < rows))
        return out
        """.replace("\n        ", "\n"),
        normal(300, 64),
    )
    assert "min(128, rows - 128 * i)" in new and "range((rows + 127) // 128)" in new
    assert "# what is left of the rows" in new
    assert not any(word in new for word in ("nl.arange", "mask=", "nl.load", "nl.store", "neuronxcc"))


@pytest.mark.parametrize("expression", ["t + t", "t - 1.0", "2.0 * t", "t / 4", "1.0 / t", "t / t", "-t", "t * row"])
def test_operators_between_tiles(expression: str) -> None:
    new = migrated(
        OUT + f"t = nl.load(x)\nrow = nl.max(t, axis=1)\nnl.store(out, value={expression})\nreturn out\n",
        normal(16, 32) + 5,
    )
    assert "nisa." in new


NO_MASK = {
    "a variable": "mask = None\ny = nisa.tensor_tensor(t, t, op=nl.add, mask=mask)",
    "a variable that a branch would set": (
        "mask = None\nif limit is not None:\n    mask = nl.arange(16)[:, None] < limit\n"
        "y = nisa.tensor_tensor(t, t, op=nl.add, mask=mask)"
    ),
    "an argument of a helper": (
        "def doubled(t, mask=None):\n    y = nisa.tensor_tensor(t, t, op=nl.add, mask=mask)\n    return y\n"
        "y = doubled(t)"
    ),
    "an expression": "y = nisa.tensor_tensor(t, t, op=nl.add, mask=None if limit is None else limit > 3)",
}


@pytest.mark.parametrize("statements", NO_MASK.values(), ids=NO_MASK)
def test_a_mask_that_holds_none_masks_nothing(statements: str) -> None:
    body = f"{OUT}t = nl.load(x)\n{statements}\nnl.store(out, value=y)\nreturn out\n"
    new = migrated(body, normal(16, 32), parameters="x, limit=None")
    assert "nisa.tensor_tensor(dst=" in new and "if mask" not in new


@pytest.mark.parametrize(
    ("array", "dtype", "written"),
    [
        ("np.ones((16, 32), np.float32)", "nl.float32", "nl.shared_constant(TABLE)"),
        ("np.ones((16, 32))", "nl.float32", "nl.shared_constant(np.asarray(TABLE, dtype=np.float32))"),
        ("np.ones((16, 32), np.float32)", "np.int32", "nl.shared_constant(np.asarray(TABLE, dtype=np.int32))"),
    ],
)
def test_a_constant_has_its_arrays_type(array: str, dtype: str, written: str) -> None:
    head, body = beta1(
        f"""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(x) * nl.load(nl.shared_constant(TABLE, dtype={dtype})))
    return out
    """
    ).split("@nki.jit")
    migration = migrate_beta1(f"{head}TABLE = {array}\n\n\n@nki.jit{body}", "kernel", [normal(16, 32)])
    assert migration.done and migration.proven, migration.summary()
    assert written in migration.source


def test_a_launch_grid_becomes_loops() -> None:
    body = """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p = nl.program_id(0) * 16 + nl.arange(16)[:, None]
    f = nl.program_id(1) * 32 + nl.arange(32)[None, :]
    nl.store(out[p, f], value=nl.load(x[p, f]) + 1.0)
    return out
    """
    source = beta1(body) + "\ndef launch(x):\n    return kernel[2, x.shape[1] // 32](x)\n"
    migration = migrate_beta1(source, "launch", [normal(32, 64)])
    assert migration.done and migration.proven, migration.summary() + migration.source
    assert "for program_0 in range(grid[0]):" in migration.source
    assert "kernel(x, grid=(2, x.shape[1] // 32))" in migration.source


def test_a_tile_too_large_for_sbuf_is_kept_in_hbm_and_that_is_said() -> None:
    migration = attempt(
        """
        out = nl.ndarray((16, 128, 4096), dtype=np.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((16, nl.par_dim(128), 4096), dtype=np.float32, buffer=nl.sbuf)
        for i in nl.affine_range(16):
            a[i] = nl.load(x)
        for i in nl.affine_range(16):
            nl.store(out[i], value=nl.exp(a[i]))
        return out
        """,
        normal(128, 4096),
    )
    assert migration.done and migration.proven, migration.summary()
    assert [finding.rule for finding in migration.findings if finding.rule == "spills"]


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("mask", "nl.store(out[p, f], value=nl.load(x[p, f], mask=(p >= 4)), mask=(p >= 4))\nreturn out"),
        ("function", "nl.store(out, value=nl.floor(nl.load(x)))\nreturn out"),
        (
            "comprehension",
            "t = [nl.load(x[0:16, i : i + 16]) for i in range(1)]\nnl.store(out, value=t[0])\nreturn out",
        ),
        ("condition", "t = nl.load(x)\nt = t if len(t.shape) else nl.exp(t[p, f])\nnl.store(out, value=t)\nreturn out"),
        ("statement", "t = nl.load(x)\nlen(t.shape) and nl.store(out, value=t[p, f])\nreturn out"),
        ("operator", "t = [nl.load(x)]\nt[0] += nl.load(x)\nnl.store(out, value=t[0])\nreturn out"),
        ("front end", "nl.store(out, value=nisa.bn_stats(nl.load(x)))\nreturn out"),
        ("front end", "t = nl.load(x)\nnl.store(out, value=nl.load(x[t, f]))\nreturn out"),
    ],
)
def test_what_has_no_rewrite_is_marked_and_listed(rule: str, body: str) -> None:
    head = OUT + "p, f = nl.arange(16)[:, None], nl.arange(16)[None, :]\n"
    migration = attempt(head + body, normal(16, 16))
    assert rule in [finding.rule for finding in migration.left] and migration.exit_code() == 1
    assert rule == "front end" or f"# migrate [{rule}]" in migration.source
    assert not migration.proven


@pytest.mark.parametrize(
    "statements",
    [
        "for i in range(2):\n    b = nl.load(x[p, f])\nelse:\n    b = nl.exp(nl.load(x[p, f]))",
        "try:\n    b = nl.exp(nl.load(x[p, f]))\nfinally:\n    a = nl.load(x[p, f])",
        "match x.shape:\n    case (16, 16):\n        b = nl.exp(nl.load(x[p, f]))",
        "c = b = nl.exp(nl.load(x[p, f]))\na = c - b + a",
        "tiles = [a]\ntiles.append(nl.exp(nl.load(x[p, f])))\nb = tiles[1]",
        "tiles = {}\ntiles['b'] = nl.exp(nl.load(x[p, f]))\nb = tiles['b']",
        "def exp(t):\n    return nl.exp(t[p, f])\nb = exp(a)",
    ],
)
def test_tiles_in_every_statement(statements: str) -> None:
    head = OUT + "p, f = nl.arange(16)[:, None], nl.arange(16)[None, :]\na = nl.load(x[p, f])\n"
    x = normal(16, 16)
    new = migrated(f"{head}{statements}\nnl.store(out, value=a + b)\nreturn out\n", x)
    assert "nl.load" not in new and np.allclose(computed(new, x), x + np.exp(x), atol=1e-5)


def test_code_that_the_run_did_not_reach_is_left_and_noted() -> None:
    new = attempt(
        OUT + "t = nl.load(x)\nif x.shape[0] > 100:\n    t = nl.exp(t)\nnl.store(out, value=t)\nreturn out\n",
        normal(16, 16),
    )
    assert new.done and "# migrate [unreached]" in new.source and "t = nl.exp(t)" in new.source


def test_a_kernel_that_differs_is_not_called_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from nki_sim.migrate import proving

    monkeypatch.setattr(proving, "run_new", lambda *_: np.zeros((16, 16), np.float32))
    migration = attempt(OUT + "nl.store(out, value=nl.load(x))\nreturn out\n", normal(16, 16))
    assert not migration.done and migration.exit_code() == 1 and "DIFFERENT" in migration.proof


def test_nan_proves_nothing() -> None:
    migration = attempt(OUT + "nl.store(out, value=nl.log(nl.load(x)))\nreturn out\n", -np.ones((4, 4), np.float32))
    assert not migration.done and "gives NaN" in migration.left[0].text
