"""Proofs under attack: what is wrong and would be proved equal, what would be proved for ever, and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Finding, Measured, explain
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import TensorArgument
from infra.simulator import toolchain as simulator_toolchain
from infra.simulator.toolchain import SimulatorToolchain
from infra.targets.local import LocalTarget
from nki_sim.program.program import Program
from nki_sim.proofs.equivalence import Original, all_matter, prove
from nki_sim.proofs.execution import Input
from tests.e2e import kernels
from tests.redteam.test_chance_and_precision import HONEST, ONE, tile, with_lines

ARGUMENTS = [TensorArgument((128, 512), "float32")] * 2
SEEDS = range(4)
SIZE = "nisa.activation(dst=big, op=nl.abs, data=c)"
KEEP = "nisa.tensor_tensor(dst=c, data1=c, data2=big, op=nl.multiply)"


def kept_where(comparison: str, number: str, size: str = SIZE) -> str:
    """The sum is zero elsewhere."""
    compare = f"nisa.tensor_scalar(dst=big, data=big, op0=nl.{comparison}, operand0={number})"
    return with_lines(tile("big", "float32"), size, compare, KEEP)


def in_a_band(low: str, high: str, size: str = SIZE) -> str:
    """The sum is doubled there."""
    both = [
        f"nisa.tensor_scalar(dst={d}, data=big, op0=nl.greater, operand0={n})" for d, n in (("g", low), ("h", high))
    ]
    between = "nisa.tensor_tensor(dst=g, data1=g, data2=h, op=nl.subtract)"
    more = "nisa.scalar_tensor_tensor(dst=c, data=g, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=c)"
    return with_lines(*(tile(name, "float32") for name in ("big", "g", "h")), size, *both, between, more)


def one_more_where(number: str) -> str:
    equal = f"nisa.tensor_scalar(dst=big, data=c, op0=nl.equal, operand0={number})"
    return with_lines(tile("big", "float32"), equal, "nisa.tensor_tensor(dst=c, data1=c, data2=big, op=nl.add)")


UNEQUAL = {
    "nothing below a billionth": kept_where("greater", "1e-9"),
    "nothing below what float32 barely has": kept_where("greater", "1e-37"),
    "nothing below one": kept_where("greater", "1.0"),
    "nothing but above a half": kept_where("greater_equal", "0.5"),
    "nothing below a square root": kept_where("greater", "1e-12", SIZE.replace("nl.abs", "nl.square")),
    "nothing beyond ten billion": kept_where("less", "1e10"),
    "at least a billionth": with_lines("nisa.tensor_scalar(dst=c, data=c, op0=nl.abs_max, operand0=1e-9)"),
    "at most ten thousand": with_lines("nisa.tensor_scalar(dst=c, data=c, op0=nl.minimum, operand0=10000.0)"),
    "twice between two numbers": in_a_band("1000.0", "10000.0"),
    "twice between two numbers that are close": in_a_band("1000.0", "1000.5"),
    "twice between two numbers below zero": in_a_band("-10000.0", "-1000.0", "nisa.tensor_copy(dst=big, src=c)"),
    "twice between two small numbers": in_a_band("1e-20", "1e-19"),
    "one more where it is a number": one_more_where("1234.5"),
    "one more where it is nothing": one_more_where("0.0"),
    "whole numbers between": with_lines(
        tile("q", "int32"), "nisa.tensor_copy(dst=q, src=c)", "nisa.tensor_copy(dst=c, src=q)"
    ),
    "a millionth more": with_lines("nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=1.000001)"),
    "a number of its own at one place": with_lines("nisa.memset(dst=c[0:1, 5:6], value=1e-30)"),
    "eight bits between": with_lines(
        tile("q", "int8"), "nisa.tensor_copy(dst=q, src=c)", "nisa.tensor_copy(dst=c, src=q)"
    ),
    "the sign lost by a root": with_lines(
        "nisa.activation(dst=c, op=nl.square, data=c)", "nisa.activation(dst=c, op=nl.sqrt, data=c)"
    ),
}

EQUAL = {
    "the larger and the smaller": with_lines(
        tile("l", "float32"), "nisa.tensor_tensor(dst=l, data1=a, data2=b, op=nl.minimum)",
        "nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.maximum)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=l, op=nl.add)",
    ),
    "both signs": with_lines(
        tile("l", "float32"), "nisa.tensor_scalar(dst=l, data=c, op0=nl.minimum, operand0=0.0)",
        "nisa.tensor_scalar(dst=c, data=c, op0=nl.maximum, operand0=0.0)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=l, op=nl.add)",
    ),
    "both sides of a constant": with_lines(
        tile("l", "float32"), "nisa.tensor_scalar(dst=l, data=c, op0=nl.minimum, operand0=0.3)",
        "nisa.tensor_scalar(dst=c, data=c, op0=nl.maximum, operand0=0.3, op1=nl.subtract, operand1=0.3)",
        "nisa.tensor_tensor(dst=c, data1=c, data2=l, op=nl.add)",
    ),
    "both sides of two constants": with_lines(
        tile("l", "float32"),
        "nisa.tensor_scalar(dst=l, data=c, op0=nl.minimum, operand0=0.3, op1=nl.maximum, operand1=-0.3)",
        "nisa.tensor_tensor(dst=l, data1=c, data2=l, op=nl.subtract)", tile("m", "float32"),
        "nisa.tensor_scalar(dst=m, data=c, op0=nl.maximum, operand0=-0.3, op1=nl.minimum, operand1=0.3)",
        "nisa.tensor_tensor(dst=c, data1=l, data2=m, op=nl.add)",
    ),
    "where an index is below a bound": with_lines(
        tile("w", "int32"), "nisa.iota(dst=w, pattern=[[1, STEP]])", tile("big", "float32"),
        "nisa.tensor_scalar(dst=big, data=w, op0=nl.less, operand0=512.0)", KEEP,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def toolchain() -> Iterator[SimulatorToolchain]:
    found = SimulatorToolchain("trn2")
    yield found
    found.close()


@pytest.fixture(scope="module")
def honest(toolchain: SimulatorToolchain) -> Program:
    return toolchain.compile(HONEST, ARGUMENTS, 60.0).program


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_not_the_same_is_not_proved_so(toolchain: SimulatorToolchain, honest: Program, name: str) -> None:
    program = toolchain.compile(UNEQUAL[name], ARGUMENTS, 60.0).program
    for seed in SEEDS:
        found = prove(program, Original(lambda: honest, [Input(None)] * 2, seed)).equivalence
        assert found.finding.value != Finding.HELD.value, found.reason


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_the_same_is_proved_so(toolchain: SimulatorToolchain, honest: Program, name: str) -> None:
    program = toolchain.compile(EQUAL[name], ARGUMENTS, 60.0).program
    for seed in SEEDS:
        found = prove(program, Original(lambda: honest, [Input(None)] * 2, seed)).equivalence
        assert found.finding.value == Finding.HELD.value, found.reason


SLOW = with_lines(
    tile("row", "float32", "(1, 16384)"),
    "nisa.memset(dst=row, value=1.0)",
    "nl.fori_loop(0, 40, lambda i: nisa.tensor_tensor_scan(dst=row, data0=row, data1=row, initial=0.0, op0=nl.add, "
    "op1=nl.maximum))",
)
"""Step by step: minutes on elements of a field."""


def test_a_proof_that_takes_long_is_given_up(toolchain: SimulatorToolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator_toolchain, "PROVING_S", 0.5)
    artifact = toolchain.compile(SLOW, ARGUMENTS, 60.0)
    tensors = ONE_DRAW
    found = toolchain.prove(artifact, tensors, 1, 2e-5, lambda: artifact, lambda compute: compute(), all_matter)
    assert {proof.finding for proof in found[:2]} == {Finding.NOT_PROVABLE} and "more than 0.5 s" in found[0].reason


def _draw() -> list[object]:
    namespace: dict[str, object] = {}
    exec(kernels.REFERENCE.replace("2048, 4", "512, 1"), namespace)
    return namespace["get_inputs"]()  # type: ignore[operator, no-any-return]


ONE_DRAW = _draw()

CUT = kernels.REFERENCE.replace(
    "return [np.reshape(result, reference.shape)]", "return [np.asarray(result)[:, : reference.shape[1]]]"
)
PADDED = HONEST.replace("nl.ndarray((rows, n), dtype=x.dtype", "nl.ndarray((rows, n + 64), dtype=x.dtype")


def test_a_result_whose_padding_the_task_cuts_off_need_not_be_written_to_the_end() -> None:
    target = LocalTarget("simulator", "trn2")
    try:
        task = replace(ONE, reference_source=CUT)
        request = EvaluationRequest(task, Candidate("c", PADDED, "input"), extra_seeds=(7,))
        result = target.evaluate(request, lambda step, detail: None)
        assert isinstance(result, Measured), explain(result)
    finally:
        target.close()
