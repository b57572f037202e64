"""Files of a user's own checkout replaced by others, and put back byte for byte, whatever is killed in between.

Below the work directory, `checkouts/<key>/` holds the originals and, written after them and before the first file of
the checkout is touched, `placed.json`: while it is there the checkout is to be put back, and all that takes is in this
folder. It is never swept. Every request may come twice, and each goes on where an interrupted one stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from infra.ssh.remote_agent import jobs
from infra.ssh.remote_agent.files import (
    inside,
    locked,
    read_bounded,
    remove_tree,
    sha256_of,
    work_directory,
    write_atomically,
)
from infra.ssh.remote_agent.frames import Refused, Wire, take, write_all

_LARGEST_BYTES = 16 << 20
"""Of a file that is replaced, and of one whose content counts for a checkout's digest; of larger ones the size does."""
_MOST_FILES = 20000
"""Of a checkout; more is somebody's home folder."""
_PASSED_OVER = ("__pycache__", "node_modules")


def look(request: dict[str, Any], wire: Wire) -> None:
    """What a checkout is, what is in place of its own files, and the content of those that are asked for."""
    base = _base(request)
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        contents = []
        for name in request["read"]:
            data = _content(inside(base, name))
            contents.append([name, None if data is None else len(data)])
            wire.beat()
            if data is not None:
                wire.say("file", data, name=name)
        digest = placed["before"] if placed is not None else _digest_of(base, wire.beat)
        running = placed is not None and jobs.runs(request, placed["job"])
    wire.say("checkout", base=base, digest=digest, read=contents, placed=placed, running=running)


def place(request: dict[str, Any], wire: Wire) -> None:
    """Put the files of the request in place; all of them, or on a refusal none."""
    payload = {name: take(size) for name, size in request["files"]}
    base = _base(request)
    ours = {name: hashlib.sha256(data).hexdigest() for name, data in payload.items()}
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is None:
            placed = _save(folder, base, ours, request, wire)
        elif {each["path"]: each["ours"] for each in placed["files"]} != ours:
            raise Refused("placed", f"other files are in place in {base} since {placed['began']}: put it back first")
        for each in placed["files"]:
            path = inside(base, each["path"])
            if _sha(path) != each["ours"]:
                mode = each["mode"] if each["mode"] is not None else 0o644
                _replace(path, payload[each["path"]], mode, None)
            wire.beat()
    wire.say("placed", base=base, placed=placed)


def note_job(request: dict[str, Any], wire: Wire) -> None:
    """Keep the name of the job that works with the files in place, for whoever puts them back to end it first."""
    base = _base(request)
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is not None:
            placed["job"] = request["job"]
            write_atomically(os.path.join(folder, "placed.json"), json.dumps(placed).encode())
    wire.say("done")


def put_back(request: dict[str, Any], wire: Wire) -> None:
    """End the job that works with it, and leave the checkout as it was.

    What somebody changed in the meantime in the files of ours is kept, and named.
    """
    base = _base(request)
    kept = []
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is not None and placed["job"]:
            jobs.end(request, placed["job"], wire)
        for each in placed["files"] if placed is not None else ():
            path = inside(base, each["path"])
            _remove(_temporary(path))
            now = _sha(path)
            if now is not None and now not in (each["was"], each["ours"]):
                kept.append(_keep(request, path, each["path"]))
            if each["was"] is None:
                _remove(path)
            elif now != each["was"] or not _looks_as(path, each):
                original = os.path.join(folder, each["was"])
                data = read_bounded(original, _LARGEST_BYTES)
                if data is None or hashlib.sha256(data).hexdigest() != each["was"]:
                    raise Refused("damaged", f"{original}, the original of {path}, is damaged")
                _replace(path, data, each["mode"], each["mtime_ns"])
            _to_disk(os.path.dirname(path))
            wire.beat()
        if placed is not None:
            os.unlink(os.path.join(folder, "placed.json"))
            _to_disk(folder)
        remove_tree(folder)  # originals that were saved, and never needed, too
    wire.say("back", base=base, placed=placed, kept=kept)


# --- what is kept of it -------------------------------------------------------------------------------


def _base(request: dict[str, Any]) -> str:
    base = os.path.realpath(os.path.expanduser(request["checkout"]))
    if not os.path.isdir(base):
        raise Refused("no_checkout", f"{request['checkout']} is no folder there")
    return base


@contextmanager
def _kept_of(request: dict[str, Any], base: str, wire: Wire) -> Iterator[str]:
    """The folder of what is kept of a checkout, which one request at a time has."""
    root = work_directory(request)
    key = hashlib.sha256(os.fsencode(base)).hexdigest()[:24]
    folder = os.path.join(root, "checkouts", key)
    with locked(root, f"checkout-{key}", True, wire.beat):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            yield folder
        finally:
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)


def _placed(folder: str) -> dict[str, Any] | None:
    data = read_bounded(os.path.join(folder, "placed.json"), _LARGEST_BYTES)
    if data is None:
        return None
    placed: dict[str, Any] = json.loads(data.decode())
    return placed


def _save(folder: str, base: str, ours: dict[str, str], request: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """Copies of the originals, and then the record that they are to be put back."""
    before = _digest_of(base, wire.beat)
    if before != request["before"]:
        raise Refused("changed", f"{base} was changed since it was read: run it again")
    files: list[dict[str, Any]] = []
    for name, sha in ours.items():
        path = inside(base, name)
        data = _content(path)
        if data is None:
            files.append({"path": name, "was": None, "mode": None, "mtime_ns": None, "ours": sha})
            continue
        known = os.stat(path)
        was = hashlib.sha256(data).hexdigest()
        write_atomically(os.path.join(folder, was), data)
        mode, mtime_ns = stat.S_IMODE(known.st_mode), known.st_mtime_ns
        files.append({"path": name, "was": was, "mode": mode, "mtime_ns": mtime_ns, "ours": sha})
        wire.beat()
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    placed = {"checkout": base, "began": began, "before": before, "key": request["key"], "job": "", "files": files}
    _to_disk(folder)
    write_atomically(os.path.join(folder, "placed.json"), json.dumps(placed).encode())
    _to_disk(folder)
    return placed


def _keep(request: dict[str, Any], path: str, name: str) -> str:
    """A copy of what is about to be replaced and is neither the original nor ours."""
    folder = os.path.join(work_directory(request), "checkouts", "changed")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    copy = os.path.join(folder, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{os.path.basename(name)}")
    shutil.copyfile(path, copy)
    return copy


# --- files of a checkout ------------------------------------------------------------------------------


def _content(path: str) -> bytes | None:
    if os.path.islink(path):
        raise Refused("link", f"{path} is a link: name the file that it leads to")
    return read_bounded(path, _LARGEST_BYTES)


def _sha(path: str) -> str | None:
    data = _content(path)
    return None if data is None else hashlib.sha256(data).hexdigest()


def _looks_as(path: str, each: dict[str, Any]) -> bool:
    known = os.stat(path)
    return stat.S_IMODE(known.st_mode) == each["mode"] and known.st_mtime_ns == each["mtime_ns"]


def _temporary(path: str) -> str:
    """Of one name, so that one which was left half-written is found again."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.nki-optimizer")


def _replace(path: str, data: bytes, mode: int, mtime_ns: int | None) -> None:
    temporary = _temporary(path)
    _remove(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        write_all(descriptor, data)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if mtime_ns is not None:
        os.utime(temporary, ns=(mtime_ns, mtime_ns))
    os.replace(temporary, path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _to_disk(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_of(base: str, tick: Callable[[], None]) -> str:
    """One hash over every name and content below `base`; of hidden folders and caches none, of large files the size."""
    total = hashlib.sha256()
    for number, path in enumerate(_files(base)):
        if number >= _MOST_FILES:
            raise Refused("too_large", f"{base} has more than {_MOST_FILES} files: name the model's own folder")
        known = os.lstat(path)
        if stat.S_ISLNK(known.st_mode):
            content = f"-> {os.readlink(path)}"
        elif not stat.S_ISREG(known.st_mode):
            content = "special"
        elif known.st_size > _LARGEST_BYTES:
            content = f"{known.st_size} bytes"
        else:
            content = sha256_of(path)
        total.update(f"{os.path.relpath(path, base)}\0{content}\0".encode("utf-8", "surrogateescape"))
        tick()
    return total.hexdigest()


def _files(base: str) -> Iterator[str]:
    for folder, names, leaves in os.walk(base):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _PASSED_OVER)
        for name in sorted(leaves):
            yield os.path.join(folder, name)
