"""The wall around a candidate's process on Linux: namespaces of its own, and system calls it may not make.

Standard library only: it is shipped. Entered by a worker before it imports the candidate; nothing that is entered can
be left again. Two walls, each by itself: namespaces hide other processes, the network and every file but a list of
read-only ones; a seccomp filter refuses new processes, sockets, signals and tracing. Where neither is to be had
(macOS, a strict container) the limits and the process group of `infra.sandbox` remain, and the worker says so.
A real SDK starts programs of its own: the room it is given has them, and the filter leaves them out.
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

SCRATCH_BYTES = 256 << 20
"""All files of a candidate together, in memory, gone with it."""

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18
)  # fmt: skip
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/nix/store")
_FOR_PROGRAMS = (
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/os-release", "/etc/alternatives"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/opt/aws", "/sys"),
)
"""What a Neuron SDK looks at besides: names of users and hosts, its own tools and libraries, the driver's devices."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class NoWall(Exception):
    """This system does not give a namespace or a filter: the message says which call failed and why."""


@dataclass(frozen=True)
class Room:
    """What a process finds behind the wall, beside Python and the system's libraries."""

    visible: tuple[Path, ...]
    """Read-only trees and files; those that do not exist are left out."""
    work: Path
    """The only folder it may write to: in memory and empty, unless there is a `hung_on`."""
    hung_on: Path | None = None
    """An empty folder outside `work` to build the new root on; `work` is then the one on disk, as it is."""
    devices: tuple[Path, ...] = ()
    programs: bool = False
    """For a compiler of several programs: /proc of its own, /dev/shm, /tmp (in `work`), a loopback interface."""


def fork_behind_wall(room: Room) -> tuple[int, str]:
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
        return -1, said or "the process that was to build the wall died"
    os.close(reader)
    try:
        _call("prctl", _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        _own_namespaces()
        init = os.fork()
        if init:
            os.close(writer)
            _pass_on(init)
        # The first process of the namespace: the kernel ends all others with it, and they cannot signal it.
        _call("prctl", _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if room.programs:
            _own_loopback()
        _own_files(room)
        _drop_privileges()
    except (NoWall, OSError) as error:
        os.write(writer, str(error).encode()[:4096])
        os._exit(1)
    os.write(writer, b"ready")
    os.close(writer)
    candidate = os.fork()
    if candidate:
        _pass_on(candidate)
    return 0, ""


def refuse_system_calls(*, programs: bool = False) -> None:
    """No new process, socket, signal, trace or mount from here on, for this process. Raises NoWall.

    `programs`: new processes, sockets and signals stay allowed, new namespaces do not.
    """
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        raise NoWall(f"no list of system calls for {sys.platform} on {platform.machine()}")
    code = _filter(numbers, programs)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _call("prctl(NO_NEW_PRIVS)", _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _call("prctl(SECCOMP)", _libc().prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0))


def describe(no_namespaces: str, no_filter: str, *, programs: bool = False) -> str:
    """What stands around a candidate, for people; the arguments say why one of the two walls does not, or are empty."""
    refused = "no tracing, no mounts, no other namespaces" if programs else "no new processes, sockets or signals"
    first = f"{_LACKS_NAMESPACES} ({no_namespaces})" if no_namespaces else "namespaces of its own"
    return f"{first}, " + (f"{_LACKS_FILTER} ({no_filter})" if no_filter else refused)


def is_lacking(described: str) -> bool:
    """Whether a wall is missing in what `describe` said."""
    return described.startswith(_LACKS_NAMESPACES) or _LACKS_FILTER in described


_LACKS_NAMESPACES, _LACKS_FILTER = "no namespaces", "no filter of system calls"


def hide_this_process() -> None:
    """Another process of the same user cannot read this one's environment and memory (root still can)."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """From here on, descendants whose parent died become this process's children, and can be found and ended."""
    if sys.platform == "linux":
        _call("prctl(CHILD_SUBREAPER)", _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


# --- namespaces ------------------------------------------------------------------------------------


def _own_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
    _call("unshare", _libc().unshare(flags))
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        Path("/proc/self", name).write_text(text)


def _own_loopback() -> None:
    """Bring up the only network interface of the namespace: programs of one SDK may talk to each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _own_files(room: Room) -> None:
    """A new root that holds a list of read-only trees and one folder to write to; no home and nobody else's /tmp."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    root = str(room.hung_on or room.work)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={SCRATCH_BYTES},mode=755")
    prefixes = {Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    shown = sorted(prefixes | set(room.visible), key=lambda path: (len(path.parts), path))
    shown += [path.resolve() for path in shown]  # a link is shown as a link, so what it points to must be there
    placed: list[Path] = []
    for path in [Path(p) for p in (*_SYSTEM, *(_FOR_PROGRAMS if room.programs else ()))] + shown:
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
    for path in (*(Path(p) for p in _DEVICES), *room.devices):
        if path.exists():
            _show(path, root, writable=True)
    scratch = Path(root + str(room.work))
    scratch.mkdir(parents=True, exist_ok=True)
    if room.hung_on is not None:
        _show(room.work, root, writable=True)
    if room.programs:
        _furnish(Path(root), scratch)
    old = Path(root, ".old")
    old.mkdir()
    os.chdir(root)
    _call("pivot_root", _libc().syscall(_PIVOT_ROOT.get(platform.machine(), -1), b".", b".old"))
    _call("umount2", _libc().umount2(b"/.old", _MNT_DETACH))
    os.rmdir("/.old")
    os.chdir(room.work)


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
    with contextlib.suppress(NoWall):
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
    if _libc().syscall(_MOUNT_SETATTR, -100, str(there).encode(), _AT_RECURSIVE, attributes, 32) == 0:
        return
    kept = os.statvfs(there).f_flag & (2 | 4 | 8 | 1024 | 2048 | 4096)  # flags that are locked must be repeated
    _mount("none", str(there), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _linux_flags(kept))


def _linux_flags(statvfs_flags: int) -> int:
    """statvfs and mount number nosuid, nodev and noexec alike; the three about access times differ."""
    moved = {1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}
    return (statvfs_flags & 14) | sum(mount for flag, mount in moved.items() if statvfs_flags & flag)


def _drop_privileges() -> None:
    for capability in range(64):
        if _libc().prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", _libc().capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))))


def _pass_on(pid: int) -> None:
    """Wait for a child and end as it ended."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        # as shells do; a signal to the first process of a namespace from itself would be ignored
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    status = _libc().mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode())
    _call(f"mount {target}", status)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(what: str, status: int) -> None:
    if status != 0:
        raise NoWall(f"{what}: {os.strerror(ctypes.get_errno())}")


# --- system calls ----------------------------------------------------------------------------------

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


@dataclass(frozen=True)
class _Numbers:
    """Of one architecture, from the kernel's syscall tables."""

    audit: int
    clone: int
    prlimit: int
    programs: tuple[int, ...]
    """What a compiler of several programs needs; refused to all others."""
    never: tuple[int, ...]


_SYSTEM_CALLS = {
    "x86_64": _Numbers(
        0xC000003E,
        56,
        302,
        # fork vfork execve execveat kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
        (57, 58, 59, 322, 62, 200, 234, 129, 297)
        # socket connect socketpair bind shmget semget msgget setpriority sched_setaffinity memfd_create
        + (41, 42, 53, 49, 29, 64, 68, 141, 203, 319),
        # ptrace mount umount2 pivot_root chroot unshare setns bpf perf_event_open keyctl add_key request_key
        (101, 165, 166, 155, 161, 272, 308, 321, 298, 250, 248, 249)
        # process_vm_readv process_vm_writev userfaultfd pidfd_* io_uring_* fsopen-family mount_setattr
        + (310, 311, 323, 424, 434, 438, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442),
    ),
    "aarch64": _Numbers(
        0xC00000B7,
        220,
        261,
        (221, 281, 129, 130, 131, 138, 240) + (198, 203, 199, 200, 194, 190, 186, 140, 122, 279),
        (117, 40, 39, 41, 51, 97, 268, 280, 241, 219, 217, 218)
        + (270, 271, 282, 424, 434, 438, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442),
    ),
}
_CLONE3, _CLONE_THREAD = 435, 0x10000
_NEW_NAMESPACES = _NEWNS | _NEWUTS | _NEWIPC | _NEWUSER | _NEWPID | _NEWNET | 0x2000000
"""Also of control groups."""
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026


def _filter(numbers: _Numbers, programs: bool) -> bytes:
    """Classic BPF over struct seccomp_data: number at 0, architecture at 4, arguments from 16."""
    refused = numbers.never if programs else numbers.programs + numbers.never
    asked, (if_set, if_not) = (_NEW_NAMESPACES, (_EPERM, _ALLOW)) if programs else (_CLONE_THREAD, (_ALLOW, _EPERM))
    load, equal, above, bits, give = 0x20, 0x15, 0x35, 0x45, 0x06

    def line(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    lines = [
        line(load, 0, 0, 4),
        line(equal, 1, 0, numbers.audit),
        line(give, 0, 0, _EPERM),
        line(load, 0, 0, 0),
        line(above, 0, 1, 0x40000000),  # the x32 numbers of x86_64
        line(give, 0, 0, _EPERM),
        line(equal, 0, 1, _CLONE3),
        line(give, 0, 0, _ENOSYS),  # glibc then uses clone, whose flags can be read here
        line(equal, 0, 4, numbers.clone),
        line(load, 0, 0, 16),
        line(bits, 0, 1, asked),
        line(give, 0, 0, if_set),
        line(give, 0, 0, if_not),
        line(equal, 0, 4, numbers.prlimit),
        line(load, 0, 0, 16),
        line(equal, 0, 1, 0),
        line(give, 0, 0, _ALLOW),
        line(give, 0, 0, _EPERM),
    ]
    for number in refused:
        lines += [line(equal, 0, 1, number), line(give, 0, 0, _EPERM)]
    lines.append(line(give, 0, 0, _ALLOW))
    return b"".join(lines)


def children() -> list[int]:
    """Process ids whose parent is this process; adopted orphans among them."""
    me, found = os.getpid(), []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    # the name in brackets may hold anything: read from behind the last bracket
                    fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                    if int(fields[1]) == me:
                        found.append(int(name))
    return found
