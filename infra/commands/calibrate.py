"""`calibrate`: a device's own constants, measured and kept; or what was measured, written out."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

import config
from infra.assembly.targets import host_target
from infra.calibration import calibrating
from infra.calibration.file import Calibrations
from infra.calibration.report import ConsoleView, print_outcome
from infra.calibration.rows import export
from infra.settings_reader import SettingsError


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
