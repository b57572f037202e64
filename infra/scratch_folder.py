"""A temporary folder that goes with its process, even a killed one: whoever makes the next clears those left over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

OURS = "nki-"
"""What the names of all such folders begin with."""
_OWNER = ".owner"
"""Locked by the owner for as long as it lives; the system drops the lock of a dead process."""
_JUST_MADE_S = 60.0
"""A folder gets its name once it is locked; a younger one without may be about to."""


class ScratchFolder:
    """`path` is a new private folder `<prefix>XXXXXXXX` in the system's temporary one, until `close`."""

    def __init__(self, prefix: str) -> None:
        clear_left_over(prefix)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        self._owner = os.open(made / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name[1:]))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._owner >= 0:
            os.close(self._owner)
            self._owner = -1
        shutil.rmtree(self.path, ignore_errors=True)


def clear_left_over(prefix: str = OURS) -> str:
    """Only this user's, and only those whose owner is certainly gone. What was cleared, in words; empty for nothing."""
    folder, count, size = tempfile.gettempdir(), 0, 0
    for left in _left_over(prefix):
        count, size = count + 1, size + _size(left)
        shutil.rmtree(left, ignore_errors=True)
    if not count:
        return ""
    what = "a folder" if count == 1 else f"{count} folders"
    return f"removed {what} ({size / (1 << 20):,.1f} MiB) that a killed process of ours had left in {folder}"


def _left_over(prefix: str) -> Iterator[Path]:
    young = time.time() - _JUST_MADE_S
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith((prefix, f".{prefix}")):
                continue
            with contextlib.suppress(OSError):
                known = entry.stat(follow_symlinks=False)
                is_old = entry.name.startswith(prefix) or known.st_mtime < young
                if entry.is_dir(follow_symlinks=False) and known.st_uid == os.getuid() and is_old:
                    _take(Path(entry.path))
                    yield Path(entry.path)


def _take(folder: Path) -> None:
    """Raises OSError: BlockingIOError while its owner lives, FileNotFoundError for a folder of somebody else's kind."""
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(owner)


def _size(folder: Path) -> int:
    """In bytes, as far as it can be told."""
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(where, name)).st_size
    return size
