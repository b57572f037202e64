"""What a run of each language is put together from, by its key. Loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.plugin import LanguagePlugin, plugins
from accelopt_core.languages.registry import language_named
from infra.assembly.language_parts import LanguageParts, PluginParts


def parts_of(key: str) -> LanguageParts:
    """Raises UnknownLanguage."""
    if language_named(key) is not NKI:
        return parts_of_plugin(plugins()[key])
    from infra.assembly.of_nki import NkiParts

    return NkiParts()


def parts_of_plugin(plugin: LanguagePlugin) -> PluginParts:
    return cast(PluginParts, import_module(plugin.parts).PARTS)
