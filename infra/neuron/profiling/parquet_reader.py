"""Reads one table of a profile from Parquet and writes it as JSON. Shipped; started by a Python that can read it.

Standard library by itself; pyarrow, or else pandas with an engine of its own, is imported when it runs.

    python parquet_reader.py --probe                       prints which package reads Parquet here
    python parquet_reader.py FOLDER TABLE OUT COLUMN...    {"rows": [...], "files": n}; no COLUMN: all of them
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

Reader = Callable[[str, "list[str]"], "list[dict[str, Any]]"]


def with_pyarrow() -> tuple[str, Reader]:
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")

    def read(path: str, columns: list[str]) -> list[dict[str, Any]]:
        there = [name for name in columns if name in parquet.read_schema(path).names] if columns else None
        return list(parquet.read_table(path, columns=there).to_pylist())

    return f"pyarrow {pyarrow.__version__}", read


def with_pandas() -> tuple[str, Reader]:
    pandas = importlib.import_module("pandas")
    engine = importlib.import_module("fastparquet")

    def read(path: str, columns: list[str]) -> list[dict[str, Any]]:
        there = [name for name in columns if name in engine.ParquetFile(path).columns] if columns else None
        frame = pandas.read_parquet(path, engine="fastparquet", columns=there)
        return list(json.loads(frame.to_json(orient="records")))

    return f"pandas {pandas.__version__} with fastparquet", read


def find() -> tuple[str, Reader]:
    """Raises ImportError, whose message names all that was tried."""
    why = []
    for reader in (with_pyarrow, with_pandas):
        try:
            return reader()
        except (ImportError, AttributeError, RuntimeError, SystemError, TypeError, ValueError) as error:  # other NumPy
            why.append(f"{type(error).__name__}: {str(error)[:200]}")
    raise ImportError("; ".join(why))


def files(folder: str, table: str) -> list[str]:
    """Large tables are split: `Instruction_0.parquet`, `Instruction_1.parquet`, ... (how-to-analyze-profile-output)."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), f"{table}*.parquet")):
        number = re.fullmatch(rf"{table}(?:_(\d+))?\.parquet", os.path.basename(path))
        if number:
            found.append((int(number.group(1) or -1), path))
    return [path for _, path in sorted(found)]


def main() -> int:
    try:
        name, read = find()
    except ImportError as error:
        print(error)
        return 3
    if sys.argv[1:] == ["--probe"]:
        print(name)
        return 0
    folder, table, out, *columns = sys.argv[1:]
    paths = files(folder, table)
    rows = [row for path in paths for row in read(path, columns)]
    with open(out, "w", encoding="utf-8") as stream:
        json.dump({"rows": rows, "files": len(paths)}, stream, default=str)
    return 0


if __name__ == "__main__":
    sys.exit(main())
