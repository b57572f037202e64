"""`nki.collectives`: names can be imported, so that kernels which do not call them run; calling one raises."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported


class _Collective:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotSupported(f"nki.collectives.{self.__name__}: collectives between devices are not simulated")

    def __repr__(self) -> str:
        return f"nki.collectives.{self.__name__}"

    def __or__(self, other: Any) -> Any:
        """In annotations, `ReplicaGroup | None`."""
        return self

    __ror__ = __or__


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Collective(name)
