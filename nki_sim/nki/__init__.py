"""The importable stand-in for AWS's `nki` (see nki_sim.install)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nki_sim.nki import isa, language
from nki_sim.session import simulate


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a kernel. Calling it with NumPy arrays runs it on the simulator."""
    if function is None:
        return functools.partial(jit, **options)
    return Kernel(function)


class Kernel:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from nki_sim import session

        if getattr(session._active, "tracer", None) is not None:
            return self._function(*arguments, **keywords)
        return simulate(self._function)(*arguments, **keywords)


__all__ = ["Kernel", "isa", "jit", "language", "simulate"]
