"""Which files the judge needs on another machine: found by following imports, so that the list cannot go stale."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from accelopt_core.candidate import parsed
from accelopt_core.languages.plugin import Installed, installed
from accelopt_core.task import DEFAULT_LANGUAGE

TREE = Path(__file__).resolve().parents[2]
PACKAGES = ("accelopt_core", "infra", "ka_extensions", "nki_sim")

_STARTS = ("infra/judging/judge.py", "infra/doctor.py", "nki_sim/**/*")
"""The judge, who examines the machine for it, and the simulator whole: kernels import from it what they like."""


def files_to_ship(language: str = DEFAULT_LANGUAGE, tree: Path = TREE, also: Sequence[str] = ()) -> dict[str, Path]:
    """Relative POSIX path -> file, for everything that `python -m infra.judging.judge` can come to import or start
    for kernels of that language.

    A string that is the name of a file beside the one it stands in counts as a program started by its path.
    `also`: relative paths of other programs that are started there.
    """
    roots = dict.fromkeys(PACKAGES, tree)
    pending = [
        (tree, path)
        for pattern in (*_STARTS, *also)
        for path in tree.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    if not any(path.name == "judge.py" for _, path in pending):
        raise FileNotFoundError(f"{tree}/infra/judging/judge.py is not there: this installation is incomplete")
    found: dict[str, Path] = {}
    known = installed()[0].get(language)
    if known is not None:
        found |= _entry_point(known)
        roots[known.plugin.package.name] = known.plugin.package.parent
        pending += _module_files(known.plugin.doctor, roots)
    while pending:
        root, path = pending.pop()
        name = path.relative_to(root).as_posix()
        if name not in found:
            found[name] = path
            if path.suffix == ".py":
                pending += _needed(root, path, roots)
    return dict(sorted(found.items()))


def _entry_point(known: Installed) -> dict[str, Path]:
    """By which the judge there finds the plugin, as one that is installed is found here."""
    file = known.entry_points_file
    if file is None:
        raise FileNotFoundError(f"the plugin {known.plugin.key} does not say which files it has: install it again")
    return {f"{known.plugin.package.name}-0.dist-info/entry_points.txt": file}


_DECIDES = ("accelopt_core", "infra/devices", "infra/isolation", "infra/judging", "infra/languages", "infra/neuron",
    "infra/simulator", "nki_sim",
)  # fmt: skip
"""Folders whose every line may decide a verdict."""


@cache
def judge_fingerprint(language: str = DEFAULT_LANGUAGE, tree: Path = TREE) -> str:
    """Changes whenever a verdict could: 12 hex digits of the judge, its walls and the simulator, as they are here.

    What a target times with is in its own fingerprint (`Toolchain.fingerprint`).
    """
    digest = hashlib.sha256()
    kinds = ("*.py", "*.json")  # code, and the tables that it reads
    paths = sorted(path for folder in _DECIDES for kind in kinds for path in (tree / folder).rglob(kind))
    named = [(path.relative_to(tree), path) for path in paths]
    known = installed()[0].get(language)
    if known is not None:
        package = known.plugin.package
        named += [(path.relative_to(package.parent), path) for path in sorted(package.rglob("*.py"))]
    for name, path in named:
        digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _needed(root: Path, path: Path, roots: Mapping[str, Path]) -> Iterator[tuple[Path, Path]]:
    """Each with the folder that its package lies in."""
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(root).parent.parts)[: None if node.level <= 1 else 1 - node.level]
            base = ".".join(([*package] if node.level else []) + ([node.module] if node.module else []))
            for alias in node.names:
                yield from _module_files(f"{base}.{alias.name}", roots)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.endswith(".py")
            and "/" not in node.value
            and path.with_name(node.value).is_file()
        ):
            yield root, path.with_name(node.value)


def _module_files(dotted: str, roots: Mapping[str, Path]) -> Iterator[tuple[Path, Path]]:
    """The files that importing `dotted` runs: each package's __init__, then the module; a trailing name is no file."""
    parts = dotted.split(".")
    root = roots.get(parts[0])
    if root is None:
        return
    for depth in range(1, len(parts) + 1):
        stem = root.joinpath(*parts[:depth])
        for candidate in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
            if candidate.is_file():
                yield root, candidate
