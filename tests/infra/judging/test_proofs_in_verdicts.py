"""What was proved of a kernel stands in its verdict, its record and its report; and what a refutation does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Evaluation, Finding, Incorrect, Measured, Proof, Property, explain
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import ReferenceCache
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset
from infra.engines.local import LocalEngine
from infra.judging import wire
from infra.records import to_document
from infra.runs.evaluations import evaluation_from
from infra.simulator import toolchain as simulator_toolchain
from infra.simulator.toolchain import SimulatorToolchain
from infra.targets.local import LocalTarget
from infra.tasks.seed_index import load_seed
from infra.terminal import wording
from tests.infra.samples import measured
from tests.slow import quick

SILU = load_seed("silu").kernel_source
SMALL = ShapePreset("small", (("M", 128), ("N", 1024)))
ACTIVATION = "nisa.activation(dst=out, op=nl.silu, data=tile)"
BY_HAND = """
            nisa.activation(dst=out, op=nl.sigmoid, data=tile)
            nisa.tensor_tensor(dst=out, data1=out, data2=tile, op=nl.multiply)
""".strip()
SLIGHTLY_MORE = ACTIVATION.replace("data=tile", "data=tile, scale=1.0000001")
NEVER_WRITTEN = f"""{ACTIVATION}
            four = nl.ndarray((TILE_M, TILE_N), dtype=nl.int32, buffer=nl.sbuf)
            gone = nl.ndarray((TILE_M, TILE_N), dtype=nl.int32, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=gone, data=four, op0=nl.subtract, operand0=4.0, op1=nl.multiply, operand1=four
            )
            nisa.tensor_tensor(dst=out, data1=out, data2=gone, op=nl.add)
""".strip()
"""Integers that nothing wrote are 4 in this simulator, and once more 0: here both come to nothing."""

PROOFS = (
    Proof(Property.COVERAGE, Finding.HELD, "every output element is written"),
    Proof(Property.EQUIVALENCE, Finding.REFUTED, "not the original's formula: output 0 at [0, 1]"),
)


def judged(target: LocalTarget, activation: str, *, proposed: bool = True) -> tuple[Evaluation, list[str]]:
    task = load_seed("silu").task()
    small = replace(task, presets=(SMALL,), seeds=(0,))
    source = SILU.replace(ACTIVATION, activation)
    candidate = Candidate("c", source, "input") if proposed else Candidate("input", source)
    original = Candidate("input", SILU) if proposed else None
    said: list[str] = []
    result = target.evaluate(
        EvaluationRequest(small, candidate, original=original), lambda step, detail: said.append(detail)
    )
    return result, said


def test_a_proof_or_a_refutation_stands_in_the_verdict(target: LocalTarget) -> None:
    result, _ = judged(target, BY_HAND)
    assert isinstance(result, Measured), explain(result)
    assert [proof.finding for proof in result.proofs] == [Finding.HELD] * 2
    assert result.rests_on == ("proved equal to the input kernel up to reassociation (at M128 N1024), and tested")
    assert result.refuted is None
    result, _ = judged(target, ACTIVATION, proposed=False)
    assert isinstance(result, Measured)
    assert [proof.property for proof in result.proofs] == [Property.COVERAGE]
    result, said = judged(target, SLIGHTLY_MORE)
    assert isinstance(result, Measured), explain(result)
    assert result.refuted is not None and result.refuted.property is Property.EQUIVALENCE
    assert "NOT the input kernel's formula" in result.rests_on
    assert any("equivalence refuted: not the original's formula: output 0 at [0, 0]" in line for line in said)
    result, _ = judged(target, NEVER_WRITTEN)
    assert isinstance(result, Incorrect), explain(result)
    assert "on memory that nothing wrote: line" in explain(result)


WAITS = "proved equal at "
ONLY_AT_FULL = {by: f"""
if M == 128:
                {ACTIVATION}
            else:
                {text}
""".strip() for by, text in {"hand": BY_HAND.replace("\n", "\n    "), "more": SLIGHTLY_MORE}.items()}  # fmt: skip
"""At the gate the input kernel's own program, of which a proof says nothing about the full shape."""
FULL_DRAWS = {
    # a kernel, whether our catalogue made it, whether it is the last check, and what is drawn at the full shape
    "proved": (BY_HAND, False, False, "1 seeds, 2 input distributions"),
    "not the formula": (SLIGHTLY_MORE, False, False, "2 seeds, 2 input distributions"),
    "proved, the last check": (BY_HAND, False, True, "2 seeds, 2 input distributions"),
    "not the formula, the last check": (SLIGHTLY_MORE, False, True, "3 seeds, 2 input distributions"),
    "proved, of the catalogue": (BY_HAND, True, False, WAITS),
    "not the formula, of the catalogue": (SLIGHTLY_MORE, True, False, "2 seeds, 2 input distributions"),
    "proved, of the catalogue, the last check": (BY_HAND, True, True, "2 seeds, 2 input distributions"),
    "another at the full shape alone, proved there": (ONLY_AT_FULL["hand"], True, False, f"{WAITS}M256"),
    "not the formula at the full shape alone": (ONLY_AT_FULL["more"], True, False, "2 seeds, 2 input distributions"),
}


@pytest.mark.parametrize(
    "case",
    quick(
        "proved, of the catalogue",
        "not the formula, the last check",
        "another at the full shape alone, proved there",
        "not the formula at the full shape alone",
        of=FULL_DRAWS,
    ),
)
def test_a_proof_saves_seeds_at_the_full_shape(target: LocalTarget, case: str) -> None:
    activation, by_tool, final, drawn = FULL_DRAWS[case]
    task, gate = load_seed("silu").task(), SMALL
    twice = ShapePreset("full", tuple((n, 2 * v if n == "M" else v) for n, v in gate.values))
    request = EvaluationRequest(
        replace(task, presets=(gate, twice), seeds=(0, 1)),
        Candidate("c", SILU.replace(ACTIVATION, activation), "input"),
        extra_seeds=(77,),
        final=final,
        original=Candidate("input", SILU),
        by_tool=by_tool,
    )
    result = target.evaluate(request, lambda step, detail: None)
    assert isinstance(result, Measured), explain(result)
    assert result.checks[-1].startswith(f"{twice.name} ({twice.describe()}): {drawn}"), result.checks
    assert result.verified_full == (not drawn.startswith(WAITS))


def test_a_proof_at_the_first_shape_hides_nothing_from_the_last_check(target: LocalTarget) -> None:
    """A kernel that is another one at the full shape: right where it is proved, wrong where it counts."""
    task, gate = load_seed("silu").task(), SMALL
    twice = ShapePreset("full", tuple((n, 2 * v if n == "M" else v) for n, v in gate.values))
    forked = ONLY_AT_FULL["more"].replace(ACTIVATION, BY_HAND.replace("\n", "\n    "), 1).replace("1.0000001", "1.001")
    request = EvaluationRequest(
        replace(task, presets=(gate, twice), seeds=(0, 1)),
        Candidate("c", SILU.replace(ACTIVATION, forked), "input"),
        original=Candidate("input", SILU),
        by_tool=True,
    )
    in_a_round = target.evaluate(request, lambda step, detail: None)
    assert isinstance(in_a_round, Measured) and in_a_round.is_proved_equal and not in_a_round.verified_full
    last = target.evaluate(replace(request, final=True), lambda step, detail: None)
    assert isinstance(last, Incorrect) and "shape full" in explain(last), explain(last)
    by_a_model = target.evaluate(replace(request, by_tool=False), lambda step, detail: None)
    assert isinstance(by_a_model, Incorrect), explain(by_a_model)


def references_of(target: LocalTarget) -> list[Path]:
    assert isinstance(target.engine, LocalEngine)
    return sorted(target.engine._scratch.path.glob("session-*/*.complete"))


def test_what_the_original_came_to_is_computed_once(target: LocalTarget) -> None:
    judged(target, BY_HAND)
    kept = references_of(target)
    written = [path.stat().st_mtime_ns for path in kept]
    judged(target, SLIGHTLY_MORE)
    again = references_of(target)
    assert kept and again == kept
    assert [path.stat().st_mtime_ns for path in again] == written


def test_proofs_travel_are_kept_and_reported() -> None:
    result = replace(measured(20.0), proofs=PROOFS)
    assert wire.decode_result(wire.encode_evaluation(result, nonce="n"), nonce="n").proofs == PROOFS  # type: ignore[union-attr]
    assert evaluation_from(to_document(result), "a file").proofs == PROOFS  # type: ignore[union-attr]
    without = to_document(result)
    del without["proofs"]
    assert evaluation_from(without, "an older file").proofs == ()  # type: ignore[union-attr]
    notes = wording.notes(measured(40.0), replace(measured(20.0), proofs=PROOFS))
    assert notes[-2] == "right because tested; NOT the input kernel's formula; every output element proved written"
    assert notes[-1] == "equivalence refuted: not the original's formula: output 0 at [0, 1]"
    assert not any("right because" in note for note in wording.notes(measured(40.0), measured(20.0)))


def test_what_takes_too_long_to_prove_is_not_provable_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_seed("silu").task()
    small = replace(task, presets=(SMALL,), seeds=(0,))
    request = EvaluationRequest(small, Candidate("c", SILU, "input"), original=Candidate("input", SILU))
    monkeypatch.setattr(simulator_toolchain, "PROVING_S", 1e-4)
    toolchain = SimulatorToolchain("trn2")
    try:
        result = judge(request, toolchain, lambda step, detail: None, ReferenceCache(None))
    finally:
        toolchain.close()
    assert isinstance(result, Measured)
    late = {proof.property: proof for proof in result.proofs if proof.reason.startswith("it takes more than")}
    assert set(late) == {Property.COVERAGE, Property.EQUIVALENCE}
    assert {proof.finding for proof in late.values()} == {Finding.NOT_PROVABLE}
