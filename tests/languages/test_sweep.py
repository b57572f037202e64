"""The values of what a kernel declares tunable are swept by price, and the rest of the kernel is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from accelopt_core.candidate import Candidate, Plan
from accelopt_core.catalogue.sweep import SweepingExecutor, settings_of
from accelopt_core.evaluation import Bottleneck, Bounds, Measured, Profile
from accelopt_core.languages.nki.language import NKI
from accelopt_core.proposer import Feedback, RoundContext, UnusableReply
from infra.tasks.seed_index import load_seed
from ka_extensions.outcome import Outcome
from tests.attempts import attempted
from tests.e2e.kernels import SLOW
from tests.kernel_texts import predictor, random

TUNABLE = SLOW.replace("STEP = 256\n", 'STEP = 256\nTUNABLES = {"STEP": (128, 256, 1024, 2048)}\n')
PLAN = Plan("p", "stage rows", "stage", Bottleneck.MEMORY_BOUND, 1.0, "because")


def context_for(source: str) -> RoundContext:
    parent = Candidate("base", source)
    result = Measured(9.0, 9.0, 9.0, 1, True, "simulated trn2", Profile({}, Bounds(1.0, 1.0, 1.0, "declared")))
    return RoundContext(1, load_seed("matmul").task(), parent, result, parent, result, 9.0, NKI)


def with_step(step: int) -> str:
    return TUNABLE.replace("STEP = 256\n", f"STEP = {step}\n")


@dataclass
class Writing:
    """An executor that writes one kernel."""

    source: str

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        if not self.source:
            raise UnusableReply("prose")
        return self.source


@dataclass
class Prices:
    """By STEP; None for what does not compile."""

    us: dict[int, float | None]
    asked: list[str] = field(default_factory=list)

    def __call__(self, sources: Sequence[str], limit_s: float = 0.0) -> Mapping[str, float | None]:
        self.asked += sources
        steps = {source: next(step for step in self.us if f"STEP = {step}\n" in source) for source in sources}
        return {source: self.us[step] for source, step in steps.items()}


def swept(
    source: str,
    prices: Prices,
    context: RoundContext | None = None,
    feedback: tuple[Feedback, ...] = (),
    most: int = 24,
) -> tuple[str, list[str]]:
    told: list[str] = []
    executor = SweepingExecutor(Writing(source), prices, most, told.append)
    return executor.execute(context or context_for(SLOW), PLAN, feedback), told


def test_the_fastest_by_the_simulator_is_the_candidate() -> None:
    predict = predictor(random(512, 2048), random(128, 2048, seed=1))
    told: list[str] = []
    executor = SweepingExecutor(Writing(TUNABLE), predict, 24, told.append)
    assert executor.execute(context_for(SLOW), PLAN, ()) == with_step(2048)
    assert len(told) == 1 and told[0].startswith("stage rows: swept 4 settings; STEP = 2048 is predicted to take")


def test_what_a_round_could_not_tell_apart_stays_as_it_was_written() -> None:
    assert swept(TUNABLE, Prices({128: 99.5, 256: 100.0, 1024: 100.0, 2048: 120.0})) == (TUNABLE, [])
    source, told = swept(TUNABLE, Prices({128: 98.0, 256: 100.0, 1024: 98.5, 2048: 97.5}))
    assert source == with_step(2048) and "97.5 µs instead of 100.0 µs" in told[0]


def test_a_value_that_compiles_stands_for_one_that_does_not() -> None:
    source, told = swept(TUNABLE, Prices({128: 120.0, 256: None, 1024: None, 2048: None}))
    assert source == with_step(128) and "where it compiles" in told[0]
    assert swept(TUNABLE, Prices(dict.fromkeys((128, 256, 1024, 2048)))) == (TUNABLE, [])


def test_what_was_tried_is_not_tried_again() -> None:
    prices = Prices({128: 50.0, 256: 100.0, 1024: 60.0, 2048: 70.0})
    tried = attempted(
        1, "no_improvement", name="r001t1", source=with_step(128), parent="base", technique="t", title="x",
        latency_us=1.0,
    )  # fmt: skip
    context = replace(context_for(SLOW), history=(tried,))
    assert swept(TUNABLE, prices, context)[0] == with_step(1024)
    unsent = replace(context, history=(replace(tried, outcome=Outcome.OUTRANKED, evaluation=None),))
    assert swept(TUNABLE, prices, unsent)[0] == with_step(128)
    assert swept(TUNABLE, prices, context, (Feedback(with_step(1024), "wrong"),))[0] == with_step(2048)
    of_parent = replace(context, parent=Candidate("base", with_step(1024)))
    assert swept(TUNABLE, prices, of_parent)[0] == with_step(2048)


@pytest.mark.parametrize("source", [SLOW, "no python (", TUNABLE.replace('{"STEP"', '{"ELSE"')])
def test_what_declares_nothing_that_can_be_changed_is_not_priced(source: str) -> None:
    prices = Prices({256: 100.0})
    assert swept(source, prices) == (source, []) and not prices.asked


def test_a_large_space_is_cut_and_few_changes_come_first() -> None:
    names = "ABCDEFGHIJKL"
    lines = "".join(f"{name} = 1\n" for name in names)
    choices = ", ".join(f'"{name}": (1, 2, 3, 4, 5)' for name in names)
    source = f"{SLOW}\n{lines}TUNABLES = {{{choices}}}\n"
    found = settings_of(source, 60)
    assert len(found) == 60 and [len(each.values) for each in found] == [0] + [1] * 48 + [2] * 11
    assert found[0].source == source and found[1].describe() == "A = 2" and "\nA = 2\n" in found[1].source
    assert len({each.source for each in found}) == 60
    assert len(settings_of(TUNABLE, 24)) == 4 and len(settings_of(TUNABLE, 1)) == 1
