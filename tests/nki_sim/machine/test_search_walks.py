"""Ways to search a graph of kernels: on made graphs, where what each does next is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from accelopt_core.evaluation import Bottleneck
from benchmarks import search_curves, search_walks
from benchmarks.search_kernels import Asked, Change, Point, Search, Spent, Timed

LOOKING_S, PRICING_S, JUDGING_S = 0.5, 0.25, 4.0


class Made:
    """Kernels by name; each takes what it is predicted to take, unless it is wrong."""

    start = "start"

    def __init__(self, us: Mapping[str, float | None], ways: Sequence[str], wrong: Sequence[str] = ()) -> None:
        """`ways`: `parent technique child`, one change each."""
        self.prices = {"start": 100.0, **us}
        self.ways = [way.split() for way in ways]
        self._wrong = wrong
        self.evaluated: list[str] = []

    def steps(self, kernel: str) -> Asked[tuple[Change, ...]]:
        found = tuple(Change(how, f"{how} at {child}", child) for parent, how, child in self.ways if parent == kernel)
        return Asked(found, LOOKING_S)

    def price_us(self, kernel: str) -> Asked[float | None]:
        return Asked(self.prices[kernel], PRICING_S)

    def timed(self, kernel: str) -> Asked[Timed | None]:
        self.evaluated.append(kernel)
        us = self.prices[kernel]
        right = us is not None and kernel not in self._wrong
        return Asked(Timed(us, Bottleneck.MEMORY_BOUND) if right and us is not None else None, JUDGING_S)


def tried(graph: Made, walk: search_walks.Walk, most: int = 9, seed: int = 0) -> list[str]:
    """What is evaluated, in order, without the input kernel."""
    graph.evaluated.clear()
    search_walks.replayed(graph, walk, [seed], most)
    assert graph.evaluated[0] == "start"
    return graph.evaluated[1:]


VALLEY = Made(
    {"dead": 90.0, "end": 89.9, "near": 95.0, "far": 50.0},
    ["start block dead", "start split near", "dead split end", "near block far"],
)
"""What promises most leads nowhere; the other change leads to the best."""


def test_what_is_asked_first_is_paid_and_what_was_asked_before_is_not() -> None:
    run = Search(VALLEY, most=2, looked_at=2)
    assert [step.child for step in run.steps("start")] == ["dead", "near"]
    assert run.price_us("near") == run.price_us("near") == 95.0 and run.steps("start") == run.untried("start")
    timed = run.time("near")
    assert timed is not None and timed.us == 95.0 and run.time("near") is timed
    assert run.points == [Point(0.0, 100.0), Point(LOOKING_S + PRICING_S + JUDGING_S, 95.0)]
    run.time("end"), run.steps("near")
    assert run.best == "end" and run.evaluations == 2
    with pytest.raises(Spent):
        run.time("far")
    with pytest.raises(Spent):
        run.steps("end")


def test_a_wrong_kernel_costs_as_much_is_no_best_and_leads_nowhere() -> None:
    graph = Made({"wrong": 10.0, "beyond": 5.0, "right": 90.0},
                 ["start a wrong", "wrong a beyond", "start b right"], wrong=["wrong", "beyond"])  # fmt: skip
    for walk in search_walks.WALKS.values():
        (run,) = search_walks.replayed(graph, walk, [0], 9)
        assert run.best == "right" and run.points[-1].us == 90.0 and "beyond" not in dict(run.measured)
        assert run.points[-1].seconds >= JUDGING_S * run.evaluations
    assert tried(graph, search_walks.greedy_by_price) == ["wrong", "right"]


def test_each_takes_its_own_way_through_a_valley() -> None:
    assert tried(VALLEY, search_walks.greedy_by_price) == ["dead", "end", "near", "far"]
    assert tried(VALLEY, search_walks.archive_by_price) == ["dead", "end", "near", "far"]


@pytest.mark.parametrize("name", search_walks.WALKS)
def test_a_run_depends_on_its_seed_alone_and_only_where_there_is_chance(name: str) -> None:
    wide = Made({f"k{n}": 99.0 - n for n in range(12)}, [f"start t{n % 5} k{n}" for n in range(12)])
    walk = search_walks.WALKS[name]
    assert tried(wide, walk, 5) == tried(wide, walk, 5) and 1 <= len(tried(wide, walk, 5)) <= 5
    differs = len({tuple(tried(wide, walk, 5, seed)) for seed in range(4)}) > 1
    assert differs == (walk in search_walks.BY_CHANCE)
    assert len(search_walks.replayed(wide, walk, range(4), 5)) == (4 if differs else 1)


CURVES = {
    "one": {"random": [[Point(0, 100.0), Point(4, 50.0)], [Point(0, 100.0)]],
            "archive": [[Point(0, 100.0), Point(5, 80.0), Point(9, 50.0)]]},
    "two": {"random": [[Point(0, 100.0), Point(2, 50.0)], [Point(0, 100.0), Point(8, 16.0)]],
            "archive": [[Point(0, 100.0), Point(1, 20.0)]]},
}  # fmt: skip


def test_means_are_geometric_over_tasks_and_ranges_over_seeds() -> None:
    after, within = search_curves.after, search_curves.within
    assert search_curves.speed_up(CURVES, "random", after, 0) == search_curves.Spread(1.0, 1.0, 1.0)
    spread = search_curves.speed_up(CURVES, "random", after, 7)
    assert [spread.low, spread.mean, spread.high] == pytest.approx([2.0, 2.25, 2.5])
    assert search_curves.speed_up(CURVES, "archive", after, 1).mean == pytest.approx((1.25 * 5) ** 0.5)
    assert search_curves.speed_up(CURVES, "random", within, 3).high == pytest.approx(2**0.5)
    assert search_curves.best_us(CURVES["two"]) == 16.0
