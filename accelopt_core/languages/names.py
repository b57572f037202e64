"""The languages' keys and the machines of each, its default first: told without loading a language."""

from __future__ import annotations

from collections.abc import Mapping

from accelopt_core.languages.plugin import plugins

MACHINES: Mapping[str, tuple[str, ...]] = {
    "nki": ("trn2", "trn1", "trn3"),
    **{plugin.key: plugin.machines for plugin in plugins().values()},
}
