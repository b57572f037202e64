"""The text by which kernels are told apart: the same for the same code in every Python that reads it.

`ast.dump` is not: 3.12 adds a field, 3.13 leaves out empty ones, and `repr` escapes what a Python's Unicode does not
know. Journals and hosts share these hashes, and hosts have other Pythons. What is written is what `ast.dump` of 3.10
gives, so that kernels of ASCII text keep the hash that runs under 3.10 and 3.11 filed them by.
"""

from __future__ import annotations

import ast
import hashlib

_SINCE_3_10 = frozenset({"type_params"})
"""Fields that are told where they hold something."""
_HAVE_NONE = (ast.Constant, ast.MatchSingleton)
"""Nodes whose value may be None itself."""
_MOST_BITS = 14_000
"""Of a whole number in decimal digits, which Python refuses to write beyond 4300 of them."""


def tree_hash(tree: ast.Module) -> str:
    """16 hexadecimal digits."""
    return text_hash(canonical(tree))


def text_hash(text: str) -> str:
    """Likewise, of text as it stands."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def canonical(tree: ast.AST) -> str:
    """One text for one tree, ASCII only. A tree may be deeper than Python's stack."""
    told: list[str] = []
    waiting: list[object] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _Told):
            told.append(item)
        elif isinstance(item, ast.AST):
            told.append(f"{type(item).__name__}(")
            fields: list[object] = []
            for name, value in ast.iter_fields(item):
                if value is None and not (name == "value" and isinstance(item, _HAVE_NONE)):
                    continue
                if name in _SINCE_3_10 and not value:
                    continue
                found = _texts_joined(value) if isinstance(item, ast.JoinedStr) else value
                fields += (_Told(f", {name}=" if fields else f"{name}="), found)
            waiting.append(_Told(")"))
            waiting.extend(reversed(fields))
        elif isinstance(item, list):
            told.append("[")
            waiting.append(_Told("]"))
            for place in range(len(item) - 1, -1, -1):
                waiting += (item[place], _Told(", ")) if place else (item[place],)
        else:
            told.append(_literal(item))
    return "".join(told)


class _Told(str):
    """Text whose turn comes once all above it on the stack is told."""

    __slots__ = ()


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
