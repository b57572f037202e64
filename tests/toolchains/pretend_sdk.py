"""Puts the fixtures together: an interpreter that has the pretend NKI, tools on a path, devices in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from infra.neuron.commands import Installation
from infra.neuron.toolchain import NeuronToolchain, open_neuron_toolchain
from infra.simulator.toolchain import traced_on_simulator

FIXTURES = Path(__file__).with_name("fixtures")
PROJECT = Path(__file__).resolve().parents[2]
SIMULATED = (FIXTURES / "site_simulated", PROJECT)
"""A pretend NKI that compiles real kernels; the simulator it needs is found in the project."""
READS_TABLES = FIXTURES / "site_tables"
"""A pretend pyarrow, for the pretend Parquet of the pretend profiler."""


class PretendSdk:
    def __init__(
        self,
        folder: Path,
        *,
        profiler: str = "neuron-explorer",
        tools: Sequence[str] = ("neuron-ls", "dpkg-query"),
        site: Sequence[Path] = (FIXTURES / "site",),
        devices: int = 1,
        release: tuple[int, int] = (2, 32),
        only_documented: bool = False,
    ) -> None:
        """`release`: of the SDK whose tools these are. `only_documented`: they take only flags that AWS describes."""
        self._head = f"PROJECT = {str(PROJECT)!r}\nRELEASE = {release}\nONLY_DOCUMENTED = {only_documented}\n"
        self.tools = folder / "tools"
        self.tools.mkdir(parents=True)
        self._install("neuron-explorer", profiler)
        for name in tools:
            self._install(name, name)
        for number in range(devices):
            (folder / "dev").mkdir(exist_ok=True)
            (folder / "dev" / f"neuron{number}").touch()
        (folder / "dev").mkdir(exist_ok=True)
        (folder / "sys/module/neuron").mkdir(parents=True)
        (folder / "sys/module/neuron/version").write_text("2.28.4.0\n")
        self.installation = Installation(
            tool_folders=(self.tools,),
            pythons=(_interpreter(folder / "venv", site),),
            device_folder=folder / "dev",
            system_folder=folder / "sys",
        )

    def _install(self, source: str, name: str) -> None:
        path = self.tools / name
        text = (FIXTURES / "tools" / source).read_text()
        path.write_text(f"#!{sys.executable}\n{self._head}{text}")
        path.chmod(0o755)

    def behave(self, **state: Any) -> None:
        """What the pretend profiler does from now on: total_time_s, summary, print, void, busy, operands, machine."""
        (self.tools / "state.json").write_text(json.dumps(state))

    def without_tool(self, name: str) -> Installation:
        (self.tools / name).unlink()
        return self.installation

    def with_pythons(self, *pythons: Path) -> Installation:
        return replace(self.installation, pythons=pythons)


def opened_on(sdk: PretendSdk) -> NeuronToolchain:
    return open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)


def _interpreter(folder: Path, site: Sequence[Path]) -> Path:
    """A virtual environment made by hand (fast): NumPy from here, the pretend packages from the fixtures."""
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    real = Path(numpy.__file__).resolve().parent.parent
    (packages / "fixture.pth").write_text("".join(f"{path}\n" for path in (*site, real)))
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(base)
    return folder / "bin/python"


def shadow(folder: Path, packages: dict[str, str]) -> Path:
    """A site folder with dist-info of these versions and empty modules of their names."""
    for name, version in packages.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / name.replace("-", "_")).mkdir(exist_ok=True)
        (folder / name.replace("-", "_") / "__init__.py").touch()
    return folder
