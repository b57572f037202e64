"""The simulated machine while it is being fitted: every kernel traced once, and timed with any set of constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from infra.calibration.constants import Constant
from infra.calibration.kernel import CalibrationKernel
from nki_sim.calibration import constant_of, with_constants
from nki_sim.machine import Machine, machine
from nki_sim.program import Program
from nki_sim.schedule import schedule

Values = Mapping[str, float]
"""By a constant's name; one that is not there is as shipped."""


class TimingModel:
    """Latencies in us, by kernel name. A kernel takes milliseconds, and is timed once for each set of values."""

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
        key = kernel, tuple((name, values.get(name, self.shipped[name])) for name in self.matters[kernel])
        if key not in self._times:
            self._times[key] = self.exact_time(kernel, values)
        return self._times[key]

    def times(self, kernels: Iterable[str], values: Values) -> dict[str, float]:
        return {kernel: self.time(kernel, values) for kernel in kernels}

    def exact_time(self, kernel: str, values: Values) -> float:
        """Scheduled now, whatever is thought to matter."""
        self.schedules += 1
        key = tuple(values.get(name, shipped) for name, shipped in self.shipped.items())
        if self._latest is None or self._latest[0] != key:
            self._latest = key, with_constants(self.core, self.machine_changes(values))
        return schedule(self.programs[kernel], self._latest[1]).latency_us

    def look_what_matters(self, kernels: Iterable[str], values: Values) -> None:
        """Near `values`, which constants change a kernel's time. Where others do later, `check` finds out."""
        for kernel in kernels:
            here = self.exact_time(kernel, values)
            self.matters[kernel] = tuple(
                each.name
                for each in self.constants
                if any(
                    self.exact_time(kernel, {**values, each.name: each.within(factor * self._at(each, values))}) != here
                    for factor in _PROBES
                )
            )

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

    def _at(self, constant: Constant, values: Values) -> float:
        return values.get(constant.name, self.shipped[constant.name])


_PROBES = (0.6, 1.6)
_UNNOTICED = 1e-3
