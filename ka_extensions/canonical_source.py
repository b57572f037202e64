"""The text by which kernels are told apart: the same for the same code in every Python that reads it.

`ast.dump` is not: 3.12 adds a field, 3.13 leaves out empty ones, and `repr` escapes what a Python's Unicode does not
know. Journals and hosts share these hashes, and hosts have other Pythons. What is written is what `ast.dump` of 3.10
gives, so that kernels of ASCII text keep the hash that runs under 3.10 and 3.11 filed them by.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence

_SINCE_3_10 = frozenset({"type_params"})
"""Fields that are told where they hold something."""
_HAVE_NONE = (ast.Constant, ast.MatchSingleton)
"""Nodes whose value may be None itself."""
_MOST_BITS = 14_000
"""Of a whole number in decimal digits, which Python refuses to write beyond 4300 of them."""


_SIMPLE = (
    ast.Assert, ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Delete, ast.Expr, ast.Global,
    ast.Import, ast.ImportFrom, ast.Nonlocal, ast.Pass, ast.Raise, ast.Return,
)  # fmt: skip
"""Statements that hold no other: what they are follows from their text alone."""
_MOST_KEPT = 1 << 15
_of_statements: dict[str, str] = {}
"""Simple statements as they are told, by their text: kernels that are told apart have most of them in common."""


def tree_hash(tree: ast.Module, source: str = "") -> str:
    """16 hexadecimal digits. `source`: what it was read from, if that is known; the hash is the same."""
    return text_hash(canonical(tree, source))


def text_hash(text: str) -> str:
    """Likewise, of text as it stands."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def canonical(tree: ast.AST, source: str = "") -> str:
    """One text for one tree, ASCII only. A tree may be deeper than Python's stack."""
    # Places are in bytes of UTF-8, and lines end where Python's do.
    lines = source.split("\n") if source and source.isascii() and not set("\r\f") & set(source) else []
    told: list[str] = []
    waiting: list[object] = [tree]
    """What is left to tell, the next one last; a str is told as it stands."""
    while waiting:
        item = waiting.pop()
        if type(item) is str:
            told.append(item)
        elif isinstance(item, ast.AST):
            if lines and isinstance(item, _SIMPLE) and hasattr(item, "lineno"):
                told.append(_of_statement(item, lines))
            else:
                waiting += reversed(_parts_of_node(item))
        elif isinstance(item, list):
            waiting.append("]")
            for place in range(len(item) - 1, -1, -1):
                element = item[place]
                waiting.append(element if isinstance(element, (ast.AST, list)) else _literal(element))
                if place:
                    waiting.append(", ")
            waiting.append("[")
        else:
            told.append(_literal(item))
    return "".join(told)


def _of_statement(statement: ast.stmt, lines: Sequence[str]) -> str:
    """`lines`: of the source."""
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    begin, end = statement.col_offset, statement.end_col_offset
    if first == last:
        text = lines[first][begin:end]
    else:
        text = "\n".join((lines[first][begin:], *lines[first + 1 : last], lines[last][:end]))
    known = _of_statements.get(text)
    if known is None:
        if len(_of_statements) >= _MOST_KEPT:
            _of_statements.clear()
        known = _of_statements[text] = canonical(statement)
    return known


_ABSENT = object()


def _parts_of_node(node: ast.AST) -> list[object]:
    """Text, and in between the nodes and lists that it holds."""
    parts: list[object] = []
    text = f"{type(node).__name__}("
    first = True
    for name in node._fields:
        value = getattr(node, name, _ABSENT)
        if value is None and not (name == "value" and isinstance(node, _HAVE_NONE)):
            continue
        if value is _ABSENT or (name in _SINCE_3_10 and not value):
            continue
        text += f"{name}=" if first else f", {name}="
        first = False
        if isinstance(value, list):
            parts += (text, _texts_joined(value) if isinstance(node, ast.JoinedStr) else value)
            text = ""
        elif not isinstance(value, ast.AST):
            text += _literal(value)
        elif value._fields:
            parts += (text, value)
            text = ""
        else:  # `Load`, an operator
            text += f"{type(value).__name__}()"
    parts.append(f"{text})")
    return parts


def _literal(value: object) -> str:
    if isinstance(value, str):
        return ascii(value)
    return hex(value) if isinstance(value, int) and value.bit_length() > _MOST_BITS else repr(value)


def _texts_joined(values: list[ast.expr]) -> list[ast.expr]:
    """Of an f-string, without the empty texts that 3.12 has between its parts."""
    joined: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            last = joined[-1] if joined else None
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                joined[-1] = ast.Constant(last.value + value.value)
            elif value.value:
                joined.append(value)
        else:
            joined.append(value)
    return joined
