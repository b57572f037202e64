"""`doctor`: what works on this machine, on a host or on the nodes of a cluster, and what predictions there rest on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import config
from accelopt_core.languages.plugin import LanguagePlugin, plugins
from accelopt_core.ports import TargetError
from infra import doctor
from infra.assembly.languages import parts_of_plugin
from infra.assembly.targets import calibrations_of, host_target, language_of
from infra.assembly.targets import machine_of as kernels_machine_of
from infra.documents.kernel_document import ExaminedMachine
from infra.engines.engine_names import address_of
from infra.engines.examining import ExaminedNode, examine_nodes
from infra.engines.ray_engine import RayEngine
from infra.neuron.routes import installed, machine_of
from infra.records import to_document
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
            return ExaminedMachine(host, False, started_as(str(error)), None), ""
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
