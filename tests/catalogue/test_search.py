"""The search over rules: one way for one program, whatever its words; and how it goes through states."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import nki_sim
from accelopt_core.catalogue.search import FAULT, Limits, Price, Search, SimulatedPrices
from accelopt_core.rules.base import Site
from accelopt_core.rules.registry import RULES
from infra.prediction.trees import mapped
from nki_sim.dtypes import float32
from nki_sim.encoding.canonical import digest
from nki_sim.execution.executor import execute
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.tree import LoopKernel
from nki_sim.loop_ir.writing import written
from nki_sim.machine import TRN2
from nki_sim.program.program import Program
from nki_sim.timing.ties import shipped
from nki_sim.tracing import repeated
from nki_sim.tracing.session import TensorSpec

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl
"""
BY_INSTRUCTIONS = f"""{HEAD}
@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        weights = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=weights, src=w)
        rows = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x[i * 128 : (i + 1) * 128, :])
        scaled = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=rows, data2=weights, op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=scaled)
    return out
"""
BY_LANGUAGE = f"""{HEAD}
@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        weights = nl.load(w)
        nl.store(out[i * 128 : (i + 1) * 128, :], value=nl.multiply(nl.load(x[i * 128 : (i + 1) * 128, :]), weights))
    return out
"""
BY_HELPERS = f"""{HEAD}
class Rows:
    def __init__(self, tensor):
        self.tensor = tensor

    def of(self, i):
        return self.tensor[i * 128 : (i + 1) * 128, :]


def loaded(view):
    tile = nl.ndarray(view.shape, dtype=view.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view)
    return tile


@nki.jit
def kernel(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source, target = Rows(x), Rows(out)
    for i in [n for n in range(x.shape[0] // 128)]:
        weights, rows = [loaded(view) for view in (w, source.of(i))]
        scaled = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=rows, data2=weights, op=nl.multiply)
        nisa.dma_copy(dst=target.of(i), src=scaled)
    return out
"""
SHAPES = ((512, 512), (128, 512))


def traced(source: str, shapes: tuple[tuple[int, ...], ...]) -> Program:
    nki_sim.install()
    module = types.ModuleType("candidate")
    exec(repeated.compiled(source, "kernel_of_a_test.py", module.__dict__), module.__dict__)
    return nki_sim.trace(module.kernel, *(TensorSpec(shape, float32) for shape in shapes), machine="trn2")


def tree(source: str, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> LoopKernel:
    return read(traced(source, shapes))


def searched(source: str, processes: int = 1) -> tuple[Search, list[str], LoopKernel, float]:
    search = Search(RULES, SimulatedPrices(TRN2), Limits(most_priced=60), mapped=partial(mapped, processes))
    found = search.best([tree(source)])
    assert not [why for why in search.refusals.values() if FAULT in why]
    return search, [step.site.rule for step in found.path], found.kernels[0], found.price.latency_us


@pytest.mark.parametrize("other", [BY_LANGUAGE, BY_HELPERS], ids=["language", "helpers"])
def test_one_program_in_other_words_has_one_tree_one_way_and_one_time(other: str) -> None:
    assert digest(expand(tree(BY_INSTRUCTIONS))) == digest(expand(tree(other)))
    (_, steps, _, us), (_, other_steps, _, other_us) = searched(BY_INSTRUCTIONS), searched(other)
    assert steps == other_steps and us == other_us
    assert steps


def test_what_is_found_computes_the_same_and_is_written_for_every_shape() -> None:
    shapes = [((512, 512), (128, 512)), ((1024, 512), (128, 512))]
    kernels = [tree(BY_INSTRUCTIONS, each) for each in shapes]
    found = Search(RULES, SimulatedPrices(TRN2), Limits(most_priced=60)).best(kernels)
    text = written(found.kernels, KernelText(BY_INSTRUCTIONS, "kernel"))
    for each, kernel in zip(shapes, found.kernels):
        program = expand(kernel)
        assert digest(traced(text, each)) == digest(program)
        arrays = [np.random.default_rng(1).normal(size=shape).astype(np.float32) for shape in each]
        (result,) = execute(program, arrays)
        assert np.array_equal(result, arrays[0] * np.tile(arrays[1], (each[0][0] // 128, 1)))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_search_is_bounded_by_states_and_the_same_every_time(processes: int) -> None:
    search, steps, kernel, us = searched(BY_INSTRUCTIONS)
    again, steps_again, kernel_again, us_again = searched(BY_INSTRUCTIONS, processes)
    assert search.refusals == again.refusals
    assert search.priced == again.priced <= 60 + len(steps) ** 2
    assert (steps, us, digest(expand(kernel))) == (steps_again, us_again, digest(expand(kernel_again)))


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
