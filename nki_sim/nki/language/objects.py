"""`nl.NKIObject`: the base of a kernel's own configuration classes."""

from __future__ import annotations

import inspect
import sys
from enum import Enum
from typing import Any


class NKIObject:
    """Base of classes whose instances a kernel may take or make.

    Without an `__init__` of its own, a class takes its annotated fields as arguments, in order and by
    name; a missing one gets the class's default, or None. Then `__post_init__` runs.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Plain class values count as fields too, so that `@dataclass` sees `size = None` without a type."""
        super().__init_subclass__(**options)
        fields = _annotated(cls)
        for name, value in list(vars(cls).items()):
            plain = value is None or isinstance(value, (bool, int, float, str, tuple, Enum))
            if plain and name not in fields and not name.startswith("__"):
                fields = {**fields, name: "Any"}
        if fields:
            cls.__annotations__ = fields

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = [name for owner in reversed(type(self).__mro__) for name in _annotated(owner)]
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} takes {len(fields)} values, got {len(values)}")
        given = {**dict(zip(fields, values)), **named}
        for name in dict.fromkeys([*fields, *given]):
            setattr(self, name, given.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    def __post_init__(self) -> None:
        """For subclasses."""


def _annotated(kind: type) -> dict[str, Any]:
    """The annotations of its own body. From Python 3.14 they are evaluated when asked for, and may name what is yet
    to be defined."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.get_annotations(kind, format=Format.FORWARDREF)
    return inspect.get_annotations(kind)
