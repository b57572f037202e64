"""Kernels whose results are a matter of chance on a device, or of fewer bits than they should have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import (
    CompileFailed,
    Crashed,
    Evaluation,
    Finding,
    Implausible,
    Incorrect,
    Measured,
    Property,
    explain,
)
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from infra.targets.local import LocalTarget
from tests.e2e import kernels
from tests.redteam.test_simulated_time import TWO_CORES

ONE = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0,))
TWO = replace(
    ONE, presets=(ShapePreset("small", ONE.full.values), ShapePreset("full", (*ONE.full.values[:2], ("T", 2))))
)
HONEST = kernels.FAST.replace("STEP = 2048", "STEP = 512")
STORE = "            nisa.dma_copy(dst=out["
REFUSED = (CompileFailed, Incorrect, Implausible, Crashed)


def with_lines(*lines: str) -> str:
    """Before the sum `c` is stored."""
    assert STORE in HONEST
    return HONEST.replace(STORE, "".join(f"            {line}\n" for line in lines) + STORE)


def at_full_shape(*lines: str) -> str:
    return with_lines("if rows > 128:", *[f"    {line}" for line in lines])


def tile(name: str, dtype: str, shape: str = "(128, STEP)") -> str:
    return f"{name} = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.sbuf)"


ZEROS = (tile("d", "float32"), "nisa.memset(dst=d, value=0.0)")
CHOSEN = ("nisa.tensor_copy_predicated(dst=d, src=c, predicate=mask)", "c = d")
NO_PASS = "nl.fori_loop(0, nisa.register_alloc(0), lambda i: nisa.memset(dst=mask, value=1))"

BY_CHANCE = {
    "a mask that nothing wrote": at_full_shape(tile("mask", "int32"), *ZEROS, *CHOSEN),
    "a mask of bytes that nothing wrote": at_full_shape(tile("mask", "uint8"), *ZEROS, *CHOSEN),
    "a mask that nothing wrote, at the one shape": with_lines(tile("mask", "int32"), *ZEROS, *CHOSEN),
    "half of a mask": at_full_shape(
        tile("mask", "int32"), "nisa.memset(dst=mask[:, 0:256], value=1)", *ZEROS, *CHOSEN
    ),
    "a mask but for its last element": at_full_shape(
        tile("mask", "int32"), "nisa.memset(dst=mask[:, 0:511], value=1)", "nisa.memset(dst=mask[0:96, :], value=1)",
        *ZEROS, *CHOSEN,
    ),
    "a mask of which one column is written again and again": at_full_shape(
        tile("mask", "int32"), "nisa.memset(dst=mask.ap([[STEP, 128], [0, STEP]]), value=1)", *ZEROS, *CHOSEN,
    ),
    "a mask written in a loop of no passes": at_full_shape(tile("mask", "int32"), NO_PASS, *ZEROS, *CHOSEN),
    "a comparison with what nothing wrote": at_full_shape(
        tile("mask", "float32"), "nisa.tensor_scalar(dst=mask, data=mask, op0=nl.not_equal, operand0=0.0)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=mask, op=nl.multiply)",
    ),
    "the number that the simulator leaves": at_full_shape(
        tile("four", "int32"), tile("mask", "float32"),
        "nisa.tensor_scalar(dst=mask, data=four, op0=nl.equal, operand0=4.0)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=mask, op=nl.multiply)",
    ),
    "as many passes as unwritten memory says": with_lines(
        tile("count", "int32", "(1, 1)"), "r = nisa.register_alloc()", "nisa.register_load(r, count)", *ZEROS,
        "s = c", "nl.fori_loop(0, r, lambda i: nisa.tensor_copy(dst=d, src=s))", "c = d",
    ),
    "HBM that nothing wrote": at_full_shape(
        "scratch = nl.ndarray((128, STEP), dtype=nl.int32, buffer=nl.private_hbm)", tile("mask", "int32"),
        "nisa.dma_copy(dst=mask, src=scratch)", *ZEROS, *CHOSEN,
    ),
}  # fmt: skip

NOT_BY_CHANCE = {
    "a mask in two halves": with_lines(
        tile("mask", "int32"), "nisa.memset(dst=mask[:, 0:256], value=1)", "nisa.memset(dst=mask[:, 256:512], value=1)",
        *ZEROS, *CHOSEN,
    ),
    "a mask written in a loop": with_lines(
        tile("mask", "int32"), NO_PASS.replace("register_alloc(0)", "register_alloc(2)"), *ZEROS, *CHOSEN
    ),
    "a column more than is stored": with_lines(
        tile("wide", "int32", "(128, STEP + 1)"), tile("out_wide", "int32", "(128, STEP + 1)"),
        "nisa.tensor_copy(dst=out_wide, src=wide)", "nisa.memset(dst=out_wide[:, 0:STEP], value=1)",
        "mask = out_wide[:, 0:STEP]", *ZEROS, *CHOSEN,
    ),
}  # fmt: skip
"""What reads memory that may not be written, or is not, and computes nothing from it."""

LOADED = "nisa.dma_copy(dst=a, src=x[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP])"
HALVES = """halves = x.view(nl.uint16)[t * 128 : (t + 1) * 128, 1::2]
            nisa.memset(dst=a, value=0.0)
            nisa.dma_copy(dst=a.view(nl.uint16)[:, 1 : 2 * STEP : 2], src=halves)"""
BACK = "nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=1.0 / 16777216.0)"


def through(dtype: str) -> str:
    return with_lines(tile("h", dtype), "nisa.tensor_copy(dst=h, src=c)", "nisa.tensor_copy(dst=c, src=h)")


FEWER_BITS = {
    "bfloat16 by a transfer": with_lines(
        tile("h", "bfloat16"), "nisa.dma_copy(dst=h, src=c)", "nisa.tensor_tensor(dst=c, data1=h, data2=b, op=nl.add)"
    ),
    "the upper halves alone": HONEST.replace(LOADED, HALVES),
    "float16 between": through("float16"),
    "tfloat32 between": through("tfloat32"),
    "eight bits between": through("float8_e4m3"),
    "whole numbers between": with_lines(
        tile("q", "int32"), "nisa.tensor_scalar(dst=q, data=c, op0=nl.multiply, operand0=16777216.0)",
        "nisa.tensor_copy(dst=c, src=q)", BACK,
    ),
    "eight bits of the mantissa masked": with_lines(
        "nisa.tensor_scalar(dst=c.view(nl.int32), data=c.view(nl.int32), op0=nl.bitwise_and, operand0=-256)"
    ),
    "bfloat16 that keeps what is stored": with_lines(
        tile("h", "bfloat16"), tile("l", "bfloat16"), tile("m", "bfloat16"), "nisa.tensor_copy(dst=h, src=c)",
        "nisa.tensor_tensor(dst=l, data1=c, data2=h, op=nl.subtract)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=h, op=nl.subtract)",
        "nisa.tensor_tensor(dst=m, data1=c, data2=l, op=nl.subtract)",
        "nisa.tensor_tensor(dst=c, data1=l, data2=m, op=nl.add)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=h, op=nl.add)",
    ),
    "through a logarithm and back": with_lines(
        "nisa.activation(dst=c, op=nl.exp, data=c)", "nisa.activation(dst=c, op=nl.log, data=c)"
    ),
    "a factor off by a hundred-thousandth": with_lines(
        "nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=1.00001)"
    ),
    "one element left out": with_lines("nisa.memset(dst=c[0:1, 5:6], value=0.0)"),
    "divided by itself": with_lines(
        tile("i", "float32"), "nisa.reciprocal(dst=i, data=a)",
        "nisa.tensor_tensor(dst=i, data1=i, data2=a, op=nl.multiply)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=i, op=nl.multiply)",
    ),
}  # fmt: skip


NARROW_REFERENCE = """
import ml_dtypes
import numpy as np

P, N, T = 128, 512, 1


def get_inputs():
    arrays = np.random.normal(size=(T * P, N)), np.random.normal(size=(P, N))
    return [array.astype(ml_dtypes.bfloat16) for array in arrays]


def forward(x, y):
    wide = x.astype(np.float32) + np.tile(y.astype(np.float32), (T, 1))
    return (wide * wide).astype(ml_dtypes.bfloat16)
"""
"""Square of a sum; the kernels' `a`, `b` and `c` are bfloat16 tiles as they stand."""
NARROW = replace(ONE, reference_source=NARROW_REFERENCE)
SUM = "            nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)\n"
WIDE_SQUARE = f"""            {tile("w", "float32")}
            nisa.tensor_tensor(dst=w, data1=a, data2=b, op=nl.add)
            nisa.tensor_tensor(dst=c, data1=w, data2=w, op=nl.multiply)
"""
NARROW_HONEST = HONEST.replace(SUM, WIDE_SQUARE)
HIDDEN = {
    "the sum in bfloat16": SUM + "            nisa.tensor_tensor(dst=c, data1=c, data2=c, op=nl.multiply)\n",
    "behind a widening": SUM
    + f"""            {tile("w", "float32")}
            nisa.tensor_copy(dst=w, src=c)
            nisa.tensor_tensor(dst=c, data1=w, data2=w, op=nl.multiply)
""",
    "behind a widening transfer": SUM
    + f"""            {tile("w", "float32")}
            nisa.dma_copy(dst=w, src=c)
            nisa.tensor_tensor(dst=c, data1=w, data2=w, op=nl.multiply)
""",
    "the upper halves of float32": WIDE_SQUARE.replace(
        "            nisa.tensor_tensor(dst=c",
        f"""            {tile("v", "float32")}
            nisa.memset(dst=v, value=0.0)
            nisa.tensor_copy(dst=v.view(nl.uint16)[:, 1 : 2 * STEP : 2], src=w.view(nl.uint16)[:, 1 : 2 * STEP : 2])
            w = v
            nisa.tensor_tensor(dst=c""",
    ),
}
"""What is done in place of the sum in float32: numbers alone do not show all of it in a bfloat16 result."""


def test_a_kernel_of_bfloat16_that_computes_in_float32_is_right_and_says_so(target: LocalTarget) -> None:
    result = judged(target, NARROW_HONEST, NARROW)
    assert isinstance(result, Measured), explain(result)
    assert "bfloat16 in, float32 arithmetic, bfloat16 out" in result.rests_on
    assert result.output_types == ("bfloat16",)


@pytest.mark.parametrize("name", HIDDEN)
def test_low_precision_behind_a_narrow_output_is_refused(target: LocalTarget, name: str) -> None:
    result = judged(target, HONEST.replace(SUM, HIDDEN[name]), NARROW)
    assert isinstance(result, Incorrect), explain(result)
    assert "and used" in explain(result) or "differ" in explain(result), explain(result)


def test_a_kernel_that_returns_another_type_than_the_input_kernel_is_refused(target: LocalTarget) -> None:
    request = EvaluationRequest(NARROW, Candidate("c", NARROW_HONEST, "input"), output_types=("float32",))
    result = target.evaluate(request, lambda step, detail: None)
    assert isinstance(result, Incorrect) and "keep the outputs' types" in explain(result)


WIDENING = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    y = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    u = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=y, src=u)
    return y
"""
DRAWN = "import numpy as np, ml_dtypes\nN = 64\ndef get_inputs(): return [{}]\ndef forward(x): return x {} 2\n"


@pytest.mark.parametrize("taken", ["bfloat16", "float16", "float8_e4m3", "int8"])
def test_an_argument_that_is_widened_exactly_is_no_computation_in_its_type(target: LocalTarget, taken: str) -> None:
    drawn = "np.random.normal(size=(128, N)).astype(ml_dtypes.bfloat16).astype(ml_dtypes.float8_e4m3)"
    drawn = (
        drawn.replace("ml_dtypes.float8_e4m3", f"np.dtype('{taken}')")
        if taken != "int8"
        else ("np.random.randint(-100, 100, size=(128, N)).astype(np.int8)")
    )
    reference = DRAWN.format(drawn, "* 1.0 *" if taken == "int8" else "*")
    task = Task("twice", reference, (ShapePreset("full", (("N", 64),)),), seeds=(0,))
    result = judged(target, WIDENING, task)
    assert isinstance(result, Measured), explain(result)


@pytest.mark.parametrize(("most", "is_said"), [("1 << 24", False), ("1 << 30", True)])
def test_integers_that_float32_does_not_hold_are_told(target: LocalTarget, most: str, is_said: bool) -> None:
    reference = DRAWN.format(f"np.random.randint(0, {most}, size=(128, N)).astype(np.int32)", "* 1.0 *")
    task = Task("twice", reference, (ShapePreset("full", (("N", 64),)),), seeds=(0,))
    kernel = WIDENING.replace("t = nl.ndarray(x.shape, dtype=nl.float32", "t = nl.ndarray(x.shape, dtype=nl.int32")
    result = judged(target, kernel, task)
    assert isinstance(result, Measured), explain(result)
    assert any("integers beyond 2^24" in line for line in result.checks) is is_said


def steered(threshold: float) -> str:
    """All is 0 where the input's first number is larger: as a register says, which is loaded from a comparison."""
    return with_lines(
        tile("flag", "int32", "(1, 1)"),
        f"nisa.tensor_scalar(dst=flag, data=a[0:1, 0:1], op0=nl.greater, operand0={threshold})",
        "r = nisa.register_alloc()",
        "nisa.register_load(r, flag)",
        "s = c",
        "nl.fori_loop(0, r, lambda i: nisa.memset(dst=s, value=0.0))",
    )


def judged(target: LocalTarget, source: str, task: Task) -> Evaluation:
    assert source != HONEST
    request = EvaluationRequest(task, Candidate("c", source, "input"), extra_seeds=(7,))
    return target.evaluate(request, lambda step, detail: None)


@pytest.mark.parametrize("name", BY_CHANCE)
def test_what_depends_on_memory_that_nothing_wrote_is_refused(target: LocalTarget, name: str) -> None:
    result = judged(target, BY_CHANCE[name], TWO if "rows > 128" in BY_CHANCE[name] else ONE)
    assert isinstance(result, REFUSED) and "memory that nothing wrote" in explain(result), explain(result)


SHARED = TWO_CORES.replace(
    "    nisa.dma_copy(dst=out[mine, :], src=a)",
    """    scratch = nl.ndarray((128, 512), dtype=nl.int32, buffer=nl.shared_hbm)
    WRITTEN
    mask = nl.ndarray((64, 512), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=mask, src=scratch[mine, :])
    nisa.memset(dst=b, value=0.0)
    nisa.tensor_copy_predicated(dst=b, src=a, predicate=mask)
    nisa.dma_copy(dst=out[mine, :], src=b)""",
)
FILLED = """ones = nl.ndarray((64, 512), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1)
    nisa.dma_copy(dst=scratch[slice(64 - nl.program_id(0) * 64, 128 - nl.program_id(0) * 64), :], src=ones)
    nisa.core_barrier(data=scratch, cores=(0, 1))"""


def test_memory_that_two_cores_share_is_written_by_one_of_them(target: LocalTarget) -> None:
    result = judged(target, SHARED.replace("WRITTEN", ""), ONE)
    assert isinstance(result, REFUSED) and "memory that nothing wrote" in explain(result), explain(result)
    result = judged(target, SHARED.replace("WRITTEN", FILLED), ONE)
    assert isinstance(result, Measured), explain(result)


SUMS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, w):
    out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.shared_hbm)
    x_sb = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
    w_sb = nl.ndarray((128, 4, 4, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    nisa.dma_copy(dst=w_sb, src=w)
    sums = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.psum)
    for t in range(4):
        for f in range(4):
            nisa.nc_matmul(dst=sums[:, t : t + 1], stationary=w_sb[:, f, t, :], moving=x_sb[:, f : f + 1]FLAG)
    result = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=sums)
    nisa.dma_copy(dst=out, src=result)
    return out
"""
SUMS_REFERENCE = """
import numpy as np


def get_inputs():
    normal = np.random.normal
    return [normal(size=(128, 4)).astype(np.float32), normal(size=(128, 4, 4, 128)).astype(np.float32)]


def forward(x, w):
    return np.einsum("kf,kftp->pt", x, w)


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [result]
"""
SUMS_TASK = Task("sums", SUMS_REFERENCE, (ShapePreset("full", ()),), seeds=(0,))


def test_sums_that_a_device_may_get_wrong_are_refused_and_said_of_the_input_kernel(target: LocalTarget) -> None:
    """Sums of several products in one bank with accumulate= given; the same ones without it are accepted."""
    doubted, plain = SUMS.replace("FLAG", ", accumulate=f > 0"), SUMS.replace("FLAG", "")
    for original in (doubted, plain):  # whatever the input kernel has
        request = EvaluationRequest(
            SUMS_TASK, Candidate("c", "# changed\n" + doubted, "input"), extra_seeds=(7,),
            original=Candidate("input", original),
        )  # fmt: skip
        result = target.evaluate(request, lambda step, detail: None)
        assert isinstance(result, CompileFailed), explain(result)
        assert "not proved for a device" in result.message and "psum-groups" in result.message
        result = target.evaluate(replace(request, candidate=Candidate("c", plain, "input")), lambda step, detail: None)
        assert isinstance(result, Measured), explain(result)
        assert not any("not proved for a device" in line for line in result.checks)
    request = EvaluationRequest(SUMS_TASK, Candidate("input", doubted), is_input=True)
    told: list[str] = []
    result = target.evaluate(request, lambda step, detail: told.append(detail))
    assert isinstance(result, Measured), explain(result)
    for lines in (told, result.checks):
        assert sum("not proved for a device" in line for line in lines) == 1


@pytest.mark.parametrize("name", NOT_BY_CHANCE)
def test_what_does_not_depend_on_it_is_accepted(target: LocalTarget, name: str) -> None:
    result = judged(target, NOT_BY_CHANCE[name], ONE)
    assert isinstance(result, Measured), explain(result)


def clamped(limit: float) -> str:
    return with_lines(f"nisa.tensor_scalar(dst=c, data=c, op0=nl.minimum, operand0={limit})")


WITHIN_REACH = {"a branch": steered(3.0), "a rare branch": steered(30.0), "a clamp within the inputs": clamped(100.0)}


@pytest.mark.parametrize("source", [*FEWER_BITS.values(), *WITHIN_REACH.values()], ids=[*FEWER_BITS, *WITHIN_REACH])
def test_fewer_bits_and_what_some_inputs_reach_are_refused(target: LocalTarget, source: str) -> None:
    result = judged(target, source, ONE)
    assert isinstance(result, REFUSED), explain(result)


@pytest.mark.parametrize("source", [steered(5000.0), clamped(5000.0)], ids=["a branch", "a clamp"])
def test_what_no_input_reaches_is_right_and_not_proved_equal(target: LocalTarget, source: str) -> None:
    """Inputs go to about 1,000 times their spread (docs/judging.md); what lies beyond, the proof alone can tell."""
    request = EvaluationRequest(ONE, Candidate("c", source, "input"), extra_seeds=(7,), original=Candidate("i", HONEST))
    result = target.evaluate(request, lambda step, detail: None)
    assert isinstance(result, Measured), explain(result)
    equal = next(proof for proof in result.proofs if proof.property is Property.EQUIVALENCE)
    assert equal.finding is not Finding.HELD and equal.reason
