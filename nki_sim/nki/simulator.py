"""`nki.simulator`: the entry point that frameworks call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki_sim.nki.kernel import Kernel, simulate


def simulate_kernel(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, _lnc: int = 1
) -> Any:
    """Run `func` (a kernel or a plain function) on arrays, on `_lnc` cores."""
    kernel = func if isinstance(func, Kernel) else Kernel(func)
    return simulate(kernel[_lnc])(*args, **dict(kwargs or {}))
