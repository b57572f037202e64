"""A winner's last check: a case that the task's own kernel fails as well says nothing of the winner."""

from __future__ import annotations

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import DISTRIBUTIONS, ShapePreset, Task
from infra.targets.local import LocalTarget

RARE_SEED = 63
REFERENCE = """
import numpy as np
N = 256


def get_inputs():
    x = np.random.normal(size=(128, N)).astype(np.float32)
    if N > 128 and x[0, 0] < -2:  # one seed of the five, at the full shape alone
        x[0, 0] = 95.0
    return [x]


def forward(x):
    return x / (1 + np.exp(-x))


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(result, reference):
    return [np.asarray(result).reshape(reference.shape)]
"""
HEADER = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    raised = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
"""
FOOTER = """
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
OVERFLOWS = f"""{HEADER}
    nisa.activation(dst=raised, op=nl.exp, data=tile)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=raised, op=nl.multiply)
    nisa.tensor_scalar(dst=raised, data=raised, op0=nl.add, operand0=1.0)
    nisa.reciprocal(dst=raised, data=raised)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=raised, op=nl.multiply)
{FOOTER}"""
"""x e^x / (1 + e^x): at 95 infinity by infinity."""
OVERFLOWS_ON_SCALAR = OVERFLOWS.replace(
    "nisa.reciprocal(dst=raised, data=raised)", "nisa.activation(dst=raised, op=nl.reciprocal, data=raised)"
)
STANDS = f"""{HEADER}
    nisa.activation(dst=raised, op=nl.exp, data=tile, scale=-1.0)
    nisa.tensor_scalar(dst=raised, data=raised, op0=nl.add, operand0=1.0)
    nisa.reciprocal(dst=raised, data=raised)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=raised, op=nl.multiply)
{FOOTER}"""
TASK = Task(
    "silu", REFERENCE, (ShapePreset("small", (("N", 64),)), ShapePreset("full", (("N", 256),))),
    left_out=tuple((name, "not what this is about") for name in DISTRIBUTIONS[1:]),
)  # fmt: skip


def in_a_round(target: LocalTarget, source: str) -> Evaluation:
    return target.evaluate(EvaluationRequest(TASK, Candidate("input", source)), lambda step, detail: None)


def at_the_end(target: LocalTarget, winner: str, original: str) -> Evaluation:
    candidate, before = Candidate("r001t1", winner, "input"), Candidate("input", original)
    request = EvaluationRequest(TASK, candidate, final=True, incumbent=before, original=before)
    return target.evaluate(request, lambda step, detail: None)


def test_only_what_both_fail_is_left_out_and_said(target: LocalTarget) -> None:
    assert isinstance(in_a_round(target, OVERFLOWS), Measured), "the case is rare: the input kernel is taken"
    result = at_the_end(target, OVERFLOWS_ON_SCALAR, original=OVERFLOWS)
    assert isinstance(result, Measured), result
    (line,) = result.shared_faults
    assert line.count(f"seed {RARE_SEED}, shape full, inputs reference") == 1, line
    assert line.endswith("; the input kernel too"), "both fail alike, on the same draw"
    assert result.checks[1].endswith("held to the input kernel, which fails them too: 1 draws")
    result = at_the_end(target, OVERFLOWS, original=STANDS)
    assert isinstance(result, Incorrect), result
    assert result.failure.seed == RARE_SEED
    wrong_below = OVERFLOWS.replace("operand0=1.0", "operand0=1.001")
    result = at_the_end(target, wrong_below, original=OVERFLOWS)
    assert isinstance(result, Incorrect), result
    assert result.failure.seed != RARE_SEED
    result = at_the_end(target, STANDS, original=OVERFLOWS)
    assert isinstance(result, Measured) and result.shared_faults == ()
