"""Which evaluations are under way on which host, on this machine's disk: so that a killed client's successor collects.

One small file per job, written before the job starts and deleted when its result is in hand. It holds what proves the
job's word (secret and nonce), so it is readable by its owner only.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import Calibration
from infra.journal import make_folder, replace_file, utc_now
from infra.records import BadRecord, from_document, to_document

_SIZE_LIMIT_BYTES = 1 << 16


@dataclass(frozen=True)
class JobRecord:
    request: str
    """Key of the request (`request_key`)."""
    host: str
    root: str
    """Its work folder there."""
    job: str
    secret: str
    nonce: str
    limit_s: float
    began: str
    """ISO time, UTC."""


def request_key(
    request: EvaluationRequest, toolchain: str, machine: str, calibration: Calibration | None = None
) -> str:
    """Two requests of one key may answer each other: all is the same but the seeds drawn afresh and the names."""
    depends_on = {
        **asdict(request),
        "toolchain": toolchain,
        "machine": machine,
        "calibration": calibration and asdict(calibration),
        "extra_seeds": len(request.extra_seeds),
        "candidate": [request.candidate.source, request.candidate.parent_id is not None],
        "incumbent": request.incumbent and request.incumbent.source,
    }
    text = json.dumps(depends_on, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


class JobRecords:
    """Those of one host. Safe to use from several threads. Raises JournalError where they cannot be written.

    `notes` says, a line each, which records that an earlier process left are of no use.
    """

    def __init__(self, folder: Path, host: str, root: str, *, keep_days: float) -> None:
        """keep_days: after so long the host has swept what a record speaks of."""
        self._folder = folder
        self._host = host
        self._root = root
        self._keep_days = keep_days
        self._lock = threading.Lock()
        self._begun: set[Path] = set()
        self.notes: list[str] = []
        self._owed = self._read_all()

    def owes(self, request: str) -> bool:
        """An earlier process began this and did not see its end."""
        with self._lock:
            return request in self._owed

    def take_over(self, request: str) -> JobRecord | None:
        """Once; whoever takes it over calls `over` when it is."""
        with self._lock:
            return self._owed.pop(request, None)

    def left_over(self) -> list[JobRecord]:
        """What nobody has taken over, and now will not."""
        with self._lock:
            left, self._owed = list(self._owed.values()), {}
        return left

    def begin(self, record: JobRecord) -> None:
        """Durable when it returns. Of two equal requests at the same time the first alone is recorded."""
        path = self._path(record.request)
        with self._lock:
            if path in self._begun:
                return
            self._begun.add(path)
            make_folder(self._folder)
            path.touch(mode=0o600)
            path.chmod(0o600)
            replace_file(path, json.dumps(to_document(record), indent=1) + "\n")

    def over(self, record: JobRecord) -> None:
        """Forget it, unless the file tells of another job by now."""
        path = self._path(record.request)
        with self._lock:
            known = self._read(path)
            if known is not None and known.job != record.job:
                return
            self._begun.discard(path)
            path.unlink(missing_ok=True)

    def _path(self, request: str) -> Path:
        host = hashlib.sha256(f"{self._host} {self._root}".encode()).hexdigest()[:8]
        return self._folder / f"{request}-{host}.json"

    def _read_all(self) -> dict[str, JobRecord]:
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            record = self._read(path)
            if record is None:
                self.notes.append(f"{path.name} is no record of a job: dropped")
                path.unlink(missing_ok=True)
            elif self._is_stale(record):
                self.notes.append(f"job {record.job} on {record.host} began {record.began[:10]}, too long ago: dropped")
                path.unlink(missing_ok=True)
            elif (record.host, record.root) == (self._host, self._root) and path == self._path(record.request):
                found[record.request] = record
        return found

    def _is_stale(self, record: JobRecord) -> bool:
        try:
            return utc_now() - datetime.fromisoformat(record.began) > timedelta(days=self._keep_days)
        except (ValueError, TypeError):  # no time, or one without a zone: none of ours
            return True

    def _read(self, path: Path) -> JobRecord | None:
        try:
            if path.stat().st_size > _SIZE_LIMIT_BYTES:
                return None
            return from_document(JobRecord, json.loads(path.read_bytes()), str(path))
        except (OSError, ValueError, BadRecord):
            return None
