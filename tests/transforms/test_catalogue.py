"""The catalogue as a proposer: plans by price, respects history and memory, explains itself, ends by itself."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import replace

import numpy as np
import pytest

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.catalogue.rewrites import every_rewrite
from accelopt_core.evaluation import Bottleneck, Bounds, CompileFailed, Measured, Profile
from accelopt_core.languages.nki.language import NKI
from accelopt_core.optimization_memory import Experience, OptimizationMemory
from accelopt_core.proposer import CannotRepair, Feedback, NothingToPlan, RoundContext, UnusableReply
from accelopt_core.task import Surroundings
from accelopt_core.transforms.base import AnalysisContext, Refusal, parse_kernel
from accelopt_core.transforms.registry import STEPS, TRANSFORMS
from infra.tasks.seed_index import load_seed
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.reflexion import Diagnosis
from tests.attempts import attempted
from tests.transforms.running import KEEPS_LOADS, predictor, priced_by, run, whole

TODAY = lambda: datetime.date(2026, 11, 20)  # noqa: E731  # a clock, not a function worth a name
LHS, RHS = whole(256, 256), whole(256, 2048, seed=1)
MATMUL = load_seed("matmul")


def price(predict, source: str) -> float:
    return predict([source])[source]


def measured(latency_us: float, **fields: float) -> Measured:
    profile = Profile(fields, Bounds(10.0, 1.0, 1.0, "declared"))
    return Measured(latency_us, latency_us, latency_us, 1, True, "simulated trn2 (nki_sim 0.1)", profile)


def context_for(source: str, latency_us: float = 1000.0, **changes) -> RoundContext:
    parent = Candidate("base", source)
    result = measured(latency_us)
    made = RoundContext(1, MATMUL.task(), parent, result, parent, result, latency_us, NKI)
    return replace(made, **changes)


def attempt(candidate: Candidate, title: str = "x", parent_id: str = "base") -> Attempt:
    return attempted(
        1, "no_improvement", name=candidate.id, source=candidate.source, parent=parent_id, technique="t", title=title,
        latency_us=1.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def predict():
    return priced_by(predictor(LHS, RHS, core=KEEPS_LOADS))


@pytest.fixture(scope="module")
def catalogue(predict):
    return catalogue_proposer(predict, TODAY)


def test_the_first_plan_is_the_largest_predicted_gain_and_comes_true(catalogue, predict):
    context = context_for(MATMUL.kernel_source)

    plan = catalogue.planner.plan(context)
    source = catalogue.executor.execute(context, plan, ())

    assert plan.technique == "hoist-invariant-load"
    assert plan.expected_gain_us == pytest.approx(price(predict, MATMUL.kernel_source) - price(predict, source))
    assert plan.expected_gain_us > 0
    assert "Legal because" in plan.rationale and "Faster because" in plan.rationale
    np.testing.assert_array_equal(run(source, LHS, RHS), run(MATMUL.kernel_source, LHS, RHS))


def test_less_work_comes_before_what_regroups_iterations_and_gains_more():
    def price_of(source: str) -> float:
        return 1000.0 if source == MATMUL.kernel_source else 500.0 if "_group" in source else 900.0

    def planned(*techniques: str) -> Plan:
        transforms = tuple(each for each in TRANSFORMS if each.name in techniques)
        proposer = catalogue_proposer(priced_by(price_of), TODAY, transforms)
        return proposer.planner.plan(context_for(MATMUL.kernel_source))

    assert planned("group-loads", "hoist-invariant-load").technique == "hoist-invariant-load"
    assert planned("group-loads", "move-elementwise-work").technique == "group-loads"


@pytest.mark.parametrize("verb", ["analyze", "apply"])
def test_a_transform_that_fails_costs_its_site_and_not_the_run(verb, predict, monkeypatch):
    def broken(self, *given):
        raise ZeroDivisionError("of its own")

    (hoist,) = (each for each in TRANSFORMS if each.name == "hoist-invariant-load")
    monkeypatch.setattr(type(hoist), verb, broken)
    told: list[Refusal] = []

    found = every_rewrite(parse_kernel(MATMUL.kernel_source), AnalysisContext(told=told.append), STEPS)

    assert found and all(step.site.transform != hoist.name for step in found)
    assert any(each.transform == hoist.name and "itself fails here (ZeroDivisionError: of" in each.why for each in told)


def test_what_was_tried_is_not_planned_again(catalogue):
    context = context_for(MATMUL.kernel_source)
    first = catalogue.planner.plan(context)
    child = Candidate("c", catalogue.executor.execute(context, first, ()))

    by_code = catalogue.planner.plan(replace(context, history=(attempt(child),)))
    other = Candidate("d", "unlike anything")
    by_title = catalogue.planner.plan(replace(context, history=(attempt(other, title=first.title),)))

    assert first.title not in (by_code.title, by_title.title)


def test_a_kernel_that_only_calls_others_is_said_to_be_out_of_reach(catalogue):
    inner = MATMUL.kernel_source.replace("TUNABLES", "_CHOICES")
    source = inner.replace("def kernel(", "def inner(*arguments):\n    return made(*arguments)\n\n\ndef made(")
    source += "\n\n@nki.jit\ndef kernel(a, b):\n    return inner(a, b)\n"
    context = context_for(source)
    task = replace(context.task, around=Surroundings("", "k", (("helpers.py", "def f(x): return x\n"),)))
    with pytest.raises(NothingToPlan, match="none that this calls: a language model can"):
        catalogue.planner.plan(replace(context, task=task))


def test_a_kernel_that_calls_a_function_of_its_file_is_improved_by_way_of_its_normal_form(catalogue):
    inner = MATMUL.kernel_source.replace("def kernel(", "def inner(").replace("TUNABLES", "_CHOICES")
    source = inner + "\n\n@nki.jit\ndef kernel(a, b):\n    return inner(a, b)\n"
    context = context_for(source)
    plan = catalogue.planner.plan(context)
    made = catalogue.executor.execute(context, plan, ())
    assert plan.title.startswith("write the kernel in normal form, then ")
    np.testing.assert_array_equal(run(made, LHS, RHS), run(source, LHS, RHS))


def test_rounds_end_by_themselves_and_every_step_is_faster_and_right(catalogue, predict):
    source, history = MATMUL.kernel_source, ()
    expected = run(source, LHS, RHS)
    latencies = [price(predict, source)]
    with pytest.raises(NothingToPlan, match="no idea left"):
        for _ in range(10):
            context = context_for(source, history=history)
            plan = catalogue.planner.plan(context)
            source = catalogue.executor.execute(context, plan, ())
            np.testing.assert_array_equal(run(source, LHS, RHS), expected)
            history += (attempt(Candidate("c", source), plan.title),)
            latencies.append(price(predict, source))
    assert latencies == sorted(latencies, reverse=True)
    assert len(latencies) > 1


def test_when_memory_holds_a_win_on_this_task_then_the_plan_says_so(catalogue):
    plain = catalogue.planner.plan(context_for(MATMUL.kernel_source))
    win = Experience("earlier", "s", "hoist-invariant-load", speedup=1.4, kernel="matmul", confirmed=2)

    plan = catalogue.planner.plan(context_for(MATMUL.kernel_source, experiences=(win,)))

    assert "Memory" not in plain.rationale and plain.follows == ()
    assert plan.follows == (win.key,)
    assert "won on this task before (1.40x, measured 2 times)" in plan.rationale


def test_when_memory_holds_a_rejection_of_this_very_change_then_another_goes_first(catalogue):
    context = context_for(MATMUL.kernel_source)
    first = catalogue.planner.plan(context)
    lost = Experience(first.title, "s", first.technique, speedup=0.9, kernel="matmul")

    again = catalogue.planner.plan(replace(context, experiences=(lost,)))

    assert again.title != first.title


def test_a_failed_kernel_is_not_repaired(catalogue):
    context = context_for(MATMUL.kernel_source)
    plan = catalogue.planner.plan(context)

    with pytest.raises(CannotRepair, match="SBUF is full"):
        catalogue.executor.execute(context, plan, (Feedback("...", "SBUF is full"),))


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("", "not made by the catalogue"),
        ("{}", "not made by the catalogue"),
        ('{"steps": [{"transform": "none", "site": "a"}]}', "not made by the catalogue"),
        ('{"steps": [{"transform": "hoist-invariant-load", "site": "nowhere/m"}]}', "cannot be applied"),
        ('{"steps": [{"transform": "hoist-invariant-load", "site": "rhs_tile/k"}]}', "cannot be applied"),
    ],
)
def test_a_plan_it_cannot_carry_out_is_refused_by_name(catalogue, details, reason):
    plan = Plan("p", "t", "x", Bottleneck.MEMORY_BOUND, 1.0, "", details)

    with pytest.raises(UnusableReply, match=reason):
        catalogue.executor.execute(context_for(MATMUL.kernel_source), plan, ())


@pytest.mark.parametrize("source", ["def kernel(:\n", "x = 1\n"])
def test_a_kernel_it_cannot_read_ends_the_run_with_a_reason(source):
    proposer = catalogue_proposer(priced_by(lambda text: 1.0), TODAY)

    with pytest.raises(NothingToPlan, match="cannot read this kernel"):
        proposer.planner.plan(context_for(source))


def test_a_kernel_that_cannot_be_simulated_ends_the_run_with_a_reason():
    proposer = catalogue_proposer(priced_by(lambda text: None), TODAY)

    with pytest.raises(NothingToPlan, match="cannot compile this kernel"):
        proposer.planner.plan(context_for(MATMUL.kernel_source))


def test_sites_that_do_not_compile_or_gain_too_little_are_not_planned():
    prices = itertools.chain([1000.0], itertools.cycle([None, 995.0, 1200.0, 1000.0]))
    proposer = catalogue_proposer(priced_by(lambda text: next(prices)), TODAY)

    with pytest.raises(NothingToPlan, match="no idea left"):
        proposer.planner.plan(context_for(MATMUL.kernel_source))


def test_a_win_becomes_an_experience_and_a_lesson(catalogue):
    context = context_for(MATMUL.kernel_source, latency_us=1000.0)
    plan = Plan("p", "move it", "hoist-invariant-load", Bottleneck.MEMORY_BOUND, 300.0, "")
    child = Candidate("c", MATMUL.kernel_source + "\nX = 1\n")
    decision = DivergenceGuard().decide(720.0, 1000.0)

    experience = catalogue.summarizer.summarize(context, plan, child, measured(720.0), decision)
    lesson = catalogue.reflector.reflect(context, plan, child, measured(720.0), decision)

    assert (experience.technique, experience.kernel) == ("hoist-invariant-load", "matmul")
    assert experience.speedup == pytest.approx(1000 / 720)
    assert (lesson.expected_gain_us, lesson.actual_gain_us, lesson.diagnosis) == (300.0, 280.0, Diagnosis.RIGHT)
    assert lesson.build_on and not lesson.avoid
    assert len(OptimizationMemory([experience, experience])) == 1


@pytest.mark.parametrize(
    ("latency_us", "words"),
    [(1100.0, "costs more than it saves"), (900.0, "promised too much"), (400.0, "helps more than")],
)
def test_the_lesson_compares_expected_with_actual(catalogue, latency_us, words):
    context = context_for(MATMUL.kernel_source, latency_us=1000.0)
    plan = Plan("p", "move it", "hoist-invariant-load", Bottleneck.MEMORY_BOUND, 300.0, "")
    decision = DivergenceGuard().decide(latency_us, 1000.0)

    lesson = catalogue.reflector.reflect(context, plan, Candidate("c", ""), measured(latency_us), decision)

    assert words in lesson.lesson
    assert bool(lesson.avoid) is (latency_us > 1000.0)


def test_a_failure_is_a_lesson_too(catalogue):
    plan = Plan("p", "move it", "hoist-invariant-load", Bottleneck.MEMORY_BOUND, 300.0, "")
    decision = DivergenceGuard().decide(None, 1000.0)

    lesson = catalogue.reflector.reflect(
        context_for(MATMUL.kernel_source), plan, Candidate("c", ""), CompileFailed("no room"), decision
    )

    assert "no room" in lesson.lesson
    assert (lesson.outcome, lesson.actual_gain_us, lesson.avoid) == ("compile_failed", None, ("move it (on base)",))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"total_time": 1.0, "tensor_engine_active_time": 0.9, "dma_active_time": 0.7}, Bottleneck.COMPUTE_BOUND),
        ({"total_time": 1.0, "tensor_engine_active_time": 0.3, "dma_active_time": 0.7}, Bottleneck.MEMORY_BOUND),
        ({"total_time": 1.0, "tensor_engine_active_time": 0.3, "dma_active_time": 0.2}, Bottleneck.UNDERUTILIZED),
        ({}, Bottleneck.UNDERUTILIZED),
    ],
)
def test_the_bottleneck_is_the_busiest_engine_if_any_is_busy(fields, expected):
    assert measured(1000.0, **fields).bottleneck is expected


def test_names_are_unique_and_every_transform_describes_itself():
    assert len({transform.name for transform in TRANSFORMS}) == len(TRANSFORMS)
    assert all(transform.describe().endswith(".") for transform in TRANSFORMS)
