"""One function over many items, in several processes that are forked for it; results in the order of the items.

Each process starts with all that this one knows, and what it finds comes back pickled. Linux, where processes fork
without harm; elsewhere, and with one processor, the function is called here.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

from accelopt_core.judging.orphans import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(processes: int, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Item n is for process n modulo their number; this one is the first. What a process that is lost would have
    found is found here. Whoever asks for no more closes the iterator."""
    if sys.platform != "linux":
        processes = 1
    helpers = [_Helper(function, items[first::processes]) for first in range(1, min(processes, len(items)))]
    try:
        for number, item in enumerate(items):
            place = number % processes
            yield helpers[place - 1].next(function, item) if place else function(item)
    finally:
        for helper in helpers:
            helper.end()


class _Helper:
    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        ours, theirs = os.pipe()
        me = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(ours)
            _carry_out(function, items, theirs, me)
        os.close(theirs)
        self._found: IO[bytes] = os.fdopen(ours, "rb")

    def next(self, function: Callable[[Item], Result], item: Item) -> Result:
        try:
            return pickle.load(self._found)
        except (EOFError, pickle.UnpicklingError):
            return function(item)

    def end(self) -> None:
        self._found.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _carry_out(function: Callable[[Any], Any], items: Sequence[Any], pipe: int, parent: int) -> None:
    """And end this process, which has nothing else of the one that it was forked from to see to."""
    try:
        end_with_parent(parent)
        gc.disable()  # going through what both share would copy it
        with os.fdopen(pipe, "wb") as found:
            for item in items:
                pickle.dump(function(item), found)
                found.flush()
    finally:
        os._exit(0)
