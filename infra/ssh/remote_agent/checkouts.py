"""Files of a user's own checkout replaced by others, and put back byte for byte, whatever is killed in between.

Below the work directory, `checkouts/<key>/` holds the originals and, written after them and before the first file of
the checkout is touched, `placed.json`: while it is there the checkout is to be put back, and all that takes is in this
folder. It is never swept. Every request may come twice, and each goes on where an interrupted one stopped.

In the checkout itself a small file names the work directory meanwhile, so that nobody with another one takes our files
for the user's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
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
_JOB = "job"
_PASSED_OVER = ("__pycache__", "node_modules")


def look(request: dict[str, Any], wire: Wire) -> None:
    """What a checkout is, what is in place of its own files, and the content of those that are asked for."""
    base = _base(request)
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is None:
            _refuse_anothers(base, request)
        contents = []
        for name in request["read"]:
            data = _content(_path(base, name))
            contents.append([name, None if data is None else len(data)])
            wire.beat()
            if data is not None:
                wire.say("file", data, name=name)
        digest = _digest_of(base, wire.beat, placed["files"] if placed is not None else ())
        running = jobs.runs(request, placed["job"] if placed is not None else _noted(folder))
        if not running:
            _remove(os.path.join(folder, _JOB))
    wire.say("checkout", base=base, digest=digest, read=contents, placed=placed, running=running)


def place(request: dict[str, Any], wire: Wire) -> None:
    """Put the files of the request in place. A refusal on the way leaves some of them there, for `put_back`."""
    payload = {name: take(size) for name, size in request["files"]}
    base = _base(request)
    ours = {name: hashlib.sha256(data).hexdigest() for name, data in payload.items()}
    with _kept_of(request, base, wire) as folder:
        placed, goes_on = _placed(folder), True
        if placed is None:
            placed, goes_on = _save(folder, base, ours, request, wire), False
        elif {each["path"]: each["ours"] for each in placed["files"]} != ours:
            raise Refused("placed", f"other files are in place in {base} since {placed['began']}: put it back first")
        _claim(folder, base, request, goes_on)
        for number, each in enumerate(placed["files"]):
            path = _path(base, each["path"])
            now = _sha(path)
            if now not in (each["ours"], each["was"]):
                if not goes_on:  # what is there now is the user's own, and stays
                    placed["files"][number] = _saved(folder, base, each["path"], each["ours"])
                    _record(folder, placed)
                raise Refused("changed", f"{path} was changed since it was read: run it again")
            if now != each["ours"]:
                _replace(path, payload[each["path"]], {**each, "mtime_ns": None})
            wire.beat()
    wire.say("placed", base=base, placed=placed)


def note_job(request: dict[str, Any], wire: Wire) -> None:
    """Keep the name of the job that works with the files in place, or with the checkout as it is, so that others wait
    for it, and whoever puts the checkout back ends it first."""
    base = _base(request)
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is not None:
            placed["job"] = request["job"]
            _record(folder, placed)
        else:
            write_atomically(os.path.join(folder, _JOB), request["job"].encode())
    wire.say("done")


def put_back(request: dict[str, Any], wire: Wire) -> None:
    """End the job that works with it, and leave the checkout as it was.

    What somebody changed in the meantime in the files of ours is kept, and named.
    """
    base = _base(request)
    with _kept_of(request, base, wire) as folder:
        placed = _placed(folder)
        if placed is None:
            _refuse_anothers(base, request)
            if job := _noted(folder):
                jobs.end(request, job, wire)
            remove_tree(folder)  # originals that were saved, and never needed, too
            placed = _told_before(request)
        else:
            if placed["job"]:
                jobs.end(request, placed["job"], wire)
            for each in placed["files"]:
                _put_one_back(folder, base, each, placed, request)
                wire.beat()
            if _owner(base) in ("", _ours(request)):
                os.unlink(os.path.join(base, MARK))
            _to_disk(base)
            if placed["kept"]:
                write_atomically(_last_answer(request), json.dumps([request["ask"], placed]).encode())
            os.unlink(os.path.join(folder, "placed.json"))
            _to_disk(folder)
            remove_tree(folder)
    wire.say("back", base=base, placed=placed, kept=placed["kept"] if placed is not None else [])


def _put_one_back(
    folder: str, base: str, each: dict[str, Any], placed: dict[str, Any], request: dict[str, Any]
) -> None:
    path = _path(base, each["path"])
    _remove(_temporary(path))
    try:
        now = _sha(path)
    except Refused:  # somebody's link, folder or large file
        now = "no such file of ours"
    if now is not None and now not in (each["was"], each["ours"]):
        placed["kept"].append(_keep(request, path, each["path"]))
        _record(folder, placed)
    if each["was"] is None:
        _remove(path)
    elif now != each["was"] or not _looks_as(path, each):
        original = os.path.join(folder, each["was"])
        data = read_bounded(original, _LARGEST_BYTES)
        if data is None or hashlib.sha256(data).hexdigest() != each["was"]:
            raise Refused("damaged", f"{original}, the original of {path}, is damaged")
        usual = os.umask(0o022)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # if somebody removed it
        os.umask(usual)
        _replace(path, data, each)
    _to_disk(os.path.dirname(path))


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


def _noted(folder: str) -> str:
    """The job that worked with the checkout as it is; empty where none has."""
    return (read_bounded(os.path.join(folder, _JOB), _LARGEST_BYTES) or b"").decode()


def _placed(folder: str) -> dict[str, Any] | None:
    data = read_bounded(os.path.join(folder, "placed.json"), _LARGEST_BYTES)
    if data is None:
        return None
    placed: dict[str, Any] = json.loads(data.decode())
    placed.setdefault("kept", [])  # of a release before it was noted here
    for each in placed["files"]:
        each.setdefault("owner", None)
        each["mode"] = 0o644 if each["mode"] is None else each["mode"]
    return placed


def _save(folder: str, base: str, ours: dict[str, str], request: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """Copies of the originals, and then the record that they are to be put back."""
    _refuse_anothers(base, request)
    before = _digest_of(base, wire.beat)
    if before != request["before"]:
        raise Refused("changed", f"{base} was changed since it was read: run it again")
    files: list[dict[str, Any]] = []
    for name, sha in ours.items():
        files.append(_saved(folder, base, name, sha))
        wire.beat()
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    placed: dict[str, Any] = {
        "checkout": base, "began": began, "before": before, "key": request["key"], "job": "", "files": files,
        "kept": [],
    }  # fmt: skip
    _to_disk(folder)
    _record(folder, placed)
    return placed


def _saved(folder: str, base: str, name: str, ours: str) -> dict[str, Any]:
    """A copy of one original, if there is one, and what is to be known of it."""
    path = _path(base, name)
    data = _content(path)
    if data is None:
        return {"path": name, "was": None, "mode": 0o644, "mtime_ns": None, "owner": None, "ours": ours}
    known = os.stat(path)
    if os.geteuid() != 0 and (known.st_uid != os.geteuid() or known.st_gid not in (os.getegid(), *os.getgroups())):
        raise Refused("not_yours", f"{path} is another user's: it could not be put back as it was")
    was = hashlib.sha256(data).hexdigest()
    write_atomically(os.path.join(folder, was), data)
    return {
        "path": name, "was": was, "mode": stat.S_IMODE(known.st_mode), "mtime_ns": known.st_mtime_ns,
        "owner": [known.st_uid, known.st_gid], "ours": ours,
    }  # fmt: skip


def _record(folder: str, placed: dict[str, Any]) -> None:
    write_atomically(os.path.join(folder, "placed.json"), json.dumps(placed).encode())
    _to_disk(folder)


def _keep(request: dict[str, Any], path: str, name: str) -> str:
    """Where that is kept which is neither the original nor ours, and about to be replaced."""
    stem = os.path.join(_changed(request), f"{time.strftime('%Y%m%d-%H%M%S')}-{os.path.basename(name)}")
    copy, number = stem, 2
    while os.path.lexists(copy):
        copy, number = f"{stem}.{number}", number + 1
    if stat.S_ISREG(os.lstat(path).st_mode):
        shutil.copyfile(path, copy)
    else:
        shutil.move(path, copy)
    return copy


def _changed(request: dict[str, Any]) -> str:
    folder = os.path.join(work_directory(request), "checkouts", "changed")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _last_answer(request: dict[str, Any]) -> str:
    return os.path.join(_changed(request), "last.json")


def _told_before(request: dict[str, Any]) -> dict[str, Any] | None:
    """What this very question was answered with, if the answer was lost on its way: copies must not stay unnamed."""
    root = work_directory(request)
    data = read_bounded(os.path.join(root, "checkouts", "changed", "last.json"), _LARGEST_BYTES)
    asked, placed = json.loads(data.decode()) if data is not None else (None, None)
    return placed if asked == request["ask"] else None


# --- whose a checkout is ------------------------------------------------------------------------------

MARK = ".nki-optimizer-kernels"


def _owner(base: str) -> str | None:
    """The work directory of whoever has files in place there; empty where it was killed before it said so."""
    data = _content(os.path.join(base, MARK))
    return None if data is None else os.fsdecode(data)


def _ours(request: dict[str, Any]) -> str:
    return os.path.realpath(work_directory(request))


def _refuse_anothers(base: str, request: dict[str, Any]) -> None:
    """Of a checkout that we have nothing in."""
    owner, ours = _owner(base), _ours(request)
    if owner is not None and owner != ours:
        whose = f"of the work directory {owner}" if owner else "of another work directory"
        raise Refused(
            "placed",
            f"kernels {whose} are in place in {base}: put them back from there; where it is gone, remove {MARK}",
        )


def _claim(folder: str, base: str, request: dict[str, Any], goes_on: bool) -> None:
    """`goes_on`: an earlier call may have died in here."""
    path = os.path.join(base, MARK)
    if goes_on and _owner(base) == "":
        os.unlink(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        if _owner(base) != _ours(request):
            if not goes_on:  # nothing was touched yet
                os.unlink(os.path.join(folder, "placed.json"))
            _refuse_anothers(base, request)
        return
    try:
        os.fchmod(descriptor, 0o644)
        write_all(descriptor, os.fsencode(_ours(request)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- files of a checkout ------------------------------------------------------------------------------


def _path(base: str, name: str) -> str:
    """Below the checkout itself, and not behind a link in it."""
    path, folder = inside(base, name), base
    for part in name.split("/")[:-1]:
        folder = os.path.join(folder, part)
        if os.path.islink(folder):
            raise Refused("link", f"{folder} is a link: name the folder that it leads to as the checkout")
    return path


def _content(path: str) -> bytes | None:
    if os.path.islink(path):
        raise Refused("link", f"{path} is a link: name the file that it leads to")
    return read_bounded(path, _LARGEST_BYTES)


def _sha(path: str) -> str | None:
    data = _content(path)
    return None if data is None else hashlib.sha256(data).hexdigest()


def _looks_as(path: str, each: dict[str, Any]) -> bool:
    known = os.stat(path)
    same = [known.st_uid, known.st_gid] == each["owner"] and known.st_mtime_ns == each["mtime_ns"]
    return same and stat.S_IMODE(known.st_mode) == each["mode"]


def _temporary(path: str) -> str:
    """Of one name, so that one which was left half-written is found again."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.nki-optimizer")


def _replace(path: str, data: bytes, each: dict[str, Any]) -> None:
    """By a file with the owner, the permissions and, if it is given, the time of the one that was there."""
    temporary = _temporary(path)
    _remove(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        write_all(descriptor, data)
        made = os.fstat(descriptor)
        if each["owner"] not in (None, [made.st_uid, made.st_gid]):
            os.fchown(descriptor, *each["owner"])
        os.fchmod(descriptor, each["mode"])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if each["mtime_ns"] is not None:
        os.utime(temporary, ns=(each["mtime_ns"], each["mtime_ns"]))
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


def _digest_of(base: str, tick: Callable[[], None], in_place: Sequence[dict[str, Any]] = ()) -> str:
    """One hash over every name and content below `base`; of hidden folders and caches none, of large files the size.

    Files of ours that are in place count as the originals that they stand for, so that it changes with the user's only.
    """
    total = hashlib.sha256()
    stands_for = {os.path.join(base, each["path"]): each for each in in_place}
    passed_over = {os.path.join(base, MARK), *map(_temporary, stands_for)}
    for number, path in enumerate(_files(base)):
        if number >= _MOST_FILES:
            raise Refused("too_large", f"{base} has more than {_MOST_FILES} files: name the model's own folder")
        if path in passed_over:
            continue
        known = os.lstat(path)
        if stat.S_ISLNK(known.st_mode):
            content = f"-> {os.readlink(path)}"
        elif not stat.S_ISREG(known.st_mode):
            content = "special"
        elif known.st_size > _LARGEST_BYTES:
            content = f"{known.st_size} bytes"
        else:
            content = sha256_of(path)
            each = stands_for.get(path)
            if each is not None and content == each["ours"]:
                if each["was"] is None:
                    continue
                content = each["was"]
        total.update(f"{os.path.relpath(path, base)}\0{content}\0".encode("utf-8", "surrogateescape"))
        tick()
    return total.hexdigest()


def _files(base: str) -> Iterator[str]:
    for folder, names, leaves in os.walk(base):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _PASSED_OVER)
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*leaves, *links]):
            yield os.path.join(folder, name)
