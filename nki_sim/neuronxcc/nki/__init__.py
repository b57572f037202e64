"""The namespace of NKI 0.1 (Beta 1): only its annotations are there."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotSupported(f"neuronxcc.nki.{name} is of NKI 0.1 (Beta 1), which is not simulated: import nki.{name}")
