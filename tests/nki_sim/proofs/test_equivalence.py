"""What two kernels must have in common to be proved equal, what refutes them, and what nobody can say."""

from __future__ import annotations

import re

import pytest
from kernels_in_fields import compared

from nki_sim.proofs.proof import Finding

SUM = "nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.add)"
SOFTMAX = """
nisa.tensor_reduce(dst=c1, op=nl.maximum, data=a, axis=1, negate=True)
nisa.activation(dst=t1, op=nl.exp, data=a, bias=c1)
nisa.tensor_reduce(dst=c2, op=nl.add, data=t1, axis=1)
nisa.reciprocal(dst=c3, data=c2)
nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=c3)
"""
RMSNORM = """
nisa.activation(dst=t1, op=nl.square, data=a)
nisa.tensor_reduce(dst=c1, op=nl.add, data=t1, axis=1)
nisa.activation(dst=c2, op=nl.rsqrt, data=c1, scale=1/64, bias=1e-6)
nisa.tensor_scalar(dst=out, data=a, op0=nl.multiply, operand0=c2)
"""
SILU = "nisa.activation(dst=out, op=nl.silu, data=a)"
TILED_MAX = """
nisa.tensor_reduce(dst=c1, op=nl.maximum, data=a[:, 0:24], axis=1)
nisa.tensor_reduce(dst=c2, op=nl.maximum, data=a[:, 24:64], axis=1)
nisa.tensor_tensor(dst=c3, data1=c1, data2=c2, op=nl.maximum)
nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
"""
WHOLE_MAX = """
nisa.tensor_reduce(dst=c3, op=nl.maximum, data=a, axis=1)
nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
"""
ONLINE_SOFTMAX = """
nisa.memset(dst=c1, value=-3e38)
nisa.memset(dst=c2, value=0.0)
for half in range(2):
    part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    top = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    minus = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    shrink = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    cut = slice(32 * half, 32 * half + 32)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=a[:, cut], axis=1)
    nisa.tensor_tensor(dst=top, data1=top, data2=c1, op=nl.maximum)
    nisa.tensor_scalar(dst=minus, data=top, op0=nl.multiply, operand0=-1.0)
    nisa.activation(dst=shrink, op=nl.exp, data=c1, bias=minus)
    nisa.activation(dst=t1[:, cut], op=nl.exp, data=a[:, cut], bias=minus)
    nisa.tensor_reduce(dst=part, op=nl.add, data=t1[:, cut], axis=1)
    if half:
        nisa.tensor_scalar(dst=t1[:, 0:32], data=t1[:, 0:32], op0=nl.multiply, operand0=shrink)
    nisa.scalar_tensor_tensor(dst=c2, data=c2, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=part)
    nisa.tensor_copy(dst=c1, src=top)
nisa.reciprocal(dst=c3, data=c2)
nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=c3)
"""

EQUAL = {
    "operands change places": ("nisa.tensor_tensor(dst=out, data1=b, data2=a, op=nl.add)", SUM),
    "distribution": (
        """
        nisa.tensor_scalar(dst=t1, data=a, op0=nl.multiply, operand0=0.1)
        nisa.tensor_scalar(dst=t2, data=b, op0=nl.multiply, operand0=0.1)
        nisa.tensor_tensor(dst=out, data1=t1, data2=t2, op=nl.add)
        """,
        """
        nisa.tensor_tensor(dst=t1, data1=a, data2=b, op=nl.add)
        nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=0.1)
        """,
    ),
    "a scale within an activation": (
        "nisa.activation(dst=out, op=nl.exp, data=a, scale=0.3)",
        """
        nisa.tensor_scalar(dst=t1, data=a, op0=nl.multiply, operand0=0.3)
        nisa.activation(dst=out, op=nl.exp, data=t1)
        """,
    ),
    "1/768 in Python and in a tile, times 768": (
        """
        nisa.memset(dst=c1, value=1/768)
        nisa.tensor_scalar(dst=t1, data=a, op0=nl.multiply, operand0=c1)
        nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=768.0)
        """,
        "nisa.tensor_copy(dst=out, src=a)",
    ),
    "x / x is 1": (
        "nisa.reciprocal(dst=t1, data=a)\nnisa.tensor_tensor(dst=out, data1=t1, data2=a, op=nl.multiply)",
        "nisa.memset(dst=out, value=1.0)",
    ),
    "a sum in pieces": (
        """
        nisa.tensor_reduce(dst=c1, op=nl.add, data=a[:, 0:10], axis=1)
        nisa.tensor_reduce(dst=c2, op=nl.add, data=a[:, 10:64], axis=1)
        nisa.tensor_tensor(dst=c3, data1=c1, data2=c2, op=nl.add)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
        """,
        """
        nisa.tensor_reduce(dst=c3, op=nl.add, data=a, axis=1)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
        """,
    ),
    "a maximum in pieces": (TILED_MAX, WHOLE_MAX),
    "the sum of a softmax within its activation": (
        """
        nisa.tensor_reduce(dst=c1, op=nl.maximum, data=a, axis=1, negate=True)
        nisa.activation_reduce(dst=t1, op=nl.exp, data=a, reduce_op=nl.add, reduce_res=c2, bias=c1)
        nisa.activation(dst=c3, op=nl.reciprocal, data=c2)
        nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=c3)
        """,
        SOFTMAX,
    ),
    "an online softmax": (ONLINE_SOFTMAX, SOFTMAX),
    "a silu by hand": (
        """
        nisa.activation(dst=t1, op=nl.exp, data=a, scale=-1.0)
        nisa.tensor_scalar(dst=t1, data=t1, op0=nl.add, operand0=1.0)
        nisa.reciprocal(dst=t1, data=t1)
        nisa.tensor_tensor(dst=out, data1=t1, data2=a, op=nl.multiply)
        """,
        SILU,
    ),
    "a tanh by sigmoid": (
        """
        nisa.activation(dst=t1, op=nl.sigmoid, data=a, scale=2.0)
        nisa.tensor_scalar(dst=out, data=t1, op0=nl.multiply, operand0=2.0, op1=nl.subtract, operand1=1.0)
        """,
        "nisa.activation(dst=out, op=nl.tanh, data=a)",
    ),
    "a cast on the way": (
        """
        narrow = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=narrow, data1=a, data2=b, op=nl.add)
        nisa.tensor_copy(dst=out, src=narrow)
        """,
        SUM,
    ),
    "turned twice": (
        """
        there = nl.ndarray((64, 128), dtype=nl.float32, buffer=nl.psum)
        moved = nl.ndarray((64, 128), dtype=nl.float32, buffer=nl.sbuf)
        back = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=there, data=a)
        nisa.tensor_copy(dst=moved, src=there)
        nisa.nc_transpose(dst=back, data=moved)
        nisa.tensor_tensor(dst=out, data1=back, data2=b, op=nl.add)
        """,
        SUM,
    ),
    "a root's argument scaled otherwise": (
        RMSNORM.replace("scale=1/64, bias=1e-6)", "bias=c3)").replace(
            "nisa.activation(dst=c2", "nisa.memset(dst=c3, value=1e-6)\n"
            "nisa.tensor_scalar(dst=c1, data=c1, op0=nl.multiply, operand0=1/64)\nnisa.activation(dst=c2",
        ),
        RMSNORM,
    ),
}  # fmt: skip

REFUTED = {
    "a term is dropped": (SUM.replace("data2=b", "data2=a"), SUM),
    "one element of 8192": (SUM + "\nnisa.tensor_copy(dst=out[:, 63:64], src=a[:, 63:64])", SUM),
    "a term of no numeric effect is added": (
        "nisa.scalar_tensor_tensor(dst=out, data=a, op0=nl.multiply, operand0=1e-30, op1=nl.add, operand1=b)",
        "nisa.tensor_copy(dst=out, src=b)",
    ),
    "a sum misses its last column": (
        """
        nisa.tensor_reduce(dst=c3, op=nl.add, data=a[:, 0:63], axis=1)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
        """,
        """
        nisa.tensor_reduce(dst=c3, op=nl.add, data=a, axis=1)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
        """,
    ),
    "a constant is the next float32": (
        "nisa.tensor_scalar(dst=out, data=a, op0=nl.add, operand0=1.0000001e-6)",
        "nisa.tensor_scalar(dst=out, data=a, op0=nl.add, operand0=1e-6)",
    ),
    "twice in a softmax, whose maximum cancels": (
        SOFTMAX.replace("data=t1, op0", "data=t1, op1=nl.multiply, operand1=2.0, op0"), SOFTMAX
    ),
    "a softmax of other values, whose maximum cancels": (
        SOFTMAX.replace("data=a, bias", "data=b, bias"), SOFTMAX
    ),
    "another term after a root": (
        RMSNORM + "nisa.tensor_tensor(dst=out, data1=out, data2=b, op=nl.add)", RMSNORM
    ),
    "a silu of twice": (SILU.replace("data=a", "data=a, scale=2.0"), SILU),
    "the last quarter of the partitions": (
        SUM + "\nnisa.tensor_copy(dst=out[96:128, :], src=a[96:128, :])", SUM
    ),
}  # fmt: skip

NOT_PROVABLE = {
    "a scale through a maximum": (
        """
        nisa.tensor_scalar(dst=t1, data=a, op0=nl.multiply, operand0=3.0)
        nisa.tensor_reduce(dst=c3, op=nl.maximum, data=t1, axis=1)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3)
        """,
        """
        nisa.tensor_reduce(dst=c3, op=nl.maximum, data=a, axis=1)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c3, op1=nl.multiply, operand1=3.0)
        """,
        "order of values",
    ),
    "another epsilon under a root": (RMSNORM.replace("1e-6", "1e-12"), RMSNORM, r"sqrt \(line"),
    "a root squared": (
        """
        nisa.activation(dst=t1, op=nl.sqrt, data=a)
        nisa.tensor_tensor(dst=out, data1=t1, data2=t1, op=nl.multiply)
        """,
        "nisa.tensor_copy(dst=out, src=a)",
        r"sqrt \(line",
    ),
    "no model": (
        """
        top = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.max8(dst=top, src=a)
        nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=top[:, 0:1])
        """,
        WHOLE_MAX,
        "max8 has no model",
    ),
    "bits of a number": (
        "bits = a.view(nl.int32)\nnisa.tensor_copy(dst=out, src=bits)", SUM, "takes the bits of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EQUAL)
def test_what_arithmetic_allows_is_equal(case):
    proofs = compared(*EQUAL[case])

    assert proofs.coverage.finding is Finding.HELD
    assert proofs.equivalence.finding is Finding.HELD, proofs.equivalence.reason
    assert "8,192 output elements" in proofs.equivalence.reason


@pytest.mark.parametrize("case", REFUTED)
@pytest.mark.parametrize("seed", [1, 2])
def test_other_work_is_refuted_however_small_its_effect(case, seed):
    proofs = compared(*REFUTED[case], seed=seed)

    assert proofs.equivalence.finding is Finding.REFUTED, proofs.equivalence.reason
    assert "output 0 at [" in proofs.equivalence.reason


@pytest.mark.parametrize("case", NOT_PROVABLE)
def test_what_stands_in_between_is_named(case):
    body, original, reason = NOT_PROVABLE[case]

    equivalence = compared(body, original).equivalence

    assert equivalence.finding is Finding.NOT_PROVABLE
    assert re.search(reason, equivalence.reason), equivalence.reason
    assert "\n" not in equivalence.reason
