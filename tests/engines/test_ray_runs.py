"""Whole runs on two real Ray nodes end as they do on this machine, to the byte; also after they were killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.tasks.seed_index import seed_index
from tests.e2e.run import KEYS, ROOT, orchestrate
from tests.engines.cluster import Cluster, running_cluster
from tests.infra.reports.test_suite import a_run
from tests.processes import eventually

pytestmark = [pytest.mark.extra("ray"), pytest.mark.slow]
SECRETLESS = ("--provider", "catalogue", "--preset", "small")
OF_THE_SUITE = ("silu", "adamw", "rope_single_freq_apply")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


def stored_us(run: Path, name: str) -> float:
    """Of `baseline.json` or `best.json`."""
    digest = json.loads((run / name).read_text(encoding="utf-8"))["evaluation"]
    (stored,) = (run / "evaluations").glob(f"{digest}*.json")
    return json.loads(stored.read_text(encoding="utf-8"))["evaluation"]["latency_us"]


def attempts(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "experiments.jsonl").read_text(encoding="utf-8").splitlines()]


def came_to(run: Path) -> dict[str, object]:
    """All that must be the same, whoever evaluated it."""
    kernels = {path.name: path.read_bytes() for path in run.rglob("*.py")}
    verdicts = [{key: each.get(key) for key in ("id", "outcome", "message", "decision")} for each in attempts(run)]
    return {
        "kernels": kernels,
        "verdicts": verdicts,
        "latencies": (stored_us(run, "baseline.json"), stored_us(run, "best.json")),
    }


def both(cluster: Cluster, tmp_path: Path, *flags: str) -> dict[str, Path]:
    """The folders of two runs of these flags, here and there."""
    found = {}
    for name in ("local", cluster.name):
        folder = tmp_path / name.partition(":")[0]
        folder.mkdir()
        ran = orchestrate(*SECRETLESS, *flags, "--engine", name, folder=folder)
        assert ran.status == 0, ran.errors + ran.output
        found[name] = ran.folder
    return found


def test_a_beam_run_ends_as_it_does_here(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--task", "silu", "--rounds", "2", "--beam", "2", "--plans", "2", "--samples", "1")
    local, ray = both(cluster, tmp_path, *flags).values()
    assert came_to(ray) == came_to(local)
    notes = [json.loads(line) for line in (ray / "run.log").read_text(encoding="utf-8").splitlines()]
    workers = {found for each in notes for found in re.findall(r"worker (\d+)", str(each.get("detail", "")))}
    assert len(workers) >= 2, "both nodes had a part in it"


def test_a_suite_of_three_tasks_side_by_side_ends_as_one_after_the_other(cluster: Cluster, tmp_path: Path) -> None:
    runs: dict[str, dict[str, Path]] = {}
    for name in ("local", cluster.name):
        folder = tmp_path / name.partition(":")[0]
        checkpoints = folder / "checkpoints"
        for seed in seed_index():
            if seed.name not in OF_THE_SUITE:
                a_run(checkpoints, seed.name, 40.0, 20.0)
        flags = ("--suite", "nkibench", "--resume", "s1", "--rounds", "1", "--engine", name)
        ran = orchestrate(*SECRETLESS, *flags, folder=folder, timeout_s=600)
        assert ran.status == 0, ran.errors + ran.output
        assert "over 14 tasks: " in ran.output
        runs[name] = {task: checkpoints / f"s1.{task}" for task in OF_THE_SUITE}
    for task in OF_THE_SUITE:
        assert came_to(runs[cluster.name][task]) == came_to(runs["local"][task]), task


def test_a_run_that_is_killed_goes_on_and_evaluates_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = (*SECRETLESS, "--task", "matmul", "--rounds", "2", "--run-id", "r", "--view", "quiet", "--extra-seeds", "0")
    for folder in (whole, killed):
        folder.mkdir()
    assert orchestrate(*flags, folder=whole).status == 0
    clean = {name: value for name, value in os.environ.items() if name not in KEYS}
    run = killed / "checkpoints" / "r"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "orchestrator.py"), *flags, "--engine", cluster.name,
         "--checkpoints", str(killed / "checkpoints"), "--memory", str(killed / "memory" / "rewrites.json")],
        cwd=killed, env={**clean, "NKI_OPT_MENU_SECONDS": "0"}, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: len(list(run.glob("evaluations/*.json"))) >= 2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    recorded = {path.name: path.stat().st_mtime_ns for path in run.glob("evaluations/*.json")}
    again = orchestrate("--resume", "r", "--engine", cluster.name, folder=killed)
    assert again.status == 0, again.errors + again.output
    assert came_to(run) == came_to(whole / "checkpoints" / "r")
    after = {path.name: path.stat().st_mtime_ns for path in run.glob("evaluations/*.json")}
    assert {name: after.get(name) for name in recorded} == recorded, "what was recorded is not evaluated again"
