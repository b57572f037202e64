"""What sessions have set up on hosts, on this machine's disk: so that a later run clears up after a killed one.

A session keeps a small file in its run's folder for as long as it lives. A run whose lock nobody holds is gone, and
with it its sessions; what such a run has under way on the host, for its resumption to collect, is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.journal import FileLock, JournalError, JournalLocked, make_folder, replace_file
from infra.records import BadRecord, from_document, to_document

_SUFFIX = ".session"
_RECORDS = "*.json"
"""Of jobs that are under way, beside these files (`job_records`)."""


@dataclass(frozen=True)
class Session:
    host: str
    root: str
    """Its work folder there."""
    folder: str
    """What it has set up there, for itself alone."""


@dataclass(frozen=True)
class LeftOver:
    """A session whose process is gone."""

    run_id: str
    session: Session
    file: Path


class Sessions:
    """Those of one host. Raises JournalError where a file cannot be written."""

    def __init__(self, folder: Path, host: str, root: str) -> None:
        """`folder`: `checkpoints/<run-id>/remote`, of a run that this process holds."""
        self._folder = folder
        self._host = host
        self._root = root
        self._own: Path | None = None

    def begin(self, name: str, folder: str) -> None:
        """Once; every later call is for the same."""
        if self._own is not None:
            return
        make_folder(self._folder)
        self._own = self._folder / f"{name}{_SUFFIX}"
        replace_file(self._own, json.dumps(to_document(Session(self._host, self._root, folder)), indent=1) + "\n")

    def over(self) -> None:
        if self._own is not None:
            self._own.unlink(missing_ok=True)

    def left_over(self) -> Iterator[LeftOver]:
        """Of this run before it was killed, and of the others beside it."""
        runs = self._folder.parent.parent
        for file in sorted(runs.glob(f"*/{self._folder.name}/*{_SUFFIX}")):
            session = _read(file)
            if session is None or (session.host, session.root) != (self._host, self._root) or file == self._own:
                continue
            run = file.parent.parent
            has_work_there = any(file.parent.glob(_RECORDS))
            if not has_work_there and (file.parent == self._folder or _is_gone(run)):
                yield LeftOver(run.name, session, file)


def _is_gone(run: Path) -> bool:
    lock = run / "run.lock"
    if not lock.exists():
        return False  # nobody can tell
    try:
        with FileLock(lock, timeout_s=0):
            return True
    except JournalLocked:
        return False


def _read(file: Path) -> Session | None:
    try:
        return from_document(Session, json.loads(file.read_bytes()), str(file))
    except (OSError, ValueError, BadRecord, JournalError):
        return None
