"""Namespaces around a candidate's process on Linux: no other processes, no network, and a list of read-only files.

Standard library only: it is shipped. Entered by a worker before it imports the candidate; nothing that is entered can
be left again. Where the system gives none (macOS, a strict container) the filter of `system_calls.py` may still stand,
and the limits and the process group of `sandbox.py` do; the worker says so (`report.py`). A real SDK starts programs
of its own: its mounts have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.isolation.linux import (
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NEWUTS,
    PR_CAPBSET_DROP,
    PR_SET_PDEATHSIG,
    IsolationUnavailable,
    call,
    libc,
)

SCRATCH_BYTES = 256 << 20
"""All files of a candidate together, in memory, gone with it."""

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18
)  # fmt: skip
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/nix/store")
_FOR_PROGRAMS = (
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/os-release", "/etc/alternatives"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/opt/aws", "/sys"),
)
"""What a Neuron SDK looks at besides: names of users and hosts, its own tools and libraries, the driver's devices."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True)
class Mounts:
    """What an isolated process finds, beside Python and the system's libraries."""

    visible: tuple[Path, ...]
    """Read-only trees and files; those that do not exist are left out."""
    work: Path
    """The only folder it may write to: in memory and empty, unless there is a `mount_point`."""
    mount_point: Path | None = None
    """An empty folder outside `work` to build the new root on; `work` is then the one on disk, as it is."""
    devices: tuple[Path, ...] = ()
    programs: bool = False
    """For a compiler of several programs: /proc of its own, /dev/shm, /tmp (in `work`), a loopback interface."""


def fork_isolated(mounts: Mounts) -> tuple[int, str]:
    """Fork a child into namespaces of its own. Returns (0, "") in the child, and (its pid, "") in the parent.

    Where the system refuses, returns (-1, why) in the parent, and no child is left. When the child ends, so does
    everything it started. Its exit status is that of the returned pid.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        with open(reader, "rb") as pipe:
            said = pipe.read(4096).decode("utf-8", "replace")
        if said == "ready":
            return pid, ""
        os.waitpid(pid, 0)
        return -1, said or "the process that was to isolate itself died"
    os.close(reader)
    try:
        call("prctl", libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        _own_namespaces()
        init = os.fork()
        if init:
            os.close(writer)
            _pass_on(init)
        # The first process of the namespace: the kernel ends all others with it, and they cannot signal it.
        call("prctl", libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if mounts.programs:
            _own_loopback()
        _own_files(mounts)
        _drop_privileges()
    except (IsolationUnavailable, OSError) as error:
        os.write(writer, str(error).encode()[:4096])
        os._exit(1)
    os.write(writer, b"ready")
    os.close(writer)
    candidate = os.fork()
    if candidate:
        _pass_on(candidate)
    return 0, ""


# --- namespaces ------------------------------------------------------------------------------------


def _own_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
    call("unshare", libc().unshare(flags))
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        Path("/proc/self", name).write_text(text)


def _own_loopback() -> None:
    """Bring up the only network interface of the namespace: programs of one SDK may talk to each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _own_files(mounts: Mounts) -> None:
    """A new root that holds a list of read-only trees and one folder to write to; no home and nobody else's /tmp."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    root = str(mounts.mount_point or mounts.work)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={SCRATCH_BYTES},mode=755")
    prefixes = {Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    shown = sorted(prefixes | set(mounts.visible), key=lambda path: (len(path.parts), path))
    shown += [path.resolve() for path in shown]  # a link is shown as a link, so what it points to must be there
    placed: list[Path] = []
    for path in [Path(p) for p in (*_SYSTEM, *(_FOR_PROGRAMS if mounts.programs else ()))] + shown:
        if not path.exists() or any(path == above or above in path.parents for above in placed):
            continue
        there = Path(root + str(path))
        if path.is_symlink():
            there.parent.mkdir(parents=True, exist_ok=True)
            if not there.is_symlink():
                there.symlink_to(os.readlink(path))
            continue
        _show(path, root, writable=False)
        placed.append(path)
    for path in (*(Path(p) for p in _DEVICES), *mounts.devices):
        if path.exists():
            # Its mode and times stay what they are; what is written to it, a device takes all the same.
            _show(path, root, writable=not path.is_char_device())
    scratch = Path(root + str(mounts.work))
    scratch.mkdir(parents=True, exist_ok=True)
    if mounts.mount_point is not None:
        _show(mounts.work, root, writable=True)
    if mounts.programs:
        _furnish(Path(root), scratch)
    old = Path(root, ".old")
    old.mkdir()
    os.chdir(root)
    call("pivot_root", libc().syscall(_PIVOT_ROOT.get(platform.machine(), -1), b".", b".old"))
    call("umount2", libc().umount2(b"/.old", _MNT_DETACH))
    os.rmdir("/.old")
    os.chdir(mounts.work)


def _furnish(root: Path, scratch: Path) -> None:
    """What programs expect of a system. A container may hide parts of /proc, and then a new one is refused: none."""
    (scratch / "tmp").mkdir(exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).parent.mkdir(exist_ok=True)
        if not (root / name).exists():
            (root / name).mkdir()
            _mount(str(scratch / "tmp"), str(root / name), None, _MS_BIND)
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    (root / "proc").mkdir()
    with contextlib.suppress(IsolationUnavailable):
        _mount("proc", str(root / "proc"), "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        (root / "dev/fd").symlink_to("/proc/self/fd")


def _show(path: Path, root: str, *, writable: bool) -> None:
    there = Path(root + str(path))
    if path.is_dir():
        there.mkdir(parents=True, exist_ok=True)
    else:
        there.parent.mkdir(parents=True, exist_ok=True)
        there.touch()
    _mount(str(path), str(there), None, _MS_BIND | _MS_REC)
    if writable:
        return
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", _MS_RDONLY, 0, 0, 0))
    if libc().syscall(_MOUNT_SETATTR, -100, str(there).encode(), _AT_RECURSIVE, attributes, 32) == 0:
        return
    kept = os.statvfs(there).f_flag & (2 | 4 | 8 | 1024 | 2048 | 4096)  # flags that are locked must be repeated
    _mount("none", str(there), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _linux_flags(kept))


def _linux_flags(statvfs_flags: int) -> int:
    """statvfs and mount number nosuid, nodev and noexec alike; the three about access times differ."""
    moved = {1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}
    return (statvfs_flags & 14) | sum(mount for flag, mount in moved.items() if statvfs_flags & flag)


def _drop_privileges() -> None:
    for capability in range(64):
        if libc().prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("Ii", 0x20080522, 0)
    call("capset", libc().capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))))


def _pass_on(pid: int) -> None:
    """Wait for a child and end as it ended."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        # as shells do; a signal to the first process of a namespace from itself would be ignored
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    status = libc().mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode())
    call(f"mount {target}", status)


_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
