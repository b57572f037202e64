"""One run from what a command line or a call says to what it came to: `nki_optimizer.optimize`, and the command `run`.

Types of what it takes and gives: docs/library.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import config
from accelopt_core.candidate import Attempt
from accelopt_core.evaluation import Measured
from accelopt_core.loop.events import Ending, Event
from accelopt_core.loop.rounds import BaselineRejected
from accelopt_core.ports import ModelError, TargetError, TaskFault
from infra.assembly.following import A_PERSON, Following, unhurried
from infra.assembly.run import carry_out
from infra.journal import JournalError, explained, replace_file
from infra.settings_reader import SettingsError
from infra.tasks.plain_reference import Inputs, reference_module
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import TaskNotFound
from infra.terminal import report
from infra.terminal.started_as import raised_as_here

KernelFile = Union[str, "os.PathLike[str]"]
Reference = Union[str, "os.PathLike[str]", Callable[..., Any]]
"""A reference module's file, or a plain function of NumPy arrays."""

NOT_FOR_CALLS = ("view", "suite", "in_place", "then")
"""Settings of a command line: what it prints, which files of the user's it writes, what follows a run."""

RAISED = (SettingsError, TaskNotFound, TaskInvalid, TaskFault, BaselineRejected, TargetError, ModelError, JournalError)
"""At a caller of the library, by itself or by `evaluate`."""


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to. All of it is in its folder as well, and `nki-optimizer show` prints it."""

    ending: Ending
    reason: str
    """One line: why it stopped here."""
    baseline: Measured
    """The input kernel, as it was measured at first."""
    best: Measured
    """The fastest kernel that is right, simulated also one that rests on no contested fact; the input kernel where
    nothing was faster."""
    source: str
    """Its text."""
    attempts: tuple[Attempt, ...]
    """Every kernel and plan that was tried, in order."""
    summary: report.RunSummary
    """Everything that the run's folder says."""
    written_over: Path | None = None
    """The copy of the user's own file, where the winner was written over that."""

    @property
    def run_id(self) -> str:
        return self.summary.manifest.run_id

    @property
    def folder(self) -> Path:
        return self.summary.folder.path

    @property
    def improved(self) -> bool:
        return self.summary.improved

    @property
    def speedup(self) -> float:
        """The input kernel's latency over the best one's, timed side by side where that was done; 1.0 unimproved."""
        return self.summary.speedup_basis_us / self.best.latency_us

    @property
    def counterpart(self) -> Measured | None:
        """The fastest kernel of all, where that rests on contested facts of the machine and the best on none; of a
        device the other way round. None where the best is both."""
        return self.summary.counterpart.result if self.summary.counterpart is not None else None

    @property
    def diff(self) -> str:
        """Unified, from the input kernel to the best; empty where nothing was faster."""
        return "".join(f"{line}\n" for line in report.diff_of(self.summary))


def carried_out(
    invocation: config.Invocation, following: Following = A_PERSON, reference: str | None = None
) -> RunOutcome:
    """As `carry_out`, and with `in_place` the winner is written over the user's file."""
    done = carry_out(invocation, following, reference)
    result, problem, written_over = done.result, done.problem, None
    with unhurried(following):
        if done.settings.run.in_place and result.best.source != problem.text:
            written_over = write_back(problem.kernel, problem.text, result.best.source)
        return RunOutcome(
            result.ending, result.reason, result.baseline, result.best_result, result.best.source, result.attempts,
            report.summary_of(done.folder), written_over,
        )  # fmt: skip


def optimize(
    kernel: KernelFile | None = None,
    reference: Reference | None = None,
    *,
    inputs: Inputs | None = None,
    on_event: Callable[[Event], object] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> RunOutcome:
    """Makes one kernel faster: what `nki-optimizer --kernel KERNEL` does, without its output.

    `kernel`: its file. `reference`: a module's file, or a plain function of NumPy arrays that takes what the kernel
    takes; without one it is found as for the command (docs/tasks.md). `inputs`, of a function: one example for each
    argument (an array, a shape as `(128, 512)` of float32, a shape and dtype as `((128, 512), "bfloat16")`, a number),
    or a function that draws them from NumPy's global generator.

    `on_event` is told everything that happens, in order, one event at a time, from threads of the run; it must not
    block. What it raises ends the run after the step at hand, saved, and is raised here. `should_stop` is asked after
    each step; True ends the run there: `Ending.INTERRUPTED`, and `resume="<run id>"` goes on with it.

    `settings`: every other flag of the command by its name with `_` for `-`, as `rounds=30`, `provider="catalogue"`,
    `host="ubuntu@10.0.0.1"`, `max_cost=5.0`; no settings file and no NKI_OPT_ variable is read. API keys come from the
    environment.

    Raises SettingsError, TaskNotFound, TaskInvalid, TaskFault, TargetError, ModelError and JournalError for what is
    wrong before it begins, and BaselineRejected when the kernel itself is wrong; a run that fails later comes back
    with `Ending.FAILED` and its reason.
    """
    with raised_as_here(*RAISED):
        invocation, text = called("optimize", kernel, reference, inputs, settings)
    listener = _Listener(on_event)
    following = Following(
        lambda kind: listener,
        lambda: listener.failure is not None or (should_stop is not None and should_stop()),
        takes_signals=False,
    )
    try:
        with raised_as_here(*RAISED):
            return carried_out(invocation, following, text)
    finally:
        if listener.failure is not None:
            raise listener.failure


def called(
    name: str, kernel: KernelFile | None, reference: Reference | None, inputs: Inputs | None, settings: dict[str, Any]
) -> tuple[config.Invocation, str | None]:
    """As a call of that name says it; and the reference module's text, where a function was given for it.

    Raises SettingsError, and TaskInvalid for a function that cannot be the reference.
    """
    for word in settings:
        if word.replace("-", "_") in NOT_FOR_CALLS:
            raise SettingsError(f"{word} is for the command line; {name} prints nothing and writes no file of yours")
    given: dict[str, Any] = {**settings, "view": "quiet"}
    for word, value in (("kernel", kernel), ("problem", reference)):
        if value is None:
            continue
        if word in settings:
            raise SettingsError(f"{word}: {name} has it twice")
        if isinstance(value, (str, os.PathLike)):
            given[word] = value
        elif word == "kernel":
            raise SettingsError(f"kernel: give the path of its file, not a {type(value).__name__}")
    text = None
    if reference is not None and "problem" not in given:
        if kernel is None:
            raise SettingsError(f"reference: of which kernel? {name}(KERNEL_FILE, reference, ...)")
        text = reference_module(reference, inputs)  # type: ignore[arg-type]
    elif inputs is not None:
        raise SettingsError("inputs: only a reference that is a plain function takes them; a module draws its own")
    return config.from_keywords(given), text


class _Listener:
    """`on_event` as a view. An exception of a caller's own must not come up inside the loop, in whatever thread."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self._on_event = on_event
        self.failure: BaseException | None = None

    def tell(self, event: Event) -> None:
        if self._on_event is None or self.failure is not None:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            self.failure = error

    def close(self) -> None:
        """Nothing is open."""


class KernelChanged(JournalError):
    """The user edited the file while the run went on; it is left alone."""


def write_back(kernel: Path, input_source: str, winner: str) -> Path:
    """Returns the path of the copy, `<kernel>.bak` or the next free name. Raises JournalError; then nothing changed."""
    with explained(kernel, "read"):
        current = kernel.read_bytes()
    if current.decode("utf-8-sig", "replace").splitlines() != input_source.splitlines():
        raise KernelChanged(f"{kernel} was changed while the run went on: it is left alone; merge the winner by hand")
    copy = _free_name(kernel)
    replace_file(copy, current)
    replace_file(kernel, winner)
    return copy


def _free_name(kernel: Path) -> Path:
    """An earlier copy is never overwritten: it may hold the only original."""
    copy = kernel.with_name(kernel.name + ".bak")
    number = 1
    while copy.exists():
        copy = kernel.with_name(f"{kernel.name}.bak.{number}")
        number += 1
    return copy
