"""The Beta 1 front end against NumPy: what its operations compute, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from nki_sim.beta1 import running
from nki_sim.beta1.indices import arange, mgrid
from nki_sim.beta1.symbols import Atom, Symbolic, written
from nki_sim.beta1.tiles import HBM, Tile
from nki_sim.errors import NkiError, OutOfBounds
from tests.migrate.kernels import beta1, normal

OUT = "out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.shared_hbm)\n"


def result(value: str, *arrays: np.ndarray) -> np.ndarray:
    names = "x, y"[: 3 * len(arrays) - 2]
    source = beta1(f"{OUT}t = nl.load(x)\nnl.store(out, value={value})\nreturn out\n", names)
    return running.run(running.parsed(source), "kernel", list(arrays)).outputs


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("nl.exp(t)", np.exp),
        ("nl.square(t) - 1", lambda x: x * x - 1),
        ("nisa.activation(op=np.tanh, data=t, scale=2.0)", lambda x: np.tanh(2 * x)),
        ("nisa.tensor_scalar(t, np.subtract, 1.0, True, np.multiply, 3.0)", lambda x: (1 - x) * 3),
        ("t / nl.sum(t, axis=1)", lambda x: x / x.sum(1, keepdims=True)),
        ("nl.mean(t, axis=1) + t", lambda x: x.mean(1, keepdims=True) + x),
        ("nisa.tensor_tensor_scan(t, t, initial=1, op0=np.add, op1=np.maximum)", None),
    ],
)
def test_operations(value: str, reference: object) -> None:
    x = normal(16, 32)
    got = result(value, x)
    if callable(reference):
        wanted = reference(x.astype(np.float64))
    else:
        wanted, last = np.empty_like(x), np.ones(16, np.float32)
        for k in range(32):
            last = np.maximum(x[:, k] + last, x[:, k])
            wanted[:, k] = last
    assert np.abs(got - wanted).max() < 1e-4


def test_a_masked_load_leaves_the_rest_undefined() -> None:
    x = normal(16, 32)
    tile = Tile.new(x.shape, x.dtype, HBM, array=x)
    from nki_sim.beta1 import language

    part = language.load(tile[arange(20)[:, None], arange(32)[None, :]], mask=arange(20)[:, None] < 16)
    assert np.array_equal(part.view()[:16], x) and np.isnan(part.view()[16:]).all()
    with pytest.raises(OutOfBounds):
        language.load(tile[arange(20)[:, None], arange(32)[None, :]])


def test_grids_keep_their_linear_form() -> None:
    i = Symbolic.named(Atom("i", "kernel", True, 3))
    n = Symbolic.named(Atom("n", "kernel", False, 100))
    p, f = mgrid[0:128, 0:64]
    grid = 128 * i + 2 * p + f - 1
    assert written(grid.base) == "128 * i - 1" and grid.factors == (2, 1) and grid.values().shape == (128, 64)
    assert written(n - 128 * i) == "n - 128 * i" and written((i + 1) % 2) == "((i + 1) % 2)"
    assert int((i + 1) * n) == 400 and written((i + 1) * n) == "i * n + n"
    assert (n - i < 98) and written(n - n) == "0"


@pytest.mark.parametrize(
    "value",
    [
        "nl.load(x[nl.arange(16)[:, None] // 2, nl.arange(32)[None, :]])",
        "nl.no_such(t)",
        "t[t, 0:4]",
        "nisa.sendrecv(t)",
        "nl.multiply(t, nl.arange(16)[:, None] >= nl.arange(32)[None, :])",
        "t + nl.arange(32)[None, :]",
        "nl.where(t == 0, t, 1.0)",
        "nl.add(1, 2)",
        "nl.copy(t, no_such=1)",
        "nisa.tensor_copy(t, no_such=1)",
    ],
)
def test_what_it_does_not_know_it_refuses(value: str) -> None:
    with pytest.raises((NkiError, TypeError)):
        result(value, normal(16, 32))


def test_the_first_product_in_an_accumulator_sets_it() -> None:
    source = beta1(
        """
        out = nl.ndarray((8, 8), dtype=np.float32, buffer=nl.shared_hbm)
        t = nl.load(x)
        acc = nl.ndarray((8, 8), dtype=np.float32, buffer=nl.psum)
        for i in range(2):
            acc += nisa.nc_matmul(t, t)
        nl.store(out, value=nl.copy(acc))
        return out
        """
    )
    x = normal(8, 8)
    assert np.allclose(running.run(running.parsed(source), "kernel", [x]).outputs, 2 * x.T @ x, atol=1e-4)


def test_host_code_around_a_kernel_is_not_run() -> None:
    source = (
        beta1(OUT + "nl.store(out, nl.load(x))\nreturn out\n")
        + "import no_such_package\nprint(kernel(1))\ny = kernel(2)\n"
    )
    x = normal(4, 4)
    assert np.array_equal(running.run(running.parsed(source), "kernel", [x]).outputs, x)
