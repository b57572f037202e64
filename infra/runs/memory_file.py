"""optimization_memory/rewrites.json: every experience of every run, shared by runs that go on at the same time.

The file is `{"format": 1, "experiences": [...], "recorded": [...]}`; a bare list of experiences, down to the old
`{"title", "summary"}`, is read too. `recorded` names what was filed last, so that a resumed run files nothing twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from accelopt_core.optimization_memory import MOST_EXPERIENCES, OLDEST_DAYS, Experience, OptimizationMemory
from infra.journal import FileLock, explained, make_folder, replace_file, set_aside, utc_now
from infra.records import first_complaint
from infra.runs.proposer_memory import proposers_beside
from infra.runs.residual_file import residuals_beside

FORMAT = 1
_REMEMBERED_TOKENS = 2000
_EXPERIENCES = TypeAdapter(list[Experience])
_EXPERIENCE = TypeAdapter(Experience)


@dataclass(frozen=True)
class _Contents:
    memory: OptimizationMemory
    recorded: tuple[str, ...] = ()


class MemoryFile:
    def __init__(
        self,
        path: Path,
        notice: Callable[[str], None],
        *,
        shared: MemoryFile | None = None,
        lock_timeout_s: float = 30.0,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`notice` is told, in one line, when a damaged file had to be set aside.

        `shared`: where all that is filed here is filed too, for other runs; nothing is read from it.
        """
        self.path = path
        self._shared = shared
        self._notice = notice
        self._now = now
        self._lock_timeout_s = lock_timeout_s

    def load(self) -> OptimizationMemory:
        """Everything on file; empty where there is no file yet. Raises JournalError."""
        make_folder(self.path.parent)
        with self._locked():
            return self._read().memory

    def record(self, experience: Experience, token: str, shown: tuple[Experience, ...] = ()) -> OptimizationMemory:
        """Files it beside what other runs filed meanwhile; returns all there is now. Raises JournalError.

        `token` names the occasion, e.g. `<run-id>/<candidate-id>`: filed once, however often it is recorded.
        `shown`: experiences that were known when it was tried; see OptimizationMemory.add.
        """
        if self._shared is not None:
            self._shared.record(experience, token, shown)
        make_folder(self.path.parent)
        with self._locked():
            contents = self._read()
            if token in contents.recorded:
                return contents.memory
            filed = contents.memory.add(experience, shown)
            self._expire(contents.memory, filed.key)
            self._write(contents.memory, (*contents.recorded, token)[-_REMEMBERED_TOKENS:])
            return contents.memory

    def credit(self, keys: tuple[str, ...], improved: bool, token: str, instead: bool = False) -> None:
        """A plan followed these; see OptimizationMemory.credit. Once for each `token`. Raises JournalError."""
        if self._shared is not None:
            self._shared.credit(keys, improved, token, instead)
        make_folder(self.path.parent)
        with self._locked():
            contents = self._read()
            if token in contents.recorded:
                return
            contents.memory.credit(keys, improved, instead)
            self._write(contents.memory, (*contents.recorded, token)[-_REMEMBERED_TOKENS:])

    def copy_to(self, path: Path) -> None:
        """All of it, as it is now, with what was filed last, as another file. Raises JournalError."""
        make_folder(self.path.parent)
        with self._locked():
            contents = self._read()
        MemoryFile(path, self._notice)._write(contents.memory, contents.recorded)

    def _expire(self, memory: OptimizationMemory, keep: str) -> None:
        expired, worst = memory.expire(self._now().date(), keep=keep)
        if expired or worst:
            aged = f"{expired} experience{'' if expired == 1 else 's'} older than {OLDEST_DAYS} days"
            least = f"of more than {MOST_EXPERIENCES:,}, the {worst} least useful"
            self._notice(f"{self.path}: {aged} and, {least} are forgotten")

    def _locked(self) -> FileLock:
        return FileLock(self.path.with_name(self.path.name + ".lock"), self._lock_timeout_s)

    def _write(self, memory: OptimizationMemory, recorded: tuple[str, ...]) -> None:
        # One entry per line: quick to write when there are thousands, and a diff shows what is new.
        entries = ",\n".join(json.dumps(entry) for entry in _EXPERIENCES.dump_python(list(memory.experiences)))
        replace_file(
            self.path,
            f'{{"format": {FORMAT}, "experiences": [\n{entries}\n], "recorded": {json.dumps(list(recorded))}}}\n',
        )

    def _read(self) -> _Contents:
        with explained(self.path, "read"):
            try:
                text = self.path.read_bytes()
            except FileNotFoundError:
                return _Contents(OptimizationMemory())
        try:
            entries, recorded = _entries(json.loads(text))
        except (ValueError, RecursionError) as error:
            reason = re.sub(r"\s+", " ", str(error))
            aside = set_aside(self.path, self._now())
            self._notice(f"{self.path} is damaged ({reason}): kept as {aside.name}, memory starts empty")
            return _Contents(OptimizationMemory())
        try:
            return _Contents(OptimizationMemory(_EXPERIENCES.validate_python(entries)), recorded)
        except ValidationError as error:
            return self._salvage(entries, recorded, first_complaint(error))

    def _salvage(self, entries: list[Any], recorded: tuple[str, ...], complaint: str) -> _Contents:
        """Some entries are good: they go on in a new file, and the old one is kept whole."""
        good = []
        for entry in entries:
            try:
                good.append(_EXPERIENCE.validate_python(entry))
            except ValidationError:
                continue
        aside = set_aside(self.path, self._now())
        memory = OptimizationMemory(good)
        self._write(memory, recorded)
        self._notice(
            f"{self.path}: {len(entries) - len(good)} of {len(entries)} entries are damaged ({complaint}): "
            f"the file is kept as {aside.name}, the other {len(good)} are used"
        )
        return _Contents(memory, recorded)


def _entries(document: Any) -> tuple[list[Any], tuple[str, ...]]:
    if isinstance(document, list):
        return document, ()
    if not isinstance(document, dict) or not isinstance(document.get("experiences"), list):
        raise ValueError("neither a list nor an object with a list of experiences")
    if document.get("format") != FORMAT:
        raise ValueError(f"format {document.get('format')!r} is not {FORMAT}")
    recorded = document.get("recorded", [])
    if not isinstance(recorded, list) or not all(isinstance(token, str) for token in recorded):
        raise ValueError("`recorded` is not a list of texts")
    return document["experiences"], tuple(recorded)


def keep_memory(checkpoints: Path, suite_id: str, memory: Path, notice: Callable[[str], None]) -> None:
    """As it is now, with what lies beside it; once for each suite. `notice` as MemoryFile's. Raises JournalError."""
    kept = _kept(checkpoints, suite_id)
    if kept.exists():
        return
    make_folder(kept.parent)
    for beside in (proposers_beside, residuals_beside):
        with explained(beside(memory), "read"):
            known = beside(memory).read_bytes() if beside(memory).exists() else b""
        if known:
            replace_file(beside(kept), known)
    MemoryFile(memory, notice).copy_to(kept)  # last: where it is, all is


def kept_for(run: Path) -> Path | None:
    """The memory file that the suite of the run in this folder has kept; None where there is none."""
    suite_id, dot, _ = run.name.rpartition(".")
    kept = _kept(run.parent, suite_id)
    return kept if dot and kept.exists() else None


def memory_for(run: Path, memory: Path, notice: Callable[[str], None]) -> MemoryFile:
    """What the run in this folder plans with and files to; `memory` is the shared file. Raises JournalError."""
    shared, kept, own = MemoryFile(memory, notice), kept_for(run), run / "memory.json"
    if kept is None:
        return shared
    if not own.exists():
        MemoryFile(kept, notice).copy_to(own)
    return MemoryFile(own, notice, shared=shared)


def _kept(checkpoints: Path, suite_id: str) -> Path:
    return checkpoints / f"{suite_id}.memory" / "rewrites.json"
