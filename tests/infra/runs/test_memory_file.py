"""optimization_memory/rewrites.json: shared by runs, kept when damaged, filed once."""

from __future__ import annotations

import json
import multiprocessing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accelopt_core.optimization_memory import MOST_EXPERIENCES, Experience
from infra.runs.memory_file import MemoryFile

spawn = multiprocessing.get_context("spawn")
NOW = datetime(2026, 11, 20, 12, 54, 18, tzinfo=timezone.utc)


def refuse(notice: str) -> None:
    raise AssertionError(f"no notice was expected: {notice}")


def memory_at(path: Path, notices: list[str] | None = None) -> MemoryFile:
    return MemoryFile(path, refuse if notices is None else notices.append, now=lambda: NOW)


def win(title: str, **more: object) -> Experience:
    return Experience(title=title, summary="s", **more)  # type: ignore[arg-type]  # keyword arguments of any field


def test_the_first_run_starts_from_nothing_and_the_second_from_what_it_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rewrites.json"
    assert len(memory_at(path).load()) == 0
    experience = win(
        "hoist", technique="hoist", bottleneck="memory-bound", operators=("nc_matmul",), slow="a\nb", fast="b",
        speedup=1.5, kernel="matmul", machine="trn2", toolchain="nki_sim 0.1", date="2026-11-20",
    )  # fmt: skip
    memory_at(path).record(experience, "run1/1")
    assert memory_at(path).load().experiences == (experience,)


def test_the_same_experience_again_is_confirmed_and_the_same_occasion_again_is_not(tmp_path: Path) -> None:
    memory = memory_at(tmp_path / "rewrites.json")
    memory.record(win("hoist"), "run1/1")
    memory.record(win("hoist"), "run2/1")
    memory.record(win("hoist"), "run2/1")
    assert [experience.confirmed for experience in memory.load().experiences] == [2]


@pytest.mark.parametrize("wrap", [lambda entries: entries, lambda entries: {"format": 1, "experiences": entries}])
def test_old_entries_load(tmp_path: Path, wrap) -> None:
    path = tmp_path / "rewrites.json"
    old = {"title": "Keep rhs resident", "summary": "load it once"}
    path.write_text(json.dumps(wrap([old, {"title": "t", "summary": "s", "a field of tomorrow": 1}])))
    first, _ = memory_at(path).load().experiences
    assert (first.title, first.summary) == ("Keep rhs resident", "load it once")
    assert first.speedup is None and first.is_win
    memory_at(path).record(win("new"), "run/1")
    assert len(memory_at(path).load()) == 3


@pytest.mark.parametrize(
    "damage",
    [b"", b"[{", b"\x00\xff\xfe", b"{}", b'"text"', b'{"format": 99, "experiences": []}', b"[" * 100_000,
     b'{"format": 1, "experiences": [], "recorded": [1]}'],
    ids=["empty", "cut off", "binary", "no experiences", "text", "a format of tomorrow", "too deep", "bad tokens"],
)  # fmt: skip
def test_a_damaged_file_is_set_aside_whole_and_said_so(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rewrites.json"
    path.write_bytes(damage)
    notices: list[str] = []
    assert len(memory_at(path, notices).load()) == 0
    aside = tmp_path / "rewrites.damaged-20261120-125418.json"
    assert aside.read_bytes() == damage
    assert len(notices) == 1 and aside.name in notices[0] and "\n" not in notices[0]
    memory_at(path).record(win("new"), "run/1")
    assert aside.read_bytes() == damage


def test_one_damaged_entry_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "rewrites.json"
    text = json.dumps([{"title": "good", "summary": "s"}, {"title": "", "summary": "s"}, {"summary": "no title"}, 7])
    path.write_text(text)
    notices: list[str] = []
    assert [experience.title for experience in memory_at(path, notices).load().experiences] == ["good"]
    assert "3 of 4 entries" in notices[0]
    assert (tmp_path / "rewrites.damaged-20261120-125418.json").read_text() == text
    assert [experience.title for experience in memory_at(path).load().experiences] == ["good"]


def _record_many(path: str, who: int) -> None:
    memory = MemoryFile(Path(path), refuse)
    for number in range(15):
        memory.record(win("shared"), f"run{who}/{number}")
        memory.record(win(f"own {who} {number}"), f"run{who}/own/{number}")


def test_runs_at_the_same_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "rewrites.json"
    runs = [spawn.Process(target=_record_many, args=(str(path), who)) for who in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        assert run.exitcode == 0
    loaded = {experience.title: experience.confirmed for experience in memory_at(path).load().experiences}
    assert loaded.pop("shared") == 45
    assert len(loaded) == 45 and set(loaded.values()) == {1}


def test_of_ten_thousand_entries_the_most_useful_stay_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rewrites.json"
    entries = [{"title": f"t{n}", "summary": "s" * 200, "confirmed": 1 + (n % 10 == 0)} for n in range(10_000)]
    path.write_text(json.dumps(entries))
    assert len(memory_at(path).load()) == 10_000, "reading forgets nothing"
    notices: list[str] = []
    memory_at(path, notices).record(win("one more", speedup=1.001), "run/1")
    kept = [experience.title for experience in memory_at(path).load().experiences]
    assert len(kept) == 1900 < MOST_EXPERIENCES and kept[-1] == "one more", "what was just learned stays"
    assert {f"t{n}" for n in range(0, 10_000, 10)} <= set(kept), "those that were confirmed"
    (notice,) = notices
    assert "0 experiences older than 365 days and, of more than 2,000, the 8101 least useful are forgotten" in notice
    memory_at(path).record(win("and another"), "run/2")
    assert len(memory_at(path).load()) == 1901, "not every new one drops another"


def test_what_is_older_than_a_year_is_forgotten_and_what_has_no_date_is_not(tmp_path: Path) -> None:
    path, notices = tmp_path / "rewrites.json", []
    dates = ("2025-11-19", "2025-11-20", "2026-11-01", "")
    path.write_text(json.dumps([{"title": f"of {date}", "summary": "s", "date": date} for date in dates]))
    memory_at(path, notices).record(win("new", date="2026-11-20"), "run/1")
    titles = [experience.title for experience in memory_at(path).load().experiences]
    assert titles == ["of 2025-11-20", "of 2026-11-01", "of ", "new"]
    assert "1 experience older than 365 days" in notices[0]


def test_a_plan_that_followed_an_experience_is_counted_once(tmp_path: Path) -> None:
    memory = memory_at(tmp_path / "rewrites.json")
    memory.record(win("hoist"), "run1/1")
    key = win("hoist").key
    for token, improved in (("run2/1", True), ("run2/1", True), ("run2/2", False)):
        memory.credit((key, "no such key"), improved, token)
    (known,) = memory.load().experiences
    assert (known.used, known.helped, known.confirmed) == (2, 1, 1)
