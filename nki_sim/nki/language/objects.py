"""`nl.NKIObject`: the base of a kernel's own configuration classes."""

from __future__ import annotations

from typing import Any


class NKIObject:
    """Base of classes whose instances a kernel may take or make. Keyword arguments become attributes."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)
