"""Whether parts of the timing run as machine code, and what loads it: Numba, where it is installed (`.[fast]`).

Numba compiles `nki_sim.compiled_text` once and keeps the result in a folder of its own (beside that file, or in the
user's cache folder). Loading it takes as long as Python takes for tens of thousands of instructions, and compiling it
as long as for millions, so a process goes on with Python until it has timed that many. Without Numba, or without a
folder to keep anything in, it goes on with Python for good. The timelines are the same bits in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nki_sim import compiled_text

LOAD_AFTER_ROWS = 60_000
"""Instructions that a process times with Python before it loads what is compiled: about what loading costs."""
COMPILE_AFTER_ROWS = 1_500_000
"""The same where nothing is compiled yet."""
FEWEST_ROWS = 100
"""Shorter programs are Python's in any case: what arrays cost whatever their length."""

_log = logging.getLogger(__name__)


class _State:
    """Of this process."""

    rows = 0
    """Instructions timed with Python."""
    core: Any = None
    """The compiled functions by name, once they are loaded; False where there can be none."""
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


def functions(rows: int) -> Any:
    """The compiled functions by name, for a program of so many instructions; None where Python is to do it."""
    if _State.chosen is not None:
        return _loaded() if _State.chosen else None
    return _State.core if _State.core and rows >= FEWEST_ROWS else None


def _is_kept() -> bool:
    """Has Numba compiled it before, on this machine?"""
    core = _functions()
    if core is None:
        return False
    folder = Path(core.one_pass._cache.cache_path)
    return any(folder.glob(f"{Path(compiled_text.__file__).stem}.one_pass-*.nbi"))


def _loaded() -> Any:
    core = _functions()
    if core is not None:
        _State.core = core
    return core


_decorated: list[Any] = []


def _functions() -> Any:
    """The functions as Numba has them, compiled or yet to be; None where it is not there or cannot keep anything."""
    if _State.core is not None:
        return _State.core or None
    if _decorated:
        return _decorated[0]
    try:
        from numba import njit

        namespace = dict(vars(compiled_text))
        for name in compiled_text.FUNCTIONS:
            plain = getattr(compiled_text, name)
            namespace[name] = njit(cache=True)(_rebound(plain, namespace))
    except (ImportError, RuntimeError, OSError) as why:  # not installed, or made for another NumPy; no folder to write
        _log.debug("programs are timed by Python: %s", why)
        _State.core = False
        return None
    _decorated.append(SimpleNamespace(**{name: namespace[name] for name in compiled_text.FUNCTIONS}))
    return _decorated[0]


def _rebound(function: Any, namespace: dict[str, Any]) -> Any:
    """The same function, calling what `namespace` has under each name: Numba cannot call what is not compiled."""
    made = type(function)(function.__code__, namespace, function.__name__, function.__defaults__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made
