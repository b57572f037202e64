"""The languages whose kernels can be judged, by key. Each is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.languages.registry import language_named
from infra.languages.supported import Supported


def _nki() -> Supported:
    from infra.languages.nki import SUPPORTED

    return SUPPORTED


def _triton() -> Supported:
    from infra.languages.triton import SUPPORTED

    return SUPPORTED


_SUPPORTED: dict[str, Callable[[], Supported]] = {"nki": _nki, "triton": _triton}


def supported(key: str) -> Supported:
    """Raises UnknownLanguage."""
    return _SUPPORTED[language_named(key).key]()
