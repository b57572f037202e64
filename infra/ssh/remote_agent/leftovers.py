"""What earlier work left behind and nothing needs any more: found, and removed where that was asked for.

Used here and on hosts alike. What a living process holds is kept, and what cannot be told apart from that.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from infra.ssh.remote_agent.files import remove_tree
from infra.ssh.remote_agent.frames import Wire
from infra.ssh.remote_agent.jobs import kill_strays, supervisor_of

PREFIXES = (
    "nki-judge-", "nki-sim-", "nki-trn-", "nki-arguments-", "nki-verdicts-", "nki-migrate-", "nki-probe-",
    "nki-optimizer-model-",
    "nki-ray-", "nki-plugin-",
)  # fmt: skip
"""Of our folders in the system's temporary one."""
_NAME = re.compile(rf"(?:{'|'.join(PREFIXES)})[a-z0-9_]{{8}}")
"""As Python's tempfile names them: a folder of the user's own called much the same is none of ours."""

OWNER = ".owner"
"""In those of `infra/scratch_folder.py`: locked by the owner for as long as it lives."""

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_JUST_MADE_S = 60.0
"""An owner of an earlier release locked its folder after that had its name: a younger one may not be locked yet."""


class LeftOver:
    """`kept`: why it stays; empty where it goes."""

    def __init__(self, kind: str, path: str, kept: str) -> None:
        self.kind, self.path, self.kept = kind, path, kept
        self.bytes = bytes_of(path)
        self.age_s = max(0.0, time.time() - _last_touched(path))

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.path, "kept": self.kept, "bytes": self.bytes, "age_s": self.age_s}


def clean(request: dict[str, Any], wire: Wire) -> None:
    """Say what is left over, each with why it is kept or nothing; remove those, unless it is for show only."""
    root = os.path.expanduser(request["root"])
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), root)
    found = [*of_work_directory(root, request["owed"], wire.beat), *of_temporary_folder(wire.beat)]
    if request["remove"]:
        remove(found, wire.beat)
    wire.say("cleaned", found=[each.document() for each in found])


def remove(found: Sequence[LeftOver], tick: Callable[[], None]) -> None:
    """Those that are not kept; what cannot be removed is kept, and says why."""
    for each in found:
        if not each.kept:
            try:
                if each.kind == "job":
                    kill_strays(each.path)  # its supervisor is gone, and nobody else would end them
                remove_tree(each.path)
            except OSError as error:
                each.kept = f"cannot be removed: {error.strerror or error}"
        tick()


# --- a host's work directory --------------------------------------------------------------------------


def of_work_directory(root: str, owed: Sequence[str], tick: Callable[[], None]) -> Iterator[LeftOver]:
    """`owed`: names of jobs that some run will ask for again."""
    running = False
    for path in _inside(root, "jobs"):
        tick()
        if supervisor_of(path) is not None:
            running = True
            yield LeftOver("job", path, "it is running")
        elif os.path.basename(path) in owed:
            yield LeftOver("job", path, "a run that was interrupted will collect it")
        elif _age_s(path) < DAY_S:
            yield LeftOver("job", path, "ended today: its run may still collect it")
        else:
            yield LeftOver("job", path, "")
    for kind in ("trees", "scratch", "incoming", "blobs"):
        for path in _inside(root, kind):
            tick()
            young = "used within the hour" if _age_s(path) < HOUR_S else ""
            yield LeftOver(kind, path, "jobs are running" if running else young)


# --- the system's temporary folder ----------------------------------------------------------------------


def of_temporary_folder(tick: Callable[[], None], folder: str = "") -> Iterator[LeftOver]:
    """This user's folders by our names, and in the one of a Ray node what `infra/engines/at_node.py` keeps there.

    `folder`: another one than the system's.
    """
    in_use: list[str] | None = None
    for path in _inside(folder or tempfile.gettempdir(), ""):
        tick()
        if not _NAME.fullmatch(os.path.basename(path)) or not _is_our_folder(path):
            continue
        if os.path.lexists(os.path.join(path, OWNER)):
            yield LeftOver("temporary", path, _owner(path))
            continue
        if in_use is None:
            in_use = list(_paths_in_use())
        yield LeftOver("temporary", path, _without_owner(path, in_use))
    node = os.path.join(folder or tempfile.gettempdir(), f"nki-optimizer-nodes-{os.getuid()}")
    for below, locked in (("work", OWNER), ("trees", ".whole")) if _is_our_folder(node) else ():
        for path in _inside(node, below):
            tick()
            yield LeftOver(f"{below} of a Ray node", path, _owner(path, locked))


def _is_our_folder(path: str) -> bool:
    try:
        known = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid()


def _owner(path: str, locked: str = OWNER) -> str:
    if _age_s(path) < _JUST_MADE_S:
        return "just made"
    try:
        owner = os.open(os.path.join(path, locked), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"its owner cannot be asked for: {error.strerror}"
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return "its process is running"
    finally:
        os.close(owner)
    return ""


def _without_owner(path: str, in_use: Sequence[str]) -> str:
    """Of a folder that nobody locks: old, and in no process's hands."""
    if _age_s(path) < DAY_S:
        return "used within a day"
    if not in_use:
        return "whether a process uses it cannot be told here"
    return "a process uses it" if any(each == path or each.startswith(f"{path}/") for each in in_use) else ""


def _paths_in_use() -> Iterator[str]:
    """Working folders, open files and arguments of every process that may be looked at; nothing without /proc."""
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for name in processes:
        base = f"/proc/{name}"
        try:
            links = [f"{base}/cwd", *(f"{base}/fd/{number}" for number in os.listdir(f"{base}/fd"))]
            with open(f"{base}/cmdline", "rb") as stream:
                yield from stream.read().decode("utf-8", "surrogateescape").split("\0")
        except OSError:
            continue
        for link in links:
            try:
                yield os.readlink(link)
            except OSError:
                continue


# --- sizes and times ------------------------------------------------------------------------------------


def bytes_of(path: str) -> int:
    """Of a file, or of all files below a folder; links count as nothing."""
    if not os.path.isdir(path) or os.path.islink(path):
        return _size(path)
    return sum(_size(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _size(path: str) -> int:
    try:
        known = os.lstat(path)
    except OSError:
        return 0
    return known.st_size if stat.S_ISREG(known.st_mode) else 0


def _inside(root: str, name: str) -> list[str]:
    folder = os.path.join(root, name) if name else root
    try:
        return sorted(os.path.join(folder, entry) for entry in os.listdir(folder))
    except OSError:
        return []


def _last_touched(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()


def _age_s(path: str) -> float:
    return time.time() - _last_touched(path)
