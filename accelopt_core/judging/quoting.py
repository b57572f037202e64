"""What a verdict quotes of a kernel: the text of its hot lines, and its names in messages; all of it printable."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from accelopt_core.candidate import parsed
from accelopt_core.evaluation import CompileFailed, Crashed, Duplicate, Evaluation, Implausible, Incorrect, Measured
from ka_extensions.plain_text import one_line, printable

_LINE_END = re.compile(r"\r\n|\r|\n")
"""Python's own: a form feed, for one, ends no line of a program."""
_LONGEST_STATEMENT = 200
_LONGEST_MESSAGE = 4_000
"""Characters: the most that a model is shown of one failure."""


def spoken(result: Evaluation) -> Evaluation:
    """The same verdict, its message bounded and without control characters: the candidate may have worded it."""
    if isinstance(result, (CompileFailed, Crashed, Implausible)):
        return replace(result, message=printable(result.message, _LONGEST_MESSAGE))
    if isinstance(result, Duplicate):
        return replace(result, came_to=printable(result.came_to, _LONGEST_MESSAGE))
    if isinstance(result, Measured):
        return replace(result, shared_faults=tuple(printable(line, _LONGEST_MESSAGE) for line in result.shared_faults))
    if isinstance(result, Incorrect):
        reason = printable(result.failure.reason, _LONGEST_MESSAGE)
        return replace(result, failure=replace(result.failure, reason=reason))
    return result


def quoting(result: Evaluation, source: str) -> Evaluation:
    """The same result, those of its hot lines that have no text with theirs."""
    if not isinstance(result, Measured):
        return result
    text = _statements(source)
    hot = tuple(line if line.text else replace(line, text=text.get(line.line, "")) for line in result.profile.hot_lines)
    return replace(result, profile=replace(result.profile, hot_lines=hot))


def _statements(source: str) -> dict[int, str]:
    """By line: the simple statement it belongs to, in one line; where there is none, the line itself."""
    lines = _LINE_END.split(source)
    found = {number: one_line(line, _LONGEST_STATEMENT) for number, line in enumerate(lines, 1)}
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another era's language, perhaps
        return found
    for node in ast.walk(tree):
        if isinstance(node, (ast.Expr, ast.Assign)) and node.end_lineno is not None and node.end_lineno > node.lineno:
            whole = " ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])
            shown = one_line(whole, _LONGEST_STATEMENT)
            found.update(dict.fromkeys(range(node.lineno, node.end_lineno + 1), shown))
    return found
