"""Versions of what the operating system installed for Neuron, and the devices it shows. Shipped."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """One row of what neuron-ls prints as JSON (aws-neuron-sdk, neuron-ls.rst)."""

    number: int
    core_ids: tuple[int, ...]
    memory_bytes: int
    logical_core_config: int | None
    processes: tuple[str, ...]
    """`pid command` of whoever uses it."""


_JSON_WAYS = (("--json-output",), ("--output-format", "json"))
"""Until SDK 2.33, and from 2.34 on (announce-intent-eos-neuron-ls-json.html); what `--help` lists decides."""


@dataclass(frozen=True)
class Listing:
    """What neuron-ls says, and how it was asked."""

    devices: tuple[Device, ...]
    asked: str
    undocumented: str = ""
    """Of the layout, where AWS has not described it."""


def list_devices(installation: Installation) -> Listing:
    """Raises ToolchainMissing when neuron-ls is not there or says nothing that lists devices."""
    path = installation.tool("neuron-ls")
    if path is None:
        raise ToolchainMissing("neuron-ls is not in PATH or /opt/aws/neuron/bin: install the package aws-neuronx-tools")
    help_text = said.text if (said := _ask(path, ("--help",))) is not None else ""
    listed = [way for way in _JSON_WAYS if way[0] in help_text]
    why = []
    for way in listed or _JSON_WAYS:
        asked = f"neuron-ls {' '.join(way)}"
        said = _ask(path, way)
        if said is None or said.status != 0:
            tail = said.text.strip().splitlines()[-1:] if said else ["no answer in 30 s"]
            why.append(f"{asked} fails: {(tail or ['no message'])[0][:300]}")
            continue
        try:
            found = json.loads(said.stdout)
            rows, where = _rows(found)
            devices = tuple(_device(row) for row in rows)
            note = f"{asked}: devices are under {where!r}" if where else ""
            return Listing(devices, asked, note)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why.append(f"{asked} is not as documented: {error!r}"[:400])
    raise ToolchainMissing("; ".join(why))


def _rows(found: Any) -> tuple[list[dict[str, Any]], str]:
    """The list of devices, and where it was found if not at the top, as it is until SDK 2.33.

    From 2.34 on there are fields above it, of the instance and the UltraServer; their names are not documented.
    """
    if isinstance(found, list):
        return found, ""
    for name, value in found.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) and "neuron_device" in row for row in value):
            return value, str(name)
    raise KeyError("neuron_device")


def _device(row: dict[str, Any]) -> Device:
    return Device(
        int(row["neuron_device"]),
        tuple(int(core) for core in row.get("neuroncore_ids") or range(int(row["nc_count"]))),
        int(row["memory_size"]),
        row.get("logical_neuroncore_config"),
        tuple(f"{process['pid']} {process['command']}" for process in row.get("neuron_processes") or ()),
    )


def _ask(path: Path, arguments: tuple[str, ...]) -> ToolRun | None:
    with tempfile.TemporaryDirectory(prefix="nki-probe-") as folder:
        try:
            return run_tool([str(path), *arguments], cwd=Path(folder), timeout_s=30, step=Step.EXAMINE)
        except (StepTimeout, ToolchainMissing):
            return None
