"""Independent checks in forked processes, as many at a time as cores and memory allow.

A simulated run is bound by one core, so seeds are checked side by side. Only where processes can be forked cheaply
and safely (Linux); elsewhere one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from accelopt_core.toolchain import RunError
from infra.isolation.processes import end_with_parent

T = TypeVar("T")

WORTH_A_PROCESS_BYTES = 8 << 20
"""Below this much data per check, forking costs more than it saves."""


def side_by_side(check: Callable[[int], T], seeds: Sequence[int], bytes_each: int, most: int) -> Iterator[T]:
    """`check(seed)` for every seed, in the order of `seeds`; what a check raises is raised here.

    `bytes_each`: of the tensors of one check, from which its memory is estimated. Stopping the iteration early
    ends what is still running.
    """
    workers = min(most, len(seeds), _cores(), _memory_bytes() // (8 * max(1, bytes_each)))
    if workers < 2 or sys.platform != "linux" or bytes_each < WORTH_A_PROCESS_BYTES:
        yield from map(check, seeds)
        return
    global _check
    _check = check
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), end_with_parent, (os.getpid(),))
    try:
        for future in [pool.submit(_run, seed) for seed in seeds]:
            yield future.result()
    except BrokenProcessPool:
        raise RunError("a process that ran the kernel died, probably for want of memory") from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


_check: Callable[[int], Any]
"""Inherited by the forked processes, since a closure cannot be sent to them."""


def _run(seed: int) -> Any:
    return _check(seed)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30
