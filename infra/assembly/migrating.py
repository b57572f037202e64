"""A kernel of an older NKI rewritten before its run begins: by `nki_sim.migrate`, in a process of its own.

The old kernel is run there, on its reference's own inputs, so the process sees no keys. Started as
`python -m infra.assembly.migrating`: a job as JSON on stdin, what came of it as JSON on stdout.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelopt_core.candidate import Candidate, parsed
from accelopt_core.judging.reference.verification import BadReference, Reference
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Surroundings, Task
from infra.isolation.sandbox import ONE_THREAD, scrubbed_environment
from infra.judging import wire
from infra.judging.shipment import TREE
from infra.tasks.reference_reader import TaskInvalid
from nki_sim.beta1 import running
from nki_sim.lint import VERSIONS, check_source
from nki_sim.lint.kernel_source import top_level
from nki_sim.migrate import proving
from nki_sim.migrate.command import Dialect, Unclear, dialect_of, migrate_file, only_kernel

_LISTED = 5
"""Places for a person that an error names."""


@dataclass(frozen=True)
class Rewritten:
    """The new kernel, and what is to be said of it."""

    source: str
    proof: str
    shapes: tuple[str, ...]
    """Names of the presets that it is right at."""
    left_out: tuple[str, ...] = ()
    """Why it is not verified at others, a line each."""


@dataclass(frozen=True)
class Outdated:
    """In what a kernel is written that the newest compiler does not read."""

    dialect: str
    only_in_old_sdks: bool
    """NKI 0.1, which the simulator does not trace either."""


def outdated(source: str) -> Outdated | None:
    """None where the newest compiler reads it, or nobody can tell."""
    try:
        dialect = dialect_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if dialect is Dialect.BETA1:
        return Outdated(dialect.value, only_in_old_sdks=True)
    if dialect is not Dialect.PARSER:
        return None
    *older, newest = (not _refused(source, version) for version in VERSIONS[1:])  # of 0.2 no list of names is known
    is_old = not newest and any(older)  # what none of them reads is no matter of versions
    return Outdated(dialect.value, only_in_old_sdks=False) if is_old else None


def _refused(source: str, version: str) -> bool:
    return any(finding.severity == "error" for finding in check_source(source, version))


def rewrite(kernel: Path, source: str, task: Task) -> Rewritten:
    """Raises TaskInvalid where a person is needed; a minute or more where a kernel of NKI 0.1 has a large shape."""
    try:
        defined = {node.name for node in top_level(parsed(source).body) if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskInvalid(f"{kernel} cannot be migrated: {error}") from None
    function = next((name for name in task.around.entry_points if name in defined), None)
    job = wire.Job(EvaluationRequest(task, Candidate("input", "")), nonce="", toolchain="simulator", machine="")
    done = subprocess.run(
        [sys.executable, "-m", "infra.assembly.migrating"],
        input=json.dumps({"job": wire.encode_job(job), "file": str(kernel.resolve()), "function": function}),
        cwd=TREE, env=scrubbed_environment(ONE_THREAD), capture_output=True, text=True,
    )  # fmt: skip
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise TaskInvalid(f"{kernel} could not be migrated: {last[0]}") from None
    if said["left"]:
        listed = "; ".join(said["left"][:_LISTED]) + ("; ..." if len(said["left"]) > _LISTED else "")
        raise TaskInvalid(
            f"{kernel} does not migrate by itself: {listed}. `python -m nki_sim migrate {kernel} --problem REF.py "
            "-o NEW.py` writes what it can and marks the rest"
        )
    return Rewritten(said["source"], said["proof"], tuple(said["shapes"]), tuple(said["left_out"]))


# --- the process ----------------------------------------------------------------------------------


def main() -> int:
    asked = json.loads(sys.stdin.read())
    answer = os.dup(1)
    os.dup2(2, 1)  # what the kernel prints is no answer
    task = wire.decode_job(asked["job"]).request.task
    _import_from_its_package(Path(asked["file"]), task.around)
    said = _rewritten(Path(asked["file"]), asked["function"], task)
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(said, stream)
    return 0


def _import_from_its_package(file: Path, around: Surroundings) -> None:
    """Old and new find the files that they import, where the folders have names that Python can import."""
    sys.dont_write_bytecode = True  # they are the user's folders
    names = around.module.split(".")
    if around.module and names[:-1] == [folder.name for folder in reversed(file.parents[: len(names) - 1])]:
        sys.path.insert(0, str(file.parents[len(names) - 1]))


def _rewritten(file: Path, function: str | None, task: Task) -> dict[str, Any]:
    try:
        dialect, migration = migrate_file(file, function, _arguments(task, task.full), {}, also_in_06=False)
    except (Unclear, BadReference) as error:
        return {"left": [str(error)]}
    if not migration.done:
        return {"left": [str(finding) for finding in migration.left] or [migration.proof]}
    function = only_kernel(file.read_text(encoding="utf-8-sig"), function)
    shapes, left_out = [], []
    for preset in task.presets[:-1]:
        why = _differs(file, function, migration.source, task, preset) if dialect is Dialect.BETA1 else ""
        if why:
            left_out.append(f"not verified at {preset.describe()}: {why}")
        else:
            shapes.append(preset.name)
    said = Rewritten(migration.source, migration.proof, (*shapes, task.full.name), tuple(left_out))
    return {**asdict(said), "left": []}


def _differs(file: Path, function: str, source: str, task: Task, preset: ShapePreset) -> str:
    """Why the kernel that was migrated at the full shape cannot be verified at another; empty where it can."""
    try:
        old = running.run(running.parsed(file.read_text(encoding="utf-8-sig")), function, _arguments(task, preset), {},
                          str(file))  # fmt: skip
    except Exception as error:  # a kernel may raise anything
        return f"the old kernel does not run there ({_brief(error)})"
    try:
        new = proving.run_new(source, function, _arguments(task, preset), {}, str(file))
    except Exception as error:  # a kernel may raise anything
        return f"it was migrated for {task.full.describe()} ({_brief(error)})"
    if proving.difference(old.outputs, new) <= proving.tolerance(old.watcher.dtypes()):
        return ""
    return f"it was migrated for {task.full.describe()}, and computes something else there"


def _arguments(task: Task, preset: ShapePreset) -> Sequence[Any]:
    reference = Reference(task, preset)
    return reference.kernel_arguments(reference.inputs(task.seeds[0]))


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


if __name__ == "__main__":
    sys.exit(main())
