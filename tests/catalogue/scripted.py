"""Loop trees made for a test: a kernel is the steps that were taken, and each step takes a part of the time off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue.kernel_trees import (
    NoTree,
    PricedStep,
    Refusal,
    SingleSteps,
    StepName,
    StepRefused,
    Wanted,
    Way,
)
from accelopt_core.evaluation import Bounds, Measured, Profile
from accelopt_core.languages.nki.language import NKI
from accelopt_core.proposer import RoundContext
from infra.tasks.seed_index import load_seed

TASK = load_seed("matmul").task()
START_US = 100.0


def source_of(letters: str) -> str:
    return f"PATH = '{letters}'\n\n\ndef kernel(x, scale):\n    return x\n"


def letters_of(source: str) -> str:
    return source.split("'")[1]


def measured(latency_us: float, contested: tuple[str, ...] = ()) -> Measured:
    profile = Profile({}, Bounds(1.0, 1.0, 1.0, "declared"))
    return Measured(latency_us, latency_us, latency_us, 1, True, "simulated", profile, contested=contested)


@dataclass
class ScriptedTrees:
    """Each letter of `gains` is a step that can be taken once: what it gains, in µs; the greatest first."""

    gains: Mapping[str, float]
    contested: Mapping[str, str] = field(default_factory=dict)
    """Facts that steps rest on."""
    unreadable: str = ""
    complete: bool = False
    asked: list[Wanted] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def us(self, letters: str) -> float:
        return START_US - sum(self.gains[each] for each in letters)

    def single_steps(self, source: str, limit_s: float = math.inf) -> SingleSteps:
        here = self._read(source)
        steps = [self._step(here, each) for each in self.gains if each not in here]
        return SingleSteps(self.us(here), tuple(steps), (Refusal("walk", "go back", (1,), "there is no way back"),))

    def way(self, source: str, wanted: Wanted, limit_s: float = math.inf) -> Way:
        self.asked.append(wanted)
        self.limits_s.append(limit_s)
        first = here = self._read(source)
        steps, withheld = [], False
        for each in sorted(set(self.gains) - set(here), key=lambda letter: -self.gains[letter]):
            fact = self.contested.get(each)
            if fact is not None and wanted.allowed is not None and fact not in wanted.allowed:
                withheld = True
            elif self.gains[each] > 0 and ("walk", f"go {each}") not in wanted.excluded:
                steps.append(self._step(here, each))
                here += each
        return Way(
            tuple(steps), source_of(here), self.us(first), self.us(here), len(self.gains), withheld, self.complete
        )

    def carried_out(self, source: str, steps: Sequence[StepName]) -> str:
        here = self._read(source)
        for each in steps:
            if each.rule != "walk" or each.site in here or each.site not in self.gains:
                raise StepRefused(f"{each.site} is not open")
            here += each.site
        return source_of(here)

    def _step(self, here: str, letter: str) -> PricedStep:
        us = self.us(here)
        return PricedStep(StepName("walk", letter), f"go {letter}", "It is shorter.", (1,), us, us - self.gains[letter])

    def _read(self, source: str) -> str:
        if self.unreadable:
            raise NoTree(self.unreadable)
        return letters_of(source)

    def context(self, *kernels: str, history: tuple[Attempt, ...] = (), parent: str | None = None) -> RoundContext:
        """`kernels`: those that were measured, the input first, by their letters; the last one is the parent unless
        `parent` is."""
        ran = tuple(
            (
                Candidate(letters or "input", source_of(letters), None),
                measured(self.us(letters), tuple(self.contested[each] for each in letters if each in self.contested)),
            )
            for letters in kernels
        )
        start, result = next(pair for pair in ran if parent is None or pair[0].id == parent) if parent else ran[-1]
        best, best_result = min(ran, key=lambda pair: pair[1].latency_us)
        made = RoundContext(len(kernels), TASK, start, result, best, best_result, ran[0][1].latency_us, NKI)
        return replace(made, history=history, measured=ran)
