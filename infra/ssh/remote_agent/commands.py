"""Short commands, the search for an interpreter, and the clean-up of what nobody needs any more."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import time
from typing import Any

from infra.ssh.remote_agent.files import inside, remove_tree, work_directory
from infra.ssh.remote_agent.frames import Refused, Wire
from infra.ssh.remote_agent.jobs import supervisor_of
from infra.ssh.remote_agent.processes import Watched, environment

_PROBE_TIMEOUT_S = 60.0
_SENDING_S = 3600.0
"""No pack of files takes so long to arrive: its sender is gone."""
_PROBE = (
    "import importlib.util as u, json, sys;"
    "print(json.dumps([list(sys.version_info[:3]), [m for m in sys.argv[1:] if u.find_spec(m)]]))"
)


def run(request: dict[str, Any], wire: Wire) -> None:
    """Run one command to its end; it is killed when it is late or the link goes."""
    limit = request["limit"]
    output = bytearray()
    size = 0

    def keep(data: bytes) -> None:
        nonlocal size
        output.extend(data[: limit - len(output)])
        size += len(data)

    child = Watched(request["argv"], environment(request["env"], request["path_first"]), request["cwd"], keep)
    wire.listen()
    status = child.wait(request["timeout_s"], should_stop=lambda: wire.gone, tick=wire.beat)
    wire.say(
        "ran",
        bytes(output),
        status=status,
        ended=child.ended,
        stdout_bytes=size,
        stderr=child.stderr_tail.decode("utf-8", "replace"),
    )


def find_python(request: dict[str, Any], wire: Wire) -> None:
    """The first interpreter that is recent enough and has the modules; else what each of them lacks."""
    lacking = []
    for pattern in request["candidates"]:
        if "/" in pattern:
            paths = sorted(glob.glob(os.path.expanduser(pattern)), key=_by_number, reverse=True)
        else:
            paths = [path for path in [shutil.which(pattern)] if path]
        if not paths:
            lacking.append(f"{pattern}: not there")
        for path in paths:
            version, lacks = _probe(path, request, wire)
            if not lacks:
                wire.say("python", path=path, version=version)
                return
            lacking.append(f"{path}: {lacks}")
    raise Refused("no_python", "; ".join(lacking))


def sweep(request: dict[str, Any], wire: Wire) -> None:
    """Remove jobs, trees and blobs that nobody touched for so long, running jobs excepted, and half-sent files."""
    root = work_directory(request)
    now, old_s = time.time(), request["older_than_s"]
    removed = 0
    for kind in ("jobs", "trees", "incoming", "scratch", "blobs"):
        for name in os.listdir(os.path.join(root, kind)):
            path = os.path.join(root, kind, name)
            try:
                age_s = now - os.lstat(path).st_mtime
                is_old = age_s > (min(old_s, _SENDING_S) if kind == "incoming" else old_s)
                if is_old and not (kind == "jobs" and supervisor_of(path)):
                    remove_tree(path)
                    removed += 1
            except OSError:
                continue  # it is going away at this moment, or belongs to somebody else
            wire.beat()
    wire.say("swept", removed=removed)


def discard(request: dict[str, Any], wire: Wire) -> None:
    remove_tree(inside(os.path.join(work_directory(request), "scratch"), os.path.basename(request["path"])))
    wire.say("done")


def _by_number(path: str) -> list[tuple[int, str]]:
    """Numbers as numbers: `pytorch_2_14` is newer than `pytorch_2_9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def _probe(path: str, request: dict[str, Any], wire: Wire) -> tuple[list[int], str]:
    """Its version, and what it lacks (nothing: the empty string)."""
    printed = bytearray()
    try:
        child = Watched([path, "-c", _PROBE, *request["modules"]], environment({}), None, printed.extend)
        status = child.wait(_PROBE_TIMEOUT_S, tick=wire.beat)
        version, modules = json.loads(printed.decode()) if status == 0 else ([], [])
    except (Refused, ValueError):
        version, modules = [], []
    if not version:
        return version, "does not run"
    if version < request["at_least"]:
        return version, f"is Python {'.'.join(map(str, version))}"
    missing = [" or ".join(names) for names in request["needs"] if not set(names) & set(modules)]
    return version, f"lacks {', '.join(missing)}" if missing else ""
