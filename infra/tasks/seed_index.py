"""Where tasks come from: the shipped NKIBench seeds, or a user's kernel and the reference beside it.

A reference is read as text here and never executed; only the judge runs it, in a process of its own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelopt_core.candidate import source_hash
from accelopt_core.languages.registry import language_named, language_of
from accelopt_core.task import ALONE, DEFAULT_LANGUAGE, PrecisionPolicy, ShapePreset, Surroundings, Task, Work
from infra.tasks.plain_reference import with_inputs
from infra.tasks.reference_reader import TaskInvalid, read_reference
from infra.tasks.user_files import SHIPPED, read_text

SEEDS = SHIPPED[DEFAULT_LANGUAGE]


class TaskNotFound(Exception):
    """No reference for a kernel, or no seed of that name; the message lists every place looked at."""


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
    language: str = DEFAULT_LANGUAGE

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
            around=ALONE if self.language == DEFAULT_LANGUAGE else Surroundings(self._entry),
            language=self.language,
        )

    @property
    def _entry(self) -> str:
        return language_named(self.language).entry_points[0]


def seed_index(folder: Path = SEEDS, language: str = DEFAULT_LANGUAGE) -> tuple[Seed, ...]:
    """Every shipped seed, in the order of `summary.json`. Raises TaskInvalid when the index is damaged."""
    path = folder / "summary.json"
    try:
        entries = json.loads(_read(path))
        return tuple(replace(_seed(folder, name, entry), language=language) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskInvalid(f"{path}: {error}: restore the file from the repository") from error


def seeds_of(language: str) -> tuple[Seed, ...]:
    """Those that are shipped in it; none in a language that has none. Raises TaskInvalid."""
    return seed_index(SHIPPED[language], language) if language in SHIPPED else ()


def every_seed() -> tuple[Seed, ...]:
    """In every language. Raises TaskInvalid."""
    return tuple(seed for language in SHIPPED for seed in seeds_of(language))


def load_seed(name: str, folder: Path | None = None) -> Seed:
    """`folder`: only of that. Raises TaskNotFound with the names there are."""
    seeds = every_seed() if folder is None else seed_index(folder)
    for seed in seeds:
        if seed.name == name:
            return seed
    raise TaskNotFound(f"no seed is called {name}; there are: {', '.join(seed.name for seed in seeds)}")


@dataclass(frozen=True)
class Adopted:
    """A task whose reference was looked for, and why it is that one."""

    task: Task
    reference: Path
    why: str
    """For people: `beside the kernel`."""


def find_reference(kernel_path: Path, folder: Path | None = None, shapes: Sequence[str] = ()) -> Adopted:
    """What a kernel file is held against: a reference next to it, else that of the run in whose folder it lies, else
    that of the seed it is or is named after, among those of its language. `shapes`: as for `task_from_files`; only a
    reference next to it goes with them.

    Raises TaskNotFound naming every place looked at, TaskInvalid when a reference is found but unusable.
    """
    kernel_path = Path(kernel_path)
    source = _read(kernel_path)
    language = language_of(source)
    seeds = seeds_of(DEFAULT_LANGUAGE if language is None else language.key) if folder is None else seed_index(folder)
    for seed in seeds:
        if _same_file(seed.kernel_path, kernel_path):
            return _of_seed(seed, "it is that seed's kernel")
    looked: list[str] = []
    for candidate in _reference_names(kernel_path):
        looked.append(str(candidate))
        if candidate.is_file() and not _same_file(candidate, kernel_path):
            task = task_from_files(candidate, _task_name(kernel_path), shapes)
            return Adopted(task, candidate, "found beside the kernel")
    if shapes:
        raise TaskNotFound(f"--shape: of which function? {kernel_path} has no {looked[0]} beside it: --problem REF.py")
    of_run = _of_run(kernel_path.parent)
    if of_run is not None:
        return of_run
    code = source_hash(source)
    for seed in seeds:
        if source_hash(seed.kernel_source) == code:
            return _of_seed(seed, "the kernel has that seed's code")
    for seed in sorted(seeds, key=lambda seed: -len(seed.name)):
        if kernel_path.stem == seed.name or kernel_path.stem.startswith(f"{seed.name}_"):
            return _of_seed(seed, "by the kernel's name alone; --problem REF.py names another")
    raise TaskNotFound(
        f"no NumPy reference for {kernel_path}: looked for {', '.join(looked)}, and for a seed with the same code or a "
        f"name that {kernel_path.stem!r} begins with ({', '.join(seed.name for seed in seeds)}); "
        f"give one with --problem ref.py, or begin one with `orchestrator.py init {shlex.quote(str(kernel_path))}`"
    )


def _of_run(folder: Path) -> Adopted | None:
    """What the run was held against whose folder it is; None for another folder, and where that is gone."""
    if not (folder / "manifest.json").is_file():
        return None
    try:
        asked = json.loads((folder / "config.json").read_text(encoding="utf-8"))["run"]
        problem, kernel, task = (asked.get(name) for name in ("problem", "kernel", "task"))
        if problem is not None:
            reference = Path(problem)
            return Adopted(task_from_files(reference, _task_name(Path(kernel or problem))), reference, "of its run")
        if kernel is not None:
            found = find_reference(Path(kernel)) if Path(kernel).parent != folder else None
            return None if found is None else replace(found, why=f"of its run: {found.why}")
        return _of_seed(load_seed(task), "of its run")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TaskNotFound, TaskInvalid):
        return None


def _of_seed(seed: Seed, why: str) -> Adopted:
    return Adopted(seed.task(), seed.reference_path, f"of the shipped task {seed.name}: {why}")


def task_from_files(reference_path: Path, name: str | None = None, shapes: Sequence[str] = ()) -> Task:
    """A task from a reference file and what it declares (docs/tasks.md); for a shipped reference, that seed's task.

    `shapes`: of the inputs, where the file holds a plain function alone. Raises TaskNotFound, or TaskInvalid when it
    declares what cannot be.
    """
    reference_path = Path(reference_path)
    for seed in every_seed():
        if _same_file(seed.reference_path, reference_path) and not shapes:
            return seed.task()
    where, text = str(reference_path), _read(reference_path)
    return task_from_text(with_inputs(text, shapes, where) if shapes else text, where, name or reference_path.stem)


def task_from_text(source: str, where: str, name: str) -> Task:
    """A task from the text of a reference; `where` that is, for messages. Raises TaskInvalid."""
    declared = read_reference(source, where)
    try:
        return Task(
            name,
            source,
            declared.presets,
            tolerance=declared.tolerance,
            precision=declared.precision,
            left_out=declared.left_out,
            within=declared.within,
        )
    except ValueError as error:
        raise TaskInvalid(f"{where}: {error} (docs/tasks.md)") from error


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
    of_suite = re.sub(r"_\d+$", "", stem)  # NKIBench keeps kernels/<problem>_0.py beside reference/<problem>_numpy_1.py
    for where, name in ((folder, stem), (folder.parent / "reference", of_suite)):
        yield from sorted(where.glob(f"{_escape(name)}_numpy*.py")) or [where / f"{name}_numpy*.py"]


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
        return read_text(path)
    except FileNotFoundError:
        raise TaskNotFound(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"{path}: cannot be read: {error}") from error
