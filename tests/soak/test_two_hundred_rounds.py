"""200 rounds with a model that misbehaves on purpose: the best kernel is right, the books balance, nothing leaks."""

from __future__ import annotations

import datetime
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from accelopt_core.evaluation import Bounds, CheckFailure, CompileFailed, Evaluation, Incorrect, Measured, Profile, Step
from accelopt_core.languages.nki.dialect import Dialect
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.nki.machine_facts import machine_facts
from accelopt_core.loop.events import Ending, Event, RoundEnded
from accelopt_core.loop.rounds import Loop, LoopSettings, Outcome
from accelopt_core.model.prompting import PromptSettings
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo
from infra.llm.ledger import Ledger
from infra.llm.prices import load_prices
from infra.llm.provider import ProviderSettings
from infra.llm.recording import exchange_to_json
from infra.llm.retry import Patience, RetryPolicy
from infra.llm.roles import models_for_roles
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.event_log import Observers
from infra.runs.memory_file import MemoryFile
from infra.runs.run_folder import RunFolder, RunJournal
from infra.runs.spending import Spending, TimeLimits
from infra.targets.local import LocalTarget
from infra.targets.remembering import RememberingTarget
from infra.tasks.seed_index import task_from_files
from nki_sim.machine import machine
from tests.e2e.kernels import REFERENCE
from tests.infra.samples import manifest
from tests.llm.wire_server import WireServer
from tests.soak.misbehaving_model import BASELINE_US, HOSTILE, WINS_US, Misbehaving, worth

ROUNDS = 200
WARM = 60
"""Rounds after which every cache is filled: from here on, memory must stay flat."""
MOST_GROWTH_BYTES = 48 << 20


class Judge:
    """Latencies are read from the source; whatever looks hostile is run, for real, by a judge process."""

    def __init__(self) -> None:
        self._real = LocalTarget("simulator", "trn2")
        self.hostile: list[Evaluation] = []

    @property
    def width(self) -> int:
        return 1

    def describe(self) -> TargetInfo:
        return TargetInfo("cheap machine", "cheap-1", True, "trn2")

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        source = request.candidate.source
        if any(source.startswith(text) for text in HOSTILE.values()):
            self.hostile.append(self._real.evaluate(request, progress))
            return self.hostile[-1]
        progress(Step.VERIFY, "")
        found = re.search(r"WORTH = (\S+)", source)
        assert found is not None
        if "tensor_plus" in source:
            return CompileFailed("nki.isa has no attribute 'tensor_plus'", 22)
        if "subtract" in source:
            return Incorrect(CheckFailure(0, "full", 0, "outputs differ", 1.0, 2e-5, (0, 0), 1.0, 2.0))
        us = float(found.group(1))
        return Measured(us, us, us, 1, True, "cheap machine (v1)", Profile({}, Bounds(0.0, 0.0, 20.0, "trace")))

    def close(self) -> None:
        self._real.close()


class Watcher:
    def __init__(self) -> None:
        self.rounds: list[RoundEnded] = []
        self.resident_bytes: dict[int, int] = {}

    def tell(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            self.rounds.append(event)
            self.resident_bytes[len(self.rounds)] = resident_bytes()


def resident_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") if status.exists() else 0


def open_files() -> int:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return len(list(folder.iterdir()))


def children() -> set[str]:
    """Processes of this one, dead ones that nobody waited for included; empty where there is no /proc."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found


@contextmanager
def no_children_left() -> Iterator[None]:
    before = children()  # other tests of this process may have some
    yield
    assert children() <= before


@dataclass
class Soak:
    """A run with everything of the program but the command line, a model that misbehaves, and a judge of words."""

    folder: RunFolder
    memory: MemoryFile
    watcher: Watcher
    judge: Judge
    misbehaving: Misbehaving
    ledger: Ledger
    waits: list[float]
    outcome: Outcome
    new_files: int

    def the_books_balance(self) -> None:
        """Every token the server sent is in the ledger, in memory and on disk."""
        spent, sent, cut = self.ledger.total.usage, self.misbehaving.sent, self.misbehaving.cut
        assert 0 <= spent.input_tokens - sent[0] <= 100 * cut
        assert 0 <= spent.output_tokens - sent[1] <= cut
        assert (spent.cached_input_tokens, spent.cache_write_tokens) == sent[2:]
        assert self.folder.model_calls() == self.ledger.entries
        assert len(self.folder.exchanges()) == len(self.ledger.entries)


def soak(folder_path: Path, rounds: int, width: int, beam: int = 1) -> Soak:
    (folder_path / "add_reference.py").write_text(REFERENCE, encoding="utf-8")
    task = task_from_files(folder_path / "add_reference.py", name="add")
    folder = RunFolder.create(folder_path / "checkpoints", manifest("soak", rounds=rounds), {})
    memory = MemoryFile(folder_path / "rewrites.json", pytest.fail)
    watcher, judge, misbehaving, waits = Watcher(), Judge(), Misbehaving(seed=7), list[float]()
    observer = Observers(watcher)
    spending = Spending(TimeLimits(), observer)
    ledger = Ledger(load_prices(), on_entry=folder.spend)
    files_before = open_files()
    with no_children_left(), WireServer(misbehaving) as server:
        patience = Patience(RetryPolicy(attempts=6), sleep=waits.append, dice=lambda: 0.5)
        settings = ProviderSettings("claude-opus-5-5", server.url, "key", timeout_s=15.0, patience=patience)
        models = models_for_roles(
            "anthropic", settings, ledger,
            lambda exchange: folder.keep_exchange(exchange.request.role.value, exchange_to_json(exchange)) and None,
        )  # fmt: skip
        told = PromptSettings(NKI.key, machine_facts(machine("trn2")), Dialect())
        proposer = proposer_from_model(
            models, lambda source, also: "nisa.dma_copy(dst, src)", "", told, datetime.date.today
        )
        outcome = Loop(
            task, worth(BASELINE_US), RememberingTarget(judge, EvaluationStore(folder_path / "checkpoints", "soak")),
            proposer, RunJournal(folder, memory), spending, observer,
            LoopSettings(rounds=rounds, patience=rounds, width=width, beam=beam), lambda: False, language=NKI,
        ).run()  # fmt: skip
        judge.close()
        folder.close()
    return Soak(
        folder, memory, watcher, judge, misbehaving, ledger, waits, outcome, open_files() - files_before
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_pulls_the_plug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.slow
def test_two_hundred_rounds_with_a_misbehaving_model(tmp_path: Path) -> None:
    ran = soak(tmp_path, ROUNDS, 1)
    outcome, folder, watcher = ran.outcome, ran.folder, ran.watcher
    assert (outcome.ending, outcome.best_result.latency_us) == (Ending.FINISHED, WINS_US[188])
    assert folder.best_kernel.read_text(encoding="utf-8") == outcome.best.source
    assert outcome.best.source.strip() == worth(WINS_US[188]).strip()
    assert [end.attempt.round for end in watcher.rounds] == list(range(1, ROUNDS + 1))
    assert [end.attempt.round for end in watcher.rounds if end.decision.improved] == list(WINS_US)
    assert folder.attempts()[-1].round == ROUNDS
    # Every kind of hostility was met with a verdict, and none got a latency.
    hostile = ran.judge.hostile
    assert len(hostile) >= len(HOSTILE) and not any(isinstance(result, Measured) for result in hostile)
    ran.the_books_balance()
    assert ran.waits and max(ran.waits) >= 7, "the server's retry-after was honoured"
    # What was learned is on file: each win once, and the ideas that failed were banned in between.
    wins = [known for known in ran.memory.load().experiences if known.is_win]
    assert sum(known.confirmed for known in wins) >= len(WINS_US)
    assert {end.attempt.technique.split("-")[0] for end in watcher.rounds} == {"widen", "fresh"}
    assert ran.new_files <= 2, "connections the client library keeps alive"
    growth = watcher.resident_bytes[ROUNDS] - watcher.resident_bytes[WARM]
    assert growth < MOST_GROWTH_BYTES, f"{growth >> 20} MiB more after {ROUNDS} rounds than after {WARM}"


@pytest.mark.slow
def test_two_hundred_rounds_from_three_kernels_each_stay_flat(tmp_path: Path) -> None:
    ran = soak(tmp_path, ROUNDS, width=2, beam=3)
    assert ran.outcome.best_result.latency_us == WINS_US[188]
    assert ran.folder.best_kernel.read_text(encoding="utf-8") == ran.outcome.best.source
    ended = [end.attempt for end in ran.watcher.rounds]
    assert {attempt.round for attempt in ended} == set(range(1, ROUNDS + 1))
    assert sorted({(a.round, a.lane) for a in ended}) == [(a.round, a.lane) for a in ended], "told once, in order"
    parents = [{attempt.parent_id for attempt in ended if attempt.round == number} for number in range(1, ROUNDS + 1)]
    assert {len(each) for each in parents} == {1, 2, 3}, "as many as are near enough to the best"
    ran.the_books_balance()
    resident, told = ran.watcher.resident_bytes, len(ended)
    growth = resident[told] - resident[told * WARM // ROUNDS]
    assert growth < 3 * MOST_GROWTH_BYTES, f"{growth >> 20} MiB more after {ROUNDS} rounds than after {WARM}"
    assert ran.new_files <= 8 and not [each for each in threading.enumerate() if each.name.startswith("lane")]


def test_rounds_of_three_candidates_each_with_a_misbehaving_model(tmp_path: Path) -> None:
    rounds = 12
    ran = soak(tmp_path, rounds, 3)
    wins = [number for number in WINS_US if number <= rounds]
    assert (ran.outcome.ending, ran.outcome.best_result.latency_us) == (Ending.FINISHED, WINS_US[wins[-1]])
    assert ran.folder.best_kernel.read_text(encoding="utf-8") == ran.outcome.best.source
    ended = [end.attempt for end in ran.watcher.rounds]
    assert sorted({(a.round, a.lane) for a in ended}) == [(a.round, a.lane) for a in ended], "told once, in order"
    assert {a.round for a in ended} == set(range(1, rounds + 1))
    assert {a.lane for a in ended} == {"a", "b", "c"}
    decided = [entry for entry in ran.folder.attempts() if entry.decision is not None]
    assert len(decided) == len(ended), "the journal has each lane's decision"
    ran.the_books_balance()
    assert ran.new_files <= 8, "connections the client library keeps alive, one for each of three at once"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]
