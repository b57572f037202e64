"""Runs, memory and settings that the layout before this one wrote are still read, and mean the same.

`earlier_layout.tar.gz` was written by the program at d72c20d: five runs (the catalogue's; a model's with every outcome
there is; one with two lanes; one whose winner was dropped; one that was killed in the middle of a round), a memory
file, settings files, and under `expected/` what that program printed and restored from them.
"""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import config
import orchestrator
from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.languages.nki.language import NKI
from accelopt_core.loop.events import Event, RoundEnded
from accelopt_core.loop.rounds import Loop, LoopSettings, Past
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo
from infra.assembly.rounds import loop_settings
from infra.command_line import parser, read
from infra.runs.evaluation_store import EvaluationStore
from infra.runs.memory_file import MemoryFile
from infra.runs.run_folder import RunFolder
from infra.settings_reader import specs
from tests.infra.samples import measured

RUNS = ("catalogue-run", "dropped-run", "interrupted-run", "model-run", "wide-run")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("earlier_layout.tar.gz")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "earlier_layout"


@pytest.fixture
def said(earlier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What these words print there, in this process."""
    monkeypatch.chdir(earlier)
    for name, value in (("COLUMNS", "120"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> str:
        status = orchestrator.main([*words, "--checkpoints", "checkpoints"])
        told = capsys.readouterr()
        assert status == 0, told.err
        return told.out

    return run


@pytest.mark.parametrize("run_id", RUNS)
def test_a_run_is_shown_as_it_was(earlier: Path, said: Callable[..., str], run_id: str) -> None:
    """Every number of its tables, by kernel and by round; and its difference to the letter."""
    tables = re.compile(r"^(?:input|best|rounds|cost|time) .*|^ +\d+[a-z]*  \S.*", re.MULTILINE)
    before, now = (earlier / f"expected/{run_id}.show.txt").read_text(), said("show", run_id)
    assert tables.findall(before.partition("\n---")[0]) == tables.findall(now)
    assert said("diff", run_id) == (earlier / f"expected/{run_id}.diff.txt").read_text()


def test_all_runs_are_listed_as_they_were(earlier: Path, said: Callable[..., str]) -> None:
    assert said("runs") == (earlier / "expected/runs.txt").read_text()


class Quiet:
    """No budget, nobody who watches; and a target that confirms whatever it is asked about."""

    def __init__(self) -> None:
        self.told: list[RoundEnded] = []
        self.kept: list[str] = []
        self.filed: list[Attempt] = []

    def tell(self, event: Event) -> None:
        if isinstance(event, RoundEnded):
            self.told.append(event)

    def exhausted(self) -> str | None:
        return None

    def seconds_left(self) -> float:
        return math.inf

    def reserve(self, seconds: float) -> None: ...

    @property
    def width(self) -> int:
        return 1

    def describe(self) -> TargetInfo:
        return TargetInfo("any", "any", True, "trn2")

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        return measured(1.0)

    def close(self) -> None: ...

    def best(self, candidate: Any, result: Measured) -> None:
        self.kept.append(candidate.id)

    def counterpart(self, kernel: Any) -> None:
        assert kernel is None, "no kernel of an earlier release says what it rests on"

    def attempt(self, attempt: Attempt) -> None:
        self.filed.append(attempt)


@pytest.mark.parametrize("run_id", RUNS)
def test_a_resumed_run_comes_to_where_it_stood(earlier: Path, run_id: str) -> None:
    expected = json.loads((earlier / "expected/restored.json").read_text())[run_id]
    folder = RunFolder(earlier / "checkpoints" / run_id)
    attempts, baseline, winner = folder.attempts(), folder.baseline(), folder.winner()
    assert baseline is not None and winner is not None
    assert [
        {
            "round": a.round, "lane": a.lane, "lanes": a.lanes, "number": a.number, "outcome": a.outcome.value,
            "latency_us": a.latency_us, "candidate": a.candidate.id if a.candidate else None,
            "decision": a.decision.verdict.value if a.decision else None,
            "last_check": a.last_check.kind if a.last_check else None,
        }
        for a in attempts
    ] == expected["tries"]  # fmt: skip
    assert [winner.candidate.id, winner.result.latency_us] == expected["winner_file"]
    assert baseline.result.latency_us == expected["baseline_latency_us"]
    assert folder.manifest().status == expected["status"]
    assert len(folder.model_calls()) == expected["model_calls"]
    assert [key for key, _ in folder.exchanges()] == expected["exchange_keys"]
    settings = config.from_document(folder.config(), run_id)
    guard = loop_settings(settings, settings.model.provider).guard
    quiet = Quiet()
    rounds = LoopSettings(rounds=expected["next_round"] - 1, patience=99, guard=guard, model_failures=99)
    loop = Loop(None, folder.input_kernel.read_text(), quiet, None, quiet, quiet, quiet, rounds, lambda: False,
                Past(baseline.result, attempts), language=NKI)  # type: ignore[arg-type]  # no role is asked for anything  # fmt: skip
    result = loop.run()
    assert quiet.kept[0] == result.best.id == expected["best"]
    assert [[attempt.id, attempt.outcome.value] for attempt in result.attempts] == expected["history"]
    assert all(attempt.last_check is not None and attempt.dropped_after for attempt in quiet.filed), (
        "which round it was"
    )
    decided = [entry for entry in expected["tries"] if entry["decision"] and entry["round"] < expected["next_round"]]
    assert [event.decision.verdict.value for event in quiet.told] == [entry["decision"] for entry in decided]


@pytest.mark.parametrize("run_id", RUNS)
def test_what_was_evaluated_is_not_evaluated_again(earlier: Path, run_id: str) -> None:
    store = EvaluationStore(earlier / "checkpoints", run_id)
    keys = [path.stem for path in (earlier / "checkpoints" / run_id / "evaluated").iterdir()]
    found = [stored for key in keys if (stored := store.get(key)) is not None]
    assert len(found) == len(keys) > 0 and all(stored.run_id == run_id for stored in found)
    assert store.seconds() == pytest.approx(sum(stored.seconds for stored in found))


def test_latencies_beside_the_incumbent_keep_their_name(earlier: Path) -> None:
    """What was called `rival` then."""
    attempts = RunFolder(earlier / "checkpoints/wide-run").attempts()
    beside = [attempt.measured.incumbent for attempt in attempts if attempt.measured is not None]
    assert beside and all(timed is not None and timed.latency_us > 0 for timed in beside)


def test_the_target_of_then_has_its_machine(earlier: Path) -> None:
    for run_id in RUNS:
        assert RunFolder(earlier / "checkpoints" / run_id).manifest().target.machine == "trn2"


def test_memory_is_read_whole(earlier: Path) -> None:
    def fail(line: str) -> None:
        raise AssertionError(line)

    memory = MemoryFile(earlier / "memory/rewrites.json", fail).load()
    assert [
        [e.title, e.technique, e.is_win, e.rejected, e.speedup, e.confirmed, e.refuted] for e in memory.experiences
    ] == json.loads((earlier / "expected/memory.json").read_text())


@pytest.mark.parametrize("name", ["nki-optimizer", "config-output"])
def test_settings_are_read_under_their_names_of_then(earlier: Path, name: str) -> None:
    file = earlier / f"settings/{name}.toml"
    given = read(["config", "--config", str(file)], {}, Path("/home/user/project")).settings
    expected = json.loads((earlier / f"expected/settings.{name}.json").read_text())
    expected["guard"]["max-exploration"] = expected["guard"].pop("max-detour")
    models = [f"{role}={model}" for role in config.ROLES if (model := expected["model"][f"{role}-model"]) is not None]
    for group in expected.values():
        for name in group.keys() & config.RETIRED.keys():
            del group[name]
    now = config.to_document(given)
    expected["run"] |= {"function": None, "migrate": False, "beam": 1, "plans": 1, "samples": 1, "sweep": None}
    expected["run"] |= {
        "tasks-at-once": None,
        "shapes": None,
        "compiler-baseline": True,
        "language": None,
        "shape": [],
        "verdicts": None,
    }
    own = {spec.name for spec in specs(config.RunSettings)}  # a plugin may add some
    now["run"] = {key: value for key, value in now["run"].items() if key in own}
    expected["verification"] |= {"exact": False}
    expected["model"] |= {"proposers": [], "role-models": models, "effort": []}
    expected["target"] |= {"engine": "local", "neuron-cores": 0, "processes": None}
    assert {name: now[name] for name in expected} == expected  # groups that are newer have their defaults
    assert expected["guard"]["max-exploration"] == 3


def test_a_flag_and_a_variable_of_then_are_still_understood(tmp_path: Path) -> None:
    assert read(["--max-detour", "2"], {}, tmp_path).settings.guard.max_exploration == 2
    assert read([], {"NKI_OPT_MAX_DETOUR": "4"}, tmp_path).settings.guard.max_exploration == 4
    assert "detour" not in parser().format_help()
