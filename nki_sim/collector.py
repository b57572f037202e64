"""Python's garbage collector, out of the way where objects are made by the hundred thousand."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_resting() -> Iterator[None]:
    """For what makes no cycles: to look for some takes an eighth of a schedule's time, a sixth of what looking for
    changes to a kernel takes, and most of a program's reading."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
