"""`nki.compiler`: directives to the compiler. The simulator has none of its own to offer."""

from __future__ import annotations

from typing import Any

from nki_sim.errors import NotSupported


def __getattr__(name: str) -> Any:
    raise NotSupported(f"nki.compiler.{name} is not in NKI 0.6: the compiler places buffers and schedules by itself")
