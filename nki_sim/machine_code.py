"""Machine code for the loops of the timing model, which Numba compiles, keeps in a folder and loads again.

A function under `@jit` takes numbers and flat arrays. It is one text with two ways to run it: as machine code, and as
plain Python, ten to fifty times slower and with the same results to the bit. Loading the machine code costs a process
half a second and compiling it half a minute, so a process begins with plain Python and

* loads what is kept for this text before it has timed LOAD_AFTER_ROWS instructions;
* compiles it where nothing is kept, unless another process is doing so, before it has timed COMPILE_AFTER_ROWS;
* goes on with plain Python for good where Numba cannot be imported (as on a host that a judge was shipped to).

`compile_all` does it ahead, as `./run.sh --setup` has it. It is kept beside these files, or else in the user's cache
folder; what cannot be kept anywhere is compiled for the process alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
"""int64 [any]; a parameter of a function under `@jit`, as the others below."""
IntTable = np.ndarray[Any, np.dtype[np.int64]]
"""int64 [any, any]."""
Floats = np.ndarray[Any, np.dtype[np.float64]]
"""float64 [any]."""
FloatTable = np.ndarray[Any, np.dtype[np.float64]]
"""float64 [any, any]."""
Bools = np.ndarray[Any, np.dtype[np.bool_]]
"""bool [any]."""

_TYPES = {
    "int": "int64", "float": "float64", "bool": "boolean", "Ints": "int64[::1]", "IntTable": "int64[:,::1]",
    "Floats": "float64[::1]", "FloatTable": "float64[:,::1]", "Bools": "boolean[::1]",
}  # fmt: skip
"""Annotation to Numba's name of the type; `[::1]` is an array in one piece."""

TEXTS = (
    "program.region_lists", "timing.compiler.renames", "timing.compiler.place_waits", "timing.compiler.spill_walk",
    "timing.compiler.work_order", "timing.list_scheduler",
)  # fmt: skip
"""The files of this package that hold functions under `@jit`. None of them may call such a function of another file:
Numba asks only a function's own file whether what it keeps is still valid."""

LOAD_AFTER_ROWS = 12_000
"""Instructions that plain Python times in about the time that loading takes."""
COMPILE_AFTER_ROWS = 300_000
"""The same of compiling."""

_log = logging.getLogger(__name__)
_R = TypeVar("_R")


class _State:
    """Of this process."""

    rows = 0
    """Instructions timed so far."""
    loaded: bool | None = None
    """Whether there is machine code; None while nobody has tried, False where there can be none."""
    use = False
    """Whether calls go to it."""


_FUNCTIONS: list[Function[Any]] = []
"""In the order of their definition: each after those that it calls."""
_loading = threading.Lock()


class Function(Generic[_R]):
    """A function of numbers and flat arrays, called as machine code where that is loaded and as Python elsewhere."""

    def __init__(self, function: Callable[..., _R]) -> None:
        update_wrapper(self, function)
        self.function: Any = function
        self.code: Any = None
        """As Numba has it."""
        _FUNCTIONS.append(self)

    def __call__(self, *args: Any) -> _R:
        made: _R = self.code(*map(_for_machine_code, args)) if _State.use else self.function(*map(_for_python, args))
        return made


def jit(function: Callable[..., _R]) -> Function[_R]:
    """Decorator of a function whose parameters are annotated by the types of this file. It may not keep what it is
    given, nor return it."""
    return Function(function)


def _for_machine_code(value: Any) -> Any:
    """Numba takes arrays in one aligned piece that may be written to, for it was told so."""
    return value.copy() if type(value) is np.ndarray and not value.flags.carray else value


def _for_python(value: Any) -> Any:
    """The elements of a memoryview are Python's own numbers, with which it reckons three times as fast as with
    NumPy's."""
    return _for_machine_code(value).data if type(value) is np.ndarray else value


@contextmanager
def using(machine_code: bool) -> Iterator[None]:
    """Everything inside on one of the two ways: for tests and measurements. Raises RuntimeError where there is no Numba
    to use."""
    before = _State.use
    if machine_code and not _load():
        raise RuntimeError("no machine code can be made here: is Numba installed? (pip install numba)")
    _State.use = machine_code
    try:
        yield
    finally:
        _State.use = before


def counted(rows: int) -> None:
    """Tells that a program of so many instructions is about to be timed; loads or compiles once that is worth it."""
    _State.rows += rows
    if _State.loaded is None and _State.rows >= LOAD_AFTER_ROWS:
        folder = _folder()
        if folder is not None and _mark(folder).exists():
            _State.use = _load()
        elif _State.rows >= COMPILE_AFTER_ROWS or not _numba_version():
            with _only_one(folder) as mine:
                if mine:
                    _State.use = _load()


def compile_all() -> bool:
    """Compiles and keeps everything, or loads it; False where that cannot be."""
    return _load()


def _load() -> bool:
    """Makes machine code of all functions; True where there is some."""
    with _loading:
        if _State.loaded is None:
            for text in TEXTS:
                import_module(f"nki_sim.{text}")
            try:
                _compile(_folder())
                _State.loaded = True
            except (ImportError, RuntimeError) as why:  # not there, or not for this Python or NumPy; turned off
                _log.warning("Numba cannot be used (%s): timing runs ten or more times slower", why)
                _State.loaded = False
        return _State.loaded


def _compile(folder: Path | None) -> None:
    """Loads what the folder keeps, compiles and keeps the rest; None: keeps nothing. Raises ImportError and
    RuntimeError."""
    import numba
    from numba import config

    if getattr(config, "DISABLE_JIT", False):
        raise RuntimeError("NUMBA_DISABLE_JIT is set")
    before = getattr(config, "CACHE_DIR", "")
    vars(config)["CACHE_DIR"] = str(folder or "")
    try:
        namespaces: dict[str, dict[str, Any]] = {}
        for each in _FUNCTIONS:
            function = each.function
            namespace = namespaces.setdefault(function.__module__, dict(function.__globals__))
            types = [_TYPES[each] for name, each in function.__annotations__.items() if name != "return"]
            # nothing is divided by zero; where Numba has to be ready for it, it counts references at every call
            made = numba.njit(f"({','.join(types)},)", cache=folder is not None, error_model="numpy")
            each.code = namespace[function.__name__] = made(_rebound(function, namespace))
    finally:
        vars(config)["CACHE_DIR"] = before
    if folder is not None:
        _mark(folder).touch()


def _rebound(function: Any, namespace: dict[str, Any]) -> Any:
    """The same function, calling what `namespace` has under each name: Numba cannot call what is not compiled."""
    made = type(function)(function.__code__, namespace, function.__name__, function.__defaults__)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__annotations__ = function.__annotations__
    return made


# --- where it is kept -----------------------------------------------------------------------------


def _folder() -> Path | None:
    """The first in which something can be kept: the one that Numba's own setting names, one beside this file, one of
    the user's."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    here = Path(__file__).parent / "__pycache__"
    for folder in (os.environ.get("NUMBA_CACHE_DIR"), here, Path(caches, "nki-optimizer", "machine_code")):
        if folder:
            with suppress(OSError):
                Path(folder).mkdir(parents=True, exist_ok=True)
                if os.access(folder, os.W_OK | os.X_OK):
                    return Path(folder)
    return None


def _mark(folder: Path) -> Path:
    """The file that says that all of this text is kept there."""
    digest = hashlib.sha256(f"{sys.version} {sys.platform} {_numba_version()}".encode())
    for text in TEXTS:
        path = Path(__file__).parent.joinpath(*text.split(".")).with_suffix(".py")
        digest.update(str(path).encode() + path.read_bytes())
    return folder / f"nki_sim-{digest.hexdigest()[:16]}.compiled"


def _numba_version() -> str:
    """Empty where it is not installed."""
    try:
        return metadata.version("numba")
    except metadata.PackageNotFoundError:
        return ""


@contextmanager
def _only_one(folder: Path | None) -> Iterator[bool]:
    """Whether this is the only process that compiles for that folder; it does not wait for another."""
    if folder is None:
        yield True
        return
    with open(folder / "nki_sim.compiling", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
