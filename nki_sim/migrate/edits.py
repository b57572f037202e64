"""Changes to a source text by position: whatever is not changed stays byte for byte as it was."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Edit:
    start: int
    end: int
    text: str
    order: int = 0
    """Of insertions at one place: the lowest comes first."""


class Source:
    """A text with the offsets that `ast` positions stand for, and the edits collected for it."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Python's lines: those of `str.splitlines` end at form feeds and others as well.
        lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        self._starts = [0, *accumulate(map(len, lines))]
        self._lines = [line.rstrip("\r\n") for line in lines]
        self.edits: list[Edit] = []

    def offset(self, line: int, column: int) -> int:
        """`column` counts UTF-8 bytes, as in ast."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(text.encode()[:column].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt | ast.arg) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, node: ast.stmt) -> str:
        line = self._lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def lines_of(self, node: ast.stmt) -> tuple[int, int]:
        """Where the lines that a statement is on begin and end."""
        assert node.end_lineno is not None
        return self._starts[node.lineno - 1], self._starts[node.end_lineno]

    def alone(self, node: ast.stmt) -> bool:
        """Whether nothing but space and a comment shares the statement's lines."""
        start, end = self.span(node)
        before = self.text[self._starts[node.lineno - 1] : start]
        after = self.text[end:].split("\n", 1)[0].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def has_elif(self, node: ast.If) -> bool:
        """Whether what else it does is an `elif`, and not a block."""
        first = node.orelse[0] if node.orelse else None
        return isinstance(first, ast.If) and self.of(first).startswith("elif")

    def replace(self, node: ast.expr | ast.stmt | ast.arg, text: str) -> None:
        self.edits.append(Edit(*self.span(node), text))

    def replace_lines(self, node: ast.stmt, lines: list[str]) -> None:
        """Put statements in the place of one. Its comments stay: those inside it above, the last one behind it."""
        indent = self.indent(node)
        assert node.end_lineno is not None
        start = self._starts[node.lineno - 1]
        end = self._starts[node.end_lineno] if node.end_lineno < len(self._starts) else len(self.text)
        statement = self.text[slice(*self.span(node))]
        inside = comments(statement)
        behind = self.text[self.span(node)[1] : end].strip()
        if not lines and behind:
            inside.append(behind)
            behind = ""
        new = [*(f"{indent}{comment}" for comment in inside), *(f"{indent}{line}" for line in lines)]
        if behind.startswith("#") and lines:
            new[-1] += f"  {behind}"
        newline = "\n" if self.text[start:end].endswith("\n") or new else ""
        self.edits.append(Edit(start, end, "\n".join(new) + newline if new else ""))

    def remove_decorator(self, decorator: ast.expr) -> None:
        """Its lines go, from the @ on; a comment behind it stays."""
        assert decorator.end_lineno is not None
        begin, end = self.span(decorator)
        start = self.text.rindex("\n", 0, self.text.rindex("@", 0, begin)) + 1
        line_end = self._starts[decorator.end_lineno]
        behind = self.text[end:line_end].partition("#")[2].strip()
        indent = self.text[start : len(self.text) - len(self.text[start:].lstrip())]
        self.edits.append(Edit(start, line_end, f"{indent}# {behind}\n" if behind else ""))

    def insert(self, at: int, text: str, order: int = 0) -> None:
        self.edits.append(Edit(at, at, text, order))

    def replace_range(self, start: int, end: int, text: str) -> None:
        self.edits.append(Edit(start, end, text))

    def insert_above(self, node: ast.stmt, lines: list[str]) -> None:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        at = self._starts[first - 1]
        indent = self.indent(node)
        self.edits.append(Edit(at, at, "".join(f"{indent}{line}\n" for line in lines)))

    def retire(self, statements: list[ast.stmt], said: str) -> None:
        """Statements at the end of a block become comments, behind an assertion that says why."""
        first, last = statements[0], statements[-1].end_lineno
        assert last is not None
        begin = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
        indent = self.indent(first)
        lines = [f"{indent}assert False, {said!r}".replace("'", '"')]
        for line in self._lines[begin - 1 : last]:
            bare = line[len(indent) :] if line.startswith(indent) else line
            lines.append(f"{indent}# {bare}".rstrip())
        end = self._starts[last] if last < len(self._starts) else len(self.text)
        self.edits.append(Edit(self._starts[begin - 1], end, "\n".join(lines) + "\n"))

    def insert_below(self, node: ast.stmt, line: str, order: int = -1) -> None:
        """A line of its own after the statement's last."""
        assert node.end_lineno is not None
        at = self._starts[node.end_lineno] if node.end_lineno < len(self._starts) else len(self.text)
        before = "" if not at or self.text[at - 1] == "\n" else "\n"
        self.edits.append(Edit(at, at, f"{before}{line}\n", order))

    def result(self) -> str:
        """The text with all edits; one inside another is dropped."""
        out, at = [], 0
        for edit in sorted(self.edits, key=lambda e: (e.start, e.end != e.start, e.order, -e.end)):
            if edit.start < at:
                continue
            out += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*out, self.text[at:]])


def comments(statement: str) -> list[str]:
    """The comments inside a statement of several lines (a # in a string is none)."""
    found = []
    for line in statement.split("\n")[:-1]:
        plain = re.sub(r"(\"[^\"]*\"|'[^']*')", lambda m: " " * len(m.group()), line)
        at = plain.find("#")
        if at >= 0:
            found.append(line[at:].strip())
    return found
