"""What a worker of a cluster does with what it is sent: lay our tree out, once per node, and pass lines to our process.

Travels by value, since on a node nothing of ours is installed: standard library only, and imports nothing of ours. The
tree comes as a bundle that is named by its hash, so that no node is taken to share a file system with another.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
"""Names of variables that no worker has a use for."""

GRACE_S = 20.0
"""A command is ended at its limit by the process that carries it out, and after this long that process too."""

OWNER, WHOLE = ".owner", ".whole"
"""In a folder of the work, and in a tree: locked by each process that uses it, for as long as it lives."""

MOST_BYTES = 256 << 20
"""Of the trees that a node keeps for the next run; the newest stay."""

_HALF_MADE_S = 3600.0
"""A folder without such a file may be about to get one until it is that old."""

_AGENTS: dict[str, _Agent] = {}
"""Of this worker: one, by what it was started with."""

_VERSIONS: dict[str, str] = {}
"""What is installed here, once it was looked at."""


def is_last(said: dict[str, Any]) -> bool:
    """Of what is said of one message, here or by the driver: nothing follows it."""
    return any(word in said for word in ("end", "answer", "failed", "refused", "overdue", "lost"))


class Refused(Exception):
    """This node cannot do it. One line: why, and what to do about it."""


def work(
    message: dict[str, Any], setup: dict[str, Any], fetch: Callable[[], bytes], node: str, cores: list[str]
) -> Iterator[dict[str, Any]]:
    """Carries out one command, or answers one question: yields what is said on the way, and last what it came to.

    message: as `infra.engines.agent` takes it. setup: `key` (SHA-256 of the bundle in hexadecimal), `python` and
    `numpy` (versions that it must have). fetch: gets the bundle, where the node does not have it. node: this one's id;
    cores: the NeuronCores that are this worker's.
    """
    _blank_secrets()
    where = f"{socket.gethostname()}, worker {os.getpid()}"
    yield {"started": {"node": node, "where": where, "versions": _versions()}}
    try:
        agent = _agent(setup, fetch, cores)
    except Refused as error:
        yield {"refused": f"{where}: {error}"}
        return
    except OSError as error:
        yield {"refused": f"{where}: cannot lay out what was sent: {error}"}
        return
    try:
        yield from agent.converse(message)
    except BaseException:  # also when it is cancelled: what it is in the middle of is unknown
        _AGENTS.clear()
        agent.end()
        raise


class _Agent:
    """Our own process on this node, of the tree that was sent."""

    def __init__(self, tree: str, folder: str, cores: list[str]) -> None:
        kept = {
            name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH") if name in os.environ
        }
        self._tree = hold(tree, WHOLE)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process does
        self._process = subprocess.Popen(
            [sys.executable, "-m", "infra.engines.agent", folder, ",".join(cores)],
            cwd=tree, env={**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        self._rest = b""

    def converse(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Raises nothing for what goes wrong with the process: that is the last thing that is said."""
        assert self._process.stdin is not None
        until = time.monotonic() + message["limit_s"] + GRACE_S
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # its last words are read below
        while True:
            line = self._line(until)
            if line:
                said = json.loads(line)
                yield said
                if "line" not in said:
                    return
                continue
            late = line is None
            self.end()
            _AGENTS.clear()
            yield (
                {"overdue": message["limit_s"]} if late else {"lost": f"our process there ended: {self._last_words()}"}
            )
            return

    def _line(self, until: float) -> bytes | None:
        """Empty where it has ended; None where it has said nothing until then."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                return None
            some = os.read(self._process.stdout.fileno(), 1 << 16)
            if not some:
                return b""
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """With all that it started: those end with their parent, or when their input does."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):  # ended before
            os.close(self._tree)

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1][:300] if said else f"status {self._process.poll()}"


def _agent(setup: dict[str, Any], fetch: Callable[[], bytes], cores: list[str]) -> _Agent:
    name = f"{setup['key']} {cores}"
    agent = _AGENTS.get(name)
    if agent is None or not agent.alive():
        for other in _AGENTS.values():
            other.end()
        _AGENTS.clear()
        _check_versions(setup)
        folder = _folder()
        sweep(folder)
        tree = lay_out(folder, setup["key"], fetch)
        agent = _AGENTS[name] = _Agent(tree, os.path.join(folder, "work"), cores)
    return agent


def _check_versions(setup: dict[str, Any]) -> None:
    """Raises Refused: another Python or NumPy may compute other bits, and another Ray would not have come so far."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != setup["python"]:
        raise Refused(f"it has Python {here}, and the run has {setup['python']}: start Ray there with that one")
    for package, least in (("numpy", setup["numpy"]), ("ml_dtypes", "")):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise Refused(f"it has no {package}: `{sys.executable} -m pip install numpy ml_dtypes` there") from None
        if least and version.partition(".")[0] != least:
            raise Refused(f"it has NumPy {version}, and the run has {least}: install the same major version there")


def _versions() -> str:
    """For people."""
    if "said" not in _VERSIONS:
        found = [f"Python {sys.version.partition(' ')[0]}"]
        for package in ("numpy", "ml_dtypes", "ray"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.append(f"{package} {importlib.metadata.version(package)}")
        _VERSIONS["said"] = ", ".join(found)
    return _VERSIONS["said"]


def _folder() -> str:
    """This user's own, on this node's own disk."""
    path = os.path.join(tempfile.gettempdir(), f"nki-optimizer-nodes-{os.getuid()}")
    for folder in (path, os.path.join(path, "trees"), os.path.join(path, "work")):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    known = os.lstat(path)
    if known.st_uid != os.getuid() or known.st_mode & 0o077 or os.path.islink(path):
        raise Refused(f"{path} is not private to its user: remove it there")
    return path


def lay_out(folder: str, key: str, fetch: Callable[[], bytes]) -> str:
    """Where the bundle of that hash lies unpacked and undamaged, below `trees` in that folder.

    One worker of a node at a time: the others find what the first laid out. Raises Refused where what came is damaged.
    """
    with open(os.path.join(folder, "lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when its process ends, however it does
        path = os.path.join(folder, "trees", key)
        if _is_whole(path):
            os.utime(path)
            return path
        data = fetch()
        if hashlib.sha256(data).hexdigest() != key:
            raise Refused(f"what was sent arrived damaged ({len(data):,} bytes)")
        part = tempfile.mkdtemp(prefix=".part-", dir=os.path.join(folder, "trees"))
        try:
            _unpack(data, part)
            shutil.rmtree(path, ignore_errors=True)  # of it, what was damaged
            os.rename(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        if not _is_whole(path):
            raise Refused(f"{path} does not stay as it was laid out: remove it there")
        return path


def _unpack(data: bytes, root: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            _write(root, member.name, archive)
    subprocess.run(
        [sys.executable, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", root],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    with open(os.path.join(root, WHOLE), "w", encoding="ascii") as file:
        file.write(_digest(root))


def _write(root: str, name: str, archive: tarfile.TarFile) -> None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise Refused(f"what was sent names a file outside of its folder: {name!r}")
    file = archive.extractfile(name)
    if file is None:
        raise Refused(f"what was sent holds something else than files: {name!r}")
    path = os.path.join(root, *parts)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as out:
        out.write(file.read())


def _is_whole(path: str) -> bool:
    try:
        with open(os.path.join(path, WHOLE), encoding="ascii") as file:
            return file.read() == _digest(path)
    except OSError:
        return False


def _digest(tree: str) -> str:
    """Over every name and byte, bytecode included."""
    total = hashlib.sha256()
    for folder, names, leaves in os.walk(tree):
        names.sort()
        for leaf in sorted(leaves):
            path = os.path.join(folder, leaf)
            name = os.path.relpath(path, tree)
            if name != WHOLE:
                with open(path, "rb") as file:
                    total.update(f"{name}\0{hashlib.sha256(file.read()).hexdigest()}\0".encode())
    return total.hexdigest()


# --- what is left behind ------------------------------------------------------------------------------


def hold(folder: str, name: str = OWNER) -> int:
    """Makes the folder where it is missing, and keeps it there until what is returned is closed."""
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):  # it was dropped meanwhile
            held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(held).st_ino:
                    return held
            os.close(held)


def drop(folder: str, name: str = OWNER) -> None:
    """Removes it, unless some process uses it."""
    with contextlib.suppress(OSError):
        if not os.path.exists(os.path.join(folder, name)):
            if os.stat(folder).st_mtime < time.time() - _HALF_MADE_S:
                shutil.rmtree(folder, ignore_errors=True)
            return
        held = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def sweep(folder: str) -> None:
    """What nobody uses: of the work all, of the trees those beyond `MOST_BYTES`."""
    for path in _newest_first(os.path.join(folder, "work")):
        drop(path)
    left_bytes = MOST_BYTES
    for path in _newest_first(os.path.join(folder, "trees")):
        left_bytes -= sum(os.path.getsize(os.path.join(at, leaf)) for at, _, leaves in os.walk(path) for leaf in leaves)
        if left_bytes < 0:
            drop(path, WHOLE)


def _newest_first(folder: str) -> list[str]:
    found = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found[entry.path] = entry.stat(follow_symlinks=False).st_mtime
    return sorted(found, key=lambda path: -found[path])


def _blank_secrets() -> None:
    """From this worker's environment, also from the block that others see in /proc, whoever started its node."""
    names = [name for name in os.environ if SECRET.search(name)]
    if not names:
        return
    try:
        environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        pointers = ctypes.cast(environ, ctypes.POINTER(ctypes.c_void_p))
    except (OSError, ValueError):  # no such block here: what Python knows of it is removed all the same
        pointers = None
    index = 0
    while pointers is not None and pointers[index]:
        address = pointers[index]
        variable, equals, value = ctypes.string_at(address).partition(b"=")
        if equals and variable.decode("utf-8", "replace") in names:
            ctypes.memset(address + len(variable) + 1, 0, len(value))
        index += 1
    for name in names:
        os.environ.pop(name, None)
