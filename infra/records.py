"""The core's dataclasses as JSON documents and back, checked on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from infra.journal import JournalDamaged

T = TypeVar("T")


class BadRecord(JournalDamaged):
    """A document does not fit the type it is read as; the line names the first field that does not."""


def to_document(value: Any) -> dict[str, Any]:
    """A frozen dataclass as plain JSON types. NaN and infinities stay what they are (Python's JSON knows them)."""
    document: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return document


def from_document(kind: type[T], document: Mapping[str, Any], source: str) -> T:
    """Unknown fields, of a newer version, are left out. Raises BadRecord."""
    try:
        result: T = _adapter(kind).validate_python(document)
    except ValidationError as error:
        raise BadRecord(f"{source}: {first_complaint(error)}: repair it, or move the file away") from error
    return result


def first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
