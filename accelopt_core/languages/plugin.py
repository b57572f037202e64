"""A language that is a distribution of its own: what it offers, and which of them are installed.

A plugin names an object of type `LanguagePlugin` by an entry point of `GROUP`. Everything here is loaded by judges too,
also on hosts: a plugin's own package imports nothing else than they have until one of its parts is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from accelopt_core.language import Language
from accelopt_core.languages.supported import Supported

GROUP = "nki_optimizer.languages"


@dataclass(frozen=True)
class LanguagePlugin:
    key: str
    """`Language.key`; also the name of the suite of its shipped tasks."""
    machines: tuple[str, ...]
    """`Language.machines`, told without loading the language."""
    package: Path
    """The folder that is imported. It holds `seeds/` and `prompts/`, laid out as those of NKI are."""
    language: Callable[[], Language]
    supported: Callable[[], Supported]
    """What judges its kernels, here and on hosts."""
    parts: str
    """The module whose `PARTS` a run is put together from (`PluginParts`). Hosts are not sent it."""
    doctor: str
    """The module that hosts are examined with: `python -m MODULE --json --machine NAME`."""
    settings: type | None = None
    """A group of settings (`infra/settings_reader.py`) that the group `run` has as well."""
    task_files: tuple[str, ...] = ()
    """Suffixes of files of another project that hold kernels or references of it: `PluginParts.read_task`."""

    @property
    def seeds(self) -> Path:
        return self.package / "seeds"

    @property
    def prompts(self) -> Path:
        return self.package / "prompts"


@dataclass(frozen=True)
class Installed:
    plugin: LanguagePlugin
    entry_points_file: Path | None
    """By which it was found; None where the distribution lists no files."""


@cache
def installed() -> tuple[Mapping[str, Installed], tuple[str, ...]]:
    """Every plugin by its key, and in a line each why others cannot be used."""
    found: dict[str, Installed] = {}
    unusable = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            plugin = entry.load()
            if not isinstance(plugin, LanguagePlugin) or plugin.key != entry.name or plugin.key in found:
                raise TypeError(f"{entry.value} is no language {entry.name}")
            found[plugin.key] = Installed(plugin, _file_of(entry))
        except Exception as error:  # a plugin of another release fails as it likes, and NKI needs none
            unusable.append(f"the plugin {entry.name} does not load: {type(error).__name__}: {error}: install it again")
    return found, tuple(unusable)


def plugins() -> dict[str, LanguagePlugin]:
    return {key: each.plugin for key, each in installed()[0].items()}


def how_to_add() -> str:
    """What to do about a language that is not there."""
    return "; ".join(installed()[1]) or "`pip install 'nki-optimizer[NAME]'` adds a language that is a plugin"


def plugin_of_file(path: Path) -> LanguagePlugin | None:
    """Which reads files of that name as tasks."""
    return next((plugin for plugin in plugins().values() if path.suffix in plugin.task_files), None)


def _file_of(entry: EntryPoint) -> Path | None:
    files = entry.dist.files if entry.dist is not None else None
    named = [file for file in files or () if file.name == "entry_points.txt" and file.parent.suffix == ".dist-info"]
    return Path(str(named[0].locate())) if named else None
