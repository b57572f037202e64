"""One kernel's shapes, out of a model's table of kernels (`infra/model_benchmark/projection.py` reads all of that).

[[kernel]]
before = "mine.py"                                      # beside the table; other kernels' rows are left out
values = {M = 128, K = 4096, N = 4096}                  # of its reference's shape constants
shapes = ["128x4096:bfloat16", "4096x4096:bfloat16"]    # what it is given there; held against the reference
share = 0.22                                            # of a step's time, all calls together
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.tasks.reference_reader import TaskInvalid


@dataclass(frozen=True)
class ModelRow:
    """One use of the kernel in the model."""

    where: str
    """The file and the row's number, for errors."""
    shape: dict[str, Any]
    """As a row of a shapes table."""
    tensors: tuple[str, ...]
    """As `128x4096:bfloat16`; empty where the table does not say."""


def is_models(document: Mapping[str, Any]) -> bool:
    return "kernel" in document


def rows_of_kernel(path: Path, document: Mapping[str, Any], kernel: Path) -> tuple[ModelRow, ...]:
    """Of the rows that are about this kernel. Raises TaskInvalid."""
    rows = document["kernel"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TaskInvalid(f"{path}: write [[kernel]] for each kernel")
    at = kernel.resolve()
    its = [(f"{path}: [[kernel]] {number}", row) for number, row in enumerate(rows, 1) if _file(path, row) == at]
    if not its:
        raise TaskInvalid(f'{path}: none of its kernels is {kernel}: write before = "{kernel.name}", from its folder')
    return tuple(_row(where, row) for where, row in its)


def shapes_text(rows: tuple[ModelRow, ...]) -> str:
    """The rows as a shapes table, for a set's own folder: it says nothing of where files lie."""
    tables = ("\n".join(f"{key} = {json.dumps(value)}" for key, value in row.shape.items()) for row in rows)
    return "\n".join(f"[[shape]]\n{table}\n" for table in tables)


def _row(where: str, row: Mapping[str, Any]) -> ModelRow:
    values, tensors = row.get("values"), row.get("shapes", [])
    if not isinstance(values, dict) or not values:
        raise TaskInvalid(f"{where}: --shapes asks for values = {{NAME = size}}, of the reference's shape constants")
    if stray := sorted(key for key, value in values.items() if type(value) is not int):
        raise TaskInvalid(f"{where}: values: {stray[0]} = {values[stray[0]]!r} is no size: give a whole number")
    if not isinstance(tensors, list) or not all(isinstance(each, str) for each in tensors):
        raise TaskInvalid(f'{where}: shapes are a list as ["128x512:float32"]')
    if "share" not in row:
        raise TaskInvalid(f"{where} has no share")
    beside = {key: row[key] for key in ("name", "share") if key in row}
    if twice := sorted(values.keys() & {"name", "share", "calls", "weight"}):
        raise TaskInvalid(f"{where}: {twice[0]} stands beside values, and not among them")
    return ModelRow(where, {**values, **beside}, tuple(tensors))


def _file(table: Path, row: Mapping[str, Any]) -> Path:
    return (table.parent / Path(re.sub(r"\.py:\w+$", ".py", str(row.get("before", "")))).expanduser()).resolve()
