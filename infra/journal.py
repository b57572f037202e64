"""Crash-safe files: replace one whole, append one line, hold one lock. Durable when the call returns.

Raises JournalError only, one line each:
    JournalFull      no space, quota or file-size limit: free some
    JournalDenied    permissions or a read-only file system
    JournalDamaged   a file holds what no crash of ours could have left there
    JournalLocked    another process holds the lock for too long
Whatever was there before a failed call is still there after it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


class JournalError(Exception):
    """A file of a run could not be read or written; nothing that was written before is lost."""


class JournalFull(JournalError):
    """Free some space, then run again."""


class JournalDenied(JournalError):
    """Correct the permissions, or choose another folder."""


class JournalDamaged(JournalError):
    """Repair the named line by hand, or move the file away."""


class JournalLocked(JournalError):
    """Wait for the other process, or end it."""


# --- replace --------------------------------------------------------------------------------------


def replace_file(path: Path, content: str | bytes) -> None:
    """The file holds either all of the old or all of the new content, whatever happens meanwhile.

    Keeps the permissions of an existing file, and writes through a symbolic link instead of replacing it.
    """
    with explained(path, "write"):
        data = content.encode("utf-8") if isinstance(content, str) else content
        path = Path(os.path.realpath(path))
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o644
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                os.fchmod(descriptor, mode)
                _write_all(descriptor, data)
                _to_disk(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _folder_to_disk(path.parent)


def make_folder(path: Path) -> None:
    """Creates it, durably, with its parents; one that is there already is fine."""
    with explained(path, "create"):
        if path.is_dir():
            return
        path.mkdir(parents=True, exist_ok=True)
        _folder_to_disk(path.parent)


def set_aside(path: Path, now: datetime) -> Path:
    """Renames a damaged file so that nobody overwrites it; returns where it is now."""
    with explained(path, "rename"):
        for number in range(1000):
            suffix = f".{number}" if number else ""
            target = path.with_name(f"{path.stem}.damaged-{now:%Y%m%d-%H%M%S}{suffix}{path.suffix}")
            if not target.exists():
                os.rename(path, target)
                _folder_to_disk(path.parent)
                return target
    raise JournalError(f"cannot set {path} aside: a thousand damaged copies of it are there already: clear them up")


# --- append ---------------------------------------------------------------------------------------


class JsonLines:
    """One JSON object per line, appended, or all written anew; several processes may append to one file.

    A crash can leave at most a torn last line. It was never acknowledged, so reading skips it, and the next append
    moves it to `<name>.torn` first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        with explained(self.path, "append to"):
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                end = self._mend(descriptor)
                try:
                    _write_all(descriptor, line)
                    _to_disk(descriptor)
                except BaseException:
                    os.ftruncate(descriptor, end)
                    raise
            finally:
                os.close(descriptor)
            if is_new:
                _folder_to_disk(self.path.parent)

    def rewrite(self, records: Iterable[Mapping[str, Any]]) -> None:
        """These in place of all there are, at once."""
        replace_file(self.path, b"".join(map(_line, records)))

    def read(self) -> list[dict[str, Any]]:
        """Every acknowledged record, oldest first; none where there is no file."""
        with explained(self.path, "read"):
            try:
                data = self.path.read_bytes()
            except FileNotFoundError:
                return []
        lines = data.split(b"\n")
        tail = lines.pop()
        records = []
        for number, line in enumerate(lines, 1):
            record = _parsed(line)
            if record is None:
                raise JournalDamaged(f"{self.path} line {number} is no JSON object: repair it, or move the file away")
            records.append(record)
        last = _parsed(tail) if tail else None
        return records if last is None else [*records, last]

    def _mend(self, descriptor: int) -> int:
        """Where the next record begins, after a torn last line is out of the way."""
        end = os.fstat(descriptor).st_size
        if end == 0 or os.pread(descriptor, 1, end - 1) == b"\n":
            return end
        begin, step = end, 65536
        while begin > 0:
            start = max(0, begin - step)
            found = os.pread(descriptor, begin - start, start).rfind(b"\n")
            if found >= 0:
                begin = start + found + 1
                break
            begin = start
        tail = os.pread(descriptor, end - begin, begin)
        if _parsed(tail) is not None:  # complete but for the line end
            _write_all(descriptor, b"\n")
            return end + 1
        with open(self.path.with_name(self.path.name + ".torn"), "ab") as torn:
            torn.write(tail + b"\n")
            torn.flush()
            _to_disk(torn.fileno())
        os.ftruncate(descriptor, begin)
        return begin


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


# --- lock -----------------------------------------------------------------------------------------


class FileLock:
    """Advisory, for processes and threads alike; freed by the system when its holder dies."""

    def __init__(
        self,
        path: Path,
        timeout_s: float = 30.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._descriptor: int | None = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Raises JournalLocked, naming the holder, after `timeout_s`."""
        with explained(self.path, "open"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._wait(descriptor)
            with contextlib.suppress(OSError):  # who holds it is a courtesy; a full disk must not prevent locking
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _wait(self, descriptor: int) -> None:
        deadline = self._clock() + self._timeout_s
        pause_s = 0.005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise JournalError(f"cannot lock {self.path}: {error.strerror}: use a local file system") from error
            if self._clock() >= deadline:
                holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise JournalLocked(f"{self.path} is held by process {holder}: wait for it, or end it")
            self._sleep(pause_s)
            pause_s = min(0.1, pause_s * 2)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may hold a copy; closing alone would not free it
            os.close(descriptor)


# --- the system underneath ------------------------------------------------------------------------


@contextlib.contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Turns an OSError into the JournalError that says what to do."""
    try:
        yield
    except OSError as error:
        what = f"cannot {verb} {path}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise JournalFull(f"{what}: free some space, then run again") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise JournalDenied(f"{what}: correct its permissions, or choose another folder") from error
        raise JournalError(f"{what}: is the folder still there, and the disk sound?") from error
    except UnicodeEncodeError as error:
        raise JournalError(f"cannot {verb} {path}: its text is no valid Unicode ({error.reason})") from error


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _to_disk(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
    if full is not None:
        with contextlib.suppress(OSError):  # not every file system knows it
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def _folder_to_disk(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
