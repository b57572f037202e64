"""A host over SSH with the pretend SDK and a device that is not as the shipped model has it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.ssh.server import Sshd
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

_SITE = """\
# On a Trainium the devices lie in /dev; here the judge is shown a folder of the test's.
import builtins, sys
from dataclasses import replace
from pathlib import Path

_import = builtins.__import__


def _watching(name, *rest, **named):
    module = _import(name, *rest, **named)
    commands = sys.modules.get("infra.neuron.commands")
    if commands is not None and hasattr(commands, "this_machine") and not hasattr(commands, "here"):
        commands.here = commands.this_machine
        commands.this_machine = lambda: replace(
            commands.here(), tool_folders=(Path({tools!r}),), pythons=(Path({python!r}),),
            device_folder=Path({devices!r}), system_folder=Path({system!r}),
        )
        builtins.__import__ = _import
    return module


builtins.__import__ = _watching
"""


class PretendHost:
    """`constants`: those of its device that differ from the shipped model."""

    def __init__(self, sshd: Sshd, folder: Path, constants: Mapping[str, float]) -> None:
        self.sshd = sshd
        self.sdk = PretendSdk(folder / "sdk", site=SIMULATED)
        self.sdk.behave(machine=dict(constants), slowdown=1.0)
        self.python = self.sdk.installation.pythons[0]
        packages = next((self.python.parent.parent / "lib").glob("python*/site-packages"))
        (packages / "sitecustomize.py").write_text(
            _SITE.format(
                tools=str(self.sdk.tools),
                python=str(self.python),
                devices=str(self.sdk.installation.device_folder),
                system=str(self.sdk.installation.system_folder),
            )
        )
        self.root = folder / "host"
        # What the pretend compiler and profiler leave is theirs; the judge itself needs only what a host has.
        assert sys.version_info[:2] >= (3, 10)

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            self.sshd.destination,
            "--ssh-config", str(self.sshd.home / "config"),
            "--remote-dir", str(self.root),
            "--remote-python", str(self.python),
        )  # fmt: skip
