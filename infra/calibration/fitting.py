"""Constants from measured kernels: prediction = measurement, solved with the simulator itself in the loop.

First each constant alone, from the straight line between two kernels that differ in it; then all together, by
Gauss-Newton steps on the logarithms, in which a measurement that nothing explains counts for little. What the kernels
cannot decide stays as shipped, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from infra.calibration.constants import Constant
from infra.calibration.model import TimingModel, Values
from nki_sim.timing.calibration import is_whole

NOISE = 0.002
"""How far a measurement may be off at least, as a fraction, however small its spread; residuals count in this."""
BELIEVED = 3.0
"""Residuals beyond so many times the noise count less and less (Huber's weights)."""
DISTRUSTED = 0.25
"""A kernel of less weight than this explains nothing, and is named."""
FAMILIAR = 1.5
"""How far a constant may be from what is shipped, in natural logarithms, before that alone holds it back."""
DECIDED = 0.08
"""A constant is decided if it is known to this fraction."""

_SWEEPS = 2
_LINES = 4
_ROUNDS = 4
_STEPS = 30
_DENSE_MOST = 3
"""A matrix of slopes takes seconds: it is made so often, and in between corrected by what the steps showed."""
_STEP = 0.02
_FINE_ENOUGH = 1e-3
_TRIED = 17
_FINER = 3
"""Values of a constant that is answered in steps, over its range; then as many around the best, so many times."""
_STARTS = (None, 0.2, 0.8, 0.5)
"""Where constants that are answered in steps begin: as shipped, then so far up their range."""
_EXPLAINED = 1.5
"""Cost per kernel of a solution that needs no other."""
_SMALL_COUNT = 20
_EDGE = 0.01
_UNKNOWN = 0.9
"""A spread as large as this is that of the first assumption: no measurement went into it."""
_REFUTED = 4.0
"""More cost than this with the shipped value, two standard deviations, and that value is not as good."""
_IMPLAUSIBLE = "implausible"


@dataclass(frozen=True)
class Fitted:
    """One constant, before and after."""

    name: str
    what: str
    shipped: float
    value: float
    """As shipped where it is not decided."""
    decided: bool
    spread: float
    """How far the value may be off, as a fraction; infinite where nothing tells."""
    why: str = ""
    """Why it is not decided, or in which way only in part; for people."""


@dataclass(frozen=True)
class Fit:
    constants: tuple[Fitted, ...]
    distrusted: tuple[str, ...]
    """Kernels whose measurement no set of constants explains."""

    @property
    def values(self) -> dict[str, float]:
        return {each.name: each.value for each in self.constants if each.decided}


def fit(model: TimingModel, measured: Mapping[str, float], noise: Mapping[str, float]) -> Fit:
    """measured: us by kernel name, of kernels that `model` has traced; noise: how far each may be off, as a fraction.

    A constant without its kernels is not decided.
    """
    undecided = {each.name: why for each in model.constants if (why := _not_measured(each, measured))}
    noise = {name: max(NOISE, noise.get(name, 0.0)) for name in measured}
    solver = _Solver(model, [each for each in model.constants if each.name not in undecided], measured, noise)
    values = _from_several_starts(solver)
    spreads, remarks = solver.spreads(values), dict[str, str]()
    for each in sorted(solver.constants, key=lambda each: -spreads[each.name]):
        why = solver.doubt(each, values[each.name], spreads[each.name])
        if not why:
            continue
        # Back to what is shipped; the others, which may have made up for it, are solved for again.
        without = replace(solver, constants=[other for other in solver.constants if other is not each])
        others = without.along_slopes({name: value for name, value in values.items() if name != each.name})
        if why.startswith(_IMPLAUSIBLE) or without.cost(others) - solver.cost(values) < _REFUTED:
            undecided[each.name], solver, values = why, without, others
        else:
            remarks[each.name] = solver.which_way(each, values) or why
    spreads = {**spreads, **solver.spreads(values)}
    return Fit(
        tuple(
            Fitted(
                each.name, each.what, model.shipped[each.name], values.get(each.name, model.shipped[each.name]),
                each.name not in undecided, spreads.get(each.name, math.inf),
                {**remarks, **undecided}.get(each.name, ""),
            )
            for each in model.constants
        ),
        solver.distrusted(values),
    )  # fmt: skip


def _from_several_starts(solver: _Solver) -> dict[str, float]:
    """A constant that is answered in steps can lead to a dead end: then again from elsewhere in its range."""
    model, measured = solver.model, solver.measured
    found: list[tuple[float, dict[str, float]]] = []
    for part in _STARTS:
        start = {each.name: model.shipped[each.name] for each in solver.constants}
        for each in solver.constants:
            if each.steps and part is not None:
                start[each.name] = _whole_if(each, each.least ** (1 - part) * each.most**part)
        guess = _first_guess(model, solver.constants, measured, start)
        model.look_what_matters(measured, guess)
        values = solver.with_one_more_or_less(solver.solve(guess))
        found.append((solver.cost(values), values))
        if found[-1][0] <= _EXPLAINED * len(measured) or not any(each.steps for each in solver.constants):
            break
    return min(found, key=lambda pair: pair[0])[1]


def _whole_if(constant: Constant, value: float) -> float:
    return float(round(value)) if is_whole(constant.name) else value


def _not_measured(constant: Constant, measured: Mapping[str, float]) -> str:
    lacking = [kernel.name for kernel in constant.kernels if kernel.name not in measured]
    return f"not measured: {', '.join(lacking)}" if lacking else ""


# --- each alone -----------------------------------------------------------------------------------


def _first_guess(
    model: TimingModel, constants: Sequence[Constant], measured: Mapping[str, float], start: dict[str, float]
) -> dict[str, float]:
    """Each in turn from the difference between its two kernels, which leaves out what they have in common."""
    values = dict(start)
    for _ in range(_SWEEPS):
        for each in constants:
            if not each.steps:
                values[each.name] = _from_line(model, each, values, measured)
    return values


def _from_line(model: TimingModel, constant: Constant, values: Values, measured: Mapping[str, float]) -> float:
    """Where the predicted difference is the measured one: straight lines, a few, within the plausible range.

    Where nothing depends on it, which may be so on one side of a value only, half the way back to what is shipped.
    """

    def difference(time: Callable[[str], float]) -> float:
        more, *less = (time(kernel.name) for kernel in constant.kernels)
        return more - sum(less)

    wanted = difference(lambda kernel: measured[kernel])

    def missed(value: float) -> float:
        changed = {**values, constant.name: value}
        return difference(lambda kernel: model.time(kernel, changed)) - wanted

    at, shipped = values[constant.name], model.shipped[constant.name]
    for _ in range(_LINES):
        beside = constant.within(at * (1 + 10 * _STEP)) if at < constant.most else at * (1 - 10 * _STEP)
        here = missed(at)
        slope = (missed(beside) - here) / (beside - at)
        if abs(here) < _FINE_ENOUGH * abs(wanted):
            break
        if slope == 0.0:
            at = math.sqrt(at * shipped)
            continue
        at = constant.within(min(3 * at, max(at / 3, at - here / slope)))
    return at


# --- all together ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solver:
    model: TimingModel
    constants: Sequence[Constant]
    measured: Mapping[str, float]
    noise: Mapping[str, float]

    def solve(self, values: dict[str, float]) -> dict[str, float]:
        """The values that explain the measurements best, from these on."""
        for _ in range(_ROUNDS):
            for each in self.constants:
                if each.steps:
                    values = self._best_of_many(each, values)
            before, values = values, self.along_slopes(values)
            if not self.model.check(self.measured, values):
                continue
            if not any(each.steps for each in self.constants) or _alike(before, values):
                break
        return values

    def with_one_more_or_less(self, values: dict[str, float]) -> dict[str, float]:
        """Where a kernel is unexplained: a small count beside the one found, and all others solved for again with it.

        A count and the times that go with it make up for each other, so that no step of one of them alone gains.
        """
        for each in self.constants:
            for by in (-1.0, 1.0) if is_whole(each.name) and each.most <= _SMALL_COUNT else ():
                if np.abs(self._residuals(values)).max() > BELIEVED:
                    moved = self.along_slopes({**values, each.name: each.within(values[each.name] + by)})
                    if self.cost(moved) < self.cost(values):
                        values = self.solve(moved)
        return values

    def spreads(self, values: Values) -> dict[str, float]:
        """How far each may be off, as a fraction: given the noise, and that the others may be off as well."""
        smooth = self._spreads(values)
        return {
            each.name: self._spread_of_steps(each, values) if each.steps else smooth[each.name]
            for each in self.constants
        }

    def doubt(self, constant: Constant, value: float, spread: float) -> str:
        """Why what is shipped may be as good; empty where the kernels decide it."""
        if spread > _UNKNOWN:
            return "no kernel here depends on it"
        if spread > DECIDED:
            return f"only known to {100 * spread:.0f} %"
        if min(abs(value / constant.least - 1), abs(value / constant.most - 1)) < _EDGE and constant.most != 1.0:
            kernels = " or ".join(kernel.name for kernel in constant.kernels)
            return f"{_IMPLAUSIBLE} ({value:g}): was {kernels} disturbed?"
        return ""

    def distrusted(self, values: Values) -> tuple[str, ...]:
        weights = _weights(self._residuals(values))
        return tuple(name for name, weight in zip(self.measured, weights) if weight < DISTRUSTED)

    def _residuals(self, values: Values) -> np.ndarray:
        """float64 [kernels]: log of predicted over measured, in units of the noise."""
        times = self.model.times(self.measured, values)
        return np.array([math.log(times[name] / us) / self.noise[name] for name, us in self.measured.items()])

    def cost(self, values: Values) -> float:
        """Huber's: quadratic up to what is believed, then linear; and a little for being far from what is shipped."""
        size = np.abs(self._residuals(values))
        rough = np.where(size <= BELIEVED, size**2, 2 * BELIEVED * size - BELIEVED**2).sum()
        far = sum((math.log(values[name] / self.model.shipped[name]) / FAMILIAR) ** 2 for name in self._smooth)
        return float(rough + far)

    @property
    def _smooth(self) -> list[str]:
        return [each.name for each in self.constants if not each.steps]

    def _slopes(self, values: Values, residuals: np.ndarray) -> np.ndarray:
        """float64 [kernels, smooth constants]: change of each residual per unit of a constant's logarithm."""
        columns = []
        for each in self.constants:
            if not each.steps:
                step = _STEP if values[each.name] * math.exp(_STEP) <= each.most else -_STEP
                moved = {**values, each.name: values[each.name] * math.exp(step)}
                columns.append((self._residuals(moved) - residuals) / step)
        return np.stack(columns, axis=1) if columns else np.zeros((len(residuals), 0))

    def along_slopes(self, values: dict[str, float]) -> dict[str, float]:
        names, bounds = self._smooth, {each.name: each for each in self.constants}
        residuals, cost = self._residuals(values), self.cost(values)
        slopes, dense, damping = self._slopes(values, residuals), 1, 1e-3
        fresh = True
        for _ in range(_STEPS):
            weights = _weights(residuals)
            far = np.array([math.log(values[name] / self.model.shipped[name]) for name in names]) / FAMILIAR**2
            normal = slopes.T @ (slopes * weights[:, None]) + np.eye(len(names)) / FAMILIAR**2
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slopes.T @ (weights * residuals) + far)
            step = np.clip(step, -0.7, 0.7)
            moved = {
                **values,
                **{name: bounds[name].within(values[name] * math.exp(by)) for name, by in zip(names, step)},
            }
            taken = np.array([math.log(moved[name] / values[name]) for name in names])
            after, new_cost = self._residuals(moved), self.cost(moved)
            gained = cost - new_cost
            if gained > 0:
                slopes = slopes + np.outer(after - residuals - slopes @ taken, taken) / max(taken @ taken, 1e-12)
                values, residuals, cost = moved, after, new_cost
                damping = max(damping / 5, 1e-6)
            if gained > _FINE_ENOUGH * (1 + cost):
                fresh = False
            elif not fresh and dense < _DENSE_MOST:
                slopes, dense, fresh = self._slopes(values, residuals), dense + 1, True
            elif gained > 0 or damping > 10:
                break
            else:
                damping *= 10
        return values

    def _spreads(self, values: Values) -> dict[str, float]:
        """Standard deviation of each smooth constant's logarithm, given the noise; about 1.5 where nothing tells."""
        residuals = self._residuals(values)
        slopes, weights = self._slopes(values, residuals), _weights(residuals)
        known = slopes.T @ (slopes * weights[:, None]) + np.eye(slopes.shape[1]) / FAMILIAR**2
        return dict(zip(self._smooth, np.sqrt(np.diag(np.linalg.inv(known))).tolist()))

    # --- answered in steps ------------------------------------------------------------------------

    def _best_of_many(self, constant: Constant, values: dict[str, float]) -> dict[str, float]:
        """Of values over the whole range, each with the constants that it is entangled with; then around the best."""
        low, high = constant.least, constant.most
        best = values
        for finer in range(_FINER):
            tried = {value: {**best, constant.name: value} for value in _tried(constant, low, high)}
            if finer == 0:
                tried = {value: self._entangled(constant, each) for value, each in tried.items()}
            tried[best[constant.name]] = best  # as found so far, so that what is solved already is not lost
            ordered = sorted(tried)
            costs = [self.cost(tried[value]) for value in ordered]
            level = [value for value, cost in zip(ordered, costs) if cost <= min(costs) + 1e-9]
            chosen = level[len(level) // 2]
            if constant.least in level or constant.most in level:
                # Nothing tells how far it reaches on that side: no farther from what is shipped than need be.
                shipped = self.model.shipped[constant.name]
                chosen = min(level, key=lambda value: abs(math.log(value / shipped)))
            best = tried[chosen]
            at = ordered.index(chosen)
            low, high = ordered[max(0, at - 1)], ordered[min(len(ordered) - 1, at + 1)]
        return best

    def _entangled(self, constant: Constant, values: dict[str, float]) -> dict[str, float]:
        """With the constants anew whose own kernels this one changes: it and they are found together or not at all."""
        for each in self.constants:
            if not each.steps and constant.name in self.model.matters[each.shown_by.name]:
                values = {**values, each.name: _from_line(self.model, each, values, self.measured)}
        return values

    def _as_good(self, constant: Constant, values: Values) -> list[float]:
        """How far the values reach, as logarithms, that explain the measurements as well within the noise."""
        least = self.cost(values)
        value = values[constant.name]
        near = {_whole_if(constant, constant.within(value * factor)) for factor in np.geomspace(0.7, 1.4, _TRIED)}
        return [math.log(other / value) for other in near if self.cost({**values, constant.name: other}) < least + 1.0]

    def _spread_of_steps(self, constant: Constant, values: Values) -> float:
        return max((abs(far) for far in self._as_good(constant, values)), default=0.0)

    def which_way(self, constant: Constant, values: Values) -> str:
        """For a constant that is known from one side only."""
        reach = self._as_good(constant, values)
        up, down = max(reach, default=0.0) > DECIDED, min(reach, default=0.0) < -DECIDED
        return "at least this" if up and not down else "at most this" if down and not up else ""


def _alike(values: Values, others: Values) -> bool:
    return all(abs(value / others[name] - 1) < _FINE_ENOUGH for name, value in values.items())


def _tried(constant: Constant, low: float, high: float) -> list[float]:
    return sorted({_whole_if(constant, value) for value in np.geomspace(low, high, _TRIED).tolist()})


def _weights(residuals: np.ndarray) -> np.ndarray:
    """float64 [kernels]: 1 for what is within the noise, less for what is not explained."""
    return BELIEVED / np.maximum(np.abs(residuals), BELIEVED)
