"""The languages that there are, by key: NKI, and those of plugins."""

from __future__ import annotations

import ast
from functools import cache

from accelopt_core.candidate import parsed
from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.plugin import how_to_add, plugins


@cache
def languages() -> dict[str, Language]:
    return {NKI.key: NKI, **{key: plugin.language() for key, plugin in plugins().items()}}


def language_of(source: str) -> Language | None:
    """By what the file imports; None where that tells nothing, or it cannot be read."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    return next((language for language in languages().values() if language.packages & imported), None)


class UnknownLanguage(ValueError):
    """A task is written in a language that this release does not know."""


def language_named(key: str) -> Language:
    """Raises UnknownLanguage."""
    if key == NKI.key:
        return NKI
    if key not in plugins():
        known = ", ".join((NKI.key, *plugins()))
        raise UnknownLanguage(f"no language is named {key!r}, only {known}: {how_to_add()}")
    return plugins()[key].language()
