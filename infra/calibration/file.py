"""Calibrations as files: one per machine, SDK and compiler. Read with suspicion, since a wrong one misleads quietly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.evaluation import Installed
from accelopt_core.toolchain import Calibration
from infra.calibration.constants import CONSTANTS, Constant
from infra.journal import JournalError, explained, make_folder, replace_file
from infra.records import BadRecord, from_document, to_document
from nki_sim.machine import MACHINES, machine
from nki_sim.timing.calibration import constant_of

FILE_VERSION = 1
ALIKE = 1e-9

CalibrationOf = Callable[[str, Installed], "Calibration | None"]
"""(machine, what is installed there) -> the constants its user measured, if any: `Calibrations.for_device`."""


class BadCalibration(JournalError):
    """A calibration file cannot be used: calibrate again (without device time, from its rows), or move it away."""


@dataclass(frozen=True)
class ConstantRecord:
    name: str
    shipped: float
    value: float
    decided: bool
    spread: float | None
    """How far it may be off, as a fraction; None where nothing tells."""
    why: str = ""


@dataclass(frozen=True)
class KernelRecord:
    name: str
    measured_us: float | None
    """None: refused, and `said` has the reason."""
    shipped_us: float
    calibrated_us: float
    held_out: str = ""
    distrusted: bool = False
    said: str = ""


@dataclass(frozen=True)
class CalibrationRecord:
    """Everything that a calibration came from and came to. No name of a host, a user or a key."""

    machine: str
    installed: Installed
    date: str
    """Of the last measurement, e.g. 2026-11-03."""
    fingerprint: str
    device_s: float
    simulator: str
    """Version of nki_sim."""
    constants: tuple[ConstantRecord, ...]
    kernels: tuple[KernelRecord, ...]
    version: int = FILE_VERSION

    def calibration(self) -> Calibration:
        core = machine(self.machine)
        known = {each.name: each for each in CONSTANTS}
        decided = [record for record in self.constants if record.decided]
        changed: dict[str, float] = {}
        for record in decided:
            changed.update(known[record.name].values(core, record.value))
        of = self.installed
        line = f"calibrated: {len(decided)} constants of {self.machine} refitted on {self.date} on {of.instance}"
        more = f" (SDK {of.sdk}, {of.compiler})"
        return Calibration(
            self.machine, f"{self.date} on {of.instance}", line + (more if len(line + more) <= 110 else ""),
            tuple(sorted(changed.items())),
        )  # fmt: skip


def key_of(name: str, installed: Installed) -> str:
    """What files of a target are named by: machine, SDK, compiler."""
    return "-".join(re.sub(r"[^A-Za-z0-9.+]+", "_", part) for part in (name, installed.sdk, installed.compiler))


def load(path: Path, constants: Mapping[str, Constant] | None = None) -> CalibrationRecord:
    """Raises BadCalibration, one line: which file, what is wrong with it, what next."""
    known = constants if constants is not None else {each.name: each for each in CONSTANTS}
    try:
        with explained(path, "read"):
            record = from_document(CalibrationRecord, json.loads(path.read_bytes()), str(path))
        problem = _problem_of(record, known)
    except (ValueError, BadRecord) as error:
        problem = f"is no calibration ({_without_path(str(error), path)})"
    if problem:
        raise BadCalibration(
            f"{path} {problem}: run `orchestrator.py calibrate` for that host again (what it has measured is kept), or "
            "give --shipped-model"
        )
    return record


def _without_path(text: str, path: Path) -> str:
    return text.replace(f"{path}: ", "").split(": repair it")[0]


def _problem_of(record: CalibrationRecord, known: Mapping[str, Constant]) -> str:
    if record.version != FILE_VERSION:
        return f"is of version {record.version}, not {FILE_VERSION}"
    if record.machine not in MACHINES:
        return f"is of a machine {record.machine!r}, which is not one of {', '.join(MACHINES)}"
    core = machine(record.machine)
    for each in record.constants:
        if each.name not in known:
            return f"has a constant {each.name!r} that this release does not fit"
        constant = known[each.name]
        if abs(each.shipped / constant_of(core, each.name) - 1) > ALIKE:
            return f"was fitted to another release's model ({each.name} was {each.shipped:g})"
        if not constant.least <= each.value <= constant.most:
            return f"has {each.name} = {each.value:g}, which is not within {constant.least:g} to {constant.most:g}"
    return ""


def save(path: Path, record: CalibrationRecord) -> None:
    make_folder(path.parent)
    replace_file(path, json.dumps(to_document(record), indent=1) + "\n")


@dataclass(frozen=True)
class Calibrations:
    """Those that a user has, and which of them count: a device's own and, for a simulated machine, none."""

    folder: Path
    chosen: Path | None = None
    """For every target, in place of its own."""
    shipped: bool = False
    """None at all."""

    def path_of(self, name: str, installed: Installed) -> Path:
        return self.folder / f"{key_of(name, installed)}.json"

    def rows_of(self, name: str, installed: Installed) -> Path:
        return self.folder / f"{key_of(name, installed)}.rows.jsonl"

    def for_simulator(self, name: str) -> Calibration | None:
        """A simulated machine is as shipped unless a file is named. Raises BadCalibration."""
        return self._of_file(self.chosen, name) if self.chosen is not None and not self.shipped else None

    def for_device(self, name: str, installed: Installed) -> Calibration | None:
        """Its own, if it has one; or the named one. Raises BadCalibration."""
        if self.shipped or self.chosen is not None:
            return self.for_simulator(name)
        path = self.path_of(name, installed)
        if not path.exists():
            return None
        record = load(path)
        if (record.machine, key_of(record.machine, record.installed)) != (name, key_of(name, installed)):
            raise BadCalibration(f"{path} is of another device than its name says: move it away")
        return record.calibration()

    @staticmethod
    def _of_file(path: Path, name: str) -> Calibration:
        record = load(path)
        if record.machine != name:
            raise BadCalibration(f"{path} is a calibration of {record.machine}: give --machine {record.machine}")
        return record.calibration()
