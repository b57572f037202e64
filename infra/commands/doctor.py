"""`doctor`: what works on one machine, with all that its document says of it."""

from __future__ import annotations

import config
from accelopt_core.ports import TargetError
from infra import assembly
from infra import doctor as examination
from infra.documents.doctor_document import ExaminedMachine
from infra.terminal.started_as import started_as


def examined(settings: config.Settings, host: str) -> ExaminedMachine:
    """`host`: empty for this machine, where the simulator is enough."""
    if not host:
        found = examination.examine(settings.target.machine)
        return ExaminedMachine(host, found.evaluates_on_neuron or found.simulates, "", found)
    target = assembly.host_target(settings, host)
    try:
        found = target.examine()
    except TargetError as error:
        return ExaminedMachine(host, False, started_as(str(error)), None)
    finally:
        target.close()
    notes, on_neuron = tuple(target.notes()), found.evaluates_on_neuron
    usable = on_neuron or (found.simulates and settings.target.remote_simulator)
    calibration = started_as(assembly.calibration_of_host(settings, host, found)) if on_neuron else None
    return ExaminedMachine(host, usable, "", found, target.clock_skew_s, calibration, notes)
