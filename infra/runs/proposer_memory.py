"""What earlier runs know of who proposes: one file beside the optimization memory, shared by runs that go on at once.

`{"format": 1, "runs": [{"run", "date", "tracks": [{"bottleneck", "proposer", "track"}]}]}`, oldest first. A run's entry
is replaced as it goes on, so that a resumed run counts nothing twice. Of the last MOST_RUNS runs only: models change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from infra.journal import FileLock, explained, make_folder, replace_file, set_aside, utc_now
from infra.records import BadRecord, from_document, to_document
from ka_extensions.bandit import Pull, Track, tracks_of

FORMAT = 1
MOST_RUNS = 100


@dataclass(frozen=True)
class TrackRecord:
    bottleneck: str
    proposer: str
    track: Track


@dataclass(frozen=True)
class RunRecord:
    run: str
    date: str
    """ISO date of its last word."""
    tracks: tuple[TrackRecord, ...]


@dataclass(frozen=True)
class _Contents:
    format: int
    runs: tuple[RunRecord, ...]


def proposers_beside(memory: Path) -> Path:
    return memory.with_name(f"{memory.stem}.proposers.json")


class ProposerMemory:
    def __init__(
        self,
        memory: Path,
        run_id: str,
        notice: Callable[[str], None],
        *,
        lock_timeout_s: float = 30.0,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`memory`: the optimization memory's file. `notice` is told, in one line, of a damaged file."""
        self.path = proposers_beside(memory)
        self._run_id = run_id
        self._notice = notice
        self._now = now
        self._lock_timeout_s = lock_timeout_s

    def tracks(self, bottleneck: str) -> dict[str, Track]:
        """By proposer, of all runs but this one, against a bottleneck. Raises JournalError."""
        make_folder(self.path.parent)
        with self._locked():
            runs = self._read()
        found: dict[str, Track] = {}
        for run in runs:
            for each in run.tracks if run.run != self._run_id else ():
                if each.bottleneck == bottleneck:
                    found[each.proposer] = found.get(each.proposer, Track()) + each.track
        return found

    def record(self, pulls: Iterable[Pull]) -> None:
        """All tries of this run so far, in place of what was recorded of it before. Raises JournalError."""
        tracks = tuple(TrackRecord(where, who, track) for (where, who), track in tracks_of(pulls).items())
        if not tracks:
            return
        make_folder(self.path.parent)
        with self._locked():
            before = self._read()
            known = next((run for run in before if run.run == self._run_id), None)
            if known is not None and known.tracks == tracks:
                return
            mine = RunRecord(self._run_id, self._now().date().isoformat(), tracks)
            runs = [*(run for run in before if run.run != self._run_id), mine][-MOST_RUNS:]
            lines = ",\n".join(json.dumps(to_document(run)) for run in runs)
            replace_file(self.path, f'{{"format": {FORMAT}, "runs": [\n{lines}\n]}}\n')

    def _locked(self) -> FileLock:
        return FileLock(self.path.with_name(self.path.name + ".lock"), self._lock_timeout_s)

    def _read(self) -> tuple[RunRecord, ...]:
        with explained(self.path, "read"):
            try:
                text = self.path.read_bytes()
            except FileNotFoundError:
                return ()
        try:
            document = json.loads(text)
            if not isinstance(document, dict) or document.get("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            return from_document(_Contents, document, str(self.path)).runs
        except (ValueError, RecursionError, BadRecord) as error:
            aside = set_aside(self.path, self._now())
            reason = " ".join(str(error).split())
            self._notice(f"{self.path} is damaged ({reason}): kept as {aside.name}, proposers start unknown")
            return ()
