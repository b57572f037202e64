"""How the search goes through states whose prices are written down: a state is the set of steps taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from accelopt_core.catalogue.search import FAULT, Limits, Price, Search
from accelopt_core.rules.base import Site
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.tree import LoopKernel
from nki_sim.timing.ties import shipped

START = LoopKernel("", "trn2", {}, (), (), (), (), False)


@dataclass(frozen=True)
class Step:
    name: str
    needs: str = ""
    comes_last: bool = False

    def sites(self, kernel: LoopKernel) -> Iterator[Site]:
        if self.name not in kernel.name:
            yield Site(self.name, (), (), f"step {self.name}")

    def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
        if not set(self.needs) <= set(kernel.name):
            raise Refused(f"{self.name} needs {self.needs}")
        return replace(kernel, name="".join(sorted(kernel.name + self.name)))


class Preparation(Step):
    def preparation(self, kernel: LoopKernel) -> Site:
        return Site(self.name, (), (), "the preparation")


@dataclass(frozen=True)
class Prices:
    of: Callable[[str], float]

    def __call__(self, kernel: LoopKernel) -> Price:
        return Price(self.of(kernel.name), kernel.name, ())

    def learn(self, price: Price) -> None:
        assert price.latency_us == self.of(price.digest)


def steps_found(search: Search) -> str:
    return "".join(step.site.rule for step in search.best([START]).path)


def test_steps_that_gain_are_taken_together() -> None:
    rules = [Step(name) for name in "abcdefgh"]
    search = Search(rules, Prices(lambda taken: 100.0 * 0.9 ** len(taken)), Limits(patience=0))
    assert sorted(steps_found(search)) == list("abcdefgh")
    assert search.priced <= 3 * len(rules)


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_step_that_gains_nothing_is_gone_on_from(first: str) -> None:
    def of(taken: str) -> float:
        return 50.0 if {"a", "b"} <= set(taken) else 100.0

    rules = [Step("a", "" if first == "a" else "b"), Step("b", "" if first == "b" else "a"), Step("c")]
    assert sorted(steps_found(Search(rules, Prices(of)))) == ["a", "b"]


@pytest.mark.parametrize(("costs", "is_prepared"), [(0.5, True), (2.0, False)])
def test_a_search_begins_prepared_where_that_costs_no_more_than_a_tie(costs: float, is_prepared: bool) -> None:
    of = Prices(lambda taken: 100.0 * (1 + costs * shipped().within * ("p" in taken)))
    assert Search([Preparation("p")], of).start([START]).kernels[-1].name == ("p" if is_prepared else "")


def test_a_start_is_not_prepared_again() -> None:
    search = Search([Preparation("p"), Step("a")], Prices(lambda taken: 100.0 - 10 * ("a" in taken)))
    prepared = search.start([START])
    assert search.best_from(prepared).kernels[-1].name == "ap"
    assert search.best_from(search.start(prepared.kernels)).kernels[-1].name == "app"


def test_what_has_no_text_is_passed_by_for_the_next_of_its_rule() -> None:
    @dataclass(frozen=True)
    class Two(Step):
        def sites(self, kernel: LoopKernel) -> Iterator[Site]:
            if "a" not in kernel.name and "b" not in kernel.name:
                yield from (Site(self.name, (number,), (), f"step {each}") for number, each in enumerate("ab"))

        def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
            return replace(kernel, name="".join(sorted(kernel.name + site.what[-1])))

    prices = Prices(lambda taken: 50.0 if {"b", "c"} <= set(taken) else 100.0 - 0.01 * ("a" in taken))
    search = Search([Two("two"), Step("c", "b")], prices, has_text=lambda kernels: "a" not in kernels[-1].name)
    assert search.best([START]).kernels[-1].name == "bc"


@pytest.mark.parametrize(("gain", "passed_by"), [(10.0, True), (1.0, False)])
def test_what_only_a_smaller_shape_refuses_is_passed_by_where_it_gains_more_than_a_tie(gain, passed_by) -> None:
    class LargeOnly(Step):
        def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
            if kernel.source_file == "small":
                raise Refused("its rows are no blocks of 2")
            return super().apply(kernel, site)

    small = replace(START, source_file="small")
    search = Search([LargeOnly("a"), Step("b")], Prices(lambda taken: 100.0 - gain * ("a" in taken)))
    assert search.best([small, START]).path == ()
    assert search.passed_by is passed_by


def test_a_fault_at_the_largest_shape_alone_is_told() -> None:
    class Faulty(Step):
        def apply(self, kernel: LoopKernel, site: Site) -> LoopKernel:
            if kernel.source_file == "small":
                raise Refused("its rows are no blocks of 2")
            raise ZeroDivisionError

    search = Search([Faulty("a")], Prices(lambda taken: 100.0))
    search.best([replace(START, source_file="small"), START])
    assert [each for each in search.refusals.values() if each.startswith(FAULT)]


def test_rules_that_come_last_wait_for_the_others() -> None:
    rules = [Step("z", comes_last=True), Step("a"), Step("b", "a")]
    found = steps_found(Search(rules, Prices(lambda taken: 100.0 - 20 * len(taken) - 30 * ("z" in taken))))
    assert found == "abz"


def test_what_is_excluded_is_not_taken_and_what_is_refused_is_kept() -> None:
    rules = [Step("a"), Step("b"), Step("c", "a")]
    excluded = frozenset({("a", "step a")})
    search = Search(rules, Prices(lambda taken: 100.0 - 10 * len(taken)), excluded=excluded)
    assert steps_found(search) == "b"
    assert set(search.refusals.values()) == {"c needs a"}


def test_it_ends_where_it_is_told_to() -> None:
    search = Search([Step(name) for name in "abc"], Prices(lambda taken: 100.0 - len(taken)), ended=lambda: True)
    assert steps_found(search) == ""
    assert search.priced == 0
