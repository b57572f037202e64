"""Other processes, looked at from a test: which there are, and whether they are really gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def running(command: str) -> list[str]:
    """Process ids of what runs this command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if line == command:
            found.append(path.parent.name)
    return found


def alive(pid: int) -> bool:
    """A zombie is not: it runs nothing, and is there only until whoever inherited it looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(is_so: Callable[[], bool], patience_s: float = 30.0) -> bool:
    """The system ends processes a moment after they were killed."""
    give_up = time.monotonic() + patience_s
    while not is_so() and time.monotonic() < give_up:
        time.sleep(0.02)
    return is_so()
