"""`clean`: what killed runs left behind, here or on hosts; listed, and removed unless it is for show only.

Here: our folders in the system's temporary one whose process is gone, half-written files and empty folders of runs that
nobody is at, what finished runs still remember of jobs on hosts. There: ended jobs, files that were sent, scratch. No
run's results, nothing that a living process holds, and no lease is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import config
from infra.assembly.targets import host_target
from infra.journal import JournalError
from infra.runs.run_folder import RunFolder
from infra.ssh.remote_agent import leftovers
from infra.ssh.remote_agent.leftovers import LeftOver

_BEGINNING = {"run.lock", "config.json", "candidates", "evaluations", "exchanges"}
"""What a run's folder has before its manifest is written."""


@dataclass(frozen=True)
class Found:
    """One thing that was left behind, here or on a host."""

    kind: str
    path: str
    kept: str
    """Why it stays; empty: it is removed, or would be."""
    bytes: int
    age_s: float


def clean_here(checkpoints: Path, *, remove: bool) -> tuple[Found, ...]:
    found = [*leftovers.of_temporary_folder(_go_on), *_of_runs(checkpoints)]
    if remove:
        leftovers.remove(found, _go_on)
    return tuple(_found(each.document()) for each in found)


def clean_host(settings: config.Settings, host: str, *, remove: bool) -> tuple[Found, ...]:
    """Raises TargetError."""
    owed = [job for folder in _runs(settings.run.checkpoints) for job in _owed(folder)]
    with closing(host_target(settings, host)) as target:
        return tuple(_found(each) for each in target.clean(owed, remove=remove))


def _go_on() -> None:
    """Nobody waits for a sign of life here."""


def _found(document: dict[str, Any]) -> Found:
    return Found(**document)


# --- runs -------------------------------------------------------------------------------------------


def _runs(checkpoints: Path) -> list[Path]:
    return sorted(path.parent for path in checkpoints.glob("*/manifest.json"))


def _of_runs(checkpoints: Path) -> Iterator[LeftOver]:
    for path in _runs(checkpoints):
        folder = RunFolder(path)
        busy = "its run is under way" if folder.is_held else ""
        for half_written in sorted(path.glob("**/.*.tmp")):
            yield LeftOver("half-written", str(half_written), busy)
        if (path / "remote").is_dir():
            yield LeftOver("records of jobs", str(path / "remote"), busy or _may_go_on(folder))
    for lock in sorted(checkpoints.glob("*/run.lock")):
        path = lock.parent
        if not (path / "manifest.json").exists() and _never_began(path):
            young = time.time() - path.stat().st_mtime < leftovers.HOUR_S
            busy = "it is being made" if young or RunFolder(path).is_held else ""
            yield LeftOver("run that never began", str(path), busy)


def _may_go_on(folder: RunFolder) -> str:
    try:
        status = folder.manifest().status
    except JournalError:
        return "what its run came to cannot be read"
    return "" if status == "finished" else "its run can be gone on with"


def _never_began(path: Path) -> bool:
    """Nothing lies there but what every run begins with."""
    inside = list(path.iterdir())
    return {each.name for each in inside} <= _BEGINNING and not any(
        any(each.iterdir()) for each in inside if each.is_dir()
    )


def _owed(run: Path) -> Iterator[str]:
    """Jobs that the run, gone on with, would collect from a host."""
    if not _may_go_on(RunFolder(run)):
        return
    for record in sorted((run / "remote").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield os.path.basename(str(json.loads(record.read_bytes())["job"]))
