"""Ways to search a graph of kernels: on made graphs, where what each does next is known; and the catalogue's graph of a
real kernel, kept and asked again."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from accelopt_core.evaluation import Bottleneck
from accelopt_core.task import PrecisionPolicy, ShapePreset
from benchmarks import search, search_curves, search_suite, search_walks
from benchmarks.search_catalogue import CatalogueGraph, OfAnotherVersion
from benchmarks.search_kernels import Asked, Change, Point, Search, Spent, Timed
from infra.tasks.seed_index import Seed
from tests.e2e import kernels

LOOKING_S, PRICING_S, JUDGING_S = 0.5, 0.25, 4.0


@pytest.fixture(autouse=True)
def small_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the made graphs take for a tie, whatever the rows of trn2 say today."""
    monkeypatch.setattr(search_walks, "WORTH", 0.016)


class Made:
    """Kernels by name; each takes what it is predicted to take, unless it is wrong."""

    start = "start"
    foreseeable = True

    def __init__(
        self,
        us: Mapping[str, float | None],
        ways: Sequence[str],
        settings: Mapping[str, tuple[str, ...]] | None = None,
        wrong: Sequence[str] = (),
    ) -> None:
        """`ways`: `parent technique child`, one change each."""
        self.prices = {"start": 100.0, **us}
        self.ways = [way.split() for way in ways]
        self._tunable = settings or {}
        self._wrong = wrong
        self.evaluated: list[str] = []

    def steps(self, kernel: str) -> Asked[tuple[Change, ...]]:
        found = tuple(Change(how, f"{how} at {child}", child) for parent, how, child in self.ways if parent == kernel)
        return Asked(found, LOOKING_S)

    def settings(self, kernel: str) -> Asked[tuple[str, ...]]:
        return Asked(self._tunable.get(kernel, ()), LOOKING_S)

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
    search_suite.replayed(graph, walk, [seed], most)
    assert graph.evaluated[0] == "start"
    return graph.evaluated[1:]


VALLEY = Made(
    {"dead": 90.0, "end": 89.9, "near": 95.0, "far": 50.0},
    ["start block-tiles dead", "start split-rows near", "dead split-rows end", "near block-tiles far"],
)
"""What promises most leads nowhere; the other change leads to the best, which two changes together show."""


def test_what_is_asked_first_is_paid_and_what_was_asked_before_is_not() -> None:
    run = Search(VALLEY, most=2, looked_at=2)
    assert [step.child for step in run.steps("start")] == ["dead", "near"]
    assert run.price_us("near") == run.price_us("near") == 95.0 and run.steps("start") == run.untried("start")
    timed = run.time("near")
    assert timed is not None and timed.us == 95.0 and run.time("near") is timed
    assert run.points == [Point(0.0, 100.0), Point(LOOKING_S + PRICING_S + JUDGING_S, 95.0)]
    run.time("end"), run.steps("near")
    assert run.best == "end" and run.evaluations == 2 and run.priced == 1
    with pytest.raises(Spent):
        run.time("far")
    with pytest.raises(Spent):
        run.steps("end")


def test_a_wrong_kernel_costs_as_much_is_no_best_and_leads_nowhere() -> None:
    graph = Made({"wrong": 10.0, "beyond": 5.0, "right": 90.0},
                 ["start a wrong", "wrong a beyond", "start b right"], wrong=["wrong", "beyond"])  # fmt: skip
    for walk in search_walks.WALKS.values():
        (run,) = search_suite.replayed(graph, walk, [0], 9)
        assert run.best == "right" and run.points[-1].us == 90.0 and "beyond" not in dict(run.measured)
        assert run.points[-1].seconds >= JUDGING_S * run.evaluations
    assert tried(graph, search_walks.greedy_by_price) == ["wrong", "right"]


def test_each_takes_its_own_way_through_a_valley() -> None:
    assert tried(VALLEY, search_walks.greedy_by_price) == ["dead", "end", "near", "far"]
    assert tried(VALLEY, search_walks.single_lineage) == ["dead", "far"]
    assert tried(VALLEY, search_walks.archive_and_planner)[:3] == ["dead", "near", "far"]
    assert tried(VALLEY, search_walks.archive_and_sweep) == ["dead", "end", "near", "far"]


def test_who_cannot_foresee_changes_pays_for_every_kernel_on_the_way() -> None:
    blind = Made(VALLEY.prices, [" ".join(way) for way in VALLEY.ways])
    blind.foreseeable = False
    assert tried(blind, search_walks.single_lineage) == ["dead"]
    assert tried(blind, search_walks.archive_and_planner)[:3] == ["dead", "near", "far"]


def test_what_has_no_price_is_evaluated_by_those_alone_that_do_not_look_at_prices() -> None:
    graph = Made({"broken": None, "right": 90.0}, ["start a broken", "start b right"])
    blind = {name for name, walk in search_walks.WALKS.items() if "broken" in tried(graph, walk)}
    assert blind == {"random", "AccelOpt's beam (6 x 12 x 2)"}


def test_what_leaves_less_work_comes_before_what_gains_more() -> None:
    graph = Made({"less": 95.0, "most": 70.0}, ["start block-tiles most", "start drop-copy less"])
    assert tried(graph, search_walks.single_lineage)[0] == "less"
    assert tried(graph, search_walks.greedy_by_price)[0] == tried(graph, search_walks.archive_and_sweep)[0] == "most"
    assert tried(graph, search_walks.less_work_and_sweep) == ["less", "most"]


def test_what_leaves_less_work_and_gains_no_more_than_a_tie_has_no_precedence() -> None:
    graph = Made({"less": 99.5, "most": 70.0}, ["start block-tiles most", "start drop-copy less"])
    assert tried(graph, search_walks.less_work_and_sweep) == ["most", "less"]


def test_small_gains_are_added_up_until_they_are_worth_an_evaluation() -> None:
    graph = Made({"a": 99.2, "ab": 98.5, "abc": 97.0}, ["start p a", "a q ab", "ab r abc"])
    assert tried(graph, search_walks.single_lineage) == ["abc"]


def test_a_way_whose_first_steps_gain_nothing_is_found_by_going_it_in_another_order() -> None:
    ways = ["start drop-copy b", "b drop-memset c", "c fuse-row-sum d", "d block-tiles e"]
    graph = Made({"b": 100.0, "c": 100.0, "d": 100.0, "e": 60.0}, ways)
    assert tried(graph, search_walks.single_lineage) == ["e"]
    regrouping = Made(
        {"b": 100.0, "c": 100.0, "d": 100.0, "e": 60.0}, [way.replace("drop-copy", "split-rows") for way in ways]
    )
    assert tried(regrouping, search_walks.single_lineage) == []
    assert tried(regrouping, search_walks.archive_and_planner) == ["b", "c", "e"]
    assert tried(regrouping, search_walks.archive_and_sweep) == ["b", "c", "d", "e"]


@pytest.mark.parametrize("walk", [search_walks.archive_and_sweep, search_walks.archive_and_planner])
def test_the_values_of_tunables_are_swept_and_ties_leave_them_as_they_are(walk: search_walks.Walk) -> None:
    settings = {"wide": ("wide/2", "wide/4")}
    graph = Made({"wide": 80.0, "wide/2": 70.0, "wide/4": 69.9}, ["start block-tiles wide"], settings)
    assert tried(graph, walk)[0] == "wide/2" and tried(graph, search_walks.single_lineage) == ["wide"]
    same = Made({"wide": 80.0, "wide/2": 79.9, "wide/4": 79.8}, ["start block-tiles wide"], settings)
    assert tried(same, walk)[0] == "wide"


def test_several_changes_are_swept_before_one_is_chosen() -> None:
    ways, settings = ["start split-rows first", "start block-tiles second"], {"second": ("second/2",)}
    graph = Made({"first": 80.0, "second": 90.0, "second/2": 60.0}, ways, settings)
    assert tried(graph, search_walks.archive_and_sweep)[0] == "second/2"
    assert tried(graph, search_walks.archive_and_planner)[0] == "first"


def test_the_beam_goes_on_from_the_last_iteration_were_it_slower() -> None:
    graph = Made({"fast": 50.0, "slow": 80.0, "slower": 90.0}, ["start a fast", "fast a slow", "slow a slower"])
    (run,) = search_suite.replayed(graph, search_walks.accelopts_beam, [0], 9)
    assert [kernel for kernel, _ in run.measured] == ["start", "fast", "slow", "slower"] and run.best == "fast"


@pytest.mark.parametrize("name", search_walks.WALKS)
def test_a_run_depends_on_its_seed_alone_and_only_where_there_is_chance(name: str) -> None:
    wide = Made({f"k{n}": 99.0 - n for n in range(12)}, [f"start t{n % 5} k{n}" for n in range(12)])
    walk = search_walks.WALKS[name]
    assert tried(wide, walk, 5) == tried(wide, walk, 5) and 1 <= len(tried(wide, walk, 5)) <= 5
    differs = len({tuple(tried(wide, walk, 5, seed)) for seed in range(4)}) > 1
    assert differs == (walk in search_walks.BY_CHANCE)
    assert len(search_suite.replayed(wide, walk, range(4), 5)) == (4 if differs else 1)


def test_a_run_that_may_look_at_no_more_kernels_ends() -> None:
    chain = Made({f"k{n}": 90.0 - 5 * n for n in range(9)}, ["start a k0", *(f"k{n} a k{n + 1}" for n in range(8))])
    (run,) = search_suite.replayed(chain, search_walks.greedy_by_price, [0], 9, looked_at=3)
    assert run.evaluations == 3 and run.best == "k2"


CURVES = {
    "one": {"random": [[Point(0, 100.0), Point(4, 50.0)], [Point(0, 100.0)]],
            search.HELD: [[Point(0, 100.0), Point(5, 80.0), Point(9, 50.0)]]},
    "two": {"random": [[Point(0, 100.0), Point(2, 50.0)], [Point(0, 100.0), Point(8, 16.0)]],
            search.HELD: [[Point(0, 100.0), Point(1, 20.0)]]},
}  # fmt: skip


def test_means_are_geometric_over_tasks_and_ranges_over_seeds() -> None:
    after, within = search_curves.after, search_curves.within
    assert search_curves.speed_up(CURVES, "random", after, 0) == search_curves.Spread(1.0, 1.0, 1.0)
    spread = search_curves.speed_up(CURVES, "random", after, 7)
    assert [spread.low, spread.mean, spread.high] == pytest.approx([2.0, 2.25, 2.5])
    assert search_curves.speed_up(CURVES, search.HELD, after, 1).mean == pytest.approx((1.25 * 5) ** 0.5)
    assert search_curves.speed_up(CURVES, "random", within, 3).high == pytest.approx(2**0.5)
    assert search_curves.best_us(CURVES["two"]) == 16.0


def test_whoever_is_ahead_is_named_and_ties_are_not() -> None:
    assert search_curves.ahead(CURVES, search.HELD, 2, 1e-3) == {}
    assert search_curves.ahead(CURVES, "random", 1, 1e-3) == {search.HELD: pytest.approx(2.5 / 2.25 - 1)}
    assert search_curves.ahead(CURVES, "random", 1, 0.5) == {}


def test_the_page_has_a_column_for_each_count_and_the_picture_is_an_svg() -> None:
    lines = search_suite.report(CURVES, {"one": "M1", "two": "M2"}, 3, {"random": 0, search.HELD: 8})
    assert "| random | 2.250 (2.000 to 2.500) | 2.250 (2.000 to 2.500) | 2.250 (2.000 to 2.500) |" in lines
    assert "| two | M2 | 6.25x | 106.2 | 25.0 |" in lines
    (left_out,) = (line for line in lines if line.startswith("Not replayed: "))
    assert "gqa_full, " in left_out and "two" not in left_out
    picture = ElementTree.fromstring(search_curves.svg(CURVES, 3, 200.0))
    lines_drawn = [each for each in picture.iter() if each.tag.endswith("polyline")]
    assert len(lines_drawn) == 4 and "random" in "".join(picture.itertext())


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    (tmp_path / "kernel.py").write_text(f'{kernels.SLOW}\nTUNABLES = {{"STEP": (256, 512)}}\n')
    (tmp_path / "reference.py").write_text(kernels.REFERENCE)
    shapes = [ShapePreset(name, (("P", 128), ("N", 512), ("T", t))) for name, t in (("small", 1), ("full", 2))]
    return Seed("sum", "", tmp_path / "kernel.py", tmp_path / "reference.py", tuple(shapes), 2e-5,
                PrecisionPolicy.FLOAT32_FAITHFUL)  # fmt: skip


def test_the_catalogues_graph_says_the_same_when_it_is_opened_again(seed: Seed, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    graph = CatalogueGraph(seed, folder)
    assert graph.shape.name == "full" and graph.judging_s > 0
    offered = graph.steps(graph.start)
    retiled = next(step for step in offered.answer if step.technique == "retile")
    assert graph.settings(graph.start).answer == tuple(s.child for s in offered.answer if s.technique == "retile")
    first, timed = graph.timed(graph.start), graph.timed(retiled.child)
    assert first.answer is not None and timed.answer is not None and timed.answer.us < first.answer.us
    assert timed.answer.us == graph.price_us(retiled.child).answer and timed.seconds > graph.judging_s
    graph.close()
    written = (folder / "sum.jsonl").read_bytes()
    again = CatalogueGraph(seed, folder)
    assert again.steps(again.start) == offered and again.timed(retiled.child) == timed
    (run,) = search_suite.replayed(again, search_walks.greedy_by_price, [0], 1)
    assert run.best != again.start and again.looked_at >= 1
    again.close()
    assert (folder / "sum.jsonl").read_bytes().startswith(written)


def test_a_wrong_change_is_found_by_the_judge(seed: Seed, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    CatalogueGraph(seed, folder).close()
    wrong = seed.kernel_source.replace("op=nl.add", "op=nl.subtract")
    with open(folder / "sum.jsonl", "a", encoding="utf-8") as file:
        start = CatalogueGraph(seed, tmp_path / "other").start
        file.write(json.dumps({"kernel": start, "steps": [["made", "up", "wrong", wrong]], "seconds": 1.0}) + "\n")
    graph = CatalogueGraph(seed, folder)
    assert graph.price_us("wrong").answer is not None and graph.timed("wrong").answer is None
    assert "wrong" in graph.wrong() and graph.timed("wrong").seconds > graph.judging_s
    graph.close()


def test_a_graph_of_another_version_is_refused(seed: Seed, tmp_path: Path) -> None:
    head = {"made": "by another", "shape": "full", "judging_s": 1.0}
    (tmp_path / "sum.jsonl").write_text(json.dumps({"head": head}) + "\n")
    with pytest.raises(OfAnotherVersion, match="another --folder"):
        CatalogueGraph(seed, tmp_path)
