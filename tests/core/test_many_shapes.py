"""Which variants are kept for a set of shapes, what each shape counts, and which shapes lie beside a set."""

from __future__ import annotations

import itertools
import random

import pytest

from accelopt_core.dispatch.covering import LEAST_SAVED, chosen, shapes_between
from accelopt_core.dispatch.weights import Counting, ShapeSet, WeightedShape, weighted_us
from accelopt_core.task import ShapePreset

TIE = 0.02


def choose(prices: dict[str, dict[str, float]], calls: dict[str, float] | None = None) -> dict[str, str]:
    return chosen(prices, calls or dict.fromkeys(prices, 1.0), "input", TIE)


def test_a_variant_is_kept_only_where_it_is_right_and_pays() -> None:
    assert choose({"a": {"input": 10, "A": 5}, "b": {"input": 10, "A": 9.9, "B": 9.9}}) == {"a": "A", "b": "A"}
    assert choose({"a": {"input": 10, "A": 9.9}, "b": {"input": 10, "B": 9.85}}) == {"a": "input", "b": "input"}
    prices = {
        "a": {"input": 10, "A": 5.0, "C": 5.05},
        "b": {"input": 10, "B": 5.0, "C": 5.05},
        "c": {"input": 10, "C": 5.0},
    }  # fmt: skip
    assert set(choose(prices).values()) == {"C"}
    prices["a"]["C"] = 5.2
    assert choose(prices) == {"a": "A", "b": "C", "c": "C"}
    prices = {"a": {"input": 10.0, "A": 5}, "b": {"input": 10.0, "A": 10.1}}
    assert choose(prices) == {"a": "A", "b": "input"}
    assert choose({"a": {"input": 10, "A": 5, "B": 6}, "b": {"input": 10, "B": 5}}) == {"a": "A", "b": "B"}
    prices = {
        "a": {"input": 10, "A": 5.0, "B": 5.05},
        "b": {"input": 10, "A": 5.05, "B": 5.0},
    }  # fmt: skip
    assert set(choose(prices, {"a": 3.0, "b": 1.0}).values()) == {"A"}
    assert set(choose(prices, {"a": 1.0, "b": 3.0}).values()) == {"B"}
    prices = {f"s{n}": {"input": 100.0, f"v{n}": 95.0, "all": 96.7} for n in range(6)}
    assert set(choose(prices).values()) == {f"v{n}" for n in range(6)}
    prices = {f"s{n}": {"input": 100.0, f"v{n}": 50.0, "all": 50.9} for n in range(6)}
    assert set(choose(prices).values()) == {"all"}


@pytest.mark.parametrize("seed", range(30))
def test_none_of_fewer_variants_serves_every_shape(seed: int) -> None:
    """Held against all choices, by what is meant: each shape within a tie of its fastest, and no slower than before."""
    drawn = random.Random(seed)
    shapes, variants = [f"s{n}" for n in range(6)], [f"v{n}" for n in range(5)]
    prices = {
        shape: {"input": 10.0}
        | {v: drawn.choice([4.0, 4.05, 5.0, 9.0, 11.0]) for v in variants if drawn.random() < 0.7}
        for shape in shapes
    }
    calls = {shape: drawn.choice([0.1, 1.0, 10.0]) for shape in shapes}
    choice = chosen(prices, calls, "input", TIE)

    def serves(shape: str, variant: str) -> bool:
        us = prices[shape].get(variant, float("inf"))
        return us <= (1 + TIE) * min(prices[shape].values()) and us <= prices[shape]["input"]

    assert all(serves(shape, variant) for shape, variant in choice.items()) and set(choice) == set(shapes)

    def saved(kept: tuple[str, ...]) -> float:
        """With the fastest of those that serve; less than nothing where none does."""
        there = {s: [prices[s][v] for v in ("input", *kept) if serves(s, v)] for s in shapes}
        return sum(calls[s] * (10.0 - min(there[s])) for s in shapes) if all(there.values()) else -1.0

    kept = {*choice.values()} - {"input"}
    enough = LEAST_SAVED * saved(tuple(variants))
    assert sum(calls[s] * (10.0 - prices[s][choice[s]]) for s in shapes) == pytest.approx(saved(tuple(kept)))
    assert saved(tuple(kept)) >= enough - 1e-9
    for fewer in itertools.combinations(variants, max(0, len(kept) - 1)):
        assert not kept or saved(fewer) < enough


def test_many_variants_are_chosen_from_in_time() -> None:
    prices = {
        f"s{n}": {"input": 10.0} | {f"v{k}": 5.0 for k in range(40) if (n * 7 + k * 3) % 11 < 2} for n in range(32)
    }
    choice = choose(prices)
    assert all(prices[shape][variant] == 5.0 for shape, variant in choice.items())
    assert len({*choice.values()}) <= 8
    for number, at in enumerate(prices.values()):  # then one after the other is taken until enough is saved
        at |= {"input": 5.5, f"v{number}": 4.91}
    choice = choose(prices)
    assert sum(5.5 - prices[shape][variant] for shape, variant in choice.items()) >= LEAST_SAVED * 32 * 0.59


def shape(weight: float = 1.0, **values: int) -> WeightedShape:
    name = "-".join(f"{key}{value}" for key, value in values.items())
    return WeightedShape(ShapePreset(name, tuple(values.items())), weight)


def test_calls_count_as_they_are_and_shares_by_what_a_call_takes() -> None:
    of_calls = ShapeSet((shape(3, M=1), shape(1, M=2)))
    assert of_calls.calls({"M1": 10.0, "M2": 40.0}) == {"M1": 3, "M2": 1}
    of_shares = ShapeSet((shape(0.3, M=1), shape(0.2, M=2)), Counting.SHARE)
    calls = of_shares.calls({"M1": 10.0, "M2": 40.0})
    assert weighted_us(calls, {"M1": 10.0, "M2": 40.0}) == pytest.approx(0.5)
    assert weighted_us(calls, {"M1": 5.0, "M2": 40.0}) == pytest.approx(0.35)
    assert set(of_shares.calls({"M2": 40.0})) == {"M2"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ShapeSet(()),
        lambda: ShapeSet((shape(M=1), shape(M=1))),
        lambda: ShapeSet((shape(0.7, M=1), shape(0.4, M=2)), Counting.SHARE),
        lambda: shape(0.0, M=1),
        lambda: shape(float("nan"), M=1),
    ],
)
def test_what_is_no_set_of_shapes_cannot_be_made(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        make()


def test_the_nearest_to_each_shape_come_first_and_none_is_of_the_set() -> None:
    shapes = [shape(M=128, N=1024), shape(M=200, N=768), shape(M=64, N=100)]
    found = [dict(each.values) for each in shapes_between(shapes)]
    assert not [each for each in found if each in [dict(s.preset.values) for s in shapes]]
    for own in shapes:  # each has a neighbour that differs from it in one constant alone
        values = dict(own.preset.values)
        assert any(sum(values[name] != each[name] for name in values) == 1 for each in found[: len(shapes)])
    assert all(64 <= each["M"] <= 200 and 100 <= each["N"] <= 1024 for each in found)
    assert {"M": 164, "N": 896} not in found and {"M": 160, "N": 768} in found, "halfway, in steps that divide both"
    assert [dict(each.values) for each in shapes_between([shape(M=128, N=3)])] == [{"M": 64, "N": 3}]
