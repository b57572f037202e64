"""The languages that there are, by key: one line each."""

from __future__ import annotations

from accelopt_core.language import Language
from accelopt_core.languages.nki.language import NKI

LANGUAGES: dict[str, Language] = {language.key: language for language in (NKI,)}


class UnknownLanguage(ValueError):
    """A task is written in a language that this release does not know."""


def language_named(key: str) -> Language:
    """Raises UnknownLanguage."""
    if key not in LANGUAGES:
        raise UnknownLanguage(f"no language is named {key!r}, only {', '.join(LANGUAGES)}: upgrade, or mend the name")
    return LANGUAGES[key]
