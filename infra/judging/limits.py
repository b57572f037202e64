"""What a judge may use itself, whatever a candidate hands over: time, and memory. On every target, and shipped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import threading
from collections.abc import Iterator

from accelopt_core.ports import EvaluationRequest
from infra.devices.share import PATIENCE_S, WAIT_VARIABLE

SPARE_S = 300.0
"""On top of the limits of a judge's steps, for what it does between them."""

_EXPENDABLE = "500"
"""Of 1000: where memory runs out all the same, the system ends a judge before anybody else."""

_LOOK_S = 0.1
"""Between two looks at how much memory a judge on a device has."""


def judge_limit_s(request: EvaluationRequest) -> float:
    """After this long the judge itself hangs: more than it takes when every step uses its own limit up."""
    limits = request.limits
    return (
        limits.compile_timeout_s * (len(request.task.presets) + (request.incumbent is not None))
        + limits.run_timeout_s * (2 + limits.remeasure)
        + SPARE_S
    )


def core_wait_s() -> float:
    """What a judge on a device may spend waiting for a core, besides."""
    return float(os.environ.get(WAIT_VARIABLE) or PATIENCE_S)


def judge_memory_bytes(request: EvaluationRequest) -> int:
    """As much as a candidate may use, or half of the machine's where that is more; never all that there is."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(request.limits.memory_bytes, physical // 2), physical * 7 // 8)


@contextlib.contextmanager
def limited_memory(nbytes: int, simulated: bool) -> Iterator[None]:
    """What needs more raises MemoryError; where even that does not help, the system ends this process before others.

    A simulating judge starts nothing that may need more than itself, so the limit is the system's. On a device it
    starts compilers, which take what they take: there the judge looks at itself.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_EXPENDABLE)
    if simulated and sys.platform == "linux":  # macOS does not enforce an address-space limit
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_lower(nbytes, before[1]), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(nbytes, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _lower(nbytes: int, hard: int) -> int:
    return nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)


def _watch(nbytes: int, over: threading.Event) -> None:
    """Until `over`: MemoryError in the main thread once this process holds more."""
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    while not over.wait(_LOOK_S):
        if _held_bytes() > nbytes:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(MemoryError))
            return


def _held_bytes() -> int:
    """In memory, of this process; where the system does not tell, the most that it ever was."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
