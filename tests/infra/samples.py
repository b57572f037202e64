"""Values that several tests need: small, but of the real types."""

from __future__ import annotations

from accelopt_core.candidate import Bottleneck, Candidate, Plan
from accelopt_core.evaluation import Bounds, Evaluation, Gap, HotLine, Measured, Profile, explain
from accelopt_core.ports import TargetInfo, Try
from infra.run_folder import Manifest
from ka_extensions.attempt_history import Attempt
from ka_extensions.divergence_guard import DivergenceGuard
from ka_extensions.reflexion import Reflexion

TARGET = TargetInfo("simulated trn2", "nki_sim-1", True)
PLAN = Plan("p1", "Hoist the rhs load", "hoist", Bottleneck.MEMORY_BOUND, 100.0, "it is invariant", "move line 12")


def measured(us: float, *, simulated: bool = True, source: str = "declared") -> Measured:
    bounds = Bounds(100.0, 10.0, 50.0, source)  # type: ignore[arg-type]  # a literal, given by the test
    gaps = (Gap("the tensor engine waits for DMA", us / 4, "hoist", "e"), Gap("spills", us / 8, "block", "e"))
    profile = Profile({"hbm_read_bytes": 1.0, "mfu": float("nan")}, bounds, (HotLine(12, "pe", 3.0, 4, "x"),), gaps)
    return Measured(us, us * 0.99, us * 1.01, 10, simulated, "simulated trn2 (nki_sim 0.1)", profile, ("5 seeds",))


def manifest(run_id: str, **changes: object) -> Manifest:
    values: dict[str, object] = {
        "run_id": run_id, "created": "2026-11-20T12:54:18+00:00", "task": "matmul", "shape": "M256 K256",
        "kernel": "/home/me/mine.py", "target": TARGET, "proposer": "catalogue", "versions": {"program": "0.1.0"},
        "rounds": 10,
    }  # fmt: skip
    return Manifest(**(values | changes))  # type: ignore[arg-type]  # the fields by name


def attempted(round: int, evaluation: Evaluation, best_us: float, *, source: str = "x = 1\n", number: int = 1) -> Try:
    us = evaluation.latency_us if isinstance(evaluation, Measured) else None
    decision = DivergenceGuard().decide(us, best_us)
    candidate = Candidate(f"r{round:03d}t{number}", source, "input", PLAN.id)
    outcome = decision.verdict.value if us is not None else evaluation.kind
    attempt = Attempt(
        round, candidate.id, candidate.content_hash, "input", PLAN.technique, PLAN.title, outcome, us,
        explain(evaluation),
    )  # fmt: skip
    reflexion = Reflexion(round, PLAN.title, PLAN.technique, 100.0, None, outcome, True, "lesson", ("a",), ("b",))
    return Try(round, number, PLAN, candidate, evaluation, attempt, decision, reflexion)
