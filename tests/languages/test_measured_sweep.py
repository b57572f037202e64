"""The catalogue where nothing is simulated: declared values, each once, from the best kernel on."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue.measured_sweep import sweeping_proposer
from accelopt_core.languages.nki.language import NKI
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, RoundContext, UnusableReply
from ka_extensions.divergence_guard import Decision, Verdict
from tests.attempts import attempted
from tests.llm.scenes import TASK, measured

SOURCE = "BLOCK = 64\nWARPS = 4\nTUNABLES = {'BLOCK': (32, 64, 256), 'WARPS': (2, 4)}\n"
PROPOSER = sweeping_proposer(lambda: datetime.date(2026, 11, 24))


def context(source: str = SOURCE, history: tuple[Attempt, ...] = (), **more: object) -> RoundContext:
    kernel, result = Candidate("c0", source), measured(100.0)
    made = RoundContext(1, TASK, kernel, result, kernel, result, 100.0, NKI, history, measured=((kernel, result),))
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def tried(number: int, source: str) -> Attempt:
    return attempted(number, "no_improvement", name=f"c{number}", source=source, parent="c0", latency_us=101.0)


def test_each_declared_value_is_tried_once_the_nearest_first() -> None:
    history: tuple[Attempt, ...] = ()
    seen = []
    for number in range(1, 10):
        now = context(history=history)
        try:
            plan = PROPOSER.planner.plan(now)
        except NothingToPlan as error:
            assert "all 3 single changes" in str(error)
            break
        source = PROPOSER.executor.execute(now, plan, ())
        seen.append(plan.title)
        history = (*history, tried(number, source))
    assert seen == ["change BLOCK from 64 to 32", "change BLOCK from 64 to 256", "change WARPS from 4 to 2"]
    first = PROPOSER.planner.plan(context())
    assert PROPOSER.planner.plan(context(planned=(first,))).title != first.title


@pytest.mark.parametrize(("source", "why"), [
    ("BLOCK = 64\n", "declares nothing tunable"), ("TUNABLES = {'A': (1, 2)}\n", "A is not assigned once"),
])  # fmt: skip
def test_a_kernel_without_tunables_is_told_how_to_declare_them(source: str, why: str) -> None:
    with pytest.raises(NothingToPlan, match=why):
        PROPOSER.planner.plan(context(source))


def test_a_value_has_no_second_version_and_a_strange_plan_is_refused() -> None:
    plan = PROPOSER.planner.plan(context())
    with pytest.raises(CannotRepair, match="no second version"):
        PROPOSER.executor.execute(context(), plan, (Feedback("x", "wrong"),))
    for details in ("{}", "no json", '{"name": "BLOCK", "value": 7}', '{"name": "X", "value": 1}'):
        with pytest.raises(UnusableReply):
            PROPOSER.executor.execute(context(), replace(plan, details=details), ())


def test_what_was_measured_is_summed_up_without_a_prediction() -> None:
    plan = PROPOSER.planner.plan(context())
    better = Candidate("c1", PROPOSER.executor.execute(context(), plan, ()))
    decision = Decision(Verdict.IMPROVED, 90.0, 100.0, 98.0, "faster")
    reflexion = PROPOSER.reflector.reflect(context(), plan, better, measured(90.0), decision)
    assert "gained 10.0 µs; nothing had been predicted" in reflexion.lesson
    experience = PROPOSER.summarizer.summarize(context(), plan, better, measured(90.0), decision)
    assert experience.technique == "sweep-tunable" and experience.speedup == pytest.approx(100 / 90)
