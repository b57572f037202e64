"""Runs of a suite side by side: each plans with memory as it was before them and what it learned; all goes to all."""

from __future__ import annotations

import json
from pathlib import Path

from accelopt_core.optimization_memory import Experience
from infra.commands.machines import clean_here
from infra.runs.memory_file import MemoryFile, keep_memory, kept_for, memory_for
from infra.runs.proposer_memory import ProposerMemory
from infra.runs.run_folder import RunFolder, run_ids
from infra.runs.suite import latest_suite
from ka_extensions.bandit import Pull, Spent
from tests.infra.reports.test_suite import TASKS, a_run


def refuse(notice: str) -> None:
    raise AssertionError(f"no notice was expected: {notice}")


def learned(title: str) -> Experience:
    return Experience(title, "s", technique=title, speedup=1.5)


def titles(memory: MemoryFile) -> list[str]:
    return [each.title for each in memory.load().experiences]


class Suite:
    """`s1`, begun when memory held one experience, `before`."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / "checkpoints"
        self.shared = MemoryFile(folder / "memory" / "rewrites.json", refuse)
        self.shared.record(learned("before"), "a run of before/r001t1")
        self.keep()

    def keep(self) -> None:
        keep_memory(self.checkpoints, "s1", self.shared.path, refuse)

    def run(self, task: str) -> RunFolder:
        return a_run(self.checkpoints, task, 40.0, 20.0)

    def memory(self, run: RunFolder) -> MemoryFile:
        """As each session of the run opens it."""
        return memory_for(run.path, self.shared.path, refuse)


def test_a_run_plans_with_what_was_known_before_the_suite_and_what_it_learned_itself(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    matmul, silu = suite.run("matmul"), suite.run("silu")
    first = suite.memory(matmul)
    first.record(learned("of matmul"), "s1.matmul/r001t1")
    second = suite.memory(silu)  # begins when the first has learned something already
    second.record(learned("of silu"), "s1.silu/r001t1")
    suite.shared.record(learned("of another user"), "r/r001t1")
    assert titles(first) == ["before", "of matmul"] and titles(second) == ["before", "of silu"]
    assert titles(suite.shared) == ["before", "of matmul", "of silu", "of another user"]


def test_a_resumed_run_knows_the_same_and_files_nothing_twice(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    run = suite.run("matmul")
    key = learned("before").key
    for _ in range(2):  # killed after the round's records, before its attempt: the round is gone through again
        suite.keep()
        memory = suite.memory(run)
        memory.record(learned("own"), "s1.matmul/r001t1")
        memory.credit((key,), True, "s1.matmul/r001t1-followed")
        suite.shared.record(learned("meanwhile"), "s1.silu/r001t1")
    suite.shared.record(learned("again"), "s1.matmul/r002t1")  # killed between the one file and the other
    memory = suite.memory(run)
    memory.record(learned("again"), "s1.matmul/r002t1")
    assert titles(memory) == ["before", "own", "again"]
    assert titles(suite.shared) == ["before", "own", "meanwhile", "again"]
    for file in (memory, suite.shared):
        assert {each.confirmed for each in file.load().experiences} == {1}
        assert [(each.used, each.helped) for each in file.load().experiences if each.key == key] == [(1, 1)]


def test_others_credits_change_nothing_of_what_a_run_goes_by(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    matmul, silu = suite.memory(suite.run("matmul")), suite.memory(suite.run("silu"))
    matmul.credit((learned("before").key,), False, "s1.matmul/r001t1-followed")
    assert [each.used for each in matmul.load().experiences] == [1]
    assert [each.used for each in silu.load().experiences] == [0]
    assert [each.used for each in suite.shared.load().experiences] == [1]


def test_what_a_suite_kept_stays_and_a_copy_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.shared.record(learned("later"), "r/r001t1")
    suite.keep()
    kept = kept_for(suite.checkpoints / "s1.silu")
    assert kept is not None and titles(MemoryFile(kept, refuse)) == ["before"]
    kept.unlink()  # as after a kill before the last file: no run of the suite has begun
    assert kept_for(suite.checkpoints / "s1.silu") is None
    suite.keep()
    assert titles(MemoryFile(kept, refuse)) == ["before", "later"]


def test_what_is_known_of_proposers_and_of_the_simulator_is_kept_with_it(tmp_path: Path) -> None:
    shared = tmp_path / "rewrites.json"
    ProposerMemory(shared, "before", refuse).record([Pull("a", 1, "memory-bound", 0.0, Spent(0.5, 10.0))])
    residuals = json.dumps({"run_id": "before"}) + "\n"
    shared.with_name("rewrites.residuals.jsonl").write_text(residuals)
    keep_memory(tmp_path, "s1", shared, refuse)
    ProposerMemory(shared, "s1.matmul", refuse).record([Pull("a", 1, "memory-bound", 0.0, Spent(0.5, 10.0))])
    kept = kept_for(tmp_path / "s1.silu")
    assert kept is not None and ProposerMemory(kept, "s1.silu", refuse).tracks("memory-bound")["a"].pulls == 1
    assert kept.with_name("rewrites.residuals.jsonl").read_text() == residuals


def test_a_run_of_no_suite_or_of_one_that_kept_nothing_plans_with_what_all_know(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    for name in ("20261120-125418-matmul-3f2a", "s1", "s2.matmul"):
        assert memory_for(suite.checkpoints / name, suite.shared.path, refuse).path == suite.shared.path


def test_what_is_kept_is_no_run_and_nothing_left_behind(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.memory(suite.run("matmul"))
    assert run_ids(suite.checkpoints) == ["s1.matmul"] and latest_suite(suite.checkpoints, TASKS) == "s1"
    assert not [each for each in clean_here(suite.checkpoints, remove=False) if str(tmp_path) in each.path]
