"""Hatch's hooks: one lays the program into a wheel as `nki_optimizer/tree`, one finds plugins that stand beside it.

An editable install gets no file: it is a path to the clone, so that what runs is always the clone's own text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class WheelFiles(BuildHookInterface):
    """Adds the files of `[tool.hatch.build.targets.wheel.hooks.custom.files]` (source = place in the wheel)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"].update(self.config["files"])


class Extras(MetadataHookInterface):
    """`[tool.hatch.metadata.hooks.custom.extras]`. One that is a plugin, as `nki-optimizer-NAME`, is installed from
    `plugins/NAME` where a checkout has that; elsewhere, as in a source distribution, it is asked of the package index.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        extras = {name: list(wanted) for name, wanted in self.config["extras"].items()}
        for name, wanted in extras.items():
            folder = Path(self.root, "plugins", name)
            if wanted == [f"nki-optimizer-{name}"] and folder.is_dir():
                wanted[:] = [f"nki-optimizer-{name} @ {folder.as_uri()}"]
        metadata["optional-dependencies"] = extras
