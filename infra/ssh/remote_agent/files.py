"""Files below the work directory: written whole or not at all, read within bounds, never through a link."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from infra.ssh.remote_agent.frames import Refused, write_all


def work_directory(request: dict[str, Any]) -> str:
    """The directory of everything; made, private, when it is not there."""
    root = os.path.expanduser(request["root"])
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), root)
    for name in ("", "blobs", "trees", "jobs", "incoming", "scratch", "locks"):
        os.makedirs(os.path.join(root, name), mode=0o700, exist_ok=True)
    return root


def inside(base: str, name: str) -> str:
    """`base/name`, refusing any name that would lead elsewhere."""
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Refused("bad_name", f"not a plain relative path: {name!r}")
    return os.path.join(base, *parts)


@contextmanager
def locked(root: str, name: str, exclusive: bool, tick: Callable[[], None]) -> Iterator[None]:
    """Two runs of one user at the same time: one alone writes `name`, or several read it. Freed with the process."""
    descriptor = os.open(os.path.join(root, "locks", name), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tick()
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: str, data: bytes, mode: int = 0o600) -> None:
    temporary = f"{path}.{os.getpid()}.part"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def read_bounded(path: str, limit: int) -> bytes | None:
    """The content of a regular file; None when it is absent, Refused when it is a link, special or too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    details = os.fstat(descriptor)
    if not stat.S_ISREG(details.st_mode):
        os.close(descriptor)  # a folder has no stream to close it with
        raise Refused("not_a_file", f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        if details.st_size > limit:
            raise Refused("too_large", f"{path} has {details.st_size} bytes; the limit is {limit}")
        return stream.read(limit)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def remove_tree(path: str) -> None:
    """Remove it whatever permissions were left behind; links are removed, not followed. Two may do it at once."""
    for last_try in (False, False, False, True):
        try:
            if os.path.islink(path) or not os.path.isdir(path):
                os.unlink(path)
            else:
                _make_removable(path)
                shutil.rmtree(path)
            return
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
            if last_try:
                raise


def _make_removable(path: str) -> None:
    os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
