"""Runs of harnesses on this machine's disk: those under way, so that a killed client's successor collects, and what
they brought back. A baseline that was run before, of the same files with the same flags, need not run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.journal import explained, make_folder, replace_file
from infra.records import BadRecord, from_document, to_document
from infra.ssh.job_records import JobRecords

KEEP_DAYS = 7.0
"""A host sweeps a job that nobody asked for in so long."""


@dataclass(frozen=True)
class Ended:
    """One run of a harness that came to its end."""

    began: str
    """ISO time, UTC."""
    elapsed_s: float
    files: tuple[str, ...]


class KeptRuns:
    """Those of one host. Raises JournalError where they cannot be written."""

    def __init__(self, folder: Path, host: str, root: str) -> None:
        self.folder = folder
        self.under_way = JobRecords(folder / "under_way", host, root, keep_days=KEEP_DAYS)
        self._host = host

    def key(self, variant: str, base: str, digest: str, words: Sequence[str]) -> str:
        """Of a run: the variant (the kernels, or none), the checkout as it is without them, the words
        that start it."""
        said = json.dumps([self._host, variant, base, digest, list(words)])
        return hashlib.sha256(said.encode()).hexdigest()[:24]

    def path(self, key: str) -> Path:
        return self.folder / "ended" / key

    def keep(self, key: str, files: Mapping[str, bytes]) -> Path:
        """What came back, to be looked at; `hold` makes it a run that may stand for another."""
        folder = self.path(key)
        make_folder(folder)
        (folder / "ended.json").unlink(missing_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
        return folder

    def hold(self, key: str, ended: Ended) -> None:
        """The files are there already: where `ended.json` is, all of it is."""
        replace_file(self.path(key) / "ended.json", json.dumps(to_document(ended), indent=1) + "\n")

    def ended(self, key: str) -> tuple[Ended, dict[str, bytes]] | None:
        folder = self.path(key)
        record = folder / "ended.json"
        if not record.exists():
            return None
        with explained(record, "read"):
            try:
                ended = from_document(Ended, json.loads(record.read_bytes()), str(record))
            except ValueError as error:
                raise BadRecord(f"{record}: {error}: move its folder away") from error
            return ended, {name: (folder / name).read_bytes() for name in ended.files}
