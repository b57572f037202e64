"""What the runs of a suite plan with where several go on at once: memory as it was before the first of them.

Which of them ends first is chance, so none may plan with what another learns meanwhile. Suite `S` keeps what all of its
runs begin with in `S.memory/`, beside their folders, and each run what it plans with in a `memory.json` of its own: a
copy of that, and what it learned since. What it learns goes to the shared memory as well, at once, for later runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infra.journal import explained, make_folder, replace_file
from infra.runs.memory_file import MemoryFile
from infra.runs.proposer_memory import proposers_beside
from infra.runs.residual_file import residuals_beside


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
