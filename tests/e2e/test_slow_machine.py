"""The catalogue finds the same kernels on a slower machine: its planning is bounded by work and not by the clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nki_optimizer import Outcome, optimize
from tests.e2e.run import ROOT

TIMES_SLOWER = 8.0


def found(folder: Path) -> tuple[list[tuple[int, str | None, float | None]], str, str]:
    """What was tried in which round and how fast it was, why the run ended, and the best kernel."""
    seed = ROOT / "nkibench_seeds" / "add_rmsnorm_matmul"
    outcome: Outcome = optimize(
        seed / "kernel.py", seed / "reference.py", preset="small", provider="catalogue", rounds=3,
        checkpoints=folder / "checkpoints", memory=folder / "memory.json",
    )  # fmt: skip
    tried = [(each.round, each.candidate and each.candidate.source, each.latency_us) for each in outcome.attempts]
    return tried, outcome.ending.value, outcome.source


@pytest.mark.slow
def test_a_clock_that_runs_faster_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = found(tmp_path / "here")
    assert len(here[0]) >= 2, "there is something to find"
    real, began = time.monotonic, time.monotonic()
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return began + TIMES_SLOWER * (real() - began)

    monkeypatch.setattr(time, "monotonic", clock)
    assert found(tmp_path / "slower") == here
    assert asked > 100, "it is looked at"
