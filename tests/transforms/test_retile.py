"""Changing a declared tunable: only what is declared, only to a declared value, only where that is unambiguous."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelopt_core.transforms.base import NotAKernel, SiteGone, parse_kernel
from accelopt_core.transforms.retile import Retile
from infra.tasks.seed_index import load_seed
from tests.transforms.running import HEADER, applied, check_refused, count, random, run, sites

RETILE = Retile()

KERNEL = (
    HEADER
    + """
WIDTH = 64  # columns per tile
TUNABLES = {"WIDTH": (32, 64, 128)}


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for n in nl.affine_range(x.shape[1] // WIDTH):
        tile = nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0:128, n * WIDTH : (n + 1) * WIDTH])
        nisa.dma_copy(dst=out[0:128, n * WIDTH : (n + 1) * WIDTH], src=tile)
    return out
"""
)


def test_every_other_legal_value_is_a_site():
    assert set(sites(RETILE, KERNEL)) == {"WIDTH=32", "WIDTH=128"}


def test_only_the_literal_changes():
    changed = applied(RETILE, KERNEL, "WIDTH=128")

    assert changed == KERNEL.replace("WIDTH = 64 ", "WIDTH = 128 ")
    x = random(128, 256)
    np.testing.assert_array_equal(run(changed, x), x)
    assert count(changed, "dma_copy", x) == 4


@pytest.mark.parametrize("name", ["matmul", "silu", "add_rmsnorm_matmul"])
def test_the_seeds_declare_tunables_that_can_be_changed(name):
    source = load_seed(name).kernel_source

    found = sites(RETILE, source)

    assert found
    for key in found:
        text, value = key.split("=")
        assert f"\n{text} = {value}\n" in applied(RETILE, source, key)


def test_a_kernel_that_declares_nothing_has_no_site():
    assert sites(RETILE, KERNEL.replace("TUNABLES", "OTHER")) == {}


REFUSALS = {
    "a value that is not declared": (KERNEL, "WIDTH=256", "not among the declared values"),
    "the value it has": (KERNEL, "WIDTH=64", "already"),
    "assigned twice": (KERNEL.replace("@nki.jit", "WIDTH = 32\n@nki.jit"), "WIDTH=128", "more than once"),
    "assigned twice, once under a condition": (
        KERNEL.replace("@nki.jit", "if True:\n    WIDTH = 32\n\n\n@nki.jit"),
        "WIDTH=128",
        "more than once",
    ),
    "an expression": (KERNEL.replace("WIDTH = 64", "WIDTH = 2 * 32"), "WIDTH=128", "not a literal integer"),
    "a bool": (KERNEL.replace("WIDTH = 64", "WIDTH = True"), "WIDTH=128", "not a literal integer"),
    "missing": (KERNEL.replace("WIDTH = 64", "OTHER = 64"), "WIDTH=128", "not assigned at module level"),
    "bound in the kernel": (
        KERNEL.replace("    for n", "    WIDTH = 32\n    for n"),
        "WIDTH=128",
        "bound again inside a function",
    ),
    "a parameter of the kernel": (
        KERNEL.replace("def kernel(x)", "def kernel(x, WIDTH=32)"),
        "WIDTH=128",
        "bound again inside a function",
    ),
    "legal values that are computed": (
        KERNEL.replace("(32, 64, 128)", "tuple(range(32, 129))"),
        "WIDTH=128",
        "no literal tuple",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case):
    source, key, reason = REFUSALS[case]

    check_refused(RETILE, source, key, reason)


def test_a_tunable_that_is_not_declared_is_gone():
    with pytest.raises(SiteGone):
        applied(RETILE, KERNEL, "HEIGHT=128")


@pytest.mark.parametrize("declaration", ["TUNABLES = dict(WIDTH=(32, 64))", "TUNABLES = {1: (32, 64)}"])
def test_a_declaration_that_is_not_one_literal_is_refused_by_name(declaration):
    source = KERNEL.replace('TUNABLES = {"WIDTH": (32, 64, 128)}', declaration)

    with pytest.raises(NotAKernel, match="TUNABLES"):
        RETILE.analyze(parse_kernel(source), None)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_site_of_a_random_kernel_keeps_the_result(data):
    """One or two tunables over rows and columns, a few steps between load and store: same numbers for every value."""
    rows = data.draw(st.sampled_from((16, 32, 64)), label="rows")
    steps = data.draw(st.lists(st.sampled_from(("nl.exp", "nl.silu", "nl.tanh")), max_size=3), label="steps")
    heights = ', "HEIGHT": (8, 16)' if data.draw(st.booleans(), label="two tunables") else ""
    lines = [
        "WIDTH = 16",
        "HEIGHT = 16",
        f'TUNABLES = {{"WIDTH": (4, 16, 32){heights}}}',
        "@nki.jit",
        "def kernel(x):",
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)",
        "    for m in nl.affine_range(x.shape[0] // HEIGHT):",
        "        for n in nl.affine_range(x.shape[1] // WIDTH):",
        "            tile = nl.ndarray((HEIGHT, WIDTH), dtype=x.dtype, buffer=nl.sbuf)",
        "            nisa.dma_copy(dst=tile, src=x[m * HEIGHT : (m + 1) * HEIGHT, n * WIDTH : (n + 1) * WIDTH])",
        *(f"            nisa.activation(dst=tile, op={step}, data=tile)" for step in steps),
        "            nisa.dma_copy(dst=out[m * HEIGHT : (m + 1) * HEIGHT, n * WIDTH : (n + 1) * WIDTH], src=tile)",
        "    return out",
    ]
    source = HEADER + "\n".join(lines) + "\n"
    x = random(rows, 64)
    expected = run(source, x)

    found = sites(RETILE, source)

    assert len(found) == (3 if heights else 2)
    for key in found:
        np.testing.assert_array_equal(run(applied(RETILE, source, key), x), expected)
