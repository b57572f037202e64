"""Other processes, looked at from a test: which there are, and whether they are really gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_S = 1500.0
"""After that something hangs: so long that a machine which does much else besides is not taken for it."""


def limits_s(shortest: float) -> Iterator[float]:
    """Time limits to try in turn: the first within which this machine comes to what a test of that limit is about."""
    return (shortest * 6.0**power for power in range(4))


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


def eventually(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """What another process is about to bring about."""
    give_up = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True
