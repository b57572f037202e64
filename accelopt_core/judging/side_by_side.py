"""Independent checks in forked processes, as many at a time as cores and memory allow.

A simulated run is bound by one core, so draws are checked side by side. Only where processes can be forked cheaply
and safely (Linux); elsewhere one after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from accelopt_core.judging.orphans import end_with_parent

Case = TypeVar("Case")
Result = TypeVar("Result")

WORTH_A_PROCESS_BYTES = 8 << 20
"""Below this much data per check, forking costs more than it saves."""


def side_by_side(
    check: Callable[[Case], Result], cases: Sequence[Case], bytes_each: int, most: int, held_bytes: int = 0
) -> Iterator[Result]:
    """`check(case)` for every case, in the order of `cases`; what a check raises is raised here.

    `bytes_each`: of the tensors of one check, from which its memory is estimated; `held_bytes`: what it holds besides.
    `most`: processes at a time; 0: none, all is done in this one. One is worth it too: it uses memory again.
    No process gets more than its share of the memory that is left. Stopping the iteration early ends what is still
    running.
    """
    free = _memory_bytes()
    workers = min(most, len(cases), _cores(), free // (8 * max(1, bytes_each) + 2 * held_bytes))
    if workers < 1 or len(cases) < 2 or sys.platform != "linux" or bytes_each < WORTH_A_PROCESS_BYTES:
        yield from map(check, cases)
        return
    global _check
    _check = check
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, _begin, (os.getpid(), _address_space() + free // workers))
    done = 0
    try:
        for future in [pool.submit(_run, case) for case in cases]:
            result = future.result()
            done += 1
            yield result
        return
    except (MemoryError, BrokenProcessPool):
        # Its share was too little, or others took it and the system ended a process: the rest is done here, where what
        # is freed is given back, so that it needs less.
        pass
    finally:
        _end(pool)
    yield from map(check, cases[done:])


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


_check: Callable[[Any], Any]
"""Inherited by the forked processes, since a compiled kernel, or a closure, cannot be sent to them."""


def _begin(parent: int, memory_bytes: int) -> None:
    """In each of the processes: it ends with its parent, and what needs too much raises MemoryError in it alone."""
    end_with_parent(parent)
    keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or memory_bytes < soft:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))


def keep_freed_memory() -> None:
    """This process uses again what it frees, instead of giving it back and asking anew for the next draw.

    Outputs are gigabytes. The system clears every page that it hands out, and in a virtual machine may have to fetch it
    first: that takes longer than the arithmetic. Memory in pieces holds less; where that is too little, the checks go
    on in the parent, which does not keep. Without glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of mallopt(3): how much free memory at the end is given back (-1: none); how many pieces are mapped on their own."""


def _run(case: Any) -> Any:
    return _check(case)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _address_space() -> int:
    """Bytes of this process, mapped or used; what is forked starts with them."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _memory_bytes() -> int:
    """Free, or held by the system for files that it can read again: it would give that up."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30
