"""Which files the judge needs on another machine: found by following imports, so that the list cannot go stale."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from accelopt_core.candidate import parsed

TREE = Path(__file__).resolve().parents[2]
PACKAGES = ("accelopt_core", "infra", "ka_extensions", "nki_sim")

_STARTS = ("infra/judging/judge.py", "infra/doctor.py", "infra/triton/gpu_doctor.py", "nki_sim/**/*")
"""The judge, who examines the machine for it, and the simulator whole: kernels import from it what they like."""


def files_to_ship(tree: Path = TREE, also: Sequence[str] = ()) -> dict[str, Path]:
    """Relative POSIX path -> file, for everything that `python -m infra.judging.judge` can come to import or start.

    A string that is the name of a file beside the one it stands in counts as a program started by its path.
    `also`: relative paths of other programs that are started there.
    """
    found: dict[str, Path] = {}
    pending = [
        path
        for pattern in (*_STARTS, *also)
        for path in tree.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    if not any(path.name == "judge.py" for path in pending):
        raise FileNotFoundError(f"{tree}/infra/judging/judge.py is not there: this installation is incomplete")
    while pending:
        path = pending.pop()
        name = path.relative_to(tree).as_posix()
        if name not in found:
            found[name] = path
            if path.suffix == ".py":
                pending += _needed(path, tree)
    return dict(sorted(found.items()))


_DECIDES = ("accelopt_core", "infra/devices", "infra/isolation", "infra/judging", "infra/languages", "infra/neuron",
    "infra/simulator", "infra/triton", "nki_sim",
)  # fmt: skip
"""Folders whose every line may decide a verdict."""


@cache
def judge_fingerprint(tree: Path = TREE) -> str:
    """Changes whenever a verdict could: 12 hex digits of the judge, its walls and the simulator, as they are here.

    What a target times with is in its own fingerprint (`Toolchain.fingerprint`).
    """
    digest = hashlib.sha256()
    for path in sorted(path for folder in _DECIDES for path in (tree / folder).rglob("*.py")):
        digest.update(path.relative_to(tree).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _needed(path: Path, tree: Path) -> Iterator[Path]:
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, tree)
        elif isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(tree).parent.parts)[: None if node.level <= 1 else 1 - node.level]
            base = ".".join(([*package] if node.level else []) + ([node.module] if node.module else []))
            for alias in node.names:
                yield from _module_files(f"{base}.{alias.name}", tree)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.endswith(".py")
            and "/" not in node.value
            and path.with_name(node.value).is_file()
        ):
            yield path.with_name(node.value)


def _module_files(dotted: str, tree: Path) -> Iterator[Path]:
    """The files that importing `dotted` runs: each package's __init__, then the module; a trailing name is no file."""
    parts = dotted.split(".")
    if parts[0] not in PACKAGES:
        return
    for depth in range(1, len(parts) + 1):
        stem = tree.joinpath(*parts[:depth])
        for candidate in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
            if candidate.is_file():
                yield candidate
