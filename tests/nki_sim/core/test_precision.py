"""In which types a program computes: what is rounded and used, and what is only moved, widened or stored."""

from __future__ import annotations

import pytest

import nki_sim
from nki_sim import dtypes
from nki_sim.checks.precision import holds, low_precision
from nki_sim.dtypes import as_dtype
from nki_sim.tracing.session import TensorSpec

P, N = 128, 64
KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, h):
    y = nl.ndarray((128, 64), dtype=nl.{given}, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    low = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    lower = nl.ndarray((128, 64), dtype=nl.float8_e4m3, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=h)
    {body}
    return y
"""
"""`x` is float32, `h` bfloat16; `a` and `b` hold them."""

ROUND = "nisa.tensor_tensor(dst=low, data1=a, data2=b, op=nl.add)"
STORE = "nisa.dma_copy(dst=y, src={})"

HONEST = {
    "an argument is widened": ("float32", "nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=2.0)", "b"),
    "a narrow argument is computed with": (
        "float32", "nisa.dma_copy(dst=low, src=h)\nnisa.activation(dst=a, op=nl.exp, data=low)", "a",
    ),
    "a widened argument is narrow again": (
        "float32", "nisa.tensor_copy(dst=low, src=b)\nnisa.activation(dst=a, op=nl.exp, data=low)", "a",
    ),
    "a result is stored as the output": ("bfloat16", ROUND, "low"),
    "a transfer rounds it": ("bfloat16", "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)", "a"),
    "a tile is loaded, computed with and stored": (
        "bfloat16", "nisa.dma_copy(dst=low, src=h)\nnisa.activation(dst=low, op=nl.exp, data=low)", "low",
    ),
    "a tile is used again": (
        "bfloat16",
        "for i in range(3):\n    nisa.dma_copy(dst=low, src=h)\n    nisa.activation(dst=low, op=nl.exp, data=low)",
        "low",
    ),
    "a mask": (
        "float32",
        "nisa.tensor_scalar(dst=low, data=a, op0=nl.greater, operand0=0.0)\n"
        "nisa.tensor_tensor(dst=a, data1=a, data2=low, op=nl.multiply)",
        "a",
    ),
    "the larger of two arguments": (
        "float32",
        "nisa.dma_copy(dst=low, src=h)\nnisa.tensor_tensor(dst=low, data1=low, data2=low, op=nl.maximum)\n"
        "nisa.activation(dst=a, op=nl.exp, data=low)",
        "a",
    ),
    "a filled tile": (
        "float32", "nisa.memset(dst=low, value=0.0)\nnisa.tensor_tensor(dst=a, data1=a, data2=low, op=nl.add)", "a",
    ),
    "whole numbers moved as pairs": (
        "bfloat16",
        "pairs = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)\n"
        "nisa.dma_copy(dst=pairs, src=h.view(nl.float32))\nnisa.tensor_copy(dst=low, src=pairs.view(nl.bfloat16))",
        "low",
    ),
}  # fmt: skip
"""Output type, what is done, and what is stored."""

HIDDEN = {
    "behind a widening": (
        "float32", f"{ROUND}\nnisa.tensor_copy(dst=a, src=low)\nnisa.activation(dst=a, op=nl.exp, data=a)", "a",
        "bfloat16",
    ),
    "behind a widening that is the output": ("float32", f"{ROUND}\nnisa.tensor_copy(dst=a, src=low)", "a", "bfloat16"),
    "of an argument": (
        "bfloat16", "nisa.tensor_copy(dst=low, src=a)\nnisa.activation(dst=b, op=nl.exp, data=low)", "b", "bfloat16",
    ),
    "by a transfer": (
        "bfloat16", "nisa.dma_copy(dst=low, src=a)\nnisa.activation(dst=b, op=nl.exp, data=low)", "b", "bfloat16",
    ),
    "behind a widening transfer": (
        "bfloat16",
        f"{ROUND}\nnisa.dma_copy(dst=a, src=low)\nnisa.activation(dst=b, op=nl.exp, data=a)", "b", "bfloat16",
    ),
    "behind a transpose and back": (
        "bfloat16",
        f"{ROUND}\nturned = nl.ndarray((64, 128), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
        "nisa.dma_transpose(dst=turned, src=low)\nback = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
        "nisa.dma_transpose(dst=back, src=turned)\nnisa.activation(dst=b, op=nl.exp, data=back)", "b", "bfloat16",
    ),
    "through memory": (
        "bfloat16",
        "far = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.private_hbm)\nnisa.dma_copy(dst=far, src=a)\n"
        "nisa.dma_copy(dst=b, src=far)\nnisa.activation(dst=b, op=nl.exp, data=b)", "b", "bfloat16",
    ),
    "through the output": (
        "bfloat16",
        "nisa.dma_copy(dst=y, src=a)\nnisa.dma_copy(dst=b, src=y)\nnisa.activation(dst=b, op=nl.exp, data=b)",
        "b", "bfloat16",
    ),
    "added up in a narrow tile": (
        "bfloat16",
        "nisa.memset(dst=low, value=0.0)\nfor i in range(3):\n"
        "    nisa.tensor_tensor(dst=low, data1=low, data2=a, op=nl.add)", "low", "bfloat16",
    ),
    "in half of a tile": (
        "bfloat16",
        "nisa.dma_copy(dst=low, src=h)\nnisa.tensor_copy(dst=low[:, 32:64], src=a[:, 32:64])\n"
        "nisa.activation(dst=b, op=nl.exp, data=low)", "b", "bfloat16",
    ),
    "one narrower than the output": (
        "bfloat16", "nisa.tensor_copy(dst=lower, src=a)", "lower", "float8_e4m3",
    ),
    "narrower than the argument": (
        "bfloat16", "nisa.tensor_copy(dst=lower, src=b)\nnisa.activation(dst=b, op=nl.exp, data=lower)", "b",
        "float8_e4m3",
    ),
    "as a factor": (
        "float32",
        "t = nl.ndarray((128, 64), dtype=nl.tfloat32, buffer=nl.sbuf)\nnisa.dma_copy(dst=t, src=x)\n"
        "acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)\n"
        "nisa.nc_matmul(dst=acc, stationary=t, moving=t)\n"
        "nisa.tensor_copy(dst=a[0:64, :], src=acc)", "a", "tfloat32",
    ),
    "halves of float32, taken as narrow numbers": (
        "float32", "nisa.dma_copy(dst=b, src=x.view(nl.bfloat16)[:, 1::2])\nnisa.activation(dst=b, op=nl.exp, data=b)",
        "b", "bfloat16",
    ),
    "halves of float32, taken as bits": (
        "bfloat16",
        "nisa.memset(dst=a, value=0.0)\n"
        "nisa.dma_copy(dst=a.view(nl.uint16)[:, 1::2], src=x.view(nl.uint16)[:, 1::2])\n"
        "nisa.activation(dst=b, op=nl.exp, data=a)", "b", "bits of float32 as uint16",
    ),
    "in whole numbers of eight bits": (
        "bfloat16",
        "q = nl.ndarray((128, 64), dtype=nl.int8, buffer=nl.sbuf)\n"
        "nisa.tensor_scalar(dst=q, data=a, op0=nl.multiply, operand0=100.0)\nnisa.activation(dst=b, op=nl.exp, data=q)",
        "b", "int8",
    ),
}  # fmt: skip
"""The same, with the type that is computed in."""


def traced(given: str, body: str, stored: str) -> nki_sim.Program:
    nki_sim.install()
    lines = "\n".join((body, STORE.format(stored))).replace("\n", "\n    ")
    namespace: dict[str, object] = {}
    exec(compile(KERNEL.format(given=given, body=lines), "<kernel>", "exec"), namespace)
    specs = [TensorSpec((P, N), as_dtype(name)) for name in ("float32", "bfloat16")]
    return nki_sim.trace(namespace["kernel"], *specs, machine="trn2")


@pytest.mark.parametrize("name", HONEST)
def test_moving_widening_and_storing_is_no_computation(name: str) -> None:
    assert low_precision(traced(*HONEST[name])) == ()


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_rounded_and_then_used_is_found(name: str) -> None:
    *kernel, expected = HIDDEN[name]
    assert [rounded.name for rounded in low_precision(traced(*kernel))] == [expected]


def test_a_rounded_result_that_a_device_loop_carries_is_found() -> None:
    body = (
        "s = low\nt = a\nnisa.memset(dst=s, value=0.0)\n"
        "def once(i):\n    nisa.tensor_copy(dst=b, src=s)\n    nisa.activation(dst=t, op=nl.exp, data=b)\n"
        "    nisa.tensor_copy(dst=s, src=t)\n"
        "nl.fori_loop(0, 2, once)"
    )
    assert [rounded.name for rounded in low_precision(traced("float32", body, "a"))] == ["bfloat16"]


def test_a_loop_that_may_not_run_overwrites_nothing() -> None:
    body = (
        f"{ROUND}\ncount = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)\nnisa.memset(dst=count, value=0)\n"
        "r = nisa.register_alloc()\nnisa.register_load(r, count)\ns = low\n"
        "nl.fori_loop(0, r, lambda i: nisa.memset(dst=s, value=0.0))\nnisa.activation(dst=b, op=nl.exp, data=low)"
    )
    assert [rounded.name for rounded in low_precision(traced("bfloat16", body, "b"))] == ["bfloat16"]


def test_a_type_holds_another_where_every_number_of_it_is_one_of_its_own() -> None:
    wider = {
        "float32": {"bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "int8", "uint8",
                    "int16", "uint16", "bool"},
        "bfloat16": {"float8_e4m3", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"},
        "float16": {"float8_e4m3", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"},
        "float8_e4m3fn": {"float8_e4m3", "bool"},
    }  # fmt: skip
    names = [name for name, dtype in dtypes.ALL.items() if dtype.since <= 3]
    for one, others in wider.items():
        held = {name for name in names if name != one and holds(dtypes.ALL[one], dtypes.ALL[name])}
        assert held == others, one
