"""Kernels as loop trees, and what a test asks of a changed one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nki_sim
from accelopt_core.rules.base import Site, applied
from accelopt_core.rules.registry import RULES
from nki_sim.encoding.canonical import digest
from nki_sim.execution.executor import execute
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.tree import Loop, LoopKernel, walk
from nki_sim.loop_ir.writing import written
from nki_sim.program.program import Program
from nki_sim.tracing import repeated

nki_sim.install()
BY_NAME = {rule.name: rule for rule in RULES}


def traced(source: str, arguments: Sequence[Any]) -> Program:
    names: dict[str, Any] = {"__name__": "kernel_under_test"}
    exec(repeated.compiled(source, "/nowhere/kernel.py", names), names)
    return nki_sim.trace(names["kernel"], *arguments)


def tree_of(source: str, arguments: Sequence[Any]) -> LoopKernel:
    return read(traced(source, arguments))


def accepted(rule: str, kernel: LoopKernel) -> list[tuple[Site, LoopKernel]]:
    """What comes of the rule at each site that it accepts."""
    made = []
    for site in BY_NAME[rule].sites(kernel):
        try:
            made.append((site, applied(BY_NAME[rule], (kernel,), site)[0]))
        except Refused:
            continue
    return made


def refusals(rule: str, kernel: LoopKernel) -> list[str]:
    """Reasons; empty where the rule names no site, or accepts one."""
    reasons = []
    for site in BY_NAME[rule].sites(kernel):
        try:
            applied(BY_NAME[rule], (kernel,), site)
        except Refused as error:
            reasons.append(str(error))
        else:
            return []
    return reasons


def outputs_of(kernel: LoopKernel, arguments: Sequence[Any]) -> list[np.ndarray]:
    arrays = [np.asarray(each) for each in arguments if isinstance(each, np.ndarray)]
    return list(execute(expand(kernel), arrays))


def relative_error(wanted: Sequence[np.ndarray], changed: LoopKernel, arguments: Sequence[Any]) -> float:
    """The greatest relative L2 distance of any output."""
    worst = 0.0
    for want, got in zip(wanted, outputs_of(changed, arguments)):
        wide = want.astype(np.float64)
        distance = np.linalg.norm(wide - got.astype(np.float64)) / max(float(np.linalg.norm(wide)), 1e-30)
        worst = max(worst, float(distance))
    return worst


def retraces(changed: LoopKernel, source: str, arguments: Sequence[Any]) -> bool:
    """Is its text, traced, the same program, with no loop that does nothing?"""
    if any(isinstance(node, Loop) and not node.body for node, _ in walk(changed.body)):
        return False
    text = written([changed], KernelText(source, "kernel"))
    return digest(traced(text, arguments)) == digest(expand(changed))
