"""One kernel of an older NKI rewritten for 0.7 and written to a new file, with all that `nki-sim migrate` finds.

A kernel of NKI 0.1 has to be run for that, others are traced where their arguments are known: in a process of its own,
isolated as a candidate is.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import config
from accelopt_core.judging.orphans import end_with_parent
from accelopt_core.judging.reference.verification import BadReference, Reference
from accelopt_core.task import Surroundings, Task
from infra.commands.menu import difference, written
from infra.commands.profile import tensor
from infra.documents.kernel_document import MigrationDocument
from infra.isolation import linux, sandbox, system_calls
from infra.isolation.namespaces import Mounts, fork_isolated
from infra.judging.shipment import TREE
from infra.scratch_folder import ScratchFolder
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import task_from_files
from infra.tasks.user_files import Folder
from nki_sim.dtypes import as_dtype
from nki_sim.migrate.command import Unclear, migrate_file
from nki_sim.migrate.report import Kind

MEMORY_BYTES = 8 << 30
_VISIBLE = ("nki_sim", "accelopt_core", "infra", "ka_extensions")
_MOST_ANSWER = 32 << 20
_LONGEST_COMPLAINT = 2000


@dataclass(frozen=True)
class _Job:
    """What goes into the process that runs the old kernel."""

    name: str
    """Of its file, as it is to be shown."""
    text: str
    around: Surroundings
    function: str | None
    task: Task | None
    """Whose arguments are used."""
    shapes: tuple[str, ...]
    constants: Mapping[str, Any]
    limit_s: float


def migrate(
    settings: config.Settings, kernel: str, shapes: Sequence[str], constants: Mapping[str, Any], folder: Folder,
    output: str, *, overwrite: bool, limit_s: float,
) -> MigrationDocument:  # fmt: skip
    """Writes the new kernel to `output` in `folder`, also where a person is needed: each such place is marked in it.

    `kernel`: as it was named. Its arguments are those of the settings' reference, or arrays of `shapes` (as
    128x512:float32) and `constants` by name; without either, old and new are not compared. Raises SettingsError,
    TaskInvalid and TaskNotFound for what is missing or wrong, and Outside where the file may not be written.
    """
    path, new = settings.run.kernel, folder.new_file(output, overwrite=overwrite)
    assert path is not None, "whoever asks names a kernel"
    text = kernel_text(path)
    for shape in shapes:
        tensor("migrate", shape)
    reference = settings.run.problem
    task = task_from_files(reference, name=path.stem) if reference is not None else None
    around = surroundings_of(path, text, settings.run.function)
    said = _in_isolation(
        _Job(kernel, text, around, settings.run.function, task, tuple(shapes), dict(constants), limit_s)
    )
    if "complaint" in said:
        raise TaskInvalid(f"{kernel}: {said['complaint']}")
    overwrote = written(folder, new, said["source"], overwrite=overwrite)
    return MigrationDocument(
        kernel, said["dialect"], said["done"], said["proof"], tuple(said["left"]), tuple(said["notes"]), output,
        overwrote, difference(text, said["source"], kernel, output),
    )  # fmt: skip


def _in_isolation(job: _Job) -> dict[str, Any]:
    """What `_migrated` says, in a forked process that sees the program and an empty folder."""
    with ScratchFolder("nki-migrate-") as scratch, tempfile.TemporaryFile() as answer:
        work = scratch / "work"
        work.mkdir()
        parent = os.getpid()
        sys.stdout.flush()
        pid, refused = fork_isolated(Mounts(tuple(TREE / name for name in _VISIBLE), work))
        if pid < 0:
            pid = os.fork()
            if pid == 0:
                end_with_parent(parent)
        if pid == 0:
            _answer(job, work, answer.fileno())
        try:
            _, status = os.waitpid(pid, 0)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        answer.seek(0)
        try:
            said = _checked(json.loads(answer.read(_MOST_ANSWER)))
        except (ValueError, RecursionError):
            how = os.waitstatus_to_exitcode(status)
            said = {"complaint": f"the process that runs the old kernel ended with status {how} and no usable answer"}
        if refused and "notes" in said:
            said["notes"].append(f"the old kernel was run without namespaces of its own ({refused})")
        return said


_TYPES = {"dialect": str, "done": bool, "proof": str, "left": list, "notes": list, "source": str}


def _checked(said: Any) -> dict[str, Any]:
    """The old kernel runs where this is said, so it may be anything. Raises ValueError."""
    if isinstance(said, dict) and isinstance(said.get("complaint"), str):
        return {"complaint": said["complaint"][:_LONGEST_COMPLAINT]}
    if not isinstance(said, dict) or {name: type(value) for name, value in said.items()} != _TYPES:
        raise ValueError("no answer of ours")
    if not all(isinstance(line, str) for line in (*said["left"], *said["notes"])):
        raise ValueError("no answer of ours")
    return said


def _answer(job: _Job, work: Path, fd: int) -> None:
    """Does not return: it ends this forked process."""
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        # What else is open here is our answer to somebody, or somebody's file: the kernel must find neither.
        os.closerange(3, fd)
        os.closerange(fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        try:
            system_calls.refuse_system_calls()
        except linux.IsolationUnavailable:
            pass  # the namespaces and the limits stand
        sandbox.limit_this_process(sandbox.ProcessLimits(job.limit_s, MEMORY_BYTES))
        data = memoryview(json.dumps(_migrated(job, work)).encode())
        while data:
            data = data[os.write(fd, data) :]
        status = 0
    finally:
        os._exit(status)


def _migrated(job: _Job, work: Path) -> dict[str, Any]:
    kernel = work / (job.around.path or Path(job.name).name)
    for place, text in {**{work / name: text for name, text in job.around.neighbours}, kernel: job.text}.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(work))
    try:
        dialect, migration = migrate_file(kernel, job.function, _arguments(job), dict(job.constants), False)
    except (Unclear, BadReference) as error:
        return {"complaint": _shown(str(error), kernel, job)}
    except Exception as error:  # the old kernel may raise anything
        return {"complaint": _shown(f"{type(error).__name__}: {error}", kernel, job)}
    by_kind = {
        kind: [_shown(str(finding), kernel, job) for finding in migration.findings if finding.kind is kind]
        for kind in (Kind.PERSON, Kind.NOTE)
    }
    return {
        "dialect": dialect.value,
        "done": migration.done,
        "proof": _shown(migration.proof, kernel, job),
        "left": by_kind[Kind.PERSON],
        "notes": by_kind[Kind.NOTE],
        "source": migration.source,
    }


def _arguments(job: _Job) -> Sequence[Any]:
    if job.task is not None:
        reference = Reference(job.task, job.task.full)
        return reference.kernel_arguments(reference.inputs(job.task.seeds[0]))
    rng = np.random.default_rng(0)
    arrays = []
    for shape in job.shapes:
        given = tensor("migrate", shape)
        kind = as_dtype(given.dtype)
        drawn = rng.standard_normal(given.shape) if kind.is_float else rng.integers(0, 100, given.shape)
        arrays.append(drawn.astype(kind.numpy))
    return arrays


def _shown(text: str, kernel: Path, job: _Job) -> str:
    """In words of the user's file."""
    return text.replace(str(kernel), job.name)[:_LONGEST_COMPLAINT]
