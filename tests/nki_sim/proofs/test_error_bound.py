"""What narrow types may do to an output shows by its bound, even where these inputs hide it."""

from __future__ import annotations

import numpy as np
import pytest
from kernels_in_fields import N, P, traced

from nki_sim.execution.executor import execute
from nki_sim.proofs.proof import Finding
from nki_sim.proofs.rounding import error_bound

SUM = "nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.add)"
NARROW = """
narrow = nl.ndarray((128, 64), dtype=nl.{dtype}, buffer=nl.sbuf)
nisa.tensor_copy(dst=narrow, src=a)
{then}
"""
THEN = {
    "add": "nisa.tensor_tensor(dst=out, data1=narrow, data2=b, op=nl.add)",
    "exp": "nisa.activation(dst=out, op=nl.exp, data=narrow)",
    "root": "nisa.activation(dst=t1, op=nl.square, data=narrow)\n"
    "nisa.activation(dst=out, op=nl.sqrt, data=t1, bias=1.0)",
    "reciprocal": "nisa.activation(dst=t1, op=nl.square, data=narrow)\n"
    "nisa.activation(dst=out, op=nl.reciprocal, data=t1, bias=1.0)",
    "silu": "nisa.activation(dst=out, op=nl.silu, data=narrow)",
    "erf": "nisa.activation(dst=out, op=nl.erf, data=narrow)",
    "maximum": "nisa.tensor_scalar(dst=out, data=narrow, op0=nl.maximum, operand0=0.5)",
    "sum": "nisa.tensor_reduce(dst=c1, op=nl.add, data=narrow, axis=1)\n"
    "nisa.tensor_scalar(dst=out, data=b, op0=nl.multiply, operand0=c1)",
    "product": "acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)\n"
    "other = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)\nnisa.tensor_copy(dst=other, src=b)\n"
    "nisa.nc_matmul(dst=acc, stationary=narrow, moving=other)\n"
    "nisa.tensor_copy(dst=out, src=b)\nnisa.tensor_copy(dst=out[0:64, :], src=acc)",
}
"""What becomes of a rounded tile."""


def arrays(exact: bool = False) -> list[np.ndarray]:
    """`exact`: numbers that bfloat16 holds."""
    random = np.random.default_rng(4)
    made = [random.standard_normal((P, N)).astype(np.float32) for _ in range(2)]
    return [np.rint(array * 8) / np.float32(8) for array in made] if exact else made


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("then", THEN)
def test_a_bound_is_above_what_happens_and_not_far(then, dtype):
    wide = traced(NARROW.format(dtype="float32", then=THEN[then].replace("bfloat16", "float32")))
    narrow = traced(NARROW.format(dtype=dtype, then=THEN[then]))
    inputs = arrays()
    wanted, got = (execute(program, inputs)[0].astype(np.float64) for program in (wide, narrow))
    happened = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)

    proof = error_bound(narrow, inputs, 2e-5)

    assert proof.finding is Finding.NOT_PROVABLE
    bound = float(proof.reason.partition("off by ")[2].split()[0])
    assert happened < bound < 60 * happened


def test_inputs_that_hide_a_rounding_do_not_hide_its_bound():
    program = traced(NARROW.format(dtype="bfloat16", then=THEN["add"]))
    inputs = arrays(exact=True)
    np.testing.assert_array_equal(execute(program, inputs)[0], inputs[0] + inputs[1])

    proof = error_bound(program, inputs, 2e-5)

    assert proof.finding is Finding.NOT_PROVABLE
    assert "bfloat16 on vector in line 19" in proof.reason


def test_a_number_made_an_integer_counts_and_a_comparison_does_not():
    rounded = traced(NARROW.format(dtype="int32", then=THEN["add"]))
    compared = traced(
        "mask = nl.ndarray((128, 64), dtype=nl.uint8, buffer=nl.sbuf)\n"
        "nisa.tensor_scalar(dst=mask, data=a, op0=nl.greater, operand0=0.0)\n"
        "nisa.tensor_tensor(dst=out, data1=mask, data2=b, op=nl.multiply)"
    )

    assert "int32 on vector in line 19" in error_bound(rounded, arrays(), 2e-5).reason
    assert error_bound(compared, arrays(), 2e-5).finding is Finding.HELD


@pytest.mark.parametrize("argument", ["bfloat16", "float8_e4m3", "int8"])
@pytest.mark.parametrize("held", [True, False])
def test_an_exact_conversion_has_no_error(argument: str, held: bool) -> None:
    """What comes from a narrow argument, moved, chosen and negated, is held by its type; what is computed is not."""
    dtype = np.dtype(argument)
    then = "nisa.tensor_tensor(dst=t1, data1=a, data2=b, op=nl.maximum)" if held else SUM.replace("dst=out", "dst=t1")
    program = traced(
        f"{then}\nnarrow = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)\n"
        "nisa.tensor_copy(dst=narrow, src=t1)\nnisa.activation(dst=out, op=nl.exp, data=narrow)",
        dtype,
    )
    inputs = [array.astype(dtype) for array in arrays()]

    proof = error_bound(program, inputs, 2e-5)

    assert (proof.reason == "nothing is rounded to fewer bits than float32 has") is held
    assert (proof.finding is Finding.HELD) is held


def test_a_tolerance_that_allows_it_and_a_kernel_that_needs_none():
    narrow = traced(NARROW.format(dtype="bfloat16", then=THEN["add"]))
    assert error_bound(narrow, arrays(), 1e-2).finding is Finding.HELD
    assert error_bound(traced(SUM), arrays(), 1e-9).reason == "nothing is rounded to fewer bits than float32 has"
