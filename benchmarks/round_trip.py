"""Public kernels as loop trees and as text again: are the rows the same?

    python benchmarks/round_trip.py --sdk DIR --autocomp DIR --library DIR ... [--only TEXT] [--write FOLDER]

The directories are checkouts of the repositories in strangers_cases.py; what is not given is left out. Kernels and
arguments are those of compatibility.py and of both halves of strangers.py, where a kernel is written for two shapes at
once. Kernels of NKI 0.1 are migrated first (`--migrated` keeps that). A line for each kernel, then a summary. Ends with
status 1 where rows differ, or a written file is no valid NKI of a version that it was written for.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nki_sim
from accelopt_core.judging.reference.verification import Reference
from benchmarks import compatibility
from benchmarks.compatibility_cases import CASES, Case
from benchmarks.strangers_cases import REPOSITORIES, STRANGERS, Stranger, completed
from infra.assembly import migrating
from infra.scratch_folder import ScratchFolder
from infra.tasks.kernel_file import surroundings_of
from infra.tasks.seed_index import task_from_files
from nki_sim.encoding.canonical import digest
from nki_sim.lint import VERSIONS, check_source
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import NotReadable, read
from nki_sim.loop_ir.sizes import NoForm
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable
from nki_sim.loop_ir.tree import Instruction, Loop, LoopKernel, walk
from nki_sim.loop_ir.writing import written
from nki_sim.program.program import Program
from nki_sim.tracing import marks
from nki_sim.tracing.session import count_lines_of

LIBRARY = Path("src/nkilib_src")
"""The library's folder that its imports begin at."""
SHAPES = 2
"""Of a stranger."""


@dataclass(frozen=True)
class Call:
    kernel: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Kernel:
    name: str
    file: Path
    """Where its text stands, or stood before it was completed or migrated."""
    text: str
    function: str
    package: Path | None
    """The folder that its imports begin at, where it is a module of a package."""
    calls: Callable[[Any], list[Call]]
    """How the loaded function is called: at each shape."""


@dataclass
class Row:
    name: str
    rows: int = 0
    instructions: int = 0
    loops: int = 0
    tree: bool = False
    text: bool = False
    lines_before: int = 0
    lines_after: int = 0
    refused: str = ""
    """Why it cannot be read or written: about what the kernel does."""
    failed: str = ""
    """What went wrong that should not."""
    apart: str = ""
    """Why its shapes are not written together."""
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = self.failed and f"FAILED: {self.failed}" or self.refused and f"refused: {self.refused}" or "same"
        if self.apart and verdict == "same":
            verdict = f"same, each shape alone: {self.apart}"
        return (
            f"{self.name}: {self.rows} rows, {self.instructions} instructions in {self.loops} loops, "
            f"tree {'same' if self.tree else '-'}, text {'same' if self.text else '-'}, "
            f"{self.lines_before} -> {self.lines_after} lines, {self.seconds:.1f} s: {verdict}"
        )


# --- kernels --------------------------------------------------------------------------------------------------------


class _Called(Exception):
    """A case has called its kernel; nothing after that is of interest."""

    def __init__(self, call: Call) -> None:
        self.call = call


def of_case(root: Path, case: Case) -> Kernel:
    repository = compatibility.REPOSITORIES[case.repository]

    def calls(loaded: Any) -> list[Call]:
        def simulate(kernel: Any) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                raise _Called(Call(kernel, arguments, keywords))

            return call

        with ExitStack() as patched:
            for module in repository.cases:  # which import it by name
                patched.enter_context(patch(f"benchmarks.{module}.simulate", simulate))
            try:
                case.run(loaded)
            except _Called as called:
                return [called.call]
        raise ValueError("the case calls no kernel")

    file = root / case.file
    package = root / LIBRARY if case.repository == "library" else None
    preamble = repository.preamble
    text = preamble + file.read_text()
    return Kernel(f"{case.file} {case.function}, {case.what}", file, text, case.function, package, calls)


def of_stranger(root: Path, stranger: Stranger, migrated: Path) -> Kernel:
    file = root / stranger.file
    text = completed(stranger, file.read_text())
    task = task_from_files(stranger.reference_file, name=stranger.name)
    task = replace(task, around=surroundings_of(file, text, stranger.function))
    if stranger.migrate:  # for one shape: the old kernel is run to see what it does
        task = replace(task, presets=task.presets[:1])
        kept = migrated / f"{stranger.name}.py"
        if not kept.exists():
            before = migrated / f"{stranger.name}_before.py"
            before.write_text(text)
            kept.write_text(migrating.rewrite(before, text, task).source)
        text = kept.read_text()

    def calls(loaded: Any) -> list[Call]:
        found = []
        for preset in dict.fromkeys((task.presets[0], task.presets[-1])):
            reference = Reference(task, preset)
            found.append(Call(loaded, tuple(reference.kernel_arguments(reference.inputs(task.seeds[0]))), {}))
        return found[:SHAPES]

    package = root / LIBRARY if stranger.repository == "library" else None
    return Kernel(f"stranger {stranger.name}", file, text, stranger.function, package, calls)


# --- one kernel -----------------------------------------------------------------------------------------------------


def loaded(kernel: Kernel, text: str) -> Any:
    """The kernel's function, of modules made anew."""
    folder = kernel.package or kernel.file.parent
    with marks.imported([folder], {kernel.file: text}):
        if kernel.package is not None:
            name = ".".join(kernel.file.relative_to(kernel.package).with_suffix("").parts)
            for each in [each for each in sys.modules if each.partition(".")[0] == name.partition(".")[0]]:
                del sys.modules[each]
            names = vars(importlib.import_module(name))
        else:
            names = {"__name__": kernel.file.stem}
            exec(marks.compiled(text, str(kernel.file), names), names)
    return names[kernel.function]


def traced(call: Call) -> Program:
    return nki_sim.trace(call.kernel, *call.arguments, **call.keywords)


def round_trip(kernel: Kernel, folder: Path | None) -> Row:
    row = Row(kernel.name)
    count_lines_of(str(kernel.file))
    sys.path.insert(0, str(kernel.package or kernel.file.parent))
    row.lines_before = len(kernel.text.splitlines())
    shapes: list[tuple[LoopKernel, str]] = []
    try:
        for call in kernel.calls(loaded(kernel, kernel.text)):
            if (getattr(call.kernel, "cores", None) or 1) > 1:
                row.refused = "it runs on two cores"
                return row
            program = traced(call)
            row.rows = len(program)
            tree = read(program)
            row.instructions = sum(isinstance(node, Instruction) for node, _ in walk(tree.body))
            row.loops = sum(isinstance(node, Loop) for node, _ in walk(tree.body))
            row.tree = digest(expand(tree)) == digest(program)
            if not row.tree:
                row.failed = "the tree's rows differ"
                return row
            shapes.append((tree, digest(program)))
        numbers = range(len(shapes))
        try:
            texts = {tuple(numbers): written_by_version(kernel, [tree for tree, _ in shapes])}
        except NoForm as error:
            row.apart = str(error)
            texts = {(number,): written_by_version(kernel, [shapes[number][0]]) for number in numbers}
    except (NotReadable, NotWritable, NoForm) as error:
        row.refused = str(error)
        return row
    for group, versions in texts.items():
        for text in dict.fromkeys(versions.values()):
            calls = kernel.calls(loaded(kernel, text))
            if any(digest(traced(calls[number])) != shapes[number][1] for number in group):
                row.failed = "the text's rows differ"
            row.lines_after = len(text.splitlines())
        for version, text in versions.items():
            if folder is not None:
                name = "".join(c if c.isalnum() else "_" for c in kernel.name)
                (folder / f"{name}_{version}_{group[-1]}.py").write_text(text)
            before = {each.message for each in check_source(kernel.text, version)}
            errors = [each for each in check_source(text, version) if each.severity == "error"]
            errors = [each for each in errors if each.message not in before]
            if errors and not row.failed:
                row.failed = f"no NKI {version}: line {errors[0].line}: {errors[0].message}"
    row.text = not row.failed
    return row


def written_by_version(kernel: Kernel, trees: Sequence[LoopKernel]) -> dict[str, str]:
    """From the newest on, as far as NKI can say it. Raises NotWritable where no version can."""
    texts: dict[str, str] = {}
    for version in reversed(VERSIONS):
        try:
            texts[version] = written(trees, KernelText(kernel.text, kernel.function), version)
        except NotWritable:
            if not texts:
                raise
            break
    return texts


def _process(kernel: Callable[[], Kernel], name: str, folder: Path | None, results: Any) -> None:
    began = time.monotonic()
    try:
        row = round_trip(kernel(), folder)
    except Exception as error:  # a public kernel may raise anything, and the line says what
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        row = Row(name, failed=f"{said} ({Path(where.filename).name}:{where.lineno})")
    row.name = name
    row.seconds = time.monotonic() - began
    results.send(row)


def in_process(kernel: Callable[[], Kernel], name: str, folder: Path | None, seconds: float) -> Row:
    """In a process of its own: what a kernel's file does to Python stays there."""
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(False)
    process = fork.Process(target=_process, args=(kernel, name, folder, sending))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            process.kill()
            return Row(name, failed=f"longer than {seconds:.0f} s", seconds=seconds)
        row: Row = receiving.recv()
        return row
    except EOFError:
        return Row(name, failed="its process died")
    finally:
        process.join()


def kernels(options: argparse.Namespace, migrated: Path) -> Iterator[tuple[str, Callable[[], Kernel]]]:
    roots: dict[str, Path] = {key: getattr(options, key).resolve() for key in REPOSITORIES if getattr(options, key)}
    for key, repository in compatibility.REPOSITORIES.items():
        if key not in roots:
            continue
        for module in repository.cases:
            importlib.import_module(f"benchmarks.{module}")
        for case in CASES:
            if case.repository == key and not case.rejected:
                name = f"{case.file.removeprefix('src/nkilib_src/nkilib/')} {case.function}, {case.what}"
                yield name, lambda root=roots[key], case=case: of_case(root, case)
    for each in STRANGERS:
        if each.repository in roots:
            yield (
                f"stranger {each.name} ({each.half.value})",
                lambda root=roots[each.repository], each=each: of_stranger(root, each, migrated),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, name in REPOSITORIES.items():
        parser.add_argument(f"--{key}", type=Path, metavar="DIR", help=f"a checkout of {name}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only kernels whose name contains this")
    parser.add_argument("--seconds", type=float, default=300, help="for each kernel [%(default)s]")
    parser.add_argument("--migrated", type=Path, metavar="DIR", help="keep migrated kernels here, and use those there")
    parser.add_argument("--write", type=Path, metavar="DIR", help="put the written kernels here")
    options = parser.parse_args()
    nki_sim.install()
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    with ExitStack() as stack:
        migrated = options.migrated
        if migrated is None:
            scratch = ScratchFolder("round-trip-")
            stack.callback(scratch.close)
            migrated = scratch.path
        migrated.mkdir(parents=True, exist_ok=True)
        for name, kernel in kernels(options, migrated):
            if options.only in name:
                found.append(in_process(kernel, name, options.write, options.seconds))
                print(found[-1], flush=True)
    counts = Counter("failed" if row.failed else "refused" if row.refused else "same rows" for row in found)
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()) + f" of {len(found)} kernels")
    for why, count in Counter(row.refused for row in found if row.refused).most_common():
        print(f"    {count} refused: {why}")
    return int(bool(counts["failed"]))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
