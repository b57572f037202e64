"""Hatch's hook that lays the program into a wheel as `nki_optimizer/tree`.

An editable install gets no file: it is a path to the clone, so that what runs is always the clone's own text.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelFiles(BuildHookInterface):
    """Adds the files of `[tool.hatch.build.targets.wheel.hooks.custom.files]` (source = place in the wheel)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"].update(self.config["files"])
