"""Whether parts of the timing run as machine code, and what loads it: Numba, where it is installed (`.[fast]`).

Numba compiles `nki_sim.compiled_walk`, `compiled_waits`, `compiled_regions` and `compiled_spills` once and keeps the
result in a folder of its own (beside those files, or in the user's cache folder). Loading it takes as long as Python
takes for tens of thousands of instructions, and compiling it as long as for millions, so a process goes on with Python
until it has timed that many. Without Numba, or without a folder to keep anything in, it goes on with Python for good.
The timelines are
the same bits in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from nki_sim import compiled_order, compiled_regions, compiled_spills, compiled_waits, compiled_walk

TEXTS = (compiled_order, compiled_regions, compiled_spills, compiled_waits, compiled_walk)
"""Whose FUNCTIONS there are."""
LOAD_AFTER_ROWS = 60_000
"""Instructions that a process times with Python before it loads what is compiled: about what loading costs."""
COMPILE_AFTER_ROWS = 1_500_000
"""The same where nothing is compiled yet."""

_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy"}
"""Nothing is divided by zero here; where Numba has to be ready for it, it counts references at every call."""

_log = logging.getLogger(__name__)


class _State:
    """Of this process."""

    rows = 0
    """Instructions timed with Python."""
    decorated: Any = None
    """The functions by name, each of which Numba loads or compiles when it is called."""
    core: Any = None
    """The same once they are to be used; False where there can be none."""
    chosen: bool | None = None
    """Whether to use them; None: as the number of instructions says."""


@contextmanager
def using(compiled: bool | None) -> Iterator[None]:
    """Everything inside on one path: for tests and measurements. Raises RuntimeError where there is no Numba to use."""
    before = _State.chosen
    if compiled and _loaded() is None:
        raise RuntimeError("nothing compiled can be used here: install Numba (pip install '.[fast]')")
    _State.chosen = compiled
    try:
        yield
    finally:
        _State.chosen = before


def counted(rows: int) -> None:
    """A program of so many instructions is about to be timed: time to load what is compiled?"""
    if _State.chosen is None and _State.core is None:
        if _State.rows >= LOAD_AFTER_ROWS and (_State.rows >= COMPILE_AFTER_ROWS or _is_kept()):
            _loaded()
        _State.rows += rows


def functions() -> Any:
    """The compiled functions by name; None where Python is to do it. Once loaded they are for programs of any length:
    those of 15 rows take them no longer than Python."""
    if _State.chosen is not None:
        return _loaded() if _State.chosen else None
    return _State.core or None


def _is_kept() -> bool:
    """Has Numba compiled it before, on this machine?"""
    core = _decorated()
    if core is None:
        return False
    folder = Path(core.one_pass._cache.cache_path)
    return any(folder.glob(f"{Path(compiled_walk.__file__).stem}.one_pass-*.nbi"))


def _loaded() -> Any:
    if not _State.core:
        _State.core = _decorated() or False
    return _State.core or None


def _decorated() -> Any:
    """The functions as Numba has them, compiled or yet to be; None where it is not there or cannot keep anything."""
    if _State.core is None and _State.decorated is None:
        try:
            from numba import config, njit

            if getattr(config, "DISABLE_JIT", False):
                raise RuntimeError("NUMBA_DISABLE_JIT is set")
            found: dict[str, Any] = {}
            for text in TEXTS:
                namespace = dict(vars(text))
                for name in text.FUNCTIONS:
                    found[name] = namespace[name] = njit(**_OPTIONS)(_rebound(namespace[name], namespace))
        except (ImportError, RuntimeError, OSError) as why:  # not there, or not for this NumPy; no folder to write
            _log.debug("programs are timed by Python: %s", why)
            _State.core = False
            return None
        _State.decorated = SimpleNamespace(**found)
    return _State.decorated


def flat(values: np.ndarray) -> np.ndarray:
    """int64, in one piece and its own, or a copy that is: Numba compiles anew for any other kind of array."""
    found = np.ascontiguousarray(values, np.int64)
    return found if found.flags.writeable else found.copy()


def _rebound(function: Any, namespace: dict[str, Any]) -> Any:
    """The same function, calling what `namespace` has under each name: Numba cannot call what is not compiled."""
    made = type(function)(function.__code__, namespace, function.__name__, function.__defaults__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made
