"""A temporary folder that goes with its process, even a killed one: whoever makes the next clears those left over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_OWNER = ".owner"
"""Locked by the owner for as long as it lives; the system drops the lock of a dead process."""
_JUST_MADE_S = 60.0
"""A younger folder may be one whose owner is about to lock it."""


class ScratchFolder:
    """`path` is a new private folder `<prefix>XXXXXXXX` in the system's temporary one, until `close`."""

    def __init__(self, prefix: str) -> None:
        _clear_left_over(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._owner = os.open(self.path / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        if self._owner >= 0:
            os.close(self._owner)
            self._owner = -1
        shutil.rmtree(self.path, ignore_errors=True)


def _clear_left_over(prefix: str) -> None:
    """Only this user's, and only those whose owner is certainly gone."""
    young = time.time() - _JUST_MADE_S
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            with contextlib.suppress(OSError):
                known = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False) and known.st_uid == os.getuid() and known.st_mtime < young:
                    _clear(Path(entry.path))


def _clear(folder: Path) -> None:
    """Raises OSError: BlockingIOError while its owner lives, FileNotFoundError for a folder of somebody else's kind."""
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(owner)
    shutil.rmtree(folder, ignore_errors=True)
