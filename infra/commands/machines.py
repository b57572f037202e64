"""Commands about machines, here, on hosts or on the nodes of a cluster: `doctor`, `calibrate` and `clean`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import config
from accelopt_core.languages.plugin import LanguagePlugin, plugins
from accelopt_core.ports import TargetError, TargetMisconfigured
from infra import doctor
from infra.assembly.languages import parts_of_plugin
from infra.assembly.targets import calibrations_of, host_target, language_of
from infra.assembly.targets import machine_of as kernels_machine_of
from infra.calibration import calibrating
from infra.calibration.file import Calibrations
from infra.calibration.report import ConsoleView, print_outcome
from infra.calibration.rows import export
from infra.documents.kernel_document import ExaminedMachine
from infra.engines.engine_names import address_of
from infra.engines.examining import ExaminedNode, examine_nodes
from infra.engines.ray_engine import RayEngine
from infra.journal import JournalError
from infra.neuron.routes import installed, machine_of
from infra.records import to_document
from infra.runs.run_folder import RunFolder
from infra.settings_reader import SettingsError
from infra.ssh.remote_agent import leftovers
from infra.ssh.remote_agent.leftovers import LeftOver
from infra.terminal.started_as import started_as


def examined(settings: config.Settings, host: str) -> tuple[ExaminedMachine, str]:
    """And what it says for people. `host`: empty for this machine, where the simulator is enough."""
    plugin = plugins().get(language_of(settings))
    if plugin is not None:
        return _examined_by_plugin(plugin, settings, host)
    if not host:
        found = doctor.examine(settings.target.machine)
        usable = found.evaluates_on_neuron or found.simulates
        return ExaminedMachine(host, usable, "", found), doctor.render(found, neuron_wanted=False)
    with closing(host_target(settings, host)) as target:
        try:
            found = target.examine()
        except TargetError as error:
            bare = isinstance(error, TargetMisconfigured)
            return ExaminedMachine(host, False, started_as(str(error)), None), target.checklist() if bare else ""
    notes, on_neuron = tuple(target.notes()), found.evaluates_on_neuron
    simulated = settings.target.remote_simulator
    usable = on_neuron or (found.simulates and simulated)
    calibration = started_as(_calibration_of_host(settings, host, found)) if on_neuron else None
    told = doctor.render(found, neuron_wanted=not simulated, clock_skew_s=target.clock_skew_s)
    return ExaminedMachine(host, usable, "", found, target.clock_skew_s, calibration, notes), told


def _examined_by_plugin(plugin: LanguagePlugin, settings: config.Settings, host: str) -> tuple[ExaminedMachine, str]:
    """On a host a device is wanted, unless its CPU is to do; here kernels can be verified at least."""
    parts = parts_of_plugin(plugin)
    if not host:
        here = parts.examine(kernels_machine_of(settings))
        made = ExaminedMachine(host, here.verifies, "", None, gpu_report=to_document(here))
        return made, here.render(device_wanted=False, clock_skew_s=None)
    with closing(host_target(settings, host)) as target:
        try:
            found = target.examine_by(plugin.doctor, parts.read_examination, parts.remedy)
        except TargetError as error:
            return ExaminedMachine(host, False, started_as(str(error)), None), ""
    on_cpu = settings.target.remote_simulator
    made = ExaminedMachine(
        host, found.evaluates_on_device or (found.verifies and on_cpu), "", None, target.clock_skew_s,
        notes=tuple(target.notes()), gpu_report=to_document(found),
    )  # fmt: skip
    return made, found.render(device_wanted=not on_cpu, clock_skew_s=target.clock_skew_s)


def examined_nodes(settings: config.Settings) -> Iterator[ExaminedNode]:
    """Of the cluster. Raises TargetError where it is out of reach."""
    address = address_of(settings.target.engine)
    assert address is not None, "asked for with an engine only"
    with closing(RayEngine(address)) as engine:
        yield from examine_nodes(engine, settings.target.machine)


def _calibration_of_host(settings: config.Settings, host: str, found: doctor.DoctorReport) -> str:
    """What predictions on that host rest on."""
    name = machine_of(found.instance_type)
    assert name is not None, "a device that evaluates is a known machine"
    calibration = calibrations_of(settings).for_device(name, installed(dict(found.packages), found.instance_type))
    if calibration is not None:
        return calibration.line
    return f"none; `orchestrator.py calibrate {host}` measures this machine's own constants in ten minutes"


def calibrate(settings: config.Settings, console: Console) -> bool:
    """Whether a calibration is kept. Raises SettingsError, TargetError and JournalError."""
    wanted = settings.calibration
    if len(settings.target.host) != 1:
        raise SettingsError("calibrate: on which one device? orchestrator.py calibrate USER@HOST")
    (host,) = settings.target.host
    as_shipped = replace(settings, calibration=replace(wanted, calibration=None, shipped_model=True))
    target, view = host_target(as_shipped, host), ConsoleView(console)
    try:
        outcome = calibrating.calibrate(
            target,
            Calibrations(wanted.calibrations),
            budget_s=60 * wanted.calibrate_minutes,
            again=wanted.calibrate_again,
            view=view,
        )
    finally:
        view.close()
    print_outcome(console, outcome, host)
    return outcome.path is not None


def export_measurements(settings: config.Settings) -> str:
    """Writes the newest measurements, or those beside the named calibration, as a table; says what it did."""
    wanted = settings.calibration
    assert wanted.export is not None
    beside = wanted.calibration and wanted.calibration.with_suffix(".rows.jsonl")
    return export(wanted.export, beside, wanted.calibrations)


_BEGINNING = {"run.lock", "config.json", "candidates", "evaluations", "exchanges"}
"""What a run's folder has before its manifest is written."""


@dataclass(frozen=True)
class Found:
    """One thing that was left behind, here or on a host."""

    kind: str
    path: str
    kept: str
    """Why it stays; empty: it is removed, or would be."""
    bytes: int
    age_s: float


def clean_here(checkpoints: Path, *, remove: bool) -> tuple[Found, ...]:
    found = [*leftovers.of_temporary_folder(_go_on), *_of_runs(checkpoints)]
    if remove:
        leftovers.remove(found, _go_on)
    return tuple(_found(each.document()) for each in found)


def clean_host(settings: config.Settings, host: str, *, remove: bool) -> tuple[Found, ...]:
    """Raises TargetError."""
    owed = [job for folder in _runs(settings.run.checkpoints) for job in _owed(folder)]
    with closing(host_target(settings, host)) as target:
        return tuple(_found(each) for each in target.clean(owed, remove=remove))


def _go_on() -> None:
    """Nobody waits for a sign of life here."""


def _found(document: dict[str, Any]) -> Found:
    return Found(**document)


# --- runs -------------------------------------------------------------------------------------------


def _runs(checkpoints: Path) -> list[Path]:
    return sorted(path.parent for path in checkpoints.glob("*/manifest.json"))


def _of_runs(checkpoints: Path) -> Iterator[LeftOver]:
    for path in _runs(checkpoints):
        folder = RunFolder(path)
        busy = "its run is under way" if folder.is_held else ""
        for half_written in sorted(path.glob("**/.*.tmp")):
            yield LeftOver("half-written", str(half_written), busy)
        if (path / "remote").is_dir():
            yield LeftOver("records of jobs", str(path / "remote"), busy or _may_go_on(folder))
    for lock in sorted(checkpoints.glob("*/run.lock")):
        path = lock.parent
        if not (path / "manifest.json").exists() and _never_began(path):
            young = time.time() - path.stat().st_mtime < leftovers.HOUR_S
            busy = "it is being made" if young or RunFolder(path).is_held else ""
            yield LeftOver("run that never began", str(path), busy)


def _may_go_on(folder: RunFolder) -> str:
    try:
        status = folder.manifest().status
    except JournalError:
        return "what its run came to cannot be read"
    return "" if status == "finished" else "its run can be gone on with"


def _never_began(path: Path) -> bool:
    """Nothing lies there but what every run begins with."""
    inside = list(path.iterdir())
    return {each.name for each in inside} <= _BEGINNING and not any(
        any(each.iterdir()) for each in inside if each.is_dir()
    )


def _owed(run: Path) -> Iterator[str]:
    """Jobs that the run, gone on with, would collect from a host."""
    if not _may_go_on(RunFolder(run)):
        return
    for record in sorted((run / "remote").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield os.path.basename(str(json.loads(record.read_bytes())["job"]))
