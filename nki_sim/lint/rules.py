"""The registry of rules: what a rule is, and the decorator that each one is registered with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nki_sim.lint.findings import LATEST, VERSIONS
from nki_sim.lint.kernel_source import KernelSource

Found = Iterator[tuple[ast.AST, str, str]]
"""(node, message, hint)"""


@dataclass(frozen=True)
class Rule:
    name: str
    check: Callable[[KernelSource], Found]
    since: str
    until: str
    """Last version it holds for."""
    severity: str

    def holds(self, version: str) -> bool:
        return VERSIONS.index(self.since) <= VERSIONS.index(version) <= VERSIONS.index(self.until)


RULES: dict[str, Rule] = {}


def rule(
    since: str, until: str = LATEST, severity: str = "error"
) -> Callable[[Callable[[KernelSource], Found]], Callable[[KernelSource], Found]]:
    """Register a check; its name with dashes is the rule's."""

    def register(check: Callable[[KernelSource], Found]) -> Callable[[KernelSource], Found]:
        name = check.__name__.replace("_", "-")
        if name in RULES:
            raise ValueError(f"two rules are named {name}")
        RULES[name] = Rule(name, check, since, until, severity)
        return check

    return register
