"""Versions of what the operating system installed for Neuron, and the devices it shows. Shipped."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.evaluation import Step
from accelopt_core.toolchain import StepTimeout, ToolchainMissing
from infra.neuron.commands import Installation, ToolRun, run_tool

PACKAGES = ("aws-neuronx-tools", "aws-neuronx-runtime-lib", "aws-neuronx-dkms", "aws-neuronx-collectives")


def system_versions(installation: Installation) -> dict[str, str]:
    """From dpkg or rpm, and the driver that is really loaded (`driver`)."""
    versions: dict[str, str] = {}
    for tool, arguments in (
        ("dpkg-query", ("-W", "-f", r"${Package} ${Version}\n")),
        ("rpm", ("-q", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n")),
    ):
        path = installation.tool(tool)
        said = _ask(path, (*arguments, *PACKAGES)) if path else None
        if said is not None:
            versions.update(re.findall(r"(?m)^(aws-neuronx-[a-z-]+) (\d\S*)$", said.stdout.decode("utf-8", "replace")))
        if versions:
            break
    try:
        versions["driver"] = (installation.system_folder / "module/neuron/version").read_text(encoding="utf-8").strip()
    except OSError:
        pass  # no driver is loaded; the doctor says so by the missing devices
    return versions


@dataclass(frozen=True)
class Device:
    """One row of `neuron-ls --json-output` (aws-neuron-sdk, neuron-ls.rst)."""

    number: int
    core_ids: tuple[int, ...]
    memory_bytes: int
    logical_core_config: int | None
    processes: tuple[str, ...]
    """`pid command` of whoever uses it."""


def list_devices(installation: Installation) -> tuple[Device, ...]:
    """Raises ToolchainMissing when neuron-ls is not there or does not answer as documented."""
    path = installation.tool("neuron-ls")
    if path is None:
        raise ToolchainMissing("neuron-ls is not in PATH or /opt/aws/neuron/bin: install the package aws-neuronx-tools")
    said = _ask(path, ("--json-output",))
    if said is None or said.status != 0:
        tail = said.text.strip().splitlines()[-1:] if said else ["no answer in 30 s"]
        raise ToolchainMissing(f"neuron-ls fails: {(tail or ['no message'])[0][:300]}")
    try:
        rows = json.loads(said.stdout)
        rows = rows if isinstance(rows, list) else rows["neuron_devices"]
        return tuple(
            Device(
                int(row["neuron_device"]),
                tuple(int(core) for core in row.get("neuroncore_ids") or range(int(row["nc_count"]))),
                int(row["memory_size"]),
                row.get("logical_neuroncore_config"),
                tuple(f"{p['pid']} {p['command']}" for p in row.get("neuron_processes") or ()),
            )
            for row in rows
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ToolchainMissing(f"neuron-ls --json-output is not as documented: {error!r}") from None


def _ask(path: Path, arguments: tuple[str, ...]) -> ToolRun | None:
    with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
        try:
            return run_tool([str(path), *arguments], cwd=Path(folder), timeout_s=30, step=Step.EXAMINE)
        except (StepTimeout, ToolchainMissing):
            return None
