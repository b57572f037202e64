"""checkpoints/<run-id>/: everything one run leaves behind.

    manifest.json        what was run, where, by whom, and how it stands
    config.json          every setting
    kernel.json          how the kernel is loaded: which function, the files it imports, the user's own text of it
    reference.py         the reference, where a plain function was given for one
    input_kernel.py      the kernel it began with, and baseline.json its measurement
    best_kernel.py       the best so far, and best.json its measurement
    counterpart.py       the fastest of all where the best rests on no contested fact (of a device: the other way
                         round), and counterpart.json its measurement; only where those are two
    best.diff            the difference between the two
    experiments.jsonl    one line per attempt: its plan, its kernel, its evaluation by digest, what was decided and why
    evaluations/         every evaluation, once: by the digest of its content, by which all other files name it, and
                         by the key of the request it came of, by which a resumed run finds it
    candidates/<id>.py   every kernel written, for people
    shown/               what each round was shown of memory
    memory.json          what it plans with, where other runs of its suite go on at the same time (suite_memory.py)
    chosen/              which of a round's kernels were worth a device's time, as they were predicted
    turns.jsonl          where several proposers take turns: who was chosen for each plan, and what was thought of each
    exchanges/           every request to a model and its reply
    usage.jsonl          what each model call cost
    run.log              every event, one JSON object per line
    time_used            seconds at work so far, all sessions together
    menu_prices.json     what the planner's menu was priced at
    gaps.json            why the gaps of the best kernel are still there, as it was known at the end
    report.html          the page, and timelines/ its trace files, once `show --html` was asked for them
    remote/              evaluations under way on hosts, to be collected after a restart; links that were mended
    run.lock             held by the process that works on it

Raises JournalError, and RunNotFound.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import CompilersOwn, Evaluation, Measured
from accelopt_core.explanation import Explanation
from accelopt_core.loop.choosing import Turn
from accelopt_core.optimization_memory import Experience, OptimizationMemory
from accelopt_core.ports import Choice, TargetInfo
from accelopt_core.task import DEFAULT_LANGUAGE, Surroundings
from infra.journal import (
    FileLock,
    JournalDamaged,
    JournalError,
    JournalLocked,
    JsonLines,
    explained,
    make_folder,
    replace_file,
    utc_now,
)
from infra.llm.ledger import LedgerEntry
from infra.llm.recording import Exchange
from infra.llm.replay_model import read_exchanges
from infra.records import BadRecord, from_document, to_document
from infra.runs.earlier_layout import joined_attempt, kernel_by_reference, target_with_machine
from infra.runs.evaluation_store import EVALUATIONS
from infra.runs.evaluations import Evaluations, evaluation_from
from infra.runs.memory_file import MemoryFile
from infra.runs.mended_links import MendedLink, MendedLinks
from infra.runs.residual_file import ResidualFile

T = TypeVar("T")

Status = Literal["running", "finished", "interrupted", "budget", "failed"]


class RunNotFound(JournalError):
    """No such run; the line names those there are."""


@dataclass(frozen=True)
class Manifest:
    run_id: str
    created: str
    """ISO time, UTC."""
    task: str
    shape: str
    kernel: str
    """Path of the user's own file."""
    target: TargetInfo
    proposer: str
    versions: dict[str, str]
    """Of this program, Python, the prompts, ...: what could change a result."""
    rounds: int
    status: Status = "running"
    reason: str = ""
    """Why it stopped, in one line."""
    updated: str = ""
    format: int = 1
    language: str = DEFAULT_LANGUAGE
    """That the kernels are written in: `Language.key`."""
    nothing_left: bool = False
    """It ended since its planner had nothing left."""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel and its latency: what best.json and baseline.json say."""

    candidate: Candidate
    result: Measured


@dataclass(frozen=True)
class Shown:
    """Experiences that a round's proposer was shown."""

    experiences: tuple[Experience, ...]


@dataclass(frozen=True)
class Chosen:
    """One choice of a round of what goes to the device."""

    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Loaded:
    """How a run's kernel is loaded, whatever becomes of the user's files: what kernel.json says."""

    around: Surroundings
    presets: tuple[str, ...]
    """Names of the task's shapes that it is verified at; the last is timed."""
    text: str
    """The user's file as it was: another than input_kernel.py where that was migrated."""


def new_run_id(task: str, now: datetime) -> str:
    """Sorts by time, names the task, and is not given twice: `20261120-125418-matmul-3f2a`."""
    name = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")[:40] or "run"
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


class _Place(NamedTuple):
    """Which attempt of a run it is."""

    round: int
    lane: str
    number: int
    lanes: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Place:
        """Of a line, also of an earlier layout; such a run is not gone on with where it matters."""
        return cls(record.get("round", 0), record.get("lane", ""), record.get("number", 1), record.get("lanes", 1))

    def replaces(self, old: _Place) -> bool:
        """Where `old` is this very one, or of an interrupted course of this round, perhaps at another width."""
        of_lane = old.lane == self.lane and old.number >= self.number
        return old.round == self.round and (old.lanes != self.lanes or of_lane)


class RunFolder:
    """Held by one process at a time while a run goes on; anybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._experiments = JsonLines(path / "experiments.jsonl")
        self._usage = JsonLines(path / "usage.jsonl")
        self._turns = JsonLines(path / "turns.jsonl")
        self._evaluations = Evaluations(path / EVALUATIONS)
        self._filed: list[_Place] | None = None
        """Of each line of experiments.jsonl; None until one is written."""
        self._lock: FileLock | None = None
        self._numbering = threading.Lock()

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def best_kernel(self) -> Path:
        return self.path / "best_kernel.py"

    @property
    def counterpart_kernel(self) -> Path:
        return self.path / "counterpart.py"

    @property
    def counterpart_file(self) -> Path:
        return self.path / "counterpart.json"

    @property
    def input_kernel(self) -> Path:
        return self.path / "input_kernel.py"

    @property
    def own_reference(self) -> Path:
        """There where the run was given a plain function or a definition, and wrote the reference module itself."""
        return self.path / "reference.py"

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    # --- life ---

    @classmethod
    def create(cls, checkpoints: Path, manifest: Manifest, config: Mapping[str, Any]) -> RunFolder:
        """A new folder, held by this process until `close`. Raises JournalError where there is one already."""
        folder = cls(checkpoints / manifest.run_id)
        make_folder(checkpoints)
        with explained(folder.path, "create"):
            folder.path.mkdir(exist_ok=True)
        folder.hold()
        if (folder.path / "manifest.json").exists():  # written last: without it a run never began
            folder.close()
            raise JournalError(f"{folder.path} is there already: choose another --run-id")
        for name in ("candidates", EVALUATIONS, "exchanges"):
            make_folder(folder.path / name)
        replace_file(folder.path / "config.json", _pretty(config))
        folder._write_manifest(manifest)
        return folder

    def hold(self) -> None:
        """Makes this process the only one to write here. Raises JournalLocked."""
        lock = FileLock(self.path / "run.lock", timeout_s=0)
        try:
            lock.acquire()
        except JournalLocked as error:
            raise JournalLocked(f"run {self.run_id} is under way: {error}") from None
        self._lock = lock
        with explained(self.path, "clear up"):
            for left in self.path.glob("**/.*.tmp"):  # half-written by a process that was killed
                left.unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def is_held(self) -> bool:
        """Is some process at work on it right now?"""
        if not (self.path / "run.lock").exists():
            return False
        try:
            with FileLock(self.path / "run.lock", timeout_s=0):
                return False
        except JournalLocked:
            return True

    @property
    def is_failed_start(self) -> bool:
        """Did it fail before its input kernel was measured? What cannot be read is none."""
        try:
            return not (self.path / "baseline.json").exists() and self.manifest().status == "failed"
        except JournalError:
            return False

    # --- writing ---

    def attempt(self, attempt: Attempt) -> None:
        """Durable; the line in experiments.jsonl comes last, so that it never names a file that is not there. One that
        is there already, gone through again after an interruption or corrected, is replaced."""
        if attempt.candidate is not None:
            source = attempt.candidate.source.encode("utf-8", "backslashreplace")
            replace_file(self.path / "candidates" / f"{_safe(attempt.candidate.id)}.py", source)
        record = {"at": _stamp(utc_now()), **attempt_document(attempt, self._evaluations.keep)}
        new = _Place(attempt.round, attempt.lane, attempt.number, attempt.lanes)
        if self._filed is None:
            self._filed = [_Place.of(each) for each in self._experiments.read()]
        replaced = [new.replaces(old) for old in self._filed]
        if any(replaced):
            at, stay = replaced.index(True), [not each for each in replaced]
            lines = self._experiments.read()
            self._experiments.rewrite([*lines[:at], record, *compress(lines[at:], stay[at:])])
            self._filed = [*self._filed[:at], new, *compress(self._filed[at:], stay[at:])]
        else:
            self._experiments.append(record)
            self._filed.append(new)

    def best(self, candidate: Candidate, result: Measured) -> None:
        """The first one is the input kernel."""
        document = _pretty({"candidate": to_document(candidate), "evaluation": self._evaluations.keep(result)})
        source = candidate.source.encode("utf-8", "backslashreplace")
        if not (self.path / "baseline.json").exists():
            replace_file(self.input_kernel, source)
            replace_file(self.path / "baseline.json", document)
        replace_file(self.path / "best.json", document)
        replace_file(self.best_kernel, source)

    def counterpart(self, kernel: tuple[Candidate, Measured] | None) -> None:
        """None: there is none any more."""
        if kernel is None:
            with explained(self.counterpart_file, "delete"):
                self.counterpart_file.unlink(missing_ok=True)
                self.counterpart_kernel.unlink(missing_ok=True)
            return
        candidate, result = kernel
        document = _pretty({"candidate": to_document(candidate), "evaluation": self._evaluations.keep(result)})
        replace_file(self.counterpart_kernel, candidate.source.encode("utf-8", "backslashreplace"))
        replace_file(self.counterpart_file, document)

    def load(self, loaded: Loaded) -> None:
        replace_file(self.path / "kernel.json", _pretty(to_document(loaded)))

    def end(self, status: Status, reason: str, nothing_left: bool = False) -> None:
        self._write_manifest(replace(self.manifest(), status=status, reason=reason, nothing_left=nothing_left))

    def go_on(self, rounds: int) -> None:
        """An interrupted run is under way again."""
        self._write_manifest(replace(self.manifest(), status="running", reason="", rounds=rounds))

    def spend(self, entry: LedgerEntry) -> None:
        self._usage.append({"at": _stamp(utc_now()), **to_document(entry)})

    def keep_exchange(self, role: str, document: str) -> Path:
        """One request to a model and its reply, as a file of its own, numbered in order."""
        folder = self.path / "exchanges"
        with self._numbering:  # several models may be asked at once
            number = 1 + max((int(item.name[:5]) for item in folder.glob("[0-9]" * 5 + "-*.json")), default=0)
            path = folder / f"{number:05d}-{_safe(role)}.json"
            replace_file(path, document)
        return path

    def keep_time(self, seconds: float) -> None:
        """Not worth waiting for the disk: a power cut may lose the last minutes, a killed process loses nothing."""
        with explained(self.path / "time_used", "write"):
            descriptor = os.open(self.path / "time_used", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(descriptor, f"{seconds:16.1f}\n".encode(), 0)  # always as long: never half old, half new
            finally:
                os.close(descriptor)

    def explain(self, explanation: Explanation) -> None:
        replace_file(self.path / "gaps.json", _pretty(to_document(explanation)))

    def keep_compilers_own(self, own: CompilersOwn) -> None:
        replace_file(self.path / "compilers_own.json", _pretty(to_document(own)))

    def compilers_own(self) -> CompilersOwn | None:
        """None where a device was not asked, or the run is one of an earlier release."""
        return self._read(CompilersOwn, "compilers_own.json") if (self.path / "compilers_own.json").exists() else None

    def seconds_used(self) -> float:
        """At work, all sessions together, as far as it was written down."""
        path = self.path / "time_used"
        with explained(path, "read"):
            if not path.exists():
                return 0.0
            text = path.read_text(encoding="ascii", errors="replace")
        try:
            return max(0.0, float(text))
        except ValueError:
            raise JournalDamaged(f"{path} holds no number of seconds: correct it, or delete it to count anew") from None

    def keep(self, name: str, text: str) -> Path:
        """Any other file for people, e.g. `best.diff`."""
        replace_file(self.path / name, text)
        return self.path / name

    def _write_manifest(self, manifest: Manifest) -> None:
        replace_file(self.path / "manifest.json", _pretty(to_document(replace(manifest, updated=_stamp(utc_now())))))

    def keep_shown(self, round: int, experiences: tuple[Experience, ...]) -> tuple[Experience, ...]:
        """What a round is shown of memory, so that going through it again asks the same questions."""
        make_folder(self.path / "shown")
        replace_file(self.path / "shown" / f"{round:03d}.json", _pretty(to_document(Shown(experiences))))
        return experiences

    def keep_chosen(self, round: int, number: int, choices: tuple[Choice, ...]) -> None:
        """Before any of them is sent, so that going through the round again sends the same."""
        make_folder(self.path / "chosen")
        replace_file(self.path / "chosen" / _choice(round, number), _pretty(to_document(Chosen(choices))))

    def take(self, turn: Turn) -> None:
        """Who makes a plan, before he is asked for it."""
        self._turns.append({"at": _stamp(utc_now()), **to_document(turn)})

    # --- reading ---

    def chosen(self, round: int, number: int) -> tuple[Choice, ...]:
        """Empty where that choice was not made yet."""
        name = f"chosen/{_choice(round, number)}"
        return self._read(Chosen, name).choices if (self.path / name).exists() else ()

    def turns(self) -> tuple[Turn, ...]:
        """Oldest first; of those for one plan of one round the last counts."""
        records = enumerate(self._turns.read(), 1)
        return tuple(from_document(Turn, each, f"{self._turns.path} line {number}") for number, each in records)

    def turn_of(self, round: int, place: int) -> str | None:
        found = [turn.proposer for turn in self.turns() if (turn.round, turn.place) == (round, place)]
        return found[-1] if found else None

    def shown(self, round: int) -> tuple[Experience, ...] | None:
        name = f"shown/{round:03d}.json"
        return self._read(Shown, name).experiences if (self.path / name).exists() else None

    def all_shown(self) -> tuple[Experience, ...]:
        """What any round was shown, oldest first; as it was when it was shown last."""
        found: dict[str, Experience] = {}
        for path in sorted((self.path / "shown").glob("*.json")):
            found.update((each.key, each) for each in self._read(Shown, f"shown/{path.name}").experiences)
        return tuple(found.values())

    def manifest(self) -> Manifest:
        document = _load(self.path / "manifest.json")
        if isinstance(document.get("target"), dict):
            document = {**document, "target": target_with_machine(document["target"])}
        return from_document(Manifest, document, str(self.path / "manifest.json"))

    def config(self) -> dict[str, Any]:
        return _load(self.path / "config.json")

    def attempts(self) -> tuple[Attempt, ...]:
        """In order; of one that an earlier release wrote twice, the last line counts."""
        found: dict[_Place, Attempt] = {}
        for number, record in enumerate(self._experiments.read(), 1):
            attempt = attempt_from(record, self._evaluations.get, f"{self._experiments.path} line {number}")
            place = _Place(attempt.round, attempt.lane, attempt.number, attempt.lanes)
            for old in [old for old in found if place.replaces(old)]:
                del found[old]
            found[place] = attempt
        return tuple(found[place] for place in sorted(found))

    def exchanges(self) -> list[tuple[str, Exchange]]:
        """Every request to a model and its reply, oldest first, with the request's key."""
        if not any((self.path / "exchanges").glob("*.json")):
            return []
        return read_exchanges(self.path)

    def model_calls(self) -> tuple[LedgerEntry, ...]:
        path = self._usage.path
        records = enumerate(self._usage.read(), 1)
        return tuple(from_document(LedgerEntry, record, f"{path} line {number}") for number, record in records)

    def mended_links(self) -> tuple[MendedLink, ...]:
        return MendedLinks(self.path / "remote").read()

    def loaded(self) -> Loaded | None:
        """None for a run of an earlier release."""
        return self._read(Loaded, "kernel.json") if (self.path / "kernel.json").exists() else None

    def explanation(self) -> Explanation | None:
        """Of the kernel that was the best when the run last ended, if it came to that."""
        return self._read(Explanation, "gaps.json") if (self.path / "gaps.json").exists() else None

    def baseline(self) -> MeasuredKernel | None:
        return self._measured("baseline.json") if (self.path / "baseline.json").exists() else None

    def winner(self) -> MeasuredKernel | None:
        """The best so far. Puts best_kernel.py right, should a crash have come between the two files."""
        if not (self.path / "best.json").exists():
            return None
        best = self._measured("best.json")
        source = best.candidate.source.encode("utf-8", "backslashreplace")
        with explained(self.best_kernel, "read"):
            current = self.best_kernel.read_bytes() if self.best_kernel.exists() else None
        if current != source and self._lock is not None:
            replace_file(self.best_kernel, source)
        return best

    def best_counterpart(self) -> MeasuredKernel | None:
        """What stands beside the winner (`SearchState.counterpart`); None where nothing does."""
        return self._measured(self.counterpart_file.name) if self.counterpart_file.exists() else None

    def _measured(self, name: str) -> MeasuredKernel:
        path = str(self.path / name)
        document = kernel_by_reference(_load(self.path / name))
        candidate = from_document(Candidate, document.get("candidate") or {}, path)
        result = referred(document.get("evaluation"), self._evaluations.get, path)
        if not isinstance(result, Measured):
            raise JournalDamaged(f"{path} names no measurement: repair it, or move the file away")
        return MeasuredKernel(candidate, result)

    def _read(self, kind: type[T], name: str) -> T:
        return from_document(kind, _load(self.path / name), str(self.path / name))


def find_run(checkpoints: Path, run_id: str) -> RunFolder:
    """The run of that id, or of an id that begins so; `latest` is the newest, failed starts aside where there is
    another. Raises RunNotFound."""
    known = run_ids(checkpoints)
    if run_id == "latest" and known:
        begun = next((name for name in reversed(known) if not RunFolder(checkpoints / name).is_failed_start), known[-1])
        return RunFolder(checkpoints / begun)
    if run_id in known:
        return RunFolder(checkpoints / run_id)
    fitting = [name for name in known if name.startswith(run_id)]
    if len(fitting) == 1:
        return RunFolder(checkpoints / fitting[0])
    if not known:
        raise RunNotFound(f"no run in {checkpoints} yet: start one, or name another folder with --checkpoints")
    starts = [name for name in known if not RunFolder(checkpoints / name).is_failed_start]
    listed = ", ".join(reversed((fitting or starts or known)[-5:]))
    problem = "is the beginning of several runs" if fitting else "is no run"
    raise RunNotFound(f"{run_id!r} {problem} in {checkpoints}: {'choose' if fitting else 'the newest are'} {listed}")


def run_ids(checkpoints: Path) -> list[str]:
    """Oldest first, by the time they were created."""
    found = []
    with explained(checkpoints, "read"):
        for path in checkpoints.glob("*/manifest.json"):
            try:
                created = str(json.loads(path.read_bytes())["created"])
            except (ValueError, KeyError, TypeError):
                created = ""  # damaged: listed first, and named when it is opened
            found.append((created, path.parent.name))
    return [name for _, name in sorted(found)]


class RunJournal:
    """`accelopt_core.ports.Journal`, on a run's folder and the memory that it plans with."""

    def __init__(self, folder: RunFolder, memory: MemoryFile, residuals: ResidualFile | None = None) -> None:
        """`residuals`: of a run on a device, which are for all runs as well."""
        self._folder = folder
        self._memory = memory
        self._residuals = residuals

    def attempt(self, attempt: Attempt) -> None:
        if self._residuals is not None and attempt.decision is not None and attempt.last_check is None:
            self._residuals.record(self._folder.run_id, attempt)
        self._folder.attempt(attempt)

    def best(self, candidate: Candidate, result: Measured) -> None:
        self._folder.best(candidate, result)

    def counterpart(self, kernel: tuple[Candidate, Measured] | None) -> None:
        self._folder.counterpart(kernel)

    def remember(self, experience: Experience, occasion: str, shown: tuple[Experience, ...]) -> None:
        run_id = self._folder.run_id
        self._memory.record(replace(experience, run=run_id), f"{run_id}/{occasion}", shown)

    def credit(self, keys: tuple[str, ...], improved: bool, occasion: str, instead: bool = False) -> None:
        self._memory.credit(keys, improved, f"{self._folder.run_id}/{occasion}", instead)

    def recall(self) -> OptimizationMemory:
        return self._memory.load()

    def shown(self, round: int, choose: Callable[[], tuple[Experience, ...]]) -> tuple[Experience, ...]:
        kept = self._folder.shown(round)
        return self._folder.keep_shown(round, choose()) if kept is None else kept

    def chosen(
        self, round: int, number: int, choose: Callable[[tuple[Choice, ...]], tuple[Choice, ...]]
    ) -> tuple[Choice, ...]:
        filed = self._folder.chosen(round, number)
        made = choose(filed)
        if made != filed:
            self._folder.keep_chosen(round, number, made)
        return made


def _load(path: Path) -> dict[str, Any]:
    with explained(path, "read"):
        data = path.read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JournalDamaged(f"{path}: {error}: repair it, or move the run's folder away") from error
    if not isinstance(document, dict):
        raise JournalDamaged(f"{path} holds no JSON object: repair it, or move the run's folder away")
    return document


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _choice(round: int, number: int) -> str:
    return f"{round:03d}-{number}.json"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100] or "_"


def _stamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds")


def attempt_document(attempt: Attempt, keep: Callable[[Evaluation], str]) -> dict[str, Any]:
    """`keep` stores an evaluation and returns its digest."""
    document = to_document(replace(attempt, evaluation=None, last_check=None))
    for name, evaluation in (("evaluation", attempt.evaluation), ("last_check", attempt.last_check)):
        document[name] = None if evaluation is None else keep(evaluation)
    return document


def attempt_from(record: Mapping[str, Any], get: Callable[[str], Evaluation], source: str) -> Attempt:
    """Also of an earlier layout. Raises BadRecord, and what `get` raises for a digest."""
    try:
        record = joined_attempt(record)
    except (KeyError, TypeError) as error:
        raise BadRecord(
            f"{source}: no attempt of an earlier layout ({error!r}): repair it, or move the file away"
        ) from error
    attempt = from_document(Attempt, {**record, "evaluation": None, "last_check": None}, source)
    return replace(
        attempt,
        evaluation=referred(record.get("evaluation"), get, source),
        last_check=referred(record.get("last_check"), get, source),
    )


def referred(reference: object, get: Callable[[str], Evaluation], source: str) -> Evaluation | None:
    """The evaluation behind a digest; an earlier layout had it in place."""
    if reference is None:
        return None
    if isinstance(reference, dict):
        return evaluation_from(reference, source)
    if isinstance(reference, str):
        return get(reference)
    raise BadRecord(f"{source}: {reference!r} names no evaluation: repair it, or move the file away")
