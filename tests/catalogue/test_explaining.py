"""Why gaps are still there: what is offered, refused, tried or applied at their lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue.explaining import explained, joined
from accelopt_core.catalogue.kernel_trees import PricedStep, Refusal, SingleSteps, StepName, as_details
from accelopt_core.evaluation import Gap, HotLine, Measured
from accelopt_core.explanation import Explanation, Verdict, reasons, stops
from accelopt_core.languages.nki.gaps import Cause
from infra.records import from_document, to_document
from tests.attempts import attempted
from tests.catalogue.scripted import ScriptedTrees, measured, source_of

KERNEL = Candidate("input", source_of(""))
VECTOR, DMA = f"{Cause.ELEMENTWISE.value} vector", Cause.DMA_BANDWIDTH.value


def result() -> Measured:
    made = measured(100.0)
    lines = (HotLine(7, "vector", 40.0, 9, "vector work"), HotLine(9, "dma", 30.0, 9, "a load"))
    gaps = (Gap(VECTOR, 40.0, "fuse", ""), Gap(DMA, 30.0, "widen rows", ""), Gap(Cause.TAIL.value, 0.5, "", ""))
    return replace(made, profile=replace(made.profile, hot_lines=lines, gaps=gaps))


def step(rule: str, line: int, gain_us: float | None, what: str = "x") -> PricedStep:
    return PricedStep(StepName(rule, what), what, "", (line,), 100.0, None if gain_us is None else 100.0 - gain_us)


STEPS = SingleSteps(
    100.0,
    (
        step("fuse", 7, 20.0),
        step("fuse", 7, 10.0, "y"),
        step("move", 7, -3.0),
        step("widen", 9, 0.5),
        step("load", 9, None),
    ),
    (Refusal("lift", "up", (9,), "it differs from pass to pass"), Refusal("lift", "all", (5,), "elsewhere")),
)


def verdicts(explanation: Explanation, gap: str) -> list[tuple[str, Verdict]]:
    (found,) = [each for each in explanation.gaps if each.name == gap]
    return [(answer.rule, answer.verdict) for answer in found.answers]


def test_answers_stand_at_the_lines_of_their_gap_what_gains_first() -> None:
    found = joined(KERNEL, result(), STEPS, (), 0.02)
    assert [gap.name for gap in found.gaps] == [VECTOR, DMA]
    assert verdicts(found, VECTOR) == [("fuse", Verdict.GAINS), ("move", Verdict.NO_GAIN)]
    assert found.gaps[0].answers[0].gain_us == 20.0 and found.gaps[0].answers[0].more == 1
    assert set(verdicts(found, DMA)) == {
        ("lift", Verdict.REFUSED), ("widen", Verdict.NO_GAIN), ("load", Verdict.NO_GAIN),
    }  # fmt: skip
    assert not any("fuse" in line for line in stops(found.gaps[0]))


def test_a_gap_without_an_answer_names_its_remedy() -> None:
    found = joined(KERNEL, result(), SingleSteps(100.0, (), ()), (), 0.02)
    assert all(gap.remedy in reasons(gap)[0] for gap in found.gaps)


def test_what_was_tried_or_applied_says_when() -> None:
    def did(attempt: Attempt, name: str) -> Attempt:
        assert attempt.plan is not None
        details = as_details([next(each for each in STEPS.steps if each.name.rule == name)])
        return replace(attempt, plan=replace(attempt.plan, details=details))

    tried = did(attempted(3, "no_improvement", parent="r002t1", technique="t", latency_us=101.0), "fuse")
    applied = did(attempted(2, "improved", name="r002t1", technique="t", latency_us=100.0), "widen")
    found = joined(Candidate("r002t1", source_of("")), result(), STEPS, (applied, tried), 0.02)
    vector = found.gaps[0]
    assert ("fuse", Verdict.TRIED) in verdicts(found, VECTOR)
    assert [each.said for each in vector.answers if each.verdict is Verdict.APPLIED] == ["widen in round 2"]


def test_what_cannot_be_read_says_so_and_still_tells_the_gaps() -> None:
    found = explained(KERNEL, result(), ScriptedTrees({}, unreadable="a riddle"))
    assert "a riddle" in found.note and len(found.gaps) == 2


@pytest.mark.parametrize("steps", [STEPS, SingleSteps(100.0, (), (), 4)])
def test_it_is_kept_as_it_is(steps: SingleSteps) -> None:
    made = joined(KERNEL, result(), steps, (), 0.02)
    assert from_document(Explanation, to_document(made), "gaps.json") == made
