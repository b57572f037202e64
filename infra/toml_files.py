"""Reading the data files of this package on every supported Python."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


class BadToml(Exception):
    """The file is missing or malformed; the line says where and why."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = _toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadToml(f"{path}: {error.strerror}: give another path") from error
    except (_toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadToml(f"{path}: {error}: correct it") from error
    return document
