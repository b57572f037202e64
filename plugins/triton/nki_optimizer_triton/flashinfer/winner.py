"""A run's winner in the suite's format: a solution, and a trace of it on the workload that was timed.

They are laid out as in a data set, so that the folder can be copied over one:
`solutions/<op_type>/<definition>/<name>.json` and `traces/<op_type>/<definition>.jsonl`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from accelopt_core.evaluation import Furthest
from accelopt_core.task import ENTRY_POINTS
from infra.assembly.language_parts import Winner
from infra.journal import JournalDamaged, make_folder, replace_file
from nki_optimizer_triton.flashinfer.solution import LANGUAGE, PACKAGE
from nki_optimizer_triton.language.language import TRITON

AUTHOR = "nki-optimizer"
_KEPT = "flashinfer.json"


@dataclass(frozen=True)
class Origin:
    """What of the suite a run is about."""

    definition: str
    op_type: str
    workload: Mapping[str, Any]
    """The one that is timed, as the data set has it."""

    @property
    def name(self) -> str:
        return self.definition

    @property
    def kept(self) -> tuple[str, str]:
        document = {"definition": self.definition, "op_type": self.op_type, "workload": dict(self.workload)}
        return _KEPT, json.dumps(document, indent=2) + "\n"

    def written(self, folder: Path, run_id: str, winner: Winner | None, now: datetime) -> str:
        """A solution with its trace."""
        if winner is None:
            return "for FlashInfer-Bench nothing is written: no kernel was faster than the one it began with"
        return write_winner(folder / "flashinfer", self, winner, f"{self.definition}_{run_id}", now).said


def kept_origin(folder: Path) -> Origin | None:
    """Of a run, by its folder; None for one that is about nothing of the suite. Raises JournalDamaged."""
    path = folder / _KEPT
    if not path.exists():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return Origin(str(read["definition"]), str(read["op_type"]), dict(read["workload"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise JournalDamaged(f"{path}: {error}: repair it, or move the file away") from None


@dataclass(frozen=True)
class Written:
    solution: Path
    trace: Path | None
    no_trace: str = ""
    """Why there is none; one line."""

    @property
    def said(self) -> str:
        """For people."""
        if self.trace is None:
            return f"for FlashInfer-Bench: {self.solution}; no trace: {self.no_trace}"
        return f"for FlashInfer-Bench: {self.solution} and {self.trace}"


def write_winner(folder: Path, origin: Origin, winner: Winner, name: str, now: datetime) -> Written:
    """`folder`: in place of a data set's. `name`: of the solution, and of its file. Raises JournalError."""
    solution = folder / "solutions" / origin.op_type / origin.definition / f"{name}.json"
    make_folder(solution.parent)
    replace_file(solution, json.dumps(solution_document(origin, winner, name), indent=2) + "\n")
    result = winner.result
    if result.simulated:
        return Written(solution, None, f"no GPU timed it, only {result.machine}")
    if result.furthest is None:
        return Written(solution, None, "it was not executed at the workload's shape")
    trace = folder / "traces" / origin.op_type / f"{origin.definition}.jsonl"
    make_folder(trace.parent)
    replace_file(trace, json.dumps(trace_document(origin, winner, result.furthest, name, now)) + "\n")
    return Written(solution, trace)


def solution_document(origin: Origin, winner: Winner, name: str) -> dict[str, Any]:
    """It returns its outputs, as kernels do here."""
    around = winner.around
    entry = _below_package(around.path) if around.path else winner.file
    files = [(entry, winner.source), *((_below_package(path), text) for path, text in around.neighbours)]
    times = winner.baseline.latency_us / winner.result.latency_us
    return {
        "name": name,
        "definition": origin.definition,
        "author": AUTHOR,
        "description": f"{times:.3g} times as fast as the kernel that it was made from, by {winner.result.machine}",
        "spec": {
            "language": LANGUAGE,
            "target_hardware": [winner.target.installed.instance or winner.target.machine],
            "entry_point": f"{entry}::{_function(winner)}",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": path, "content": text} for path, text in files],
    }


def trace_document(origin: Origin, winner: Winner, furthest: Furthest, name: str, now: datetime) -> dict[str, Any]:
    """The reference is not timed here: its latency is 0, as is the speedup; so has the suite it without a baseline."""
    result, installed = winner.result, winner.target.installed
    said = (text.rpartition(" ") for text in (installed.compiler, installed.sdk))
    libraries = {library: version for library, _, version in said if library}
    before = f"the kernel that it was made from: {winner.baseline.latency_us / 1e3:.6g} ms"
    return {
        "definition": origin.definition,
        "workload": dict(origin.workload),
        "solution": name,
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": installed.instance or winner.target.machine, "libs": libraries},
            "timestamp": now.isoformat(timespec="seconds"),
            "log": "\n".join(("the reference was not timed", before, *result.checks, *result.shared_faults)),
            "correctness": {
                "max_relative_error": furthest.relative,
                "max_absolute_error": furthest.absolute,
                "extra": {"worst_relative_l2": result.worst_rel_l2},
            },
            "performance": {"latency_ms": result.latency_us / 1e3, "reference_latency_ms": 0.0, "speedup_factor": 0.0},
        },
    }


def _below_package(path: str) -> str:
    """A solution's files as they were named in it."""
    return str(PurePosixPath(path).relative_to(PACKAGE)) if path.startswith(f"{PACKAGE}/") else path


def _function(winner: Winner) -> str:
    if winner.around.function:
        return winner.around.function
    defined = {node.name for node in ast.parse(winner.source).body if isinstance(node, ast.FunctionDef)}
    return next(name for name in (*TRITON.entry_points, *ENTRY_POINTS) if name in defined)
