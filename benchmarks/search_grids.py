"""Recorded grids to search: every setting of one kernel at one shape, as a trn2 timed it and as the model predicts it.

A strategy sees names, values and predictions; what a setting takes it learns by asking the device, which counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelopt_core.evaluation import Bottleneck, Bounds, Profile
from benchmarks.device_rows import DeviceRow, blocked_rows
from benchmarks.timing_refits import Refits
from benchmarks.timing_rows import Programs, as_measured, besides_us, progress
from nki_sim.errors import NkiError
from nki_sim.machine import Machine
from nki_sim.profile.profile import profile
from nki_sim.timing.schedule import schedule

FAMILY = "blocked_fp32"


@dataclass(frozen=True)
class Setting:
    """One kernel of a grid: its block sizes, and what the model says before anything is measured."""

    id: str
    values: tuple[int, int, int]
    """Tiles of a block, in rows, columns and depth."""
    predicted_us: float | None
    """None where the simulator refuses it."""
    bottleneck: Bottleneck | None

    @property
    def techniques(self) -> frozenset[str]:
        """Which dimensions are in blocks at all: what a change of the kernel's text decides."""
        names = ("block-rows", "block-columns", "block-depth")
        return frozenset(name for name, value in zip(names, self.values) if value > 1)


@dataclass(frozen=True)
class Grid:
    name: str
    settings: tuple[Setting, ...]
    measured_us: dict[str, float | None]
    """By id; None where the device's compiler refused it. For the device and the report alone."""

    @property
    def best_us(self) -> float:
        return min(us for us in self.measured_us.values() if us is not None)

    @property
    def runnable(self) -> tuple[Setting, ...]:
        """Any of them may be the kernel that a search begins with."""
        return tuple(each for each in self.settings if self.measured_us[each.id] is not None)


class Spent(Exception):
    """The device has been asked as often as allowed, or about every setting there is."""


class Device:
    """Times settings of one grid. What was asked before costs nothing."""

    def __init__(self, grid: Grid, start: Setting, most: int) -> None:
        """`start`: the kernel that the search begins with, whose time is known; `most`: evaluations beside it."""
        self._measured = grid.measured_us
        self._most = most
        self._known = {start.id}
        first = grid.measured_us[start.id]
        assert first is not None, "a search begins with a kernel that runs"
        self.curve_us = [first]
        """The best so far, after each evaluation; its first entry is the start."""

    def time(self, setting: Setting) -> float | None:
        """µs; None where its compiler refuses it, which costs as much. Raises Spent."""
        us = self._measured[setting.id]
        if len(self._known) == len(self._measured):
            raise Spent
        if setting.id not in self._known:
            if len(self.curve_us) > self._most:
                raise Spent
            self._known.add(setting.id)
            self.curve_us.append(min(self.curve_us[-1], us) if us is not None else self.curve_us[-1])
        return us


def grids(machine: Machine, held_out: bool) -> list[Grid]:
    """`held_out`: predicted by constants that were fitted without the grid. The bottleneck is the shipped model's."""
    rows, programs = blocked_rows(), Programs()
    progress(f"{FAMILY}: predicting")
    guides = {row.id: _guide(row, programs, machine) for row in rows}
    if held_out:
        predicted = Refits(rows, programs, machine).across_grids(FAMILY)
        guides = {name: replace(guide, predicted_us=predicted.get(name)) for name, guide in guides.items()}
    return [
        Grid(
            name,
            tuple(guides[row.id] for row in rows if row.grid == name),
            {row.id: row.measured_us for row in rows if row.grid == name},
        )
        for name in dict.fromkeys(row.grid for row in rows)
    ]


def _guide(row: DeviceRow, programs: Programs, machine: Machine) -> Setting:
    values = _values(row.what)
    try:
        timeline = schedule(programs.of(row), as_measured(row, machine))
    except NkiError:
        return Setting(row.id, values, None, None)
    limits = Profile(profile(timeline), Bounds(0.0, 0.0, 0.0, "trace"))
    us = timeline.latency_us
    return Setting(row.id, values, us + besides_us(row, machine), limits.bottleneck(us))


def _values(what: str) -> tuple[int, int, int]:
    """Of a row called `K2048 M2048 N2048 (4, 2, 8)`."""
    rows, columns, depth = (int(each) for each in what.partition("(")[2].rstrip(")").split(","))
    return rows, columns, depth


def by_price(settings: Sequence[Setting]) -> list[Setting]:
    """The fastest by prediction first; of equal ones in their order. Without those that the simulator refuses."""
    priced = [each for each in settings if each.predicted_us is not None]
    return sorted(priced, key=lambda each: each.predicted_us or 0.0)
