"""Kernels that are right and look faster than they are: the judge refuses them, or counts what they do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Crashed, Evaluation, Measured, explain
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import RunError, TensorArgument
from infra.judging.simulator_toolchain import SimulatorToolchain
from infra.targets.local import LocalTarget
from tests.e2e import kernels

TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 512), ("T", 1))),), seeds=(0, 21))
HONEST = kernels.FAST.replace("STEP = 2048", "STEP = 512")
WORK = """
            spare = nl.ndarray((128, STEP), dtype=x.dtype, buffer=nl.sbuf)
            nisa.memset(dst=spare, value=1.0)
            LOOP
            c = nl"""
LOOPS = {
    "constant bounds": "nl.fori_loop(0, 300, BODY)",
    "a register": "nl.fori_loop(0, nisa.register_alloc(300), BODY)",
}
BODY = "lambda i: nisa.activation(dst=spare, op=nl.exp, data=spare)"


def with_work(loop: str) -> str:
    found = HONEST.replace("\n            c = nl", WORK.replace("LOOP", LOOPS[loop].replace("BODY", BODY)))
    assert found != HONEST
    return found


CHEAP_PRODUCT = HONEST.replace(
    "    return out",
    """    full = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=full, src=x[0:128, 0:128])
    product = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=full, moving=full, is_transpose=True)
    return out""",
)


@pytest.fixture(scope="module")
def target() -> Iterator[LocalTarget]:
    target = LocalTarget("simulator", "trn2")
    yield target
    target.close()


def judged(target: LocalTarget, source: str) -> Evaluation:
    request = EvaluationRequest(TASK, Candidate("c", source, "input"), extra_seeds=(7,))
    return target.evaluate(request, lambda step, detail: None)


def latency_us(evaluation: Evaluation) -> float:
    assert isinstance(evaluation, Measured), explain(evaluation)
    return evaluation.latency_us


def test_work_in_a_loop_as_long_as_a_register_says_is_timed(target: LocalTarget) -> None:
    """300 functions on Scalar take 200 us, whichever way their number is given."""
    without, constant, register = (latency_us(judged(target, s)) for s in (HONEST, *map(with_work, LOOPS)))
    assert constant > without + 150
    assert register == pytest.approx(constant, abs=2.0)  # the register is loaded first


def test_the_input_kernel_is_counted_too_where_it_is_timed_beside_the_winner(target: LocalTarget) -> None:
    before = Candidate("input", with_work("a register"), None)
    request = EvaluationRequest(TASK, Candidate("c", HONEST, "input"), extra_seeds=(7,), incumbent=before, final=True)
    result = target.evaluate(request, lambda step, detail: None)
    assert isinstance(result, Measured) and result.incumbent is not None, explain(result)
    assert result.incumbent.latency_us == pytest.approx(latency_us(judged(target, before.source)))


def test_a_product_in_transpose_mode_is_refused(target: LocalTarget) -> None:
    result = judged(target, CHEAP_PRODUCT)
    assert isinstance(result, Crashed) and "must be an identity matrix" in explain(result), explain(result)


COUNTED = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(count):
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    tile = nl.zeros((128, 512), nl.float32)
    register = nisa.register_alloc()
    nisa.register_load(register, count)
    nl.fori_loop(0, register, lambda i: nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add))
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def test_what_is_timed_is_the_longest_of_the_executions_that_were_verified() -> None:
    toolchain = SimulatorToolchain("trn2")
    try:
        artifact = toolchain.compile(COUNTED, [TensorArgument((1, 1), "int32")], 60.0)
        assert toolchain.counts(artifact) and toolchain.estimate_us(artifact) is None
        with pytest.raises(RunError, match="cannot be timed.*register"):
            toolchain.time(artifact, [], 0, 1, 60.0)
        times = []
        for count in (3, 9, 5):
            toolchain.run(artifact, [np.array([[count]], np.int32)], 60.0)
            times.append(toolchain.time(artifact, [], 0, 1, 60.0).samples_us[0])
        assert times[0] < times[1] == times[2] == toolchain.estimate_us(artifact)
        assert toolchain.facts(artifact).fields["vector_engine_instruction_count"] == 1 + 9
    finally:
        toolchain.close()
