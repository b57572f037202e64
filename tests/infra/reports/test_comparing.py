"""Proposers and models beside each other, and what a run owes to memory, as `show` says it a month later."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Step, TimedOut
from accelopt_core.learning.experiences import uses_of
from accelopt_core.loop.choosing import Turn
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import Role, Usage
from infra.llm.ledger import LedgerEntry
from infra.runs.run_folder import RunFolder
from infra.terminal.report import print_report, summary_of
from ka_extensions.bandit import Draw, Spent
from ka_extensions.outcome import Outcome
from tests.infra.samples import attempted, manifest, measured

WON = Experience("Widen rows", "s", "widen", speedup=1.5, kernel="add")
LOST = Experience("Split rows", "s", "split", speedup=0.5, kernel="add")
OTHER = Experience("Transpose once", "s", "transpose", speedup=1.2, kernel="add")


def by(attempt: Attempt, proposer: str, *follows: Experience, **more: object) -> Attempt:
    assert attempt.plan is not None
    plan = replace(attempt.plan, proposer=proposer, follows=tuple(each.key for each in follows))
    return replace(attempt, plan=plan, proposer=proposer, spent=Spent(0.25, 30.0), **more)


def shown(folder: RunFolder, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(console, summary_of(folder))
    return console.file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path, manifest("run"), {})
    run.best(Candidate("input", "x = 0\n"), measured(500.0))
    for attempt in (
        by(attempted(1, measured(250.0), 500.0), "a:good", WON, LOST),
        by(attempted(2, measured(240.0), 250.0), "a:good", WON),
        by(attempted(3, measured(600.0), 240.0), "catalogue", LOST),
        by(attempted(4, measured(600.0), 240.0), "a:good", WON),
    ):
        run.attempt(attempt)
    draws = tuple(Draw(name, 1.0, 0.5, 0.1, 0.2) for name in ("catalogue", "a:good", "b:poor"))
    run.take(Turn(1, 0, "a:good", draws))
    run.keep_shown(1, (WON, LOST))
    run.keep_shown(2, (OTHER, WON))
    for role, usd in ((Role.PLANNER, 0.5), (Role.EXECUTOR, 0.25)):
        run.spend(LedgerEntry(role, "good", Usage(1000, 50), usd, proposer="a:good"))
    run.spend(LedgerEntry(Role.PLANNER, "poor", Usage(10, 0), None, True, proposer="b:poor"))
    run.close()
    return run


def row(text: str, name: str) -> str:
    return " ".join(next(line for line in text.splitlines() if line.startswith(name)).split())


def test_proposers_and_models_are_beside_each_other_with_what_each_gained_and_cost(folder: RunFolder) -> None:
    text = shown(folder)
    assert row(text, "proposer ") == "proposer tries wins speed-up ln per try cost time"
    assert row(text, "a:good") == "a:good 3 2 2.08x 0.245 $0.75 1:30"
    assert row(text, "catalogue") == "catalogue 1 0 1.00x 0.000 - 0:30"
    assert row(text, "b:poor") == "b:poor 0 0 - - unknown (1 call of unknown price) -"
    text = shown(folder)
    assert row(text, "good") == "good 2 0 2,000 in, 100 out $0.75 1, $0.50 1, $0.25 - -"
    unknown = "unknown (1 call of unknown price)"
    assert row(text, "poor") == f"poor 1 1 10 in, 0 out {unknown} 1, {unknown} - - -"


def test_the_report_names_what_memory_was_used_for_and_whether_it_helped(folder: RunFolder) -> None:
    said = next(line for line in shown(folder).splitlines() if line.startswith("memory"))
    assert said == 'memory   "Widen rows" helped 2 of 3; "Split rows" helped 1 of 2; 1 more was shown'
    failed = by(attempted(1, TimedOut(Step.COMPILE, 300.0), 500.0), "", WON, outcome=Outcome.MODEL_FAILED)
    assert uses_of([failed], [WON]) == ([], 1)
