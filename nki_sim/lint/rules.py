"""The registry of rules, and the one way to run them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nki_sim.lint.findings import LATEST, VERSIONS, Finding
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


def check_source(source: str, version: str = LATEST) -> list[Finding]:
    """Findings in the order of lines. Source that is not Python gives one finding, `python-syntax`."""
    import nki_sim.lint.name_rules
    import nki_sim.lint.syntax_rules  # noqa: F401  # both fill RULES; they import this module

    if version not in VERSIONS:
        raise ValueError(f"NKI version {version!r}: one of {', '.join(VERSIONS)}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return [Finding("python-syntax", line, str(error), "the file must be valid Python")]
    kernel = KernelSource(tree)
    found = {
        Finding(each.name, getattr(node, "lineno", 1), message, hint, each.severity)
        for each in RULES.values()
        if each.holds(version)
        for node, message, hint in each.check(kernel)
    }
    return sorted(found, key=lambda f: (f.line, f.rule, f.message))
