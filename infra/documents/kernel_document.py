"""One kernel as documents: judged, explained, what may be done to it, changed, migrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from accelopt_core.evaluation import CheckFailure, Evaluation, Measured, Untimed, explain
from accelopt_core.explanation import Explanation
from accelopt_core.model.menu import Blocked, Offer
from accelopt_core.ports import TargetInfo
from accelopt_core.task import Task
from infra.doctor import DoctorReport
from infra.documents.run_document import KernelDocument, kernel_document
from infra.terminal.wording import printable


@dataclass(frozen=True)
class EvaluationDocument:
    """The verdict on one kernel: it was compiled, verified and timed, and nothing was changed."""

    kernel: str
    """As it was named."""
    task: str
    shape: str
    """The one that is timed."""
    verdict: Literal[
        "measured", "compile_failed", "incorrect", "implausible", "timed_out", "crashed", "duplicate", "untimed"
    ]
    """`measured`: right, and only then there is a latency. `untimed`: right, as far as that shows without a device."""
    right: bool
    said: str
    """The verdict in one line."""
    line: int | None
    """Of the kernel's file, where one is to blame."""
    failure: CheckFailure | None
    """The first check that it did not pass, of one that is incorrect."""
    measured: KernelDocument | None
    """Latency, how sure it is, what was verified and proved, where the time goes; null unless it is right."""
    rests_on: str
    """What `right` rests on; empty unless it is."""
    target: str
    """What it was evaluated on, for people."""
    machine: str
    simulated: bool
    """Not on a device. Wherever a latency is shown, this must be."""
    caveat: str
    """What must be said besides wherever a latency is shown; empty where nothing must."""
    original_us: float | None = None
    """Latency of the kernel that it was made from, where one was named and both have one."""
    speedup: float | None = None
    """Of this one over that."""
    schema: Literal["nki-optimizer/evaluation/1"] = "nki-optimizer/evaluation/1"


@dataclass(frozen=True)
class MenuDocument:
    """The built-in catalogue's changes that apply to a kernel, with what each is predicted to gain."""

    kernel: str
    task: str
    shape: str
    latency_us: float
    """Of the kernel as it is."""
    simulated: bool
    caveat: str
    verified: tuple[str, ...]
    """What was verified of the kernel for this menu: its cheaper shapes, or the only one. `evaluate` verifies all."""
    changes: tuple[Offer, ...]
    """The best first. `tool` and `site` name a change for `apply`; `gain_us` is predicted by the simulated machine;
    with `tie` that is too little to say that it gains at all."""
    tools: dict[str, str]
    """What each tool among the changes does, in a sentence."""
    tie_us: float
    """Gains closer than this are not known to be in the right order."""
    not_priced: int
    """Further changes, which the time did not suffice for."""
    blocked: tuple[Blocked, ...]
    """The larger gaps, and what keeps the catalogue from closing them: an author may do by hand what it refuses."""
    note: str
    """Why there is no menu, if so."""
    left_out: int = 0
    """Further changes that were priced: of each tool the best two come first."""
    schema: Literal["nki-optimizer/menu/1"] = "nki-optimizer/menu/1"


@dataclass(frozen=True)
class ChangedDocument:
    """One change of the menu, carried out and written to a file. Nothing of it was run: evaluate it."""

    kernel: str
    tool: str
    site: str
    written: str
    """The new file."""
    overwrote: bool
    diff: str
    """Unified, from the kernel to the new one."""
    schema: Literal["nki-optimizer/changed/1"] = "nki-optimizer/changed/1"


@dataclass(frozen=True)
class MigrationDocument:
    """A kernel of an older NKI, rewritten for 0.7."""

    kernel: str
    dialect: str
    """The NKI that it was of."""
    done: bool
    """Nothing is left to a person, and no run showed a difference."""
    proof: str
    """What running or tracing old and new side by side showed; empty where nothing was run."""
    left: tuple[str, ...]
    """What needs a person, one line each; marked in the new file."""
    notes: tuple[str, ...]
    written: str
    """The new file."""
    overwrote: bool
    diff: str
    schema: Literal["nki-optimizer/migration/1"] = "nki-optimizer/migration/1"


@dataclass(frozen=True)
class ExplanationDocument:
    """Where a kernel loses time, and why nothing has been done about it."""

    title: str
    measured: KernelDocument
    in_short: tuple[str, ...]
    """The same in three sentences, the most valuable first."""
    explanation: Explanation
    schema: Literal["nki-optimizer/explanation/2"] = "nki-optimizer/explanation/2"


def evaluation_document(kernel: str, task: Task, info: TargetInfo, result: Evaluation) -> EvaluationDocument:
    measured = result if isinstance(result, Measured) else None
    rests_on = result.rests_on if isinstance(result, Measured) else ""
    if isinstance(result, Untimed):
        rests_on = "; ".join(result.checks)
    return EvaluationDocument(
        kernel, task.name, task.full.describe(), result.kind, isinstance(result, (Measured, Untimed)),
        printable(explain(result)), getattr(result, "line", None), getattr(result, "failure", None),
        kernel_document(kernel, measured) if measured is not None else None,
        rests_on, info.name, info.machine, info.simulated, info.caveat,
    )  # fmt: skip


@dataclass(frozen=True)
class ExaminedMachine:
    host: str
    """As it was named; empty for this machine."""
    usable: bool
    """Kernels can be evaluated there as wanted."""
    error: str
    """Why it could not be examined; empty where it was."""
    report: DoctorReport | None
    """Everything that was found; null where it could not be examined, or was examined for a plugin's language."""
    clock_skew_s: float | None = None
    """Of that machine's clock against this one's."""
    calibration: str | None = None
    """What predictions on that host rest on, for people."""
    notes: tuple[str, ...] = ()
    """What a person should know of the way there, one line each."""
    gpu_report: dict[str, Any] | None = None
    """What a plugin found for kernels of its language (`--language`); the plugin says what is in it."""

    @property
    def is_examined(self) -> bool:
        return self.report is not None or self.gpu_report is not None


@dataclass(frozen=True)
class DoctorDocument:
    usable: bool
    """All of them are."""
    machines: tuple[ExaminedMachine, ...]
    schema: Literal["nki-optimizer/doctor/1"] = "nki-optimizer/doctor/1"
