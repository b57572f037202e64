"""Best-first search over kernels: two steps where one does not pay, other kernels than the best, within its limits."""

from __future__ import annotations

import datetime
import itertools
import math
import re
import time
import types
from dataclasses import replace

import libcst as cst
import pytest

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.catalogue import descent, nodes
from accelopt_core.catalogue import proposer as planner
from accelopt_core.catalogue.nodes import LookAhead
from accelopt_core.catalogue.proposer import catalogue_proposer
from accelopt_core.evaluation import Bounds, Measured, Profile
from accelopt_core.languages.nki.gaps import Cause
from accelopt_core.languages.nki.language import NKI
from accelopt_core.optimization_memory import Experience
from accelopt_core.proposer import NothingToPlan, RoundContext
from accelopt_core.transforms.base import IllegalSite, KernelModule, Site, SiteGone
from accelopt_core.transforms.normalize import NORMALIZE
from infra.tasks.seed_index import load_seed
from ka_extensions.outcome import Outcome
from tests.attempts import attempted
from tests.transforms.running import priced_by

TASK = load_seed("matmul").task()
START = "PATH = ''\n\n\ndef kernel(x):\n    return x\n"


class Walk:
    """A graph made for the test: each node is a word, and a step adds a letter that `edges` allows there."""

    addresses: frozenset[Cause] = frozenset()

    def __init__(self, edges: dict[str, str], name: str = "walk") -> None:
        self.edges = edges
        self.name = name

    def describe(self) -> str:
        return "Go one letter further."

    def analyze(self, module: KernelModule, context) -> tuple[Site, ...]:
        return tuple(
            Site(self.name, letter, f"go {letter}", 1, f"{letter} is open", f"{letter} is shorter")
            for letter in self.edges.get(word(module.tree.code), "")
        )

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        here = word(module.tree.code)
        if key not in self.edges.get(here, ""):
            raise SiteGone(f"{key} is not open at {here}")
        if key == "!":
            raise IllegalSite("never")
        return cst.parse_module(node(here + key))


def word(source: str) -> str:
    found = re.search(r"PATH = '(.*)'", source)
    assert found is not None
    return found.group(1)


def node(path: str) -> str:
    """Of as many lines more as the path has capital letters."""
    return START.replace("''", f"'{path}'") + "".join(f"{letter} = 1\n" for letter in path if letter.isupper())


def measured(latency_us: float) -> Measured:
    return Measured(
        latency_us, latency_us, latency_us, 1, True, "simulated", Profile({}, Bounds(1.0, 1.0, 1.0, "declared"))
    )


class Game:
    """A planner on such a graph, with prices by word; what it asks for is written down."""

    def __init__(
        self,
        edges: dict[str, str],
        prices: dict[str, float | None],
        tie: float = 0.01,
        tidy: dict[str, str] | None = None,
        contested: dict[str, tuple[str, ...]] | None = None,
        **limits,
    ) -> None:
        """`tidy`: edges of a second transform. `contested`: facts that kernels rest on."""
        self.contested = contested or {}
        self.asked: list[str] = []
        self.prices = prices

        def price(source: str) -> float | None:
            self.asked.append(word(source))
            return prices[word(source)]

        walks = (Walk(edges), Walk(tidy or {}, "tidy"))
        self.walks = walks
        limits = {"longest_way": 0, **limits}
        self.proposer = catalogue_proposer(
            priced_by(price), datetime.date.today, walks, LookAhead(**limits), tie,
            rests_on=lambda source: self.contested.get(word(source), ()),
        )  # fmt: skip

    def context(self, *words: str, history: tuple[Attempt, ...] = ()) -> RoundContext:
        """Measured kernels in the order of the run; the fastest that is not contested is the best and the parent."""
        ran = tuple(
            (
                Candidate(text or "input", node(text), (text[:-1] or "input") if text else None),
                replace(measured(self.prices[text]), contested=self.contested.get(text, ())),
            )
            for text in words
        )
        plain = [pair for pair in ran if not pair[1].contested_beside(ran[0][1])]
        best, result = min(plain, key=lambda pair: pair[1].latency_us)
        return RoundContext(
            len(words), TASK, best, result, best, result, ran[0][1].latency_us, NKI, history=history, measured=ran
        )

    def plan(self, *words: str, history: tuple[Attempt, ...] = ()):
        return self.proposer.planner.plan(self.context(*words, history=history))


@pytest.fixture(autouse=True)
def walk_in_the_registry(monkeypatch):
    """Steps are carried out by the registered transform of that name."""
    from accelopt_core.catalogue import rewrites as steps

    real = steps.transform_named
    known: dict[str, Walk] = {}
    monkeypatch.setattr(steps, "transform_named", lambda name: known[name] if name in known else real(name))
    return known


def test_given_a_step_that_gains_then_nothing_further_is_looked_at():
    game = Game({"": "ab", "a": "c"}, {"": 100.0, "a": 90.0, "b": 95.0, "ac": 10.0})

    plan = game.plan("")

    assert (plan.title, plan.expected_gain_us, plan.parent_id) == ("go a", 10.0, None)
    assert "ac" not in game.asked


def test_where_there_was_nothing_to_gain_is_looked_at_again_when_nothing_else_is_left():
    edges = {"": "abc", "a": "bcd", "ad": "bc"}
    prices = {"": 100.0, "a": 80.0, "b": 100.0, "c": 95.0, "ac": 78.0, "ad": 60.0, "adc": 60.0, "adb": 40.0}
    game = Game(edges, prices)

    assert game.plan("").title == "go a"
    assert game.plan("", "a").title == "go d" and "ab" not in game.asked
    plan = game.plan("", "a", "ad")
    assert plan.title == "go b" and "Of 2 untried sites" in plan.rationale
    assert {"adb", "adc"} <= set(game.asked)


def test_given_no_step_that_gains_then_two_that_do_together_are_one_plan():
    game = Game({"": "ab", "b": "c"}, {"": 100.0, "a": 100.0, "b": 104.0, "bc": 80.0})

    plan = game.plan("")

    assert (plan.title, plan.technique, plan.expected_gain_us) == ("go b, then go c", "walk", 20.0)
    assert "100.0 µs become 104.0 µs (by itself this does not pay; it opens the next step)" in plan.rationale
    assert "104.0 µs become 80.0 µs." in plan.rationale
    assert "None of 2 untried sites gains by itself" in plan.rationale


def test_what_rests_on_a_contested_fact_is_planned_when_nothing_else_gains():
    edges, prices = {"": "ab", "b": "a", "ba": "c"}, {"": 100.0, "a": 50.0, "b": 90.0, "ba": 40.0, "bac": 30.0}
    facts = {word: ("a fact",) for word in ("a", "ba", "bac")}
    game = Game(edges, prices, contested=facts)

    assert game.plan("").title == "go b"
    first = game.plan("", "b")
    assert (first.title, first.expected_gain_us, first.parent_id) == ("go a", 50.0, None)
    second = game.plan("", "b", "ba")
    assert (second.title, second.parent_id) == ("go c", "ba"), "from the fastest of all"
    with pytest.raises(NothingToPlan, match="no idea left"):
        game.plan("", "b", "ba", "bac")


def test_a_fact_that_the_input_kernel_rests_on_is_no_reason_to_wait():
    facts = {word: ("a fact",) for word in ("", "a", "b")}
    game = Game({"": "ab"}, {"": 100.0, "a": 50.0, "b": 90.0}, contested=facts)

    assert game.plan("").title == "go a"


def test_the_executor_carries_out_both_steps(walk_in_the_registry):
    edges = {"": "b", "b": "c"}
    walk_in_the_registry["walk"] = Walk(edges)
    game = Game(edges, {"": 100.0, "b": 104.0, "bc": 80.0})

    made = game.proposer.executor.execute(game.context(""), game.plan(""), ())

    assert word(made) == "bc"


def test_what_a_step_opens_comes_before_what_was_open_without_it():
    prices = {"": 100.0, "a": 100.0, "b": 101.0, "ab": 90.0, "ba": 90.0, "bz": 95.0}
    game = Game({"": "ab", "a": "b", "b": "az"}, prices)

    assert game.plan("").title == "go b, then go z"
    assert "ab" not in game.asked


def test_where_the_best_leads_nowhere_the_search_goes_on_from_another_measured_kernel():
    game = Game({"": "b", "b": "c"}, {"": 100.0, "a": 70.0, "b": 100.0, "bc": 60.0})

    plan = game.plan("", "a")

    assert (plan.parent_id, plan.title) == ("input", "go b, then go c")
    assert plan.expected_gain_us == 40.0  # over the kernel it starts from, not over the best


def test_two_steps_from_the_best_come_before_one_from_a_kernel_that_is_slower():
    game = Game({"": "z", "a": "b", "ab": "c"}, {"": 100.0, "z": 60.0, "a": 70.0, "ab": 71.0, "abc": 65.0})

    plan = game.plan("", "a")

    assert plan.title == "go b, then go c"
    assert "z" not in game.asked


def test_faster_than_where_it_starts_is_not_enough_it_must_beat_the_best():
    game = Game({"": "b"}, {"": 100.0, "a": 70.0, "b": 80.0})

    with pytest.raises(NothingToPlan, match="no idea left: 0 untried sites, .* and none of 1 kernels further on"):
        game.plan("", "a")


def test_what_was_tried_is_not_planned_again_by_code_or_by_name():
    game = Game({"": "b", "b": "cd"}, {"": 100.0, "b": 104.0, "bc": 80.0, "bd": 90.0})
    by_code = attempted(1, "incorrect", parent="?", technique="walk", title="?", source=node("bc"))
    by_name = attempted(1, "incorrect", technique="walk", title="go b, then go c")

    assert game.plan("", history=(by_code,)).title == "go b, then go d"
    assert game.plan("", history=(by_name,)).title == "go b, then go d"
    unsent = tuple(replace(each, outcome=Outcome.OUTRANKED) for each in (by_code, by_name))
    assert game.plan("", history=unsent).title == "go b, then go c", "it was not sent to the device: it may be now"


def test_a_pair_that_memory_saw_fail_on_this_task_goes_behind_another():
    game = Game({"": "b", "b": "cd"}, {"": 100.0, "b": 104.0, "bc": 80.0, "bd": 90.0})
    lost = Experience("go b, then go c", "s", "walk", speedup=0.9, kernel=TASK.name)

    plan = game.proposer.planner.plan(replace(game.context(""), experiences=(lost,)))

    assert plan.title == "go b, then go d"
    misled = replace(lost, used=9, helped=0)
    plan = game.proposer.planner.plan(replace(game.context(""), experiences=(misled,)))
    assert plan.title == "go b, then go c" and plan.follows == (misled.key,), "what misled before counts less"


@pytest.mark.parametrize(
    "blocked", [{"b": None, "bc": 1.0}, {"b": 151.0, "bc": 1.0}, {"b": 104.0, "bc": None}, {"b": 104.0, "bc": 99.5}]
)
def test_not_through_what_does_not_compile_or_is_far_slower_nor_to_a_gain_within_the_noise(blocked):
    game = Game({"": "b", "b": "c"}, {"": 100.0, **blocked}, explore_within=1.5)

    with pytest.raises(NothingToPlan):
        game.plan("")


@pytest.mark.parametrize(
    ("latency_us", "asked", "reason"),
    [
        (1.02, set(), "within 2.0 % of the bound"),
        (1.04, {"", "a"}, "the bound is only 3.8 % away"),
        (1.06, {"", "a", "ab"}, "kernels further on"),
    ],
    ids=["nothing-is-priced", "one-step-only", "two-steps"],
)
def test_near_a_bound_of_1_us_less_is_looked_at(latency_us, asked, reason):
    game = Game({"": "a", "a": "b"}, {"": latency_us, "a": latency_us, "ab": latency_us})
    with pytest.raises(NothingToPlan, match=reason):
        game.plan("")
    assert set(game.asked) == asked


def test_the_search_is_bounded_in_number_and_in_work():
    letters = "abcdefgh"
    edges = {"": letters, **{one: letters for one in letters}}
    prices = {"": 100.0, **dict.fromkeys(letters, 100.0), **{a + b: 100.0 for a in letters for b in letters}}

    few = Game(edges, prices, most_kernels=10)
    with pytest.raises(NothingToPlan):
        few.plan("")
    assert sum(len(path) == 2 for path in set(few.asked)) == 10

    none = Game(edges, prices, most_work=0)
    with pytest.raises(NothingToPlan):
        none.plan("")
    assert not any(len(path) == 2 for path in none.asked)


@pytest.mark.parametrize(("instructions", "priced"), [(0, 8), (nodes.STARTING // 2, 2)])
def test_a_look_ahead_ends_when_its_work_is_done(instructions, priced):
    """Enough to look at nine kernels and to price sixteen, where those have no instructions to speak of."""
    letters = "abcdefgh"
    edges = {"": letters, **{one: letters for one in letters}}
    prices = {"": 100.0, **dict.fromkeys(letters, 100.0), **{a + b: 100.0 for a in letters for b in letters}}
    game = Game(edges, prices, most_work=9 * nodes.LOOKING + 16 * nodes.STARTING)
    result = measured(100.0)
    fields = {"dma_transfer_count": instructions / 2, "vector_engine_instruction_count": instructions / 2, "other": 9e9}
    result = replace(result, profile=replace(result.profile, fields=fields))

    with pytest.raises(NothingToPlan):
        game.proposer.planner.plan(replace(game.context(""), parent_result=result))

    assert sum(len(path) == 2 for path in game.asked) == priced


def test_a_slow_machine_finds_what_a_fast_one_finds(monkeypatch):
    """On a clock by which every look at it takes ten minutes."""
    letters = "abcdefgh"
    edges = {"": letters, **{one: letters for one in letters}}
    prices = {
        "": 100.0,
        **dict.fromkeys(letters, 100.0),
        **{a + b: 100.0 for a in letters for b in letters},
        "bg": 50.0,
    }
    plan = Game(edges, prices).plan("")
    hours = itertools.count(0.0, 600.0)
    monkeypatch.setattr(nodes, "time", types.SimpleNamespace(monotonic=hours.__next__))

    assert Game(edges, prices).plan("") == plan
    assert plan.title == "go b, then go g" and next(hours) > 600.0


def test_an_oracle_that_runs_out_of_time_leaves_kernels_out_and_the_search_goes_on_with_the_others():
    prices = {"": 100.0, "a": 100.0, "b": 104.0, "ac": 50.0, "bc": 80.0}

    def oracle(sources, limit_s=math.inf):
        return {s: prices[word(s)] for s in sources if math.isinf(limit_s) or word(s) not in ("a", "ac")}

    planner = catalogue_proposer(oracle, datetime.date.today, (Walk({"": "ab", "a": "c", "b": "c"}),)).planner
    context = replace(Game({}, prices).context(""), until=time.monotonic() + 1e6)

    assert planner.plan(context).title == "go b, then go c"


# --- another way --------------------------------------------------------------------------------------


@pytest.fixture
def tidying_is_less_work(monkeypatch, walk_in_the_registry):
    def known(game: Game) -> Game:
        walk_in_the_registry.update({each.name: each for each in game.walks})
        return game

    monkeypatch.setattr(descent, "LESS_WORK", frozenset({"tidy"}))
    return known


ROUNDABOUT = {"": 100.0, "a": 90.0, "t": 100.0, "tb": 95.0, "tbc": 60.0}
"""What gains first leads nowhere; the other way begins with a step that gains nothing."""


def test_given_no_idea_left_then_the_input_is_tidied_and_gone_on_from_with_all_steps_in_one_plan(tidying_is_less_work):
    game = tidying_is_less_work(Game({"": "a", "t": "b", "tb": "c"}, ROUNDABOUT, tidy={"": "t"}, longest_way=40))

    assert game.plan("").title == "go a"
    plan = game.plan("", "a")

    assert (plan.title, plan.parent_id, plan.expected_gain_us) == ("go t, then go b, then go c", "input", 40.0)
    assert "of other ways, 1 promise a gain" in plan.rationale
    asked = len(game.asked)
    with pytest.raises(NothingToPlan):
        game.plan("", "a", history=(attempted(1, Outcome.REVERTED, source=node("tbc")),))
    assert "tbc" not in game.asked[asked:], "what the way ended at is remembered"


def test_another_way_that_ends_at_no_better_a_kernel_is_none(tidying_is_less_work):
    prices = {**ROUNDABOUT, "tbc": 89.9}
    game = tidying_is_less_work(Game({"": "a", "t": "b", "tb": "c"}, prices, tidy={"": "t"}, longest_way=40))

    with pytest.raises(NothingToPlan):
        game.plan("", "a")
    assert "tbc" in game.asked


def test_a_step_that_the_end_is_as_fast_without_is_left_out(tidying_is_less_work):
    prices = {**ROUNDABOUT, "u": 100.0, "ut": 100.0, "tu": 100.0, "utb": 95.0, "utbc": 60.0}
    walk = {"": "a", "t": "b", "tb": "c", "ut": "b", "utb": "c"}
    game = tidying_is_less_work(Game(walk, prices, tidy={"": "ut", "u": "t", "t": "u"}, longest_way=40))

    assert game.plan("", "a").title == "go t, then go b, then go c"
    assert "utbc" in game.asked


def test_on_the_other_way_two_steps_are_taken_where_no_single_one_gains(tidying_is_less_work):
    prices = {**ROUNDABOUT, "tb": 104.0, "td": 100.0, "tbc": 103.0, "tbe": 70.0, "tbef": 60.0}
    game = tidying_is_less_work(
        Game({"": "a", "t": "db", "tb": "ce", "tbe": "f"}, prices, tidy={"": "t"}, most_kernels=1, longest_way=40)
    )

    assert game.plan("", "a").title == "go t, then go b, then go e, then go f"


def test_what_leaves_less_work_is_gone_through_once_more_where_a_step_of_it_seems_to_cost(tidying_is_less_work):
    """The end of the first time is no better than the best; after two steps that leave less work it is."""
    prices = {"": 100.0, "a": 90.0, "t": 110.0, "tu": 95.0, "tub": 60.0, "b": 99.0}
    game = tidying_is_less_work(
        Game({"": "ab", "tu": "b"}, prices, tidy={"": "t", "t": "u"}, most_kernels=1, longest_way=40)
    )

    assert game.plan("", "a").title == "go t, then go u, then go b"


def test_what_leaves_less_work_at_too_high_a_price_is_left(tidying_is_less_work):
    prices = {"": 100.0, "a": 90.0, "t": 116.0, "tu": 95.0, "tub": 60.0, "b": 99.0}
    game = tidying_is_less_work(
        Game({"": "ab", "tu": "b"}, prices, tidy={"": "t", "t": "u"}, most_kernels=1, longest_way=40)
    )

    with pytest.raises(NothingToPlan):
        game.plan("", "a")
    assert "tub" not in game.asked


def test_the_title_of_a_long_way_counts_its_steps_and_the_rationale_tells_them(tidying_is_less_work):
    letters = "bcdefghijkl"
    ways = {f"t{letters[:n]}": 100.0 - 5 * n for n in range(len(letters) + 1)}
    edges = {"": "a", **{f"t{letters[:n]}": letters[n] for n in range(len(letters))}}
    game = tidying_is_less_work(Game(edges, {"": 100.0, "a": 90.0, **ways}, tidy={"": "t"}, longest_way=40))

    plan = game.plan("", "a")

    assert plan.title == "12 steps from input at once: tidy, walk x11" and plan.technique == "walk"
    assert "Step 12, go l:" in plan.rationale


def test_another_way_ends_where_its_work_is_used_up(tidying_is_less_work):
    game = tidying_is_less_work(
        Game({"": "a", "t": "b", "tb": "c"}, ROUNDABOUT, tidy={"": "t"}, longest_way=40, most_work=2 * nodes.LOOKING)
    )

    with pytest.raises(NothingToPlan):
        game.plan("", "a")
    assert "tbc" not in game.asked


# --- ties -------------------------------------------------------------------------------------------


def test_of_steps_that_tie_the_one_of_fewer_lines_is_taken_unless_memory_knows_better():
    """A step by a capital letter adds a line."""
    game = Game({"": "Abc"}, {"": 100.0, "A": 80.0, "b": 81.0, "c": 85.0}, tie=0.02)
    longer = Game({"": "Ab"}, {"": 100.0, "A": 78.0, "b": 81.0}, tie=0.02)
    won = Experience("go A", "s", "walk", speedup=1.2, kernel=TASK.name)

    assert game.plan("").title == "go b"
    assert longer.plan("").title == "go A", "3 µs of 78 are no tie"
    assert game.proposer.planner.plan(replace(game.context(""), experiences=(won,))).title == "go A"


def test_the_kernel_as_it_is_wins_over_a_step_that_ties_with_it():
    game = Game({"": "a"}, {"": 100.0, "a": 98.1}, tie=0.02)
    with pytest.raises(NothingToPlan, match="none with a predicted gain of 2 %"):
        game.plan("")
    assert Game({"": "a"}, {"": 100.0, "a": 97.9}, tie=0.02).plan("").title == "go a"


def test_small_gains_that_are_more_than_a_tie_together_are_one_plan():
    edges = {"": "ab", "a": "bc", "ab": "c", "b": "a"}
    prices = {"": 100.0, "a": 99.0, "b": 99.5, "ab": 98.4, "ac": 98.9, "abc": 97.5, "ba": 98.4}
    game = Game(edges, prices, tie=0.02)

    plan = game.plan("")

    assert (plan.title, plan.expected_gain_us) == ("go a, then go b, then go c", 2.5)
    assert "100.0 µs become 99.0 µs (by itself a tie; the next step adds to it)" in plan.rationale
    assert "None of 2 untried sites gains more than a tie" in plan.rationale


@pytest.mark.parametrize(
    "prices",
    [
        {"a": 99.0, "ab": 98.95, "abc": 90.0},  # the second step is worth nothing, and opens nothing that is seen
        {"a": 99.9, "ab": 99.0, "abc": 98.5},  # the first is worth nothing
        {"a": 99.5, "ab": 99.0, "abc": 98.5},  # together they are still a tie
    ],
)
def test_gains_that_do_not_add_up_to_more_than_a_tie_are_left(prices):
    game = Game({"": "a", "a": "b", "ab": "c"}, {"": 100.0, **prices}, tie=0.02)
    with pytest.raises(NothingToPlan):
        game.plan("")


def test_a_sum_ends_after_so_many_steps():
    path = "abcdefgh"
    prices = {path[:n]: 100.0 - 0.5 * n for n in range(9)}
    edges = {path[:n]: path[n] for n in range(8)}
    assert Game(edges, prices, tie=0.02, longest_sum=4).plan("").title.count("go") == 4
    with pytest.raises(NothingToPlan):
        Game(edges, prices, tie=0.02, longest_sum=3).plan("")


EVERYWHERE = {"": "abc", "a": "bc", "ab": "c", "ac": "b", "b": "ac", "c": "ab"}


def test_sites_of_one_local_kind_that_gain_beside_each_other_are_one_plan(monkeypatch):
    monkeypatch.setattr(planner, "LOCAL", frozenset({"walk"}))
    prices = {"": 100.0, "a": 90.0, "b": 92.0, "c": 99.9, "ab": 83.0, "ac": 89.0, "abc": 79.0}
    game = Game(EVERYWHERE, prices)
    plan = game.plan("")
    assert plan.title == "go a, then go b" and plan.expected_gain_us == pytest.approx(17)
    assert "100.0 µs become 90.0 µs" in plan.rationale and "90.0 µs become 83.0 µs" in plan.rationale


def test_a_site_that_gains_less_than_half_beside_another_is_left_for_later(monkeypatch):
    monkeypatch.setattr(planner, "LOCAL", frozenset({"walk"}))
    game = Game(EVERYWHERE, {"": 100.0, "a": 90.0, "b": 90.5, "c": 120.0, "ab": 87.0})
    assert game.plan("").title == "go a"


def test_when_several_together_were_tried_each_goes_alone(monkeypatch):
    monkeypatch.setattr(planner, "LOCAL", frozenset({"walk"}))
    game = Game(EVERYWHERE, {"": 100.0, "a": 90.0, "b": 92.0, "c": 120.0, "ab": 83.0})
    failed = attempted(1, "incorrect", technique="walk", title="go a, then go b", source=node("ab"))
    assert game.plan("", history=(failed,)).title == "go a"


TIDIED = {"": "tu", "t": "u"}
REGROUPED = {"": "R", "t": "R", "tu": "R"}


def test_small_gains_of_less_work_go_in_front_of_what_would_shut_them_out(monkeypatch):
    """After R nothing else is legal. t is a tie by itself; u gains nothing in front of R, and stays out."""
    monkeypatch.setattr(planner, "LESS_WORK", frozenset({"tidy"}))
    prices = {"": 100.0, "t": 99.2, "u": 99.5, "tu": 99.1, "R": 95.0, "tR": 93.9, "tuR": 93.9}
    plan = Game(REGROUPED, prices, 0.02, TIDIED).plan("")
    assert plan.title == "go t, then go R" and plan.expected_gain_us == pytest.approx(6.1)
    prices |= {"tuR": 93.0}
    assert Game(REGROUPED, prices, 0.02, TIDIED).plan("").title == "go t, then go u, then go R"


def test_they_go_in_front_of_several_steps_too(monkeypatch):
    """R gains nothing by itself, and what it opens does."""
    monkeypatch.setattr(planner, "LESS_WORK", frozenset({"tidy"}))
    edges = {"": "R", "R": "S", "t": "R", "tR": "S"}
    prices = {"": 100.0, "t": 99.2, "R": 100.0, "RS": 90.0, "tR": 99.2, "tRS": 88.0}
    plan = Game(edges, prices, 0.02, {"": "t"}).plan("")
    assert plan.title == "go t, then go R, then go S" and plan.expected_gain_us == pytest.approx(12)


def test_what_gains_nothing_in_front_or_takes_the_place_of_the_greater_step_stays_out(monkeypatch):
    monkeypatch.setattr(planner, "LESS_WORK", frozenset({"tidy"}))
    prices = {"": 100.0, "t": 99.2, "u": 99.5, "R": 95.0, "tR": 95.0}
    assert Game(REGROUPED, prices, 0.02, TIDIED).plan("").title == "go R"
    assert Game({"": "R"}, prices, 0.02, TIDIED).plan("").title == "go R"


class WalkOnTheSpot(Walk):
    """Keeps the rest of the text. `edges` by word, with ~ behind it where the kernel is in normal form."""

    def analyze(self, module: KernelModule, context) -> tuple[Site, ...]:
        here = place(module.tree.code)
        return tuple(Site(self.name, each, f"go {each}", 1, "open", "shorter") for each in self.edges.get(here, ""))

    def apply(self, module: KernelModule, key: str) -> cst.Module:
        source = module.tree.code
        if key not in self.edges.get(place(source), ""):
            raise SiteGone(key)
        return cst.parse_module(source.replace(f"PATH = '{word(source)}'", f"PATH = '{word(source)}{key}'"))


def place(source: str) -> str:
    return word(source) + ("~" if "y_2" in source else "")


def test_small_gains_at_the_kernel_as_it_stands_go_in_front_of_a_step_from_its_normal_form(monkeypatch):
    """R is legal in normal form alone, and t wherever R was not taken: it is priced once, as the kernel stands."""
    monkeypatch.setattr(planner, "LESS_WORK", frozenset({"tidy"}))
    source = START.replace("    return x\n", "    y = 1\n    y = 2\n    return y\n")
    prices = {"": 100.0, "~": 100.0, "t": 99.2, "t~": 99.2, "R~": 95.0, "tR~": 93.0}
    asked: list[str] = []

    def price(text: str) -> float:
        asked.append(place(text))
        return prices[place(text)]

    walks = (NORMALIZE, WalkOnTheSpot({"~": "R", "t~": "R"}), WalkOnTheSpot({"": "t", "~": "t"}, "tidy"))
    proposer = catalogue_proposer(priced_by(price), datetime.date.today, walks, LookAhead(), 0.02)
    kernel = Candidate("input", source)
    plan = proposer.planner.plan(
        RoundContext(
            1, TASK, kernel, measured(100.0), kernel, measured(100.0), 100.0, NKI, measured=((kernel, measured(100.0)),)
        )
    )
    assert plan.title == "write the kernel in normal form, then go t, then go R"
    assert plan.expected_gain_us == pytest.approx(7.0)


def test_what_changes_loops_goes_alone():
    assert Game(EVERYWHERE, {"": 100.0, "a": 90.0, "b": 92.0, "c": 120.0, "ab": 83.0}).plan("").title == "go a"


def test_no_more_are_taken_together_than_allowed(monkeypatch):
    monkeypatch.setattr(planner, "LOCAL", frozenset({"walk"}))
    prices = {"": 100.0, "a": 90.0, "b": 91.0, "c": 92.0, "ab": 81.0, "ac": 82.0, "abc": 73.0}
    assert Game(EVERYWHERE, prices, most_together=2).plan("").title == "go a, then go b"
    assert Game(EVERYWHERE, prices).plan("").title == "go a, then go b, then go c"


def test_a_plan_ends_with_the_time_of_the_run():
    """What was priced by then counts; nothing further is asked for."""
    prices = {"": 100.0, "a": 100.0, "ab": 80.0}
    edges = {"": "a", "a": "b"}
    assert Game(edges, prices).plan("").title == "go a, then go b"
    late = Game(edges, prices)
    with pytest.raises(NothingToPlan):
        late.proposer.planner.plan(replace(late.context(""), until=time.monotonic() - 1))
    assert "ab" not in late.asked
