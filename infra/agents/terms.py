"""What a server may do: settled when it starts, by the person who starts it, and changed by no call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import config
from infra.settings_reader import SettingsError
from infra.tasks.user_files import Folder

HIDDEN = "[hidden]"
_NAMES_A_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class Terms:
    """What holds for every call."""

    folder: Folder
    """The one that the server was started in; all files are below it."""
    settings: config.Settings
    asks_models: bool
    """Whether runs may ask a language model, as the server's user said by --provider or --proposers."""
    secrets: tuple[str, ...]
    """Values of variables that are named like keys; no answer holds one."""

    def hidden(self, text: str) -> str:
        """Without secrets, should one have found its way there, in JSON too."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN).replace(json.dumps(secret)[1:-1], HIDDEN)
        return text


def terms_of(invocation: config.Invocation, environment: Mapping[str, str], started_in: Path) -> Terms:
    """Raises SettingsError for what a server cannot be told: its calls say which kernel."""
    for name in ("kernel", "problem", "function", "suite", "in_place", "resume", "run_id", "migrate", "preset",
                 "workloads"):  # fmt: skip
        if f"run.{name}" in invocation.origins:
            raise SettingsError(f"{invocation.origins[f'run.{name}']}: a server's calls say that: leave it away")
    folder, settings, said = Folder(started_in), invocation.settings, set(invocation.origins)
    if folder.path == folder.path.parent:
        raise SettingsError(
            f"mcp: it was started in {folder.path}, which holds every file: start it where the kernels are"
        )
    asks_models = bool({"model.provider", "model.proposers"} & said)
    if not asks_models:
        settings = replace(settings, model=replace(settings.model, provider="catalogue"))
    if "run.checkpoints" not in said:
        settings = replace(settings, run=replace(settings.run, checkpoints=folder.path / "checkpoints"))
    secrets = {
        value for name, value in environment.items() if _NAMES_A_SECRET.search(name) and len(value) >= _SHORTEST_SECRET
    }
    return Terms(folder, settings, asks_models, tuple(sorted(secrets, key=len, reverse=True)))
