"""Where tasks come from: the shipped NKIBench seeds, or a user's kernel and the reference beside it.

A reference is read as text here and never executed; only the judge runs it, in a process of its own.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.candidate import source_hash
from accelopt_core.task import DEFAULT_TOLERANCE, PUBLISHED_SEEDS, PrecisionPolicy, ShapePreset, Task, Work

SEEDS = Path(__file__).resolve().parent.parent / "nkibench_seeds"
REQUIRED_FUNCTIONS = ("get_inputs", "forward", "transform_to_nki_inputs", "transform_nki_outputs")


class TaskNotFound(Exception):
    """No reference for a kernel, or no seed of that name; the message lists every place looked at."""


class TaskInvalid(Exception):
    """A reference or the seed index is there and cannot be used; the message says what to change."""


@dataclass(frozen=True)
class Seed:
    """One shipped task: its kernel, its reference and what `summary.json` says about them."""

    name: str
    description: str
    kernel_path: Path
    reference_path: Path
    presets: tuple[ShapePreset, ...]
    tolerance: float
    precision: PrecisionPolicy
    left_out: tuple[tuple[str, str], ...] = ()
    """Input distributions it is not defined for, and why."""

    @property
    def kernel_source(self) -> str:
        return _read(self.kernel_path)

    def task(self) -> Task:
        return Task(
            self.name,
            _read(self.reference_path),
            self.presets,
            tolerance=self.tolerance,
            precision=self.precision,
            left_out=self.left_out,
        )


def seed_index(folder: Path = SEEDS) -> tuple[Seed, ...]:
    """Every shipped seed, in the order of `summary.json`. Raises TaskInvalid when the index is damaged."""
    path = folder / "summary.json"
    try:
        entries = json.loads(_read(path))
        return tuple(_seed(folder, name, entry) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskInvalid(f"{path}: {error}: restore the file from the repository") from error


def load_task(name: str, folder: Path = SEEDS) -> Task:
    return load_seed(name, folder).task()


def load_seed(name: str, folder: Path = SEEDS) -> Seed:
    """Raises TaskNotFound with the names there are."""
    seeds = seed_index(folder)
    for seed in seeds:
        if seed.name == name:
            return seed
    raise TaskNotFound(f"no seed is called {name}; there are: {', '.join(seed.name for seed in seeds)}")


def find_task(kernel_path: Path, folder: Path = SEEDS) -> Task:
    """The task a kernel file is for: a reference next to it, else the seed it is or is named after.

    Raises TaskNotFound naming every place looked at, TaskInvalid when a reference is found but unusable.
    """
    kernel_path = Path(kernel_path)
    source = _read(kernel_path)
    seeds = seed_index(folder)
    for seed in seeds:
        if _same_file(seed.kernel_path, kernel_path):
            return seed.task()
    looked: list[str] = []
    for candidate in _reference_names(kernel_path):
        looked.append(str(candidate))
        if candidate.is_file() and not _same_file(candidate, kernel_path):
            return task_from_files(candidate, name=_task_name(kernel_path))
    code = source_hash(source)
    for seed in seeds:
        if source_hash(seed.kernel_source) == code:
            return seed.task()
    for seed in sorted(seeds, key=lambda seed: -len(seed.name)):
        if kernel_path.stem == seed.name or kernel_path.stem.startswith(f"{seed.name}_"):
            return seed.task()
    raise TaskNotFound(
        f"no NumPy reference for {kernel_path}: looked for {', '.join(looked)}, and for a seed with the same code or a "
        f"name that {kernel_path.stem!r} begins with ({', '.join(seed.name for seed in seeds)}); "
        f"give one with --problem ref.py"
    )


def task_from_files(
    reference_path: Path,
    name: str | None = None,
    presets: tuple[ShapePreset, ...] = (),
    tolerance: float = DEFAULT_TOLERANCE,
    precision: PrecisionPolicy = PrecisionPolicy.FLOAT32_FAITHFUL,
    seeds: tuple[int, ...] = PUBLISHED_SEEDS,
) -> Task:
    """A task from a reference file; without presets, one named `full` with the file's own constants."""
    reference_path = Path(reference_path)
    for seed in seed_index():
        if not presets and _same_file(seed.reference_path, reference_path):
            return seed.task()
    source = _read(reference_path)
    constants = shape_constants(source, str(reference_path))
    presets = presets or (ShapePreset("full", tuple(constants.items())),)
    for preset in presets:
        unknown = [key for key, _ in preset.values if key not in constants]
        if unknown:
            raise TaskInvalid(
                f"preset {preset.name} sets {', '.join(unknown)}, which {reference_path} does not define as a "
                f"module-level integer (it has: {', '.join(constants) or 'none'})"
            )
    try:
        return Task(
            name or reference_path.stem,
            source,
            presets,
            tolerance=tolerance,
            precision=precision,
            seeds=seeds,
            left_out=_left_out(source, str(reference_path)),
        )
    except ValueError as error:
        raise TaskInvalid(f"{reference_path}: {error} (docs/tasks.md)") from error


def _left_out(source: str, where: str) -> tuple[tuple[str, str], ...]:
    """A reference's own `DISTRIBUTIONS_LEFT_OUT = {"zero-rows": "why"}`, read and not run."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "DISTRIBUTIONS_LEFT_OUT" for t in node.targets):
            try:
                value = ast.literal_eval(node.value)
                return tuple((str(name), str(reason)) for name, reason in value.items())
            except (ValueError, AttributeError):
                raise TaskInvalid(
                    f"{where}:{node.lineno}: DISTRIBUTIONS_LEFT_OUT must be a plain dictionary of name: reason"
                ) from None
    return ()


def shape_constants(source: str, where: str = "reference") -> dict[str, int]:
    """Module-level `NAME = positive integer` lines of a reference, which presets may override.

    Raises TaskInvalid when the text is not Python or lacks a function of the protocol.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise TaskInvalid(f"{where}{f':{line}' if line else ''}: not Python: {error}") from error
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in REQUIRED_FUNCTIONS if name not in functions]
    if missing:
        raise TaskInvalid(f"{where}: a reference must define {' and '.join(missing)} (docs/tasks.md)")
    constants: dict[str, int] = {}
    for node in tree.body:
        for target, value in _assignments(node):
            if type(value) is int and value > 0:
                constants[target] = value
            else:
                constants.pop(target, None)
    return constants


def _assignments(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Names a top-level statement binds, each with its literal value or None."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, _literal(node.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, _literal(node.value)
            elif isinstance(target, ast.Tuple) and all(isinstance(name, ast.Name) for name in target.elts):
                values: list[Any] = [None] * len(target.elts)
                if isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(target.elts):
                    values = [_literal(value) for value in node.value.elts]
                for name, value in zip(target.elts, values):
                    assert isinstance(name, ast.Name)
                    yield name.id, value


def _literal(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _seed(folder: Path, name: str, entry: Mapping[str, Any]) -> Seed:
    presets = tuple(
        ShapePreset(preset, tuple(values["values"].items()), Work(**values["work"]))
        for preset, values in entry["presets"].items()
    )
    return Seed(
        name,
        entry["description"],
        folder / entry["kernel"],
        folder / entry["reference"],
        presets,
        float(entry["tolerance"]),
        PrecisionPolicy(entry["precision"]),
        tuple(entry.get("left_out", {}).items()),
    )


def _reference_names(kernel_path: Path) -> Iterator[Path]:
    folder, stem = kernel_path.parent, kernel_path.stem
    yield from (folder / name for name in (f"{stem}_reference.py", f"{stem}_ref.py", "reference.py", "ref.py"))
    matches = sorted(folder.glob(f"{_escape(stem)}_numpy*.py"))
    yield from matches or [folder / f"{stem}_numpy*.py"]


def _escape(stem: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in stem)


def _task_name(kernel_path: Path) -> str:
    return kernel_path.parent.name if kernel_path.stem == "kernel" and kernel_path.parent.name else kernel_path.stem


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskNotFound(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"{path}: cannot be read: {error}") from error
