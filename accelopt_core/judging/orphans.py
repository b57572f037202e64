"""A process that works for another must not outlive it: after `kill -9` nobody is left to end it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""prctl(2); cleared in a forked child, kept across execve."""


def end_with_parent(parent: int) -> None:
    """From here on this process is killed as soon as the thread that started it is gone; at once if it is already.

    `parent` is the process id that the starting process knows itself by. Linux only; elsewhere an orphan ends at its
    time limit, or when it next writes to its parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
