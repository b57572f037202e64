"""The simulated machine while it is being fitted: every kernel traced once, and timed with any set of constants.

A device's times are those of its profiler, which takes time itself; what is predicted here holds that as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from infra.calibration.constants import Constant
from infra.calibration.kernel import CalibrationKernel
from nki_sim.machine import Machine, machine
from nki_sim.program.program import Program
from nki_sim.timing.calibration import constant_of, with_constants
from nki_sim.timing.cost import cost
from nki_sim.timing.schedule import schedule

Values = Mapping[str, float]
"""By a constant's name; one that is not there is as shipped."""


def _observed_us(program: Program, core: Machine) -> float:
    observed = replace(core, dma_software_issue_ns=core.dma_software_issue_ns + core.profiler_transfer_ns)
    return schedule(program, observed).latency_us


class TimingModel:
    """Profiles in us, by kernel name. A kernel takes milliseconds, and is timed once for each set of values."""

    def __init__(self, name: str, kernels: Iterable[CalibrationKernel], constants: Sequence[Constant]) -> None:
        """`name`: a key of MACHINES. A constant that this machine has not is a KeyError."""
        self.core: Machine = machine(name)
        self.constants = tuple(constants)
        self.shipped = {each.name: constant_of(self.core, each.name) for each in constants}
        self.programs: dict[str, Program] = {kernel.name: kernel.program(name) for kernel in kernels}
        self.matters: dict[str, tuple[str, ...]] = dict.fromkeys(self.programs, tuple(self.shipped))
        self.schedules = 0
        """Made so far: what a fit costs."""
        self._latest: tuple[tuple[float, ...], Machine] | None = None
        self._times: dict[tuple[str, tuple[tuple[str, float], ...]], float] = {}

    def machine_changes(self, values: Values) -> dict[str, float]:
        """Every constant of the machine that `values` change, those that go with them included."""
        changed: dict[str, float] = {}
        for each in self.constants:
            value = values.get(each.name, self.shipped[each.name])
            if value != self.shipped[each.name]:
                changed.update(each.values(self.core, value))
        return changed

    def time(self, kernel: str, values: Values) -> float:
        key = kernel, tuple((name, self._at(name, values)) for name in self.matters[kernel])
        if key not in self._times:
            self._times[key] = self._scheduled(kernel, values)
        return self._times[key] + self._profiler_us(values)

    def times(self, kernels: Iterable[str], values: Values) -> dict[str, float]:
        return {kernel: self.time(kernel, values) for kernel in kernels}

    def exact_time(self, kernel: str, values: Values) -> float:
        """Scheduled now, whatever is thought to matter."""
        return self._scheduled(kernel, values) + self._profiler_us(values)

    def _scheduled(self, kernel: str, values: Values) -> float:
        self.schedules += 1
        return _observed_us(self.programs[kernel], self._machine(values))

    def _machine(self, values: Values) -> Machine:
        key = tuple(values.get(name, shipped) for name, shipped in self.shipped.items())
        if self._latest is None or self._latest[0] != key:
            self._latest = key, with_constants(self.core, self.machine_changes(values))
        return self._latest[1]

    def _profiler_us(self, values: Values) -> float:
        return values.get(_PROFILER, self.core.profiler_ns) / 1e3

    def look_what_matters(self, kernels: Iterable[str], values: Values) -> None:
        """Near `values`, which constants change a kernel's time. Where others do later, `check` finds out.

        Most constants are in the price of an instruction, which is quickly asked; those that are in no price of any
        kernel are in the order of things, and kernels are scheduled for them.
        """
        names = tuple(kernels)
        priced = {each.name: self._pricing(each, names, values) for each in self.constants if each.name != _PROFILER}
        here = {kernel: self._scheduled(kernel, values) for kernel in names}
        for kernel in names:
            self.matters[kernel] = tuple(
                name
                for name, pricing in priced.items()
                if (kernel in pricing)
                or (
                    not pricing
                    and any(self._scheduled(kernel, near) != here[kernel] for near in self._near(name, values))
                )
            )

    def _pricing(self, constant: Constant, kernels: Sequence[str], values: Values) -> set[str]:
        """Kernels of which an instruction's price changes with the constant."""
        machines = [self._machine(each) for each in (values, *self._near(constant.name, values))]
        return {
            kernel
            for kernel in kernels
            if any(
                cost(template, machines[0]) != cost(template, other)
                for template in self.programs[kernel].templates
                for other in machines[1:]
            )
        }

    def check(self, kernels: Iterable[str], values: Values) -> bool:
        """Whether what was thought not to matter did not; if it did, it is thought to from now on."""
        wrong = [
            kernel
            for kernel in kernels
            if abs(self.time(kernel, values) / self.exact_time(kernel, values) - 1) > _UNNOTICED
        ]
        for kernel in wrong:
            self.matters[kernel] = tuple(self.shipped)
        return not wrong

    def _at(self, name: str, values: Values) -> float:
        return values.get(name, self.shipped[name])

    def _near(self, name: str, values: Values) -> Iterator[Values]:
        constant = next(each for each in self.constants if each.name == name)
        for factor in _PROBES:
            yield {**values, name: constant.within(factor * self._at(name, values))}
        yield {**values, name: self.shipped[name]}  # where it may go back to


_PROFILER = "profiler_ns"
"""Comes on top of every schedule, and needs none of its own."""
_PROBES = (0.6, 1.6)
_UNNOTICED = 1e-3
