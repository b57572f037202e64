"""A filter of system calls (seccomp) on Linux: what a process may not do from here on. Shipped; standard library only.

Entered by a worker before it imports the candidate; it cannot be left again.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from dataclasses import dataclass

from infra.isolation.linux import (
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NEWUTS,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_SECCOMP,
    IsolationUnavailable,
    call,
    libc,
)


def refuse_system_calls(*, programs: bool = False) -> None:
    """No new process, socket, signal, trace or mount from here on, for this process. Raises IsolationUnavailable.

    `programs`: new processes, sockets and signals stay allowed, new namespaces do not.
    """
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        raise IsolationUnavailable(f"no list of system calls for {sys.platform} on {platform.machine()}")
    code = _filter(numbers, programs)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    call("prctl(NO_NEW_PRIVS)", libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    call("prctl(SECCOMP)", libc().prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0))


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
_NEW_NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | 0x2000000
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
