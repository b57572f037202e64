"""Instruction attributes as JSON and back, checked against the opcode's own type."""

from __future__ import annotations

import types
import typing
from enum import Enum
from functools import cache
from typing import Any

from nki_sim.dtypes import ALL, DType
from nki_sim.errors import ProgramFormatError


def encode_attrs(attrs: Any) -> Any:
    """A NamedTuple of None, bool, int, float, str, dtypes, enums, tuples and NamedTuples of them."""
    if attrs is None:
        return None
    return [_encode(value) for value in attrs]


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, DType):
        return {"dtype": str(value)}
    if isinstance(value, Enum):
        return {"enum": [type(value).__name__, value.name]}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    raise TypeError(f"an instruction attribute cannot be a {type(value).__name__}: {value!r}")


def decode_attrs(attrs_type: type | None, data: Any, what: str) -> Any:
    """Rebuild attributes. Raises ProgramFormatError unless every field has the type the opcode declares."""
    if attrs_type is None:
        if data is not None:
            raise ProgramFormatError(f"{what} takes no attributes")
        return None
    return _decode(attrs_type, data, what)


def _decode(hint: Any, data: Any, what: str) -> Any:
    if hint is Any:
        return _decode_untyped(data, what)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            try:
                return _decode(option, data, what)
            except ProgramFormatError:
                continue
        raise _mismatch(hint, data, what)
    if hint is None or hint is type(None):
        if data is None:
            return None
    elif hint is float:
        if type(data) is int:
            return data
        if isinstance(data, dict) and type(data.get("float")) is str:
            try:
                return float.fromhex(data["float"])
            except (ValueError, OverflowError):
                pass
    elif hint in (bool, int, str):
        if type(data) is hint:
            return data
        if hint is str and isinstance(data, dict) and data.get("dtype") in ALL:
            return ALL[data["dtype"]]
    elif hint is DType:
        if isinstance(data, dict) and type(data.get("dtype")) is str and data["dtype"] in ALL:
            return ALL[data["dtype"]]
    elif isinstance(hint, type) and issubclass(hint, Enum):
        pair = data.get("enum") if isinstance(data, dict) else None
        if type(pair) is list and len(pair) == 2 and pair[0] == hint.__name__ and type(pair[1]) is str:
            if pair[1] in hint.__members__:
                return hint[pair[1]]
    elif origin is tuple or hint is tuple:
        return _decode_tuple(hint, data, what)
    elif isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        hints = _hints(hint)
        if type(data) is list and len(data) == len(hints):
            return hint(*[_decode(kind, value, f"{what}.{name}") for (name, kind), value in zip(hints.items(), data)])
    raise _mismatch(hint, data, what)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode_tuple(hint: Any, data: Any, what: str) -> tuple[Any, ...]:
    if type(data) is not list:
        raise _mismatch(hint, data, what)
    kinds = typing.get_args(hint)
    if not kinds:
        return tuple(_decode_untyped(value, what) for value in data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], value, what) for value in data)
    if len(kinds) != len(data):
        raise _mismatch(hint, data, what)
    return tuple(_decode(kind, value, what) for kind, value in zip(kinds, data))


def _decode_untyped(data: Any, what: str) -> Any:
    """Any value but an enum, whose class only a declared type can name."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is list:
        return tuple(_decode_untyped(value, what) for value in data)
    if isinstance(data, dict) and "dtype" in data:
        return _decode(DType, data, what)
    return _decode(float, data, what)


def _mismatch(hint: Any, data: Any, what: str) -> ProgramFormatError:
    return ProgramFormatError(f"{what}: {str(data)[:60]} is not a {getattr(hint, '__name__', hint)}")
