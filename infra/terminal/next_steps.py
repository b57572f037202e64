"""What a person may do once a run has ended: the commands as they would type them, those that fit how it ended."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from infra.llm.contenders import CATALOGUE
from infra.runs.default_folders import default_folders
from infra.runs.run_folder import Manifest
from infra.terminal.started_as import TREE, started_as

PROGRAM = "python3 orchestrator.py"


@dataclass(frozen=True)
class NextStep:
    what_for: str
    command: str


@dataclass(frozen=True)
class Ended:
    """How a run stands, as far as what comes next depends on it."""

    manifest: Manifest
    config: Mapping[str, Any]
    """Every setting of it, as its folder keeps them."""
    checkpoints: Path
    rounds_done: int
    baseline: bool
    """Its input kernel was measured."""


def next_steps(run: Ended) -> tuple[NextStep, ...]:
    """At most two; none for a run that is under way."""
    manifest = run.manifest
    if manifest.status == "running":
        return ()
    where = _elsewhere(run.checkpoints)
    resume = f"{PROGRAM} --resume {manifest.run_id}{where}"
    if not run.baseline:
        return (NextStep("once that is mended", resume),) if manifest.status in ("failed", "interrupted") else ()
    is_shipped = manifest.status == "finished" and not run.config.get("run", {}).get("kernel")
    own = NextStep("a kernel of your own", f"{PROGRAM} init mine.py")
    first = own if is_shipped else _going_on(run, resume)
    return first, NextStep("what it lost and why", f"{PROGRAM} explain {manifest.run_id}{where}")


def after_suite(suite: str, suite_id: str, runs: Sequence[str], is_complete: bool, checkpoints: Path) -> list[NextStep]:
    """`runs`: ids of its runs that have a result, the one worth a look first."""
    where = _elsewhere(checkpoints)
    steps = [] if is_complete else [NextStep("the rest", f"{PROGRAM} --suite {suite} --resume {suite_id}{where}")]
    if runs:
        steps += [
            NextStep("one of its runs", f"{PROGRAM} show {runs[0]}{where}"),
            NextStep("what keeps it from more", f"{PROGRAM} explain {runs[0]}{where}"),
        ]
    return steps


def after_set(set_id: str, shapes: Sequence[str], checkpoints: Path) -> list[NextStep]:
    """`shapes`: names of those that have a result."""
    where = _elsewhere(checkpoints)
    steps = [NextStep("the table again", f"{PROGRAM} show {set_id}{where}")]
    return steps + [NextStep("one of its runs", f"{PROGRAM} show {set_id}.{name}{where}") for name in shapes[:1]]


def print_next(console: Console, steps: Sequence[NextStep]) -> None:
    """One line each, whole: commands are copied."""
    for number, step in enumerate(steps):
        head = ("" if number else "next").ljust(9)
        console.print(Text.assemble((head, "dim"), f"{step.what_for}: ", started_as(step.command)), soft_wrap=True)


def _going_on(run: Ended, resume: str) -> NextStep:
    manifest = run.manifest
    if manifest.status == "failed":
        return NextStep("once that is mended", resume)
    if manifest.status == "interrupted":
        return NextStep("to go on", resume)
    if manifest.status == "budget":
        spent = next((flag for word, flag in _BUDGETS.items() if word in manifest.reason), "--max-cost")
        return NextStep("with a larger budget", f"{resume} {spent} N")
    if "of the bound" in manifest.reason and manifest.target.simulated:
        return NextStep(f"on a real {manifest.target.machine}", f"{PROGRAM} USER@HOST {_kernel(run)}")
    if run.rounds_done >= manifest.rounds:
        return NextStep("more rounds", f"{resume}{_more_rounds(run)}")
    patience = int(run.config.get("run", {}).get("patience") or 0)
    if "rounds without improvement" in manifest.reason and patience:
        return NextStep("more patience", f"{resume} --patience {2 * patience}")
    if manifest.proposer == CATALOGUE:
        return NextStep("a model's ideas", f"ANTHROPIC_API_KEY=... {resume} --provider anthropic")
    return NextStep("a wider search", f"{PROGRAM} {_kernel(run)} --beam 3 --plans 2")


_BUDGETS = {
    "device minutes": "--max-device-minutes", "hours": "--max-hours", "token budget": "--max-tokens",
    "cost budget": "--max-cost",
}  # fmt: skip
"""By what stands in the reason."""


def _more_rounds(run: Ended) -> str:
    return f" --rounds {2 * run.manifest.rounds}"


def _kernel(run: Ended) -> str:
    """The flags that name its kernel."""
    said = run.config.get("run", {})
    if not said.get("kernel"):
        preset = f" --preset {said['preset']}" if said.get("preset") else ""
        return f"--task {run.manifest.task}{preset}"
    problem = f" --problem {_path(said['problem'])}" if said.get("problem") else ""
    function = f" --function {said['function']}" if said.get("function") else ""
    return f"--kernel {_path(said['kernel'])}{problem}{function}"


def _elsewhere(checkpoints: Path) -> str:
    usual = default_folders(TREE, os.environ, Path.cwd()).checkpoints
    return "" if checkpoints.absolute() == usual.absolute() else f" --checkpoints {_path(checkpoints)}"


def _path(path: object) -> str:
    """Shorter where it lies below the current folder."""
    absolute, here = Path(str(path)).absolute(), Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
