"""Kernels that are right and look faster than they are: the judge refuses them, or counts what they do."""

from __future__ import annotations

import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Crashed, Evaluation, Incorrect, Measured, explain
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Task
from accelopt_core.toolchain import RunError, TensorArgument
from infra.simulator.toolchain import SimulatorToolchain
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


TWO_CORES = """
import nki
import nki.isa as nisa
import nki.language as nl

def both(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine = slice(nl.program_id(0) * 64, nl.program_id(0) * 64 + 64)
    a = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x[mine, :])
    nisa.dma_copy(dst=b, src=y[mine, :])
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out[mine, :], src=a)
    nisa.core_barrier(data=out, cores=(0, 1))
    return out

kernel = nki.jit(both)[2]
"""
HANDED_ON = TWO_CORES.replace(
    "    nisa.dma_copy(dst=out[mine, :], src=a)",
    """    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=out[mine, :], src=a)
    else:
        nisa.dma_copy(dst=b, src=out[0:64, :])  # nothing says that core 0 is done
        nisa.dma_copy(dst=out[mine, :], src=a)""",
)
BY_CHANCE = TWO_CORES.replace(
    "    nisa.core_barrier",
    """    if nl.program_id(0) == 1:
        nisa.tensor_tensor(dst=b, data1=b, data2=b, op=nl.add)
    where = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=where, value=0)
    nisa.dma_copy(dst=out.ap([[512, 64], [1, 512]], scalar_offset=where, indirect_dim=0),
                  src=a if nl.program_id(0) == 0 else b)
    nisa.core_barrier""",
)


def judged_on(target: LocalTarget, source: str, cores: int | None) -> Evaluation:
    request = EvaluationRequest(TASK, Candidate("c", source, "input"), extra_seeds=(7,), cores=cores)
    return target.evaluate(request, lambda step, detail: None)


def test_two_cores_are_not_compared_with_one(target: LocalTarget) -> None:
    on_one = judged_on(target, TWO_CORES, 1)
    assert isinstance(on_one, CompileFailed) and "runs on 2 NeuronCores and the task's input on 1" in on_one.message
    on_two = judged_on(target, HONEST, 2)
    assert isinstance(on_two, CompileFailed) and "runs on 1 NeuronCores and the task's input on 2" in on_two.message
    for cores in (2, None):
        result = judged_on(target, TWO_CORES, cores)
        assert isinstance(result, Measured) and result.cores == 2, explain(result)
    honest = judged_on(target, HONEST, 1)
    assert isinstance(honest, Measured) and honest.cores == 1, explain(honest)


def test_a_core_does_not_read_what_the_other_may_not_have_written(target: LocalTarget) -> None:
    result = judged_on(target, HANDED_ON, 2)
    assert isinstance(result, Crashed) and "two cores race for" in explain(result), explain(result)


def test_a_result_that_depends_on_which_core_is_first_is_a_race(target: LocalTarget) -> None:
    """At places that only the device knows: core 1 overwrites what core 0 stored, or the other way round."""
    result = judged_on(target, BY_CHANCE, 2)
    assert isinstance(result, (Crashed, Incorrect)) and " is first" in explain(result), explain(result)
