"""Who proposes next: by what was gained for what it cost."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from ka_extensions.bandit import Arm, CostAware, Draw, Pull, Spent, Track, track_of, tracks_of

RULE = CostAware(usd_per_hour=3.0)
DEAR, CHEAP = Arm("dear", Spent(1.0, 120)), Arm("cheap", Spent(0.05, 120))
CATALOGUE = Arm("catalogue", Spent(0.0, 60))


def pull(proposer: str, speedup: float = 1.0, round: int = 1, usd: float = 0.1, seconds: float = 60) -> Pull:
    return Pull(proposer, round, "memory-bound", math.log(speedup), Spent(usd, seconds))


def chosen(arms: list[Arm], pulls: list[Pull], before: dict[str, Track] | None = None, times: int = 400) -> Counter:
    """How often each comes first, of so many rounds that know the same."""
    return Counter(RULE.draws(arms, pulls, before or {}, 2, f"run/{n}")[0].proposer for n in range(times))


def test_the_same_seed_draws_the_same_whoever_is_listed_first() -> None:
    pulls = [pull("dear", 1.2), pull("cheap")]
    first = RULE.draws([DEAR, CHEAP, CATALOGUE], pulls, {}, 3, "run/003/0")
    assert first == RULE.draws([CATALOGUE, CHEAP, DEAR], pulls, {}, 3, "run/003/0")
    others = {RULE.draws([DEAR, CHEAP, CATALOGUE], pulls, {}, 3, f"run/{n:03d}/0") for n in range(20)}
    assert len(others) == 20
    assert [draw.worth for draw in first] == sorted((draw.worth for draw in first), reverse=True)


def test_of_two_of_whom_nothing_is_known_the_cheaper_is_tried_more_often() -> None:
    found = chosen([DEAR, CHEAP], [])
    assert found["cheap"] > 300 and found["dear"] > 0


@pytest.mark.parametrize(
    ("dear", "cheap", "more"),
    [(1.5, 1.0, "dear"), (1.5, 1.4, "cheap"), (1.02, 1.02, "cheap")],
    ids=["only the dear one wins", "both win alike", "neither gains much"],
)
def test_a_dear_one_is_worth_it_where_the_cheap_one_wins_nothing(dear: float, cheap: float, more: str) -> None:
    pulls = [*(pull("dear", dear, usd=0.3) for _ in range(8)), *(pull("cheap", cheap, usd=0.1) for _ in range(8))]
    found = chosen([replace(DEAR, typical=Spent(0.3, 60)), CHEAP], pulls)
    assert found[more] > 280, found


def test_what_asks_no_model_costs_its_time() -> None:
    (draw,) = RULE.draws([CATALOGUE], [pull("catalogue", usd=0.0, seconds=60)], {}, 2, "s")
    assert draw.cost_usd == pytest.approx(60 / 3600 * 3.0) and math.isfinite(draw.worth)
    (nothing,) = RULE.draws([Arm("free", Spent())], [], {}, 1, "s")
    assert math.isfinite(nothing.worth)


@pytest.mark.parametrize(("predicted", "more"), [(math.log(1.3), "catalogue"), (0.0, "cheap")])
def test_what_the_menu_promises_now_counts_and_not_what_it_brought_before(predicted: float, more: str) -> None:
    pulls = [*(pull("catalogue", 2.0, usd=0) for _ in range(6)), *(pull("cheap", 1.2) for _ in range(3))]
    assert chosen([replace(CATALOGUE, predicted=predicted), CHEAP], pulls, times=100)[more] == 100


def test_a_promise_that_is_not_kept_loses_its_chance() -> None:
    kept, broken = ([pull("catalogue", speedup, usd=0) for _ in range(8)] for speedup in (1.1, 1.0))
    promising = replace(CATALOGUE, predicted=math.log(1.1))
    chance = [sum(RULE.draws([promising], pulls, {}, 2, str(n))[0].chance for n in range(100)) / 100
              for pulls in (kept, broken)]  # fmt: skip
    assert chance[0] > 0.8 and chance[1] < 0.2


def test_a_new_model_is_thought_of_as_the_others_were() -> None:
    def gain(speedup: float) -> Draw:
        pulls = [pull("cheap", speedup) for _ in range(9)]
        return next(draw for draw in RULE.draws([DEAR, CHEAP], pulls, {}, 2, "s") if draw.proposer == "dear")

    assert gain(1.5).gain > 3 * gain(1.05).gain


def test_where_tries_take_less_than_is_typical_so_they_will_of_whom_was_not_tried() -> None:
    def cost(pulls: list[Pull]) -> float:
        return {draw.proposer: draw.cost_usd for draw in RULE.draws([DEAR, CHEAP], pulls, {}, 2, "s")}["dear"]

    assert cost([]) == pytest.approx(RULE.cost_usd(DEAR.typical))
    as_typical = [pull("cheap", usd=CHEAP.typical.usd, seconds=CHEAP.typical.seconds) for _ in range(9)]
    assert cost(as_typical) == pytest.approx(cost([]))
    short = [pull("cheap", usd=0.001, seconds=1) for _ in range(200)]
    assert cost(short) < 0.3 * cost([])


def test_earlier_runs_weigh_as_much_as_four_tries() -> None:
    before = {"dear": Track(1000, 1000, 400.0, 300.0, 60_000), "cheap": Track(1000, 0, 0.0, 100.0, 60_000)}
    arms = [replace(DEAR, typical=Spent(0.3, 60)), CHEAP]
    assert chosen(arms, [], before)["dear"] > 280
    now = [*(pull("dear", usd=0.3, round=2) for _ in range(12)), *(pull("cheap", 1.5, round=2) for _ in range(12))]
    assert chosen(arms, now, before)["cheap"] > 360


def test_what_was_gained_long_ago_fades() -> None:
    wins = [pull("cheap", 1.5, round=1) for _ in range(4)]
    fresh, old = (track_of(wins, 0.9, round) for round in (2, 12))
    assert fresh == track_of(wins) and old.pulls == pytest.approx(4 * 0.9**10)
    assert old.log_speedup / old.wins == pytest.approx(math.log(1.5))


def test_tries_add_up_by_bottleneck_and_proposer() -> None:
    pulls = [pull("a", 1.5), pull("a"), replace(pull("a", 2.0), bottleneck="compute-bound"), pull("b", usd=0.0)]
    found = tracks_of(pulls)
    assert list(found) == [("memory-bound", "a"), ("compute-bound", "a"), ("memory-bound", "b")]
    assert found["memory-bound", "a"] == Track(2, 1, math.log(1.5), 0.2, 120)
    assert track_of(pulls).speedup == pytest.approx(3.0)


@dataclass(frozen=True)
class Truth:
    """What a proposer is really like: its chance, what a win brings (ln), what a try takes."""

    chance: float
    gain: float
    spent: Spent


def gained(truths: dict[str, Truth], budget_usd: float, seed: int, in_turn: bool = False) -> float:
    """The logarithm of the speed-up of a run of at most 40 rounds, in which gains dry up."""
    dice = random.Random(seed)
    arms = [Arm(name, Spent(1.5 * truth.spent.usd, 180)) for name, truth in truths.items()]
    pulls: list[Pull] = []
    for number in range(1, 41):
        best = RULE.draws(arms, pulls, {}, number, f"{seed}/{number}")[0].proposer
        truth = truths[name := list(truths)[number % len(truths)] if in_turn else best]
        if sum(each.spent.usd for each in pulls) + truth.spent.usd > budget_usd:
            break
        left = 0.93 ** sum(each.log_speedup > 0 for each in pulls)
        won = truth.gain * left * dice.uniform(0.5, 1.5) if dice.random() < truth.chance else 0.0
        pulls.append(Pull(name, number, "memory-bound", won, truth.spent))
    return sum(each.log_speedup for each in pulls)


@pytest.mark.parametrize(
    ("truths", "times"),
    [
        ({"cheap": Truth(0.3, 0.15, Spent(0.05, 120)), "dear": Truth(0.3, 0.15, Spent(0.8, 240))}, 2.0),
        ({"cheap": Truth(0.2, 0.1, Spent(0.05, 120)), "dear": Truth(0.4, 0.15, Spent(0.8, 240))}, 1.3),
        ({"poor": Truth(0.05, 0.1, Spent(0.3, 120)), "good": Truth(0.4, 0.15, Spent(0.3, 120))}, 1.15),
    ],
    ids=["as good and cheaper", "less good and cheaper", "one is good"],
)
def test_for_the_same_dollars_it_gains_more_than_asking_in_turn(truths: dict[str, Truth], times: float) -> None:
    chosen, in_turn = (sum(gained(truths, 5.0, seed, how) for seed in range(60)) for how in (False, True))
    assert chosen > times * in_turn, (chosen / 60, in_turn / 60)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="nobody"):
        RULE.draws([], [], {}, 1, "s")
    with pytest.raises(ValueError, match="costs something"):
        CostAware(0.0)
    with pytest.raises(ValueError, match="less than nothing"):
        Spent(-1.0)
