"""What a run of each language is put together from: one file each, one line each here."""

from __future__ import annotations

from collections.abc import Callable

from accelopt_core.languages.registry import language_named
from infra.assembly.language_parts import LanguageParts


def parts_of(key: str) -> LanguageParts:
    """Raises UnknownLanguage."""
    return _PARTS[language_named(key).key]()


def _nki() -> LanguageParts:
    from infra.assembly.of_nki import NkiParts

    return NkiParts()


def _triton() -> LanguageParts:
    from infra.assembly.of_triton import TritonParts

    return TritonParts()


_PARTS: dict[str, Callable[[], LanguageParts]] = {"nki": _nki, "triton": _triton}
