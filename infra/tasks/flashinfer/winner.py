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

from accelopt_core.evaluation import Furthest, Measured
from accelopt_core.languages.triton.language import TRITON
from accelopt_core.ports import TargetInfo
from accelopt_core.task import ENTRY_POINTS, Surroundings
from infra.journal import make_folder, replace_file
from infra.tasks.flashinfer.solution import LANGUAGE, PACKAGE

AUTHOR = "nki-optimizer"


@dataclass(frozen=True)
class Origin:
    """What of the suite a run is about."""

    definition: str
    op_type: str
    workload: Mapping[str, Any]
    """The one that is timed, as the data set has it."""


@dataclass(frozen=True)
class Winner:
    """A kernel that is right, and how it was measured."""

    source: str
    around: Surroundings
    file: str
    """The name of its file."""
    result: Measured
    baseline: Measured
    """The input kernel."""
    target: TargetInfo


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
            "performance": {
                "latency_ms": result.latency_us / 1e3,
                "reference_latency_ms": 0.0,
                "speedup_factor": 0.0,
            },
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
