"""The text of a profile's hot lines: whoever reads of line 16 need not have the kernel at hand."""

from __future__ import annotations

import ast
from dataclasses import replace

from accelopt_core.candidate import parsed
from accelopt_core.evaluation import Evaluation, Measured

_LONGEST_STATEMENT = 200


def quoting(result: Evaluation, source: str) -> Evaluation:
    """The same result, those of its hot lines that have no text with theirs."""
    if not isinstance(result, Measured):
        return result
    text = _statements(source)
    hot = tuple(line if line.text else replace(line, text=text.get(line.line, "")) for line in result.profile.hot_lines)
    return replace(result, profile=replace(result.profile, hot_lines=hot))


def _statements(source: str) -> dict[int, str]:
    """By line: the simple statement it belongs to, in one line; where there is none, the line itself."""
    lines = source.splitlines()
    found = {number: line.strip() for number, line in enumerate(lines, 1)}
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # of another era's language, perhaps
        return found
    for node in ast.walk(tree):
        if isinstance(node, (ast.Expr, ast.Assign)) and node.end_lineno is not None and node.end_lineno > node.lineno:
            whole = " ".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])
            shown = whole if len(whole) <= _LONGEST_STATEMENT else f"{whole[: _LONGEST_STATEMENT - 2]} …"
            found.update(dict.fromkeys(range(node.lineno, node.end_lineno + 1), shown))
    return found
