"""Every row that was measured on a trn2, as the machine model sees it.

The device rows of `device_rows.py`, the published kernels C01-C18, and the single instructions and transfers M01-M27.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks import calibration_instructions, device_rows
from benchmarks import calibration_kernels as kernels
from benchmarks.device_rows import DeviceRow
from nki_sim.errors import NkiError
from nki_sim.machine import Machine, compiled_by_beta1
from nki_sim.profile.profile import profile, timelines
from nki_sim.program.program import Program
from nki_sim.timing.intervals import Basis, basis
from nki_sim.timing.schedule import Timeline

DATA = Path(__file__).with_name("data")

MICRO = "micro"
"""The family of single instructions: constants are fitted to these one by one, so that it is never left out."""

_TUTORIAL = (8192, 4096, 8192)
_KERNELS: Mapping[str, Callable[[], Program]] = {
    "C01": partial(kernels.matmul_loads_inside, *_TUTORIAL),
    "C02": partial(kernels.matmul_blocked, *_TUTORIAL, 1, 1),
    "C03": partial(kernels.matmul_blocked, *_TUTORIAL, 2, 2),
    "C04": partial(kernels.matmul_fully_blocked, *_TUTORIAL, 16, 2, 8),
    "C05": kernels.matmul_bf16_square,
}
"""The AdamW rows are added from the data file."""


def read(name: str) -> list[dict[str, str]]:
    with open(DATA / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def published_rows() -> list[DeviceRow]:
    """C01-C05 as `tutorial_matmul`, C06-C18 as `adamw`. Raises ValueError for a row that no program is written for."""
    found = []
    for row in read("trn2_kernels.csv"):
        width = re.search(r"CH=(\d+)", row["kernel"])
        if row["id"] in _KERNELS:
            family, make = "tutorial_matmul", _KERNELS[row["id"]]
            grid = "tutorial_bf16" if "2048" in row["shape"] else "tutorial_fp32"
        elif width:
            family, grid, make = "adamw", "adamw", partial(kernels.adamw, int(width.group(1)))
        else:
            raise ValueError(f"trn2_kernels.csv: no program for {row['id']}; write one in timing_rows.py")
        what = f"{row['kernel']} {row['shape']}"
        found.append(DeviceRow(row["id"], family, grid, what, make, float(row["latency_us"])))
    return found


def all_rows() -> list[DeviceRow]:
    """Without the single instructions."""
    return [*published_rows(), *device_rows.rows()]


class Programs:
    """Each row's program, traced once however often it is timed. What the simulator refuses is kept as its reason."""

    def __init__(self) -> None:
        self._kept: dict[str, Program | NkiError] = {}

    def of(self, row: DeviceRow) -> Program:
        """Raises NkiError where the simulator refuses the kernel."""
        if row.id not in self._kept:
            try:
                self._kept[row.id] = row.make()
            except NkiError as error:
                self._kept[row.id] = error
        kept = self._kept[row.id]
        if isinstance(kept, NkiError):
            raise kept
        return kept

    def length(self, row: DeviceRow) -> int:
        """Instructions; 0 where the simulator refuses the kernel."""
        try:
            return len(self.of(row))
        except NkiError:
            return 0


Side = Literal["inside", "faster", "slower"]


@dataclass(frozen=True)
class Outcome:
    """One row as the model predicts it, beside what the device took."""

    id: str
    family: str
    grid: str
    what: str
    measured: float | None
    """µs; of a single instruction whatever the row is in; None where the device's compiler refused it."""
    predicted: float | None
    """The same, with the launch or the profiler's share where the figure has it; None where the simulator refuses."""
    refusal: str = ""
    """Why the simulator does, in one line."""
    bound_us: float = 0.0
    """What nothing can be faster than, by the model."""
    spilled_bytes: int | None = None
    predicted_spill_bytes: float = 0.0
    basis: Basis | None = None
    """What the width of its interval depends on; None of a single instruction."""
    side: Side | None = None
    """Where the measured time lies: inside the interval, or beyond one of its ends. None where nobody asked."""

    @property
    def ran_and_predicted(self) -> bool:
        return self.measured is not None and self.predicted is not None

    @property
    def pair(self) -> tuple[float, float]:
        """Predicted and measured. Raises ValueError where one is missing."""
        if self.predicted is None or self.measured is None:
            raise ValueError(f"{self.id}: not both predicted and measured")
        return self.predicted, self.measured


def besides_us(row: DeviceRow, machine: Machine) -> float:
    """What the row's figure holds besides the kernel's own time."""
    return (machine.launch_ns * row.with_launch + machine.profiler_ns * row.profiled) / 1e3


def as_measured(row: DeviceRow, machine: Machine) -> Machine:
    """The machine as it was when the row was measured: by its compiler, and with transfers that a capture slowed."""
    if row.beta1:
        machine = compiled_by_beta1(machine)
    if not row.slowed_transfers:
        return machine
    return replace(machine, dma_software_issue_ns=machine.dma_software_issue_ns + machine.profiler_transfer_ns)


def predict_us(row: DeviceRow, programs: Programs, machine: Machine) -> float | None:
    """The latency alone; None where the simulator refuses the kernel."""
    counted = predict_counted(row, programs, machine)
    return None if counted is None else counted[0]


def predict_counted(row: DeviceRow, programs: Programs, machine: Machine) -> tuple[float, int] | None:
    """What a refit is about: the latency in µs, and the bytes that DMA moves. None as of `predict_us`."""
    try:
        lines = timelines(programs.of(row), as_measured(row, machine))
    except NkiError:
        return None
    found = _slowest(lines).latency_us + besides_us(row, machine)
    nbytes = sum(_moved_bytes(line) for line in lines)
    if row.then is None:
        return found, nbytes
    more = predict_counted(_second_launch(row, row.then), programs, machine)
    return None if more is None else (found + more[0], nbytes + more[1])


def _moved_bytes(line: Timeline) -> int:
    each = [0 if price.transfer is None else price.transfer.nbytes for price in line.costs]
    return int(np.array(each, np.int64)[line.program.template_ids].sum())


def _slowest(lines: Sequence[Timeline]) -> Timeline:
    """Of the cores."""
    return max(lines, key=lambda line: line.latency_us)


def _second_launch(row: DeviceRow, make: Callable[[], Program]) -> DeviceRow:
    return replace(row, id=f"{row.id}, second launch", make=make, then=None)


def predict(row: DeviceRow, programs: Programs, machine: Machine) -> Outcome:
    """With all that the report says of it."""
    common = (row.id, row.family, row.grid, row.what, row.measured_us)
    try:
        lines = timelines(programs.of(row), as_measured(row, machine))
    except NkiError as error:
        return Outcome(*common, None, str(error).splitlines()[0], spilled_bytes=row.spilled_bytes)
    timeline, besides = _slowest(lines), besides_us(row, machine)
    fields = profile(timeline)
    first = Outcome(
        *common,
        timeline.latency_us + besides,
        bound_us=max(line.resource_bound_us for line in lines) + besides,
        spilled_bytes=row.spilled_bytes,
        predicted_spill_bytes=fields["spill_save_bytes"] + fields["spill_reload_bytes"],
        basis=basis(timeline, fields),
    )
    if row.then is None or first.predicted is None:
        return first
    second = predict(_second_launch(row, row.then), programs, machine)
    if second.predicted is None:
        return replace(first, predicted=None, refusal=second.refusal)
    return replace(first, predicted=first.predicted + second.predicted, bound_us=first.bound_us + second.bound_us)


def predict_all(rows: Sequence[DeviceRow], programs: Programs, machine: Machine) -> list[Outcome]:
    """A line on stderr per family: the longest take some ten seconds."""
    found = []
    for number, row in enumerate(rows):
        if not number or rows[number - 1].family != row.family:
            progress(f"{row.family}: predicting")
        found.append(predict(row, programs, machine))
    return found


def predict_micro(machine: Machine) -> list[Outcome]:
    """One per measured number."""
    return [
        Outcome(row.id, MICRO, MICRO, row.what, row.measured, row.predicted)
        for row in calibration_instructions.rows(read("trn2_micro.csv"), machine)
    ]


def families(rows: Iterable[DeviceRow | Outcome]) -> list[str]:
    """In the order of the rows."""
    return list(dict.fromkeys(row.family for row in rows))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
