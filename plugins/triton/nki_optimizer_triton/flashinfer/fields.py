"""JSON documents of the suite's, field by field. What is missing or wrong is said in one line: file, field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.user_files import read_text


@dataclass(frozen=True)
class Fields:
    """An object of a document, and where it stands: `rmsnorm.json: axes.batch_size`."""

    values: Mapping[str, Any]
    where: str

    def wrong(self, name: str, what: str) -> TaskInvalid:
        return TaskInvalid(f"{self.where}{name} {what}")

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "is missing" if value is None else f"is {value!r}, and must be text")
        return value

    def number(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int or value <= 0:
            raise self.wrong(name, f"is {value!r}, and must be a positive whole number")
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in choices:
            raise self.wrong(name, f"is {value!r}, and one of these is read: {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if type(value) is not bool:
            raise self.wrong(name, f"is {value!r}, and must be true or false")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "is missing" if value is None else "must be a list")
        return value

    def inner(self, name: str) -> Fields:
        """The object of that name."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "is missing" if value is None else "must be an object")
        return Fields(value, f"{self.where}{name}.")

    def each(self) -> Iterator[tuple[str, Fields]]:
        """Of an object of objects, all of them."""
        for name in self.values:
            yield name, self.inner(name)


def read_fields(path: Path) -> Fields:
    """Raises TaskInvalid."""
    return _parsed(_text(path), str(path))


def read_lines(path: Path) -> Iterator[Fields]:
    """Of a .jsonl file; empty lines are none. Raises TaskInvalid."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            yield _parsed(line, f"{path}:{number}")


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise TaskInvalid(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"{path}: cannot be read: {error}") from error


def _parsed(text: str, where: str) -> Fields:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskInvalid(f"{where}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise TaskInvalid(f"{where}: must hold one JSON object")
    return Fields(document, f"{where}: ")
