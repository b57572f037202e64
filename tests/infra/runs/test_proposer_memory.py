"""What earlier runs know of who proposes: counted once, bounded, kept when damaged."""

from __future__ import annotations

import json
import math
import multiprocessing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from infra.runs.proposer_memory import MOST_RUNS, ProposerMemory
from ka_extensions.bandit import Pull, Spent, Track

spawn = multiprocessing.get_context("spawn")
NOW = datetime(2026, 11, 20, 12, 54, 18, tzinfo=timezone.utc)


def refuse(notice: str) -> None:
    raise AssertionError(f"no notice was expected: {notice}")


def memory_of(run: str, folder: Path, notices: list[str] | None = None) -> ProposerMemory:
    notice = refuse if notices is None else notices.append
    return ProposerMemory(folder / "rewrites.json", run, notice, now=lambda: NOW)


def pull(proposer: str, gained: float = 0.0, bottleneck: str = "memory-bound") -> Pull:
    return Pull(proposer, 1, bottleneck, gained, Spent(0.5, 10.0))


def test_a_run_is_told_of_the_others_and_not_of_itself(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    memory_of("one", folder).record([pull("a", math.log(2)), pull("a"), pull("b", bottleneck="compute-bound")])
    memory_of("two", folder).record([pull("a")])
    assert memory_of("three", folder).tracks("memory-bound") == {"a": Track(3, 1, math.log(2), 1.5, 30.0)}
    assert memory_of("three", folder).tracks("compute-bound") == {"b": Track(1, 0, 0.0, 0.5, 10.0)}
    assert memory_of("one", folder).tracks("memory-bound") == {"a": Track(1, 0, 0.0, 0.5, 10.0)}
    assert (folder / "rewrites.proposers.json").exists()


def test_what_a_run_says_again_takes_the_place_of_what_it_said(tmp_path: Path) -> None:
    memory = memory_of("one", tmp_path)
    for pulls in ([pull("a")], [pull("a"), pull("a")], [pull("a"), pull("a")]):
        memory.record(pulls)
    assert memory_of("two", tmp_path).tracks("memory-bound")["a"].pulls == 2
    memory.record([])
    assert memory_of("two", tmp_path).tracks("memory-bound")["a"].pulls == 2, "a run that tried nothing has no word"


def test_of_many_runs_the_last_hundred_count(tmp_path: Path) -> None:
    for number in range(MOST_RUNS + 3):
        memory_of(f"run {number}", tmp_path).record([pull("a")])
    names = [run["run"] for run in json.loads((tmp_path / "rewrites.proposers.json").read_text())["runs"]]
    assert len(names) == MOST_RUNS and names[0] == "run 3" and names[-1] == f"run {MOST_RUNS + 2}"


@pytest.mark.parametrize(
    "damage",
    [b"", b"[]", b"\x00\xff", b'{"format": 9, "runs": []}', b'{"format": 1, "runs": [{"run": 1}]}', b"[" * 100_000],
    ids=["empty", "a list", "binary", "a format of tomorrow", "no run", "too deep"],
)
def test_a_damaged_file_is_set_aside_whole_and_said_so(tmp_path: Path, damage: bytes) -> None:
    path, notices = tmp_path / "rewrites.proposers.json", []
    path.write_bytes(damage)
    memory = memory_of("one", tmp_path, notices)
    assert memory.tracks("memory-bound") == {}
    assert (tmp_path / "rewrites.proposers.damaged-20261120-125418.json").read_bytes() == damage
    (notice,) = notices
    assert "is damaged" in notice and "\n" not in notice
    memory.record([pull("a")])
    assert memory_of("two", tmp_path).tracks("memory-bound")["a"].pulls == 1


def _record(folder: str, who: int) -> None:
    for number in range(1, 11):
        memory_of(f"run {who}", Path(folder)).record([pull("a")] * number)


def test_runs_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    runs = [spawn.Process(target=_record, args=(str(tmp_path), who)) for who in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        assert run.exitcode == 0
    assert memory_of("another", tmp_path).tracks("memory-bound")["a"].pulls == 30
