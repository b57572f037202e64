"""How large the house is: lines and files of Python by part, and the folders with the most files.

    python -m benchmarks.size [--check]

`--check` exits 1 where a figure is above its limit below. A limit holds today and may only fall.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

WANTED_AND_LIMIT = {
    "product and plugins": (85_000, 106_150),
    "product": (73_000, 93_690),
    "tests": (45_000, 54_330),
    "product files": (420, 573),
    "fullest folder": (14, 14),
}
"""What issue 42 asks for; above which figure CI fails."""


def tracked() -> list[PurePosixPath]:
    """Returns the Python files that git tracks and that are in the work tree."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [PurePosixPath(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def part_of(file: PurePosixPath) -> str:
    """Returns the part of the repository that a file is in; what is no test, benchmark or plugin is the product."""
    first, *rest = file.parts
    if first == "plugins":
        beside = next((name for name in ("tests", "benchmarks") if rest[1].endswith(name)), "")
        return f"plugins' {beside}" if beside else "plugins"
    return first if first in ("tests", "benchmarks") else "product"


def figures() -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Returns lines by part, files by part, and files of each product folder without `__init__.py`."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for file in tracked():
        part = part_of(file)
        lines[part] += len((ROOT / file).read_bytes().splitlines())
        files[part] += 1
        if part in ("product", "plugins") and file.name != "__init__.py":
            folders[str(file.parent)] += 1
    return lines, files, folders


def main(arguments: list[str]) -> int:
    lines, files, folders = figures()
    for part in sorted(lines, key=lines.__getitem__, reverse=True):
        print(f"{part:<22}{lines[part]:>8,} lines {files[part]:>5} files")
    print("\nfullest folders: " + ", ".join(f"{folder} {count}" for folder, count in folders.most_common(8)) + "\n")
    now = {
        "product and plugins": lines["product"] + lines["plugins"],
        "product": lines["product"],
        "tests": lines["tests"],
        "product files": files["product"],
        "fullest folder": max(folders.values()),
    }
    grown = []
    for name, figure in now.items():
        wanted, limit = WANTED_AND_LIMIT[name]
        print(f"{name:<22}{figure:>8,}   wanted {wanted:,}, limit {limit:,}")
        grown += [name] if figure > limit else []
    if grown and "--check" in arguments:
        print(f"size: above the limit of benchmarks/size.py: {', '.join(grown)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
