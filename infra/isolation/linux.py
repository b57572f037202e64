"""What namespaces and filters need of Linux: its numbers, and its system calls through the C library."""

from __future__ import annotations

import ctypes
import os

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
"""clone(2)."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
"""prctl(2)."""


class IsolationUnavailable(Exception):
    """This system does not give a namespace or a filter: the message says which call failed and why."""


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(what: str, status: int) -> None:
    if status != 0:
        raise IsolationUnavailable(f"{what}: {os.strerror(ctypes.get_errno())}")
