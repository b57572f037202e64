"""One kernel optimized for several shapes: a run for each, and a folder of its own for what they come to together.

The runs of set `S` are called `S.<shape>` and are runs like any other. checkpoints/S/ has

    set.json             which kernel, which task, which shapes, when
    shapes.toml          the table of shapes, as it was given
    config.json          every setting
    evaluations/         of the joined kernel, each once
    best_kernel.py       the joined kernel, and best.diff its difference to the input
    result.json          what it came to, as `show` prints it; written last
    set.lock             held by the process that works on it

Raises JournalError, and RunNotFound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.dispatch.weights import Counting, ShapeSet, weighted_us
from accelopt_core.evaluation import Likely
from infra.journal import FileLock, JournalDamaged, JournalError, JournalLocked, explained, make_folder, replace_file
from infra.records import from_document, to_document
from infra.runs.evaluation_store import EVALUATIONS
from infra.runs.run_folder import RunFolder, RunNotFound, run_ids


@dataclass(frozen=True)
class SetManifest:
    set_id: str
    created: str
    """ISO time, UTC."""
    kernel: str
    """Path of the user's own file."""
    task: str
    task_hash: str
    """Of the task and the kernel as they were: a set is not gone on with when they are others."""
    shapes: ShapeSet
    format: int = 1


@dataclass(frozen=True)
class SetRow:
    """One shape."""

    name: str
    shape: str
    weight: float
    """As the table says it: calls, or share."""
    calls: float
    """How often its latency counts in the weighted sums."""
    input_us: float
    alone_us: float
    """The best kernel of its own run, which was tuned for it alone."""
    after_us: float | None
    """The joined kernel; null where there is none yet."""
    variant: int
    """Which of the joined kernel's variants it takes; 0: the input kernel."""
    verified: tuple[str, ...] = ()
    """Of the joined kernel, one line per tier."""
    likely: Likely | None = None
    """As `Measured.likely`, of the joined kernel."""

    @property
    def now_us(self) -> float:
        return self.after_us if self.after_us is not None else self.input_us


@dataclass(frozen=True)
class BetweenRow:
    """A shape that is none of the set, and was tried."""

    shape: str
    takes: str
    """In one line: what the joined kernel does there."""


@dataclass(frozen=True)
class SetTable:
    machine: str
    simulated: bool
    caveat: str
    """As `Measured.caveat`."""
    counting: Counting
    rows: tuple[SetRow, ...]
    between: tuple[BetweenRow, ...]
    """Shapes beside those of the set, at which the joined kernel is what the input kernel is."""
    missing: dict[str, str]
    """Shapes without a row, with the reason."""
    notes: tuple[str, ...] = ()
    """What is to be said of variants that were left out."""
    seconds: float = 0.0
    """Of all its runs and of the joined kernel's evaluations."""

    @property
    def before_us(self) -> float:
        """µs of all calls together, and so below."""
        return self._weighted({row.name: row.input_us for row in self.rows})

    @property
    def after_us(self) -> float:
        return self._weighted({row.name: row.now_us for row in self.rows})

    @property
    def alone_us(self) -> float:
        return self._weighted({row.name: row.alone_us for row in self.rows})

    @property
    def variants(self) -> int:
        """Beside the input kernel."""
        return len({row.variant for row in self.rows} - {0})

    @property
    def kept_percent(self) -> float | None:
        """Of the weighted time that tuning each shape alone saves, what the joined kernel saves; None where that saves
        nothing."""
        alone = self.before_us - self.alone_us
        return 100 * (self.before_us - self.after_us) / alone if alone > 0 else None

    @property
    def is_complete(self) -> bool:
        return all(row.after_us is not None for row in self.rows)

    def _weighted(self, latency_us: Mapping[str, float]) -> float:
        return weighted_us({row.name: row.calls for row in self.rows}, latency_us)


class SetFolder:
    """Held by one process at a time while its runs go on; anybody may read."""

    def __init__(self, checkpoints: Path, set_id: str) -> None:
        self.path = checkpoints / set_id
        self.set_id = set_id
        self._checkpoints = checkpoints
        self._lock: FileLock | None = None

    @property
    def shapes(self) -> Path:
        return self.path / "shapes.toml"

    @property
    def best_kernel(self) -> Path:
        return self.path / "best_kernel.py"

    @property
    def exists(self) -> bool:
        return (self.path / "set.json").exists()

    def create(self, manifest: SetManifest, shapes: str, config: Mapping[str, Any]) -> None:
        """A new folder, held by this process until `close`. Raises JournalError where there is one already."""
        make_folder(self._checkpoints)
        with explained(self.path, "create"):
            self.path.mkdir(exist_ok=True)
        self.hold()
        if self.exists or (self.path / "manifest.json").exists():
            self.close()
            raise JournalError(f"{self.path} is there already: choose another --run-id")
        make_folder(self.path / EVALUATIONS)
        replace_file(self.shapes, shapes)
        self._keep("config.json", config)
        self._keep("set.json", to_document(manifest))  # written last: without it the set never began

    def hold(self) -> None:
        """Makes this process the only one to work on it. Raises JournalLocked."""
        lock = FileLock(self.path / "set.lock", timeout_s=0)
        try:
            lock.acquire()
        except JournalLocked as error:
            raise JournalLocked(f"set {self.set_id} is under way: {error}") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def run(self, shape: str) -> RunFolder:
        """Of that name."""
        return RunFolder(self._checkpoints / f"{self.set_id}.{shape}")

    def end(self, kernel: str, diff: str, table: SetTable) -> None:
        replace_file(self.best_kernel, kernel.encode("utf-8", "backslashreplace"))
        replace_file(self.path / "best.diff", diff)
        self._keep("result.json", to_document(table))

    def joined(self) -> str:
        """The text of the joined kernel; empty where it was not made yet."""
        with explained(self.best_kernel, "read"):
            return self.best_kernel.read_text(encoding="utf-8") if self.best_kernel.exists() else ""

    def manifest(self) -> SetManifest:
        return from_document(SetManifest, self._load("set.json"), str(self.path / "set.json"))

    def config(self) -> dict[str, Any]:
        return self._load("config.json")

    def table(self) -> SetTable | None:
        """None where the joined kernel was not made yet."""
        if not (self.path / "result.json").exists():
            return None
        return from_document(SetTable, self._load("result.json"), str(self.path / "result.json"))

    def _keep(self, name: str, document: Mapping[str, Any]) -> None:
        replace_file(self.path / name, json.dumps(document, indent=1) + "\n")

    def _load(self, name: str) -> dict[str, Any]:
        path = self.path / name
        with explained(path, "read"):
            data = path.read_bytes()
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise JournalDamaged(f"{path}: {error}: repair it, or move the set's folder away") from error
        if not isinstance(document, dict):
            raise JournalDamaged(f"{path} holds no JSON object: repair it, or move the set's folder away")
        return document


def find_set(checkpoints: Path, name: str) -> SetFolder | None:
    """The set of that id; of `latest`, the one that the newest run is of. None where it is the id of none."""
    if name == "latest":
        known = run_ids(checkpoints)
        return _set_of(checkpoints, known[-1]) if known else None
    folder = SetFolder(checkpoints, name)
    return folder if folder.exists else None


def latest_set(checkpoints: Path) -> SetFolder:
    """Raises RunNotFound."""
    for run_id in reversed(run_ids(checkpoints)):
        folder = _set_of(checkpoints, run_id)
        if folder is not None:
            return folder
    raise RunNotFound(f"no set of shapes in {checkpoints} yet: start one with --shapes FILE.toml")


def _set_of(checkpoints: Path, run_id: str) -> SetFolder | None:
    set_id, dot, _ = run_id.rpartition(".")
    folder = SetFolder(checkpoints, set_id)
    return folder if dot and folder.exists else None
