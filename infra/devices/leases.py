"""Who may use which core or device: expiring leases in a folder that all users of a host share. Shipped; stdlib only.

A lease is a file `core-3.17`, or `gpu-5f0c33d1a2b4.2`: name, dot, number. The file with the highest number says whose
it is, and it holds while it was renewed (its mtime) within LEASE_S and its process is not known to be gone. To take
what nobody holds is to create the next number. Three rules make that safe among users who cannot delete each other's
files:

- no file is written by anybody but the one who created it, so nothing that another user left there is opened to write;
- the highest number is never removed, only superseded ones are, so that numbers never start again;
- looking and taking is one step, under a lock on the folder that ends with the process, for some microseconds.

What other people's files say is shown to people and, where it names a process of this very system that is gone, frees
the core early. It can never hold one longer than the time since its last renewal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import random
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.toolchain import ToolchainMissing

FOLDER = Path("/var/tmp/nki-optimizer/leases")
FOLDER_VARIABLE = "NKI_OPTIMIZER_LEASES"
"""Names another folder; all who share the host must name the same."""

LEASE_S = 60.0
"""A holder renews six times as often; this long after its last sign of life another may take over."""

_POLL_S = 0.5
_TELL_EVERY_S = 60.0
_LOCK_PATIENCE_S = 2.0
_CONTENT_LIMIT_BYTES = 1024
_LONGEST_NUMBER = 12
_LEASE_NAME = re.compile(rf"([a-z]+(?:-[0-9a-f]{{1,12}})?)\.(\d{{1,{_LONGEST_NUMBER}}})")

Told = Callable[[str], object]


class LeaseUnavailable(ToolchainMissing):
    """Nothing became free in time, or a lease was lost: wait, choose other cores, or look at who holds them."""


@dataclass(frozen=True)
class _Holder:
    """What the newest file of a name says, as far as it can be believed."""

    number: int
    user: str
    pid: int | None
    held: bool

    def describe(self, name: str) -> str:
        process = f" (process {self.pid})" if self.pid is not None else ""
        return f"{name.replace('-', ' ')} by {self.user}{process}"


class LeaseFolder:
    """The leases of one host. Raises LeaseUnavailable where the folder cannot be used."""

    def __init__(self, path: Path | None = None, *, lease_s: float = LEASE_S) -> None:
        self.path = path or Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)
        self._lease_s = lease_s

    def take(self, name: str) -> Lease | None:
        """The lease, or None while somebody holds it."""
        with self._opened() as folder:
            if not _locked(folder):
                return None
            latest = self._latest(folder, name)
            if latest is not None and latest.held:
                return None
            number = latest.number + 1 if latest else 1
            if len(str(number)) > _LONGEST_NUMBER:
                raise LeaseUnavailable(f"{self.path}/{name}.{number - 1} is no lease of ours: remove it")
            try:
                file = os.open(f"{name}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
            except FileExistsError:
                return None  # by somebody whose file system does not lock: he was faster
            os.fchmod(file, 0o644)  # whatever the umask: others must be able to see who it is
            os.write(file, _this_process())
            self._tidy(folder, name, number)
        return Lease(self, name, number, file, self._lease_s / 6)

    def wait(self, names: Sequence[str], patience_s: float, told: Told) -> Lease:
        """The first of `names` that is free. Says who is waited for; LeaseUnavailable after `patience_s`."""
        started, say_at = time.monotonic(), 0.0
        while True:
            for name in names:
                lease = self.take(name)
                if lease is not None:
                    return lease
            waited = time.monotonic() - started
            if waited >= patience_s:
                raise LeaseUnavailable(
                    f"waited {patience_s:.0f} s, and still held: {self._holders(names)}; wait longer (--core-wait), "
                    "or choose other cores (--cores)"
                )
            if waited >= say_at:
                told(f"waiting, held: {self._holders(names)}")
                say_at = waited + _TELL_EVERY_S
            time.sleep(min(_POLL_S, patience_s - waited) * random.uniform(0.5, 1.0))  # so that waiters part

    def is_newest(self, name: str, number: int) -> bool:
        with self._opened() as folder:
            return max(self._numbers(folder, name), default=0) == number

    def _holders(self, names: Sequence[str]) -> str:
        with self._opened() as folder:
            found = [(name, self._latest(folder, name)) for name in names]
        return (
            ", ".join(holder.describe(name) for name, holder in found if holder is not None and holder.held) or "none"
        )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder itself, so that nobody can put another one in its place meanwhile."""
        try:
            with contextlib.suppress(FileExistsError):
                self.path.parent.mkdir(parents=True)
                self.path.parent.chmod(0o755)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
                self.path.chmod(0o1777)  # as /tmp: everybody adds files, nobody removes another's
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            yield folder
        except OSError as error:
            raise self._unusable(error) from None
        finally:
            os.close(folder)

    def _unusable(self, error: OSError) -> LeaseUnavailable:
        return LeaseUnavailable(
            f"core leases cannot be kept in {self.path} ({error.strerror}): make it writable for all (mode 1777), or "
            f"name another folder with {FOLDER_VARIABLE}"
        )

    def _numbers(self, folder: int, name: str) -> list[int]:
        matches = [_LEASE_NAME.fullmatch(entry) for entry in os.listdir(folder)]
        return [int(match.group(2)) for match in matches if match and match.group(1) == name]

    def _latest(self, folder: int, name: str) -> _Holder | None:
        number = max(self._numbers(folder, name), default=None)
        if number is None:
            return None
        path = f"{name}.{number}"
        try:
            details = os.stat(path, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return _Holder(number, "nobody", None, False)  # superseded while we looked without the lock
        user = _user_name(details.st_uid)
        if not stat.S_ISREG(details.st_mode):
            return _Holder(number, user, None, False)
        pid, gone = _process_in(_read(folder, path))
        fresh = abs(time.time() - details.st_mtime) <= self._lease_s  # a time in the future is no renewal either
        return _Holder(number, user, pid, fresh and not gone)

    def _tidy(self, folder: int, name: str, newest: int) -> None:
        for number in self._numbers(folder, name):
            if number < newest:
                with contextlib.suppress(OSError):  # another user's: theirs to remove
                    os.unlink(f"{name}.{number}", dir_fd=folder)


class Lease:
    """One thing of the host, held until `release` or the end of the process. Renews itself."""

    def __init__(self, folder: LeaseFolder, name: str, number: int, file: int, every_s: float) -> None:
        self.name = name
        self._folder = folder
        self._number = number
        self._file = file
        self._lost = False
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, args=(every_s,), daemon=True, name=f"lease {name}")
        self._renewing.start()

    def check(self) -> None:
        """Raises LeaseUnavailable when somebody took it over, as after this process was stopped for long."""
        if self._lost or not self._folder.is_newest(self.name, self._number):
            raise LeaseUnavailable(
                f"{self.name.replace('-', ' ')} was taken over while this process did not renew its lease: was it "
                "stopped, or the machine asleep? run it again"
            )

    def release(self) -> None:
        """From here on anybody may take it; released twice is released."""
        if self._over.is_set():
            return
        self._over.set()
        self._renewing.join()
        with contextlib.suppress(OSError):  # the file system is gone or read-only: the lease expires by itself
            os.utime(self._file, (0, 0))
        os.close(self._file)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _renew(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            try:
                if not self._folder.is_newest(self.name, self._number):
                    self._lost = True
                    return
                now = time.time()
                os.utime(self._file, (now, now))
            except (OSError, LeaseUnavailable):
                continue  # tried again in time, or it expires and `check` says so


# --- processes ------------------------------------------------------------------------------------


def _locked(folder: int) -> bool:
    """False when others kept it locked for long; they will be asked again. Closing the folder unlocks it."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(random.uniform(0.0, 0.005))


def _this_process() -> bytes:
    pid = os.getpid()
    return json.dumps({"pid": pid, "start": _start_of(pid), "boot": _boot_id(), "pids": _pid_namespace()}).encode()


def _process_in(content: bytes) -> tuple[int | None, bool]:
    """(the process it names, whether that is known to be gone); what cannot be understood says nothing."""
    try:
        said = json.loads(content)
        pid, start, boot, namespace = int(said["pid"]), said["start"], said["boot"], said["pids"]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None, False
    if not 0 < pid < 1 << 31:
        return None, False
    if boot is None or boot != _boot_id():
        return pid, boot is not None and _boot_id() is not None
    if namespace is None or namespace != _pid_namespace():
        return pid, False  # in a container: its numbers mean nothing here
    try:
        os.kill(pid, 0)  # asks only
    except ProcessLookupError:
        return pid, True
    except OSError:
        pass  # it is another user's, and there
    now = _start_of(pid)
    return pid, now is not None and now != start


def _start_of(pid: int) -> str | None:
    """When it started, in clock ticks since boot: tells it from another one with the same number. None: not told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    threads = int(fields[17])  # a zombie with more than its first thread has not let go of everything yet
    return "ended" if fields[0] in (b"Z", b"X") and threads <= 1 else fields[19].decode()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _read(folder: int, name: str) -> bytes:
    """A short regular file's content; nothing for whatever else lies there."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO):
            return b""
        raise
    try:
        return os.read(file, _CONTENT_LIMIT_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
