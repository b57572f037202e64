"""Where the bottleneck is with 1,000 cores: a discrete-event simulation of many runs that share one cluster.

    python benchmarks/scale_simulation.py [--write docs/scale.md]

A run goes round after round: its model plans and writes, its ideas are priced, its candidates are evaluated, the loop
decides. Evaluations wait for a core, first come first served. Each passes through its run's driver and the loop's
machine, which are servers of their own with what was measured of them, and so can be full before the cluster is.
No hardware was involved: device work is bounded by its cores alone and is not simulated.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# --- what was measured, and what is assumed ------------------------------------------------------------------

EVALUATION_S = (3.13, 6.94, 9.69, 23.96, 45.85, 89.5, 332.64)
"""Quantiles 0, 10, 25, 50, 75, 90, 100 % of 80 evaluations of a suite at NKIBench's published shapes, on one core each
(23 November 2026; mean 42 s)."""
EVALUATION_SMALL_S = (1.06, 1.64, 2.8, 3.81, 4.87, 6.04, 9.59)
"""The same of 72 evaluations at medium shapes."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
PRICE_S = 0.05
"""A kernel of 2,000 instructions priced, on one core (benchmarks/engine_overhead.py; a long one takes seconds)."""
DRIVER_CPU_S = 0.0031
"""Of the driver's one thread, per evaluation (the same)."""
HEAD_CPU_S = 0.0005
"""Of the head's gcs_server, per evaluation: more than could be measured of 200 (the same)."""
BYTES = 30_000
"""Per evaluation, both ways: 7,100 of a small task (the same); a large one has longer texts."""
LOOP_CPU_S = 0.5
"""Of a run's loop, per candidate: prompts, catalogue, journal. Assumed from a catalogue run's processor time."""
MODEL_S = 180.0
"""The calls of one round with a language model, side by side for its plans (TYPICAL_ROUND_S, infra/assembly)."""

CORES = 1000
CORES_PER_NODE = 64
BEAM_CANDIDATES = 6 * 12 * 2
"""Per round: 6 kernels, 12 plans of each, 2 samples of each plan."""
PRICED = 24 * 72
"""Settings that are priced per round: 24 for each plan's kernel."""
AT_ONCE = 26
"""Candidates of one run that are at work at once (accelopt_core.candidate.MOST_AT_ONCE)."""
PRICED_AT_ONCE = 64
AT_ONCE_PRICED = 8
"""Kernels handed to a worker together (infra.prediction.predictor.AT_ONCE)."""
LOOP_MACHINE_CORES = 16
LINK_BYTES_PER_S = 1.25e9
"""Of the machine where the loops are: 10 Gb/s."""
HOURS = 1.0
SEED = 7


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (self.now + seconds, self._number, then))

    def run(self, until: float) -> None:
        while self._waiting and self._waiting[0][0] <= until:
            self.now, _, then = heapq.heappop(self._waiting)
            then()
        self.now = until


@dataclass
class Server:
    """So many of a kind, first come first served; notes how busy they were and how long work waited for them."""

    clock: Clock
    count: int
    busy_s: float = 0.0
    waited_s: list[float] = field(default_factory=list)
    _free: int = -1
    _queue: deque[tuple[float, float, Callable[[], None]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._free = self.count

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        self._queue.append((self.clock.now, seconds, then))
        self._next()

    def _next(self) -> None:
        while self._free and self._queue:
            since, seconds, then = self._queue.popleft()
            self.waited_s.append(self.clock.now - since)
            self._free -= 1
            self.clock.after(seconds, partial(self._done, seconds, then))

    def _done(self, seconds: float, then: Callable[[], None]) -> None:
        self._free += 1
        self.busy_s += seconds
        then()
        self._next()

    def busy_share(self, until: float) -> float:
        return self.busy_s / (self.count * until)


@dataclass(frozen=True)
class Scenario:
    name: str
    runs: int
    evaluation_s: tuple[float, ...] = EVALUATION_S
    model_s: float = MODEL_S
    candidates: int = BEAM_CANDIDATES
    priced: int = PRICED
    loop_machines: int = 1
    at_once: int = AT_ONCE


@dataclass(frozen=True)
class Figures:
    scenario: Scenario
    evaluations_per_minute: float
    rounds_per_hour: float
    """Of one run."""
    core_share: float
    core_wait_s: float
    loop_share: float
    driver_share: float
    """Of the busiest kind: all drivers together over one core each."""
    head_share: float
    megabytes_per_s: float

    @property
    def bottleneck(self) -> str:
        shares = {
            "the cluster's cores": self.core_share,
            "the loops' machine": self.loop_share,
            "a run's driver": self.driver_share,
            "the head": self.head_share,
        }
        worst = max(shares, key=lambda name: shares[name])
        if shares[worst] >= 0.85:
            return worst
        round_s = 3600 / self.rounds_per_hour if self.rounds_per_hour else float("inf")
        if self.scenario.model_s >= 0.5 * round_s:
            return "the model"
        return "how much a run tries at once"


class Machine:
    """All that the runs share."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.random = random.Random(SEED)
        self.cores = Server(self.clock, CORES)
        self.head = Server(self.clock, 1)
        self.loops = Server(self.clock, LOOP_MACHINE_CORES * scenario.loop_machines)
        self.drivers = [Server(self.clock, 1) for _ in range(scenario.runs)]
        self.evaluated = self.rounds = 0
        self.waits: list[float] = []

    def evaluation_s(self) -> float:
        """Drawn from the measured quantiles, straight between them."""
        at = self.random.random()
        upper = next(n for n, quantile in enumerate(QUANTILES) if at <= quantile and n)
        low, high = QUANTILES[upper - 1], QUANTILES[upper]
        share = (at - low) / (high - low)
        values = self.scenario.evaluation_s
        return values[upper - 1] + share * (values[upper] - values[upper - 1])

    def run(self) -> Figures:
        for number in range(self.scenario.runs):
            self.clock.after(self.random.uniform(0, 600), Run(self, number).plan)
        until = 3600 * HOURS
        self.clock.run(until)
        evaluation_waits = self.waits or [0.0]
        return Figures(
            self.scenario, 60 * self.evaluated / until, self.rounds / self.scenario.runs / HOURS,
            self.cores.busy_share(until), statistics.fmean(evaluation_waits), self.loops.busy_share(until),
            max(driver.busy_share(until) for driver in self.drivers), self.head.busy_share(until),
            self.evaluated * BYTES / until / 1e6,
        )  # fmt: skip


class Run:
    """One beam run: plan, price, evaluate, decide, again."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine = machine
        self._driver = machine.drivers[number]
        self._left = self._under_way = 0

    def plan(self) -> None:
        self._machine.clock.after(self._machine.scenario.model_s, self._price)

    def _price(self) -> None:
        batches = max(1, self._machine.scenario.priced // AT_ONCE_PRICED)
        self._many(batches, PRICED_AT_ONCE, lambda: AT_ONCE_PRICED * PRICE_S, self._evaluate, counts=False)

    def _evaluate(self) -> None:
        scenario = self._machine.scenario
        self._many(scenario.candidates, scenario.at_once, self._machine.evaluation_s, self._decide, counts=True)

    def _decide(self) -> None:
        self._machine.rounds += 1
        self.plan()

    def _many(
        self, count: int, at_once: int, seconds: Callable[[], float], then: Callable[[], None], counts: bool
    ) -> None:
        """`count` commands, `at_once` of them at a time."""
        left, ended = count, 0
        machine = self._machine

        def begin() -> None:
            nonlocal left
            left -= 1
            loop_s = LOOP_CPU_S if counts else 0.0
            machine.loops.serve(loop_s + DRIVER_CPU_S, submit)

        def submit() -> None:
            self._driver.serve(DRIVER_CPU_S, lambda: machine.head.serve(HEAD_CPU_S, wait))

        def wait() -> None:
            since = machine.clock.now
            takes = seconds()

            def done() -> None:
                if counts:
                    machine.evaluated += 1
                    machine.waits.append(max(0.0, machine.clock.now - since - takes))
                end()

            machine.cores.serve(takes, done)

        def end() -> None:
            nonlocal ended
            ended += 1
            if left:
                begin()
            elif ended == count:
                then()

        for _ in range(min(at_once, count)):
            begin()


SCENARIOS = (
    *(Scenario(f"{runs}", runs) for runs in (1, 10, 50, 100)),
    Scenario("10, 144 candidates at once", 10, at_once=BEAM_CANDIDATES),
    Scenario("50, medium shapes", 50, EVALUATION_SMALL_S),
    Scenario("150, medium shapes", 150, EVALUATION_SMALL_S),
    Scenario("150, medium shapes, 4 loop machines", 150, EVALUATION_SMALL_S, loop_machines=4),
    Scenario("50, medium shapes, catalogue", 50, EVALUATION_SMALL_S, model_s=1.0),
    Scenario("50, medium shapes, catalogue, 4 loop machines", 50, EVALUATION_SMALL_S, model_s=1.0, loop_machines=4),
)

BEGIN, END = "<!-- simulated -->", "<!-- /simulated -->"


def table(found: list[Figures]) -> str:
    rows = [
        "| runs | evaluations a minute | rounds an hour, each run | cores busy | wait for a core | loops' machine busy "
        "| head busy | MB/s | what bounds it |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows += [
        f"| {each.scenario.name} | {each.evaluations_per_minute:,.0f} | {each.rounds_per_hour:.1f} "
        f"| {each.core_share:.0%} | {each.core_wait_s:,.1f} s | {each.loop_share:.0%} | {each.head_share:.0%} "
        f"| {each.megabytes_per_s:.2f} | {each.bottleneck} |"
        for each in found
    ]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="1,000 cores, simulated.")
    parser.add_argument("--write", type=Path, help="the page whose table to write anew")
    options = parser.parse_args()
    said = table([Machine(scenario).run() for scenario in SCENARIOS])
    print(said)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN)
        options.write.write_text(f"{head}{BEGIN}\n\n{said}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
