"""How sure a latency is: from measured rows alike, wider where priors price it, a choice where no row was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import timing_intervals, timing_refits
from benchmarks.timing_rows import Outcome
from nki_sim.commands import gantt
from nki_sim.machine import MACHINES, TRN2
from nki_sim.profile.profile import measure, profile
from nki_sim.program.program import Program
from nki_sim.timing import intervals
from nki_sim.timing.intervals import EVERY, KINDS, Basis, Interval, Spread, Spreads
from nki_sim.timing.schedule import Timeline, schedule
from tests.nki_sim.machine import traced_kernels as traced
from tests.nki_sim.machine.traced_kernels import nisa, nl

TIGHT, LOOSE = Spread(0.9, 1.2, 40, 4), Spread(0.5, 1.6, 50, 5)
SPREADS = Spreads(TRN2.name, 0.8, "a test", {"products": TIGHT, EVERY: LOOSE})


def timed(program: Program, machine: Any = TRN2) -> tuple[Timeline, dict[str, float]]:
    timeline = schedule(program, machine)
    return timeline, profile(timeline)


def on_gpsimd(columns: int) -> Program:
    def body() -> None:
        nisa.tensor_tensor(
            traced.tile(columns), traced.tile(columns), traced.tile(columns), nl.add, engine=nisa.engine.gpsimd
        )

    return traced.instruction(body)


def test_an_interval_is_the_latency_times_the_spread_of_its_kind() -> None:
    timeline, fields = timed(traced.stream(512, 4))
    found = intervals.interval(timeline, fields, replace(SPREADS, kinds={"small": TIGHT, EVERY: LOOSE}))
    share = intervals.priced_by_priors(timeline)[0]
    assert found.latency_us == timeline.latency_us
    assert found.interval.low_us == pytest.approx(timeline.latency_us * 0.9 * (1 - share / 2))
    assert found.interval.high_us == pytest.approx(timeline.latency_us * 1.2 * (1 + share))
    assert found.interval.level == 0.8
    assert found.rests_on[0] == "40 measured kernels of less than 100 us, of 4 families"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"spill_save_bytes": 4096.0}, "spilling"),
        ({}, "products"),
        ({"tensor_engine_active_time_percent": 0.5}, "transfers"),
    ],
)
def test_a_kernel_is_of_the_first_kind_that_fits(changes: dict[str, float], kind: str) -> None:
    timeline, fields = timed(traced.stream(512, 2))
    long = replace(timeline, latency_us=500.0, resource_us={"dma": 100.0, "dma.sync": 360.0, "tensor": 480.0})
    assert intervals.kind(long, {**fields, "tensor_engine_active_time_percent": 0.9, **changes}) == kind


def test_what_nothing_binds_is_mixed_and_a_short_kernel_is_small_whatever_binds_it() -> None:
    timeline, fields = timed(traced.stream(512, 2))
    assert intervals.kind(replace(timeline, latency_us=500.0, resource_us={"dma": 100.0}), fields) == "mixed"
    busy = {**fields, "tensor_engine_active_time_percent": 1.0}
    assert intervals.kind(replace(timeline, latency_us=99.0), busy) == "small"


def test_the_share_that_priors_price_is_counted_and_named() -> None:
    timeline, _ = timed(on_gpsimd(4096))
    share, names = intervals.priced_by_priors(timeline)
    assert names == ("GpSimd tensor_tensor",)
    gpsimd_us = timeline.resource_us["gpsimd"]
    assert share == pytest.approx(gpsimd_us / timeline.latency_us, rel=0.01)


def test_a_rate_that_rows_confirm_is_no_prior_any_more() -> None:
    rate = TRN2.rates["tensor_tensor@gpsimd"]
    confirmed = replace(rate, source=replace(rate.source, confidence="measured"))
    known = replace(TRN2, rates={**TRN2.rates, "tensor_tensor@gpsimd": confirmed})
    assert intervals.priced_by_priors(timed(on_gpsimd(4096), known)[0]) == (0.0, ())


def test_time_by_priors_widens_both_ends_and_at_most_by_their_factor() -> None:
    for share, low, high in ((0.0, 0.9, 1.2), (0.5, 0.675, 1.8), (1.0, 0.45, 2.4)):
        found = intervals.factors(Basis("products", share, ("GpSimd iota",)), TRN2, SPREADS)
        assert list(found) == pytest.approx([low, high])


@pytest.mark.parametrize(
    "core", [core for core in MACHINES.values() if not core.calibrated], ids=lambda core: core.name
)
def test_a_machine_without_rows_has_a_stated_wide_interval(core: Any) -> None:
    timeline, fields = timed(traced.stream(512, 4), core)
    found = intervals.interval(timeline, fields)
    assert found.interval == Interval(timeline.latency_us / 2, timeline.latency_us * 2)
    assert found.rests_on[0] == f"0.5 to 2 times the latency, a choice: no row was measured on {core.name}"
    assert all(rate.source.confidence in ("documented", "prior") for rate in core.rates.values())


def test_a_measurement_has_its_interval_and_the_report_shows_it() -> None:
    measured = measure(traced.stream(512, 4))
    assert 0 < measured.interval.low_us < measured.latency_us < measured.interval.high_us
    shown = gantt.report(measured, {}).splitlines()[1]
    low, high = f"{measured.interval.low_us:,.1f}", f"{measured.interval.high_us:,.1f}"
    assert shown == f"a device: {low} to {high} us, a range that held 80 % of {'; '.join(measured.rests_on)}"


def test_the_shipped_spreads_are_those_of_the_calibrated_machine() -> None:
    found = intervals.shipped()
    assert found.machine == TRN2.name and "left out" in found.source and found.level == Interval(1, 2).level
    for spread in found.kinds.values():
        assert 0 < spread.low < spread.high and spread.rows >= timing_intervals.LEAST_ROWS


def row(family: str, number: int, ratio: float, kind: str = "products") -> Outcome:
    return Outcome(f"{family}{number}", family, family, "", 100.0 * ratio, 100.0, basis=Basis(kind, 0.0, ()))


def test_a_kind_has_a_spread_of_its_own_from_enough_rows_of_two_families() -> None:
    rows = [row(family, k, 1.0 + k / 100) for family in "ab" for k in range(4)]
    alone = [row("c", k, 1.5, "small") for k in range(20)]
    assert set(timing_intervals.spreads([*rows, *alone], TRN2).kinds) == {EVERY, "products"}
    assert set(timing_intervals.spreads(rows[1:], TRN2).kinds) == {EVERY}
    assert set(KINDS) >= {"small", "products"}


def test_no_more_than_a_tenth_of_rows_left_out_lie_beyond_either_end() -> None:
    """Of families that lie apart, skewed: by what the others give, moved as far as the spread was."""
    middles = {"a": 0.8, "b": 0.95, "c": 1.0, "d": 1.02, "e": 1.05}
    rows = [row(family, k, middle + k / 500) for family, middle in middles.items() for k in range(9)]
    found = timing_intervals.spreads(rows, TRN2).kinds["products"]
    lies = timing_intervals.spread(rows)
    down, up = lies.low / found.low, found.high / lies.high
    beyond = {"low": [], "high": []}
    for family in middles:
        others = timing_intervals.spread([each for each in rows if each.family != family])
        own = [each.pair[1] / each.pair[0] for each in rows if each.family == family]
        beyond["low"].append(sum(ratio < others.low / down * 0.9999 for ratio in own) / len(own))
        beyond["high"].append(sum(ratio > others.high * up * 1.0001 for ratio in own) / len(own))
    assert all(sum(shares) / len(middles) <= 0.1 for shares in beyond.values()), beyond


def test_a_row_is_asked_about_with_spreads_that_do_not_know_its_family() -> None:
    near = [row(family, k, 1.0 + k / 1000) for family in "abcd" for k in range(9)]
    far = [row("far", k, 9.0) for k in range(9)]
    sides = {each.id: each.side for each in timing_intervals.with_coverage([*near, *far], TRN2)}
    assert sides["a4"] == "inside" and {sides[each.id] for each in far} == {"slower"}


def test_what_is_refitted_is_what_whole_kernels_decide() -> None:
    """A constant that was fitted to whole kernels and is not refitted would make left-out figures too good."""
    for name in timing_refits.FITTED:
        assert TRN2.sources[name].confidence == "fitted" and type(getattr(TRN2, name)) in (int, float), name
    for name, source in TRN2.sources.items():
        if source.confidence == "fitted" and any(
            f"{kind}0" in source.text or f"{kind}1" in source.text for kind in "ACGKLNPQS"
        ):
            assert name in timing_refits.FITTED, f"{name} rests on whole kernels: a line in FITTED of timing_refits.py"


def test_a_descent_finds_the_least_error_and_stays_at_the_prior_where_nothing_decides() -> None:
    constants = {
        "x": timing_refits.Constant(0.0, timing_refits.steps(0.0, 1.0, 9)),
        "y": timing_refits.Constant(3.0, timing_refits.steps(0.0, 1.0, 9)),
        "idle": timing_refits.Constant(2.5, (1.0, 2.0, 3.0)),
    }

    def error(values: Any) -> float:
        return (values["x"] - 5) ** 2 + (values["y"] - values["x"]) ** 2 / 2

    assert timing_refits.descend(constants, error, rounds=9) == {"x": 5.0, "y": 5.0, "idle": 2.5}
