"""The dialect linter: what the NKI compiler rejects although Python (and so the simulator) runs it.

`check_source(source, version)` parses a kernel file, without running it, and returns findings. A rule is
one function in `syntax_rules`, `name_rules`, `known_issues`, `tracing_rules` or `hint_rules`, registered with the NKI
versions it holds for.
"""

from __future__ import annotations

import ast

from nki_sim.lint import hint_rules, known_issues, name_rules, syntax_rules, tracing_rules  # noqa: F401  # importing them fills RULES
from nki_sim.lint.findings import COMMON, LAST_PARSED, LATEST, VERSIONS, Finding
from nki_sim.lint.kernel_source import KernelSource
from nki_sim.lint.rules import RULES

__all__ = ["COMMON", "LAST_PARSED", "LATEST", "RULES", "VERSIONS", "Finding", "check_source", "valid_in"]


def check_source(source: str, version: str = LATEST, hints: bool = False) -> list[Finding]:
    """Findings in the order of lines, hints where they are wanted.

    Source that is not Python gives one finding, `python-syntax`.
    """
    if version not in VERSIONS:
        raise ValueError(f"NKI version {version!r}: one of {', '.join(VERSIONS)}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        said = error.msg if isinstance(error, SyntaxError) else str(error)  # without a file that it was never in
        return [Finding("python-syntax", line, said, "the file must be valid Python")]
    kernel = KernelSource(tree)
    found = {
        Finding(each.name, getattr(node, "lineno", 1), message, hint, each.severity)
        for each in RULES.values()
        if each.holds(version) and (hints or each.severity != "hint")
        for node, message, hint in each.check(kernel)
    }
    return sorted(found, key=lambda f: (f.line, f.rule, f.message))


def valid_in(source: str) -> tuple[str, ...]:
    """The versions of `COMMON` in which the file has no error; all of them where it has one in each."""
    found = tuple(
        version for version in COMMON if not any(each.severity == "error" for each in check_source(source, version))
    )
    return found or COMMON
