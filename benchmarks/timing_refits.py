"""Each family of rows predicted by constants that were fitted without it.

What is refitted are the constants that whole kernels decide: one line of `FITTED` each. The others rest on single
instructions, or on no row at all. How the model is built is the same with and without a family; no refit undoes that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from multiprocessing.pool import Pool

from benchmarks.device_rows import DeviceRow
from benchmarks.timing_rows import MICRO, Programs, families, predict_counted, predict_micro, predict_us, progress
from nki_sim.machine import Machine


@dataclass(frozen=True)
class Constant:
    prior: float
    """What one would take without any whole kernel; where nothing decides, the nearest to it."""
    grid: tuple[float, ...]


def steps(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(round(first + step * i, 6) for i in range(count))


FITTED: Mapping[str, Constant] = {
    "dma_software_issue_ns": Constant(115.0, (50.0, 115.0, 180.0)),
    "dma_software_descriptor_ns": Constant(4.8, (3.6, 4.2, 4.8, 5.4)),
    "dma_software_start_ns": Constant(736.0, (300.0, 500.0, 736.0)),
    "dma_hardware_start_ns": Constant(736.0, (50.0, 200.0, 450.0, 736.0)),
    "dma_prepared_issue_ns": Constant(60.0, (30.0, 60.0, 120.0)),
    "dma_unaligned_row_ns": Constant(0.0, (0.0, 6.0, 12.0, 18.0)),
    "dma_sustained": Constant(1.0, (0.91, 0.955, 1.0)),
    "tensor_wait_ns": Constant(0.0, (0.0, 32.0, 64.0, 96.0)),
    "reload_window_bytes": Constant(106_492, (0, 53_246, 106_492, 212_984)),  # half of SBUF, none of it, all of it
    "throttle_utilization": Constant(0.5, (0.4, 0.45, 0.5, 0.505, 0.51)),
    "throttle_window_ns": Constant(3_000.0, (3_000.0, 4_000.0, 5_000.0)),
    "vector_issue_cycles": Constant(64.0, (0.0, 20.0, 64.0)),
    "vector_psum_issue_cycles": Constant(64.0, (20.0, 43.0, 65.0)),
    "hbm_sustained": Constant(1.0, (0.808, 0.844, 0.92, 1.0)),
    "profiler_ns": Constant(0.0, (0.0, 5_000.0, 10_000.0, 15_000.0)),
    "profiler_transfer_ns": Constant(0.0, (0.0, 45.0, 90.0, 135.0)),
}
"""By field of Machine."""

TOGETHER = (("dma_software_descriptor_ns", "profiler_transfer_ns"),)
"""Constants of which rows of a profile know the sum alone: tried in all combinations, for one after the other would
stay where the first was put."""

MOST_ROWS, MOST_INSTRUCTIONS = 6, 40_000
"""Of a grid, in a refit: a long one is sampled evenly, and rows longer than that are left out, so that one point takes
some two seconds."""
_ROUNDS = 3

Values = Mapping[str, float]


def sampled(rows: Sequence[DeviceRow], programs: Programs) -> list[DeviceRow]:
    """Of rows that ran and that the simulator accepts: evenly over each grid, its first and last among them."""
    by_grid: dict[str, list[DeviceRow]] = {}
    for row in rows:
        if row.measured_us is not None and 0 < programs.length(row) <= MOST_INSTRUCTIONS:
            by_grid.setdefault(row.grid, []).append(row)
    found = []
    for grid in by_grid.values():
        mean_length = sum(programs.length(row) for row in grid) / len(grid)
        count = min(len(grid), max(2, min(MOST_ROWS, int(MOST_INSTRUCTIONS / mean_length))))
        found += [grid[round(k * (len(grid) - 1) / max(1, count - 1))] for k in range(count)]
    return found


def descend(
    constants: Mapping[str, Constant],
    error: Callable[[Values], float],
    rounds: int = _ROUNDS,
    together: Sequence[tuple[str, ...]] = (),
) -> dict[str, float]:
    """The values of least error, one constant (or those of `together`) after the other from their priors until none
    changes.

    First over whole grids, then among neighbours. Of values whose errors agree to four digits, the nearest to the
    prior.
    """
    values = {name: constant.prior for name, constant in constants.items()}
    of_group = {name: group for group in together for name in group}
    groups = list(dict.fromkeys(of_group.get(name, (name,)) for name in constants))

    def choices(name: str, everywhere: bool) -> Sequence[float]:
        grid = sorted({*constants[name].grid, constants[name].prior})
        at = grid.index(values[name])
        return grid if everywhere else grid[max(0, at - 1) : at + 2]

    def best(group: tuple[str, ...], candidates: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
        def worse(candidate: tuple[float, ...]) -> tuple[float, ...]:
            away = [abs(value - constants[name].prior) for name, value in zip(group, candidate)]
            return round(error({**values, **dict(zip(group, candidate))}), 4), *away

        return min(candidates, key=worse)

    for number in range(rounds):
        before = dict(values)
        for group in groups:
            grids = [choices(name, everywhere=number == 0) for name in group]
            values.update(zip(group, best(group, product(*grids))))
        if values == before:
            break
    return values


_served: list[Programs] = []
"""In a worker: the programs of the process that it was forked from."""


def _serve(programs: Programs) -> None:
    _served[:] = [programs]


def _refitted(task: tuple[DeviceRow, Machine]) -> float | None:
    """The row's error; None where the simulator refuses it.

    |log(predicted/measured)| of its time, and of the bytes that it moves where a capture counted them: those say which
    loads the compiler leaves out.
    """
    row, machine = task
    programs = _served[0]
    found = predict_counted(row, programs, machine)
    if found is None:
        return None
    us, nbytes = found
    assert row.measured_us is not None  # sampled from rows that ran
    error = abs(math.log(us / row.measured_us))
    return error if row.moved_bytes is None else error + abs(math.log(nbytes / row.moved_bytes))


class Refits:
    """Predictions are kept by row and values: refits begin alike, so that most points are shared."""

    def __init__(
        self,
        rows: Sequence[DeviceRow],
        programs: Programs,
        machine: Machine,
        constants: Mapping[str, Constant] = FITTED,
        together: Sequence[tuple[str, ...]] = TOGETHER,
    ) -> None:
        self._rows = rows
        self._programs = programs
        self._machine = machine
        self._constants, self._together = constants, together
        self._known: dict[tuple[str, tuple[float, ...]], float | None] = {}
        """Errors by row and values, in a refit."""
        self._workers: Pool | None = None

    def without(self, left_out: str) -> dict[str, float]:
        """What the family is predicted by id to take, in µs; without the rows that the simulator refuses."""
        kept = {name: [row for row in self._rows if row.family == name] for name in families(self._rows)}
        mine = kept.pop(left_out)
        return self._predicted(mine, self._fit(f"without {left_out}", kept, single_instructions=True))

    def across_grids(self, family: str) -> dict[str, float]:
        """Half of the family's grids predicted by a fit to the other half alone, and the other way round."""
        mine = [row for row in self._rows if row.family == family]
        names = list(dict.fromkeys(row.grid for row in mine))
        found = {}
        for half in (names[::2], names[1::2]):
            kept = {name: [row for row in mine if row.grid == name] for name in names if name not in half}
            values = self._fit(f"on {' and '.join(kept)} alone", kept, single_instructions=False)
            found.update(self._predicted([row for row in mine if row.grid in half], values))
        return found

    def _fit(self, what: str, kept: Mapping[str, Sequence[DeviceRow]], single_instructions: bool) -> dict[str, float]:
        """Least mean error, every group of rows weighing the same."""
        progress(f"fitting {what}")
        groups = [sampled(rows, self._programs) for rows in kept.values()]

        def error(values: Values) -> float:
            self._predict([row for rows in groups for row in rows], values)
            found = [self._error(rows, values) for rows in groups]
            if single_instructions:
                found.append(self._micro_error(values))
            return statistics.mean(each for each in found if each is not None)

        values = descend(self._constants, error, together=self._together)
        progress("  " + ", ".join(f"{name} {value:g}" for name, value in values.items()))
        return values

    def _error(self, rows: Sequence[DeviceRow], values: Values) -> float | None:
        """None where there is no row."""
        errors = [self._known[row.id, tuple(values.values())] for row in rows]
        known = [error for error in errors if error is not None]
        return statistics.mean(known) if known else None

    def _micro_error(self, values: Values) -> float:
        key = (MICRO, tuple(values.values()))
        if key not in self._known:
            pairs = [row.pair for row in predict_micro(self._changed(values))]
            self._known[key] = statistics.mean(abs(math.log(predicted / measured)) for predicted, measured in pairs)
        found = self._known[key]
        assert found is not None  # single instructions are never refused
        return found

    def _predict(self, rows: Sequence[DeviceRow], values: Values) -> None:
        """What is not yet known of these, for a refit, on all processors."""
        key = tuple(values.values())
        missing = [row for row in rows if (row.id, key) not in self._known]
        if not missing:
            return
        if self._workers is None:  # forked with all programs traced
            self._workers = get_context("fork").Pool(initializer=_serve, initargs=(self._programs,))
        missing.sort(key=self._programs.length, reverse=True)
        tasks = [(row, self._changed(values)) for row in missing]
        for row, found in zip(missing, self._workers.imap(_refitted, tasks)):
            self._known[row.id, key] = found

    def _predicted(self, rows: Sequence[DeviceRow], values: Values) -> dict[str, float]:
        found = {row.id: predict_us(row, self._programs, self._changed(values)) for row in rows}
        return {row: value for row, value in found.items() if value is not None}

    def _changed(self, values: Values) -> Machine:
        return replace(self._machine, **values)  # type: ignore[arg-type]  # all are floats
