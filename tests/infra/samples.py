"""Values that several tests need: small, but of the real types."""

from __future__ import annotations

from collections.abc import Iterator

from accelopt_core.candidate import Attempt, Candidate, Plan
from accelopt_core.evaluation import (
    ROUND_STEPS,
    Bottleneck,
    Bounds,
    CheckFailure,
    Evaluation,
    Gap,
    HotLine,
    Incorrect,
    Likely,
    Measured,
    Profile,
    Step,
    explain,
)
from accelopt_core.loop.events import (
    BaselineMeasured,
    BudgetUpdate,
    Event,
    PlanMade,
    RoundEnded,
    RoundStarted,
    RunStarted,
    StepBegan,
    StepNote,
)
from accelopt_core.ports import TargetInfo, Usage
from infra.runs.run_folder import Manifest
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.outcome import Outcome
from ka_extensions.reflexion import Diagnosis, Reflexion

TARGET = TargetInfo("simulated trn2", "nki_sim-1", True, "trn2")
PLAN = Plan("p1", "Hoist the rhs load", "hoist", Bottleneck.MEMORY_BOUND, 100.0, "it is invariant", "move line 12")


def measured(us: float, *, simulated: bool = True, source: str = "declared") -> Measured:
    bounds = Bounds(100.0, 10.0, 50.0, source)  # type: ignore[arg-type]  # a literal, given by the test
    gaps = (Gap("the tensor engine waits for DMA", us / 4, "hoist", "e"), Gap("spills", us / 8, "block", "e"))
    profile = Profile({"hbm_read_bytes": 1.0, "mfu": float("nan")}, bounds, (HotLine(12, "pe", 3.0, 4, "x"),), gaps)
    likely = Likely(us * 0.8, us * 1.1, 0.8, ("149 measured kernels", "13 % by priors")) if simulated else None
    return Measured(
        us, us * 0.99, us * 1.01, 10, simulated, "simulated trn2 (nki_sim 0.1)", profile, ("5 seeds",), likely=likely
    )  # fmt: skip


def manifest(run_id: str, **changes: object) -> Manifest:
    values: dict[str, object] = {
        "run_id": run_id, "created": "2026-11-20T12:54:18+00:00", "task": "matmul", "shape": "M256 K256",
        "kernel": "/home/me/mine.py", "target": TARGET, "proposer": "catalogue", "versions": {"program": "0.1.0"},
        "rounds": 10,
    }  # fmt: skip
    return Manifest(**(values | changes))  # type: ignore[arg-type]  # the fields by name


def attempted(
    round: int, evaluation: Evaluation, best_us: float, *, source: str = "x = 1\n", number: int = 1
) -> Attempt:
    us = evaluation.latency_us if isinstance(evaluation, Measured) else None
    decision = DivergenceGuard().decide(us, best_us)
    candidate = Candidate(f"r{round:03d}t{number}", source, "input", PLAN.id)
    outcome = Outcome(decision.verdict.value if us is not None else evaluation.kind)
    reflexion = Reflexion(
        round, PLAN.title, PLAN.technique, 100.0, None, outcome, Diagnosis.RIGHT, "lesson", ("a",), ("b",)
    )
    return Attempt(
        round, number, "input", PLAN, candidate, evaluation, outcome, explain(evaluation), decision=decision,
        reflexion=reflexion,
    )  # fmt: skip


def run_events(rounds: int = 3, *, simulated: bool = True, source: str = "declared") -> Iterator[Event]:
    """A run as it is told: the input at 500 µs, then improved to 250, wrong, no improvement, again from the start."""
    yield RunStarted("20261120-125418-matmul-3f2a", "matmul", "M256 K256", "/home/me/mine.py", TARGET, "catalogue", 10,
                     5, "/runs/x", experiences=2)  # fmt: skip
    for step in (Step.UPLOAD, Step.VERIFY, Step.BENCHMARK):
        yield StepBegan(0, step)
    yield BaselineMeasured(measured(500.0, simulated=simulated, source=source))
    results: list[Evaluation] = [
        measured(250.0, simulated=simulated, source=source),
        Incorrect(CheckFailure(42, "small", 0, "relative error", 0.5, 2e-5)),
        measured(251.0, simulated=simulated, source=source),
    ]
    best = 500.0
    for number in range(1, rounds + 1):
        entry = attempted(number, results[(number - 1) % 3], best)
        assert entry.decision is not None and entry.plan is not None
        yield RoundStarted(number, "input", best)
        for step in ROUND_STEPS:
            yield StepBegan(number, step)
            if step is Step.PLAN:
                yield PlanMade(number, entry.plan)
                yield StepNote(number, step, entry.plan.title)
        if entry.decision.improved and entry.latency_us is not None:
            best = entry.latency_us
        yield BudgetUpdate(Usage(1000 * number, 100 * number), 0.25 * number, 0, 7.0 * number)
        yield RoundEnded(entry, entry.decision)
