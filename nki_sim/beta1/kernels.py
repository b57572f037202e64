"""Kernels of the old API: decorated functions, called on arrays, on a grid of programs."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from nki_sim.beta1 import language
from nki_sim.beta1.symbols import Atom, Symbolic
from nki_sim.beta1.tiles import HBM, SharedOutputs, Tile, shared_outputs
from nki_sim.errors import NotSupported

Held = TypeVar("Held")

_running: ContextVar[bool] = ContextVar("running", default=False)


@dataclass
class Launches:
    """Kernels that were called from outside: their launch grids, and the tensors they were given."""

    grids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[str, list[str]] = field(default_factory=dict)
    written: dict[str, list[str]] = field(default_factory=dict)
    """Arguments that a kernel wrote which returned nothing."""


launches: ContextVar[Launches | None] = ContextVar("launches", default=None)
"""Where calls of kernels are noted by who watches."""


class Kernel:
    """A decorated function. Inside a kernel it is inlined; outside it takes and gives arrays."""

    def __init__(self, function: Callable[..., Any], launch: tuple[int, ...] = ()) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.launch = launch

    def __getitem__(self, launch: Any) -> Kernel:
        sizes = launch if isinstance(launch, tuple) else (launch,)
        return Kernel(self.function, tuple(int(n) for n in sizes))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if _running.get():
            return self.function(*arguments, **keywords)
        return run(self.function, self.launch, arguments, keywords)


def decorator(function: Any = None, **options: Any) -> Any:
    """`nki.jit`, `nki.baremetal`, `nki.benchmark`, `nki.profile`: all mark a kernel, and time nothing here."""
    if function is None:
        return decorator
    return function if isinstance(function, Kernel) else Kernel(function)


def run(function: Callable[..., Any], launch: tuple[int, ...], arguments: Any, keywords: Any) -> Any:
    """What a kernel returns as arrays; every program of the grid runs, one after the other."""
    tiles = [_argument(value) for value in arguments]
    named = {name: _argument(value) for name, value in keywords.items()}
    noted = launches.get()
    if noted is not None:
        given = [*zip(_names(function), tiles), *named.items()]
        noted.grids[function.__name__] = launch
        noted.shapes[function.__name__] = [
            f"{name} {[int(n) for n in value.shape]}" if isinstance(value, Tile) else f"{name}={value!r}"
            for name, value in given
            if isinstance(value, (Tile, bool, int, float, str))
        ]
    outputs: Any = None
    shared = SharedOutputs()
    with _holding(_running, True), _holding(shared_outputs, shared):
        for program in itertools.product(*[range(n) for n in launch]):
            shared.begin_program()
            places = tuple((_program(k, at), n) for k, (at, n) in enumerate(zip(program, launch)))
            with _holding(language.grid, places):
                outputs = function(*tiles, **named)
    if outputs is None:  # kernels of the first release wrote their arguments
        given = [(name, value) for name, value in [*zip(_names(function), tiles), *named.items()] if _written(value)]
        for name, value in given:
            if value.buffer.read:
                raise NotSupported(f"{name} is read and written in place: only outputs may be written")
        if noted is not None:
            noted.written[function.__name__] = [name for name, _ in given]
        outputs = tuple(value for _, value in given) if len(given) != 1 else given[0][1]
    return _arrays(outputs)


def _written(value: Any) -> bool:
    return isinstance(value, Tile) and value.buffer.written


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _program(axis: int, at: int) -> int:
    return Symbolic.named(Atom(f"program_{axis}", "", True, at))


@contextmanager
def _holding(variable: ContextVar[Held], value: Held) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return Tile.new(value.shape or (1,), value.dtype, HBM, array=np.array(value))
    if isinstance(value, (tuple, list)):
        return type(value)(_argument(item) for item in value)
    return value


def _arrays(value: Any) -> Any:
    if isinstance(value, Tile):
        return np.array(value.view())
    if isinstance(value, (tuple, list)):
        return tuple(_arrays(item) for item in value)
    return value
