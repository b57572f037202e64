"""`doctor`: what works on this machine, on a host or on the nodes of a cluster, and what predictions there rest on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import config
from accelopt_core.languages.triton.language import TRITON
from accelopt_core.ports import TargetError
from infra import doctor
from infra.assembly.targets import calibrations_of, host_target, language_of
from infra.assembly.targets import machine_of as kernels_machine_of
from infra.documents.doctor_document import ExaminedMachine
from infra.engines.engine_names import address_of
from infra.engines.examining import ExaminedNode, examine_nodes
from infra.engines.ray_engine import RayEngine
from infra.neuron.routes import installed, machine_of
from infra.terminal.started_as import started_as
from infra.triton import gpu_doctor


def examined(settings: config.Settings, host: str) -> ExaminedMachine:
    """`host`: empty for this machine, where the simulator is enough."""
    if language_of(settings) == TRITON.key:
        return _examined_for_triton(settings, host)
    if not host:
        found = doctor.examine(settings.target.machine)
        return ExaminedMachine(host, found.evaluates_on_neuron or found.simulates, "", found)
    with closing(host_target(settings, host)) as target:
        try:
            found = target.examine()
        except TargetError as error:
            return ExaminedMachine(host, False, started_as(str(error)), None)
    notes, on_neuron = tuple(target.notes()), found.evaluates_on_neuron
    usable = on_neuron or (found.simulates and settings.target.remote_simulator)
    calibration = started_as(_calibration_of_host(settings, host, found)) if on_neuron else None
    return ExaminedMachine(host, usable, "", found, target.clock_skew_s, calibration, notes)


def _examined_for_triton(settings: config.Settings, host: str) -> ExaminedMachine:
    """On a host a GPU is wanted, unless its CPU is to do; here kernels can be verified at least."""
    if not host:
        here = gpu_doctor.examine(kernels_machine_of(settings))
        return ExaminedMachine(host, here.verifies, "", None, gpu_report=here)
    with closing(host_target(settings, host)) as target:
        try:
            found = target.examine_by(
                "infra.triton.gpu_doctor", gpu_doctor.from_printed,
                "give its Python what is missing: pip install numpy ml_dtypes triton cuda-bindings",
            )  # fmt: skip
        except TargetError as error:
            return ExaminedMachine(host, False, started_as(str(error)), None)
    usable = found.evaluates_on_gpu or (found.verifies and settings.target.remote_simulator)
    return ExaminedMachine(
        host, usable, "", None, target.clock_skew_s, notes=tuple(target.notes()), gpu_report=found
    )  # fmt: skip


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
