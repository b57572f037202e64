"""Which inputs a kernel is executed on at the shape that counts: as few as what is known of it leaves open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.judging.inputs.draws import LONG, OF_DOMAINS, WHERE_LONG, Draw, draws_at_a_gate, draws_at_full_shape
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import REFERENCE
from infra.tasks.seed_index import load_seed

PUBLISHED, SECRET = (3, 4), (71, 72)
TASK = replace(load_seed("silu").task(), seeds=PUBLISHED)


def request(final: bool) -> EvaluationRequest:
    return EvaluationRequest(TASK, Candidate("c", "", "input"), extra_seeds=SECRET, final=final)


def kinds(draws: tuple[Draw, ...]) -> list[tuple[int, str]]:
    return [(draw.seed, draw.distribution) for draw in draws]


def test_a_kernel_gets_as_many_draws_as_what_is_known_of_it_leaves_open() -> None:
    assert kinds(draws_at_full_shape(request(final=False))) == [
        (3, REFERENCE),
        (71, REFERENCE),
        (72, "mixed"),
        (72, "domain"),
    ]
    own = [(seed, REFERENCE) for seed in (*PUBLISHED, *SECRET)]
    moved = [(72, "mixed"), (72, "domain"), (72, "complement")]
    assert kinds(draws_at_full_shape(request(final=True))) == [*own, *moved]
    assert kinds(draws_at_full_shape(request(final=False), settled=True)) == [
        (3, REFERENCE),
        (3, "mixed"),
        (3, "domain"),
    ]
    assert kinds(draws_at_full_shape(request(final=True), settled=True)) == [(3, REFERENCE), *moved]
    the_input = replace(request(final=False), is_input=True)
    assert kinds(draws_at_full_shape(the_input, settled=True)) == [(3, REFERENCE)]


def test_at_a_gate_the_winner_gets_all_or_if_proved_equal_what_nobody_knew() -> None:
    seeds = (*PUBLISHED, *SECRET)
    wanted = {(seed, distribution) for seed in seeds for distribution in TASK.distributions}
    assert set(kinds(draws_at_a_gate(request(final=True)))) == wanted
    draws = draws_at_a_gate(request(final=True), proved_equal=True)
    own = {(seed, REFERENCE) for seed in (*PUBLISHED, *SECRET)}
    changed = {(seed, distribution) for seed in SECRET for distribution in TASK.distributions[1:]}
    assert set(kinds(draws)) == own | changed


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("final", [False, True])
def test_with_one_shape_that_is_the_gate_too(final: bool, settled: bool) -> None:
    one = replace(request(final), task=replace(TASK, presets=TASK.presets[-1:]))
    drawn = {draw.distribution for draw in draws_at_full_shape(one, settled)}
    assert drawn == set(TASK.distributions)


def test_domains_are_drawn_from_where_an_input_has_one_of_its_own() -> None:
    for draws in (draws_at_a_gate, draws_at_full_shape):
        with_domains, without = (kinds(draws(request(final=True), moves=moves)) for moves in (True, False))
        assert {name for _, name in set(with_domains) - set(without)} <= set(OF_DOMAINS)
        assert "domain" in dict(map(reversed, with_domains)) and set(without) < set(with_domains)


def test_a_long_program_at_the_only_shape_gets_all_distributions_in_the_last_check() -> None:
    one = replace(request(final=False), task=replace(TASK, presets=TASK.presets[-1:]))
    short, long = (kinds(draws_at_full_shape(one, instructions=count)) for count in (LONG - 1, LONG))
    assert set(long) < set(short) and len(long) <= len(short) / 2
    assert {name for _, name in long} == {REFERENCE, *WHERE_LONG}
    assert kinds(draws_at_full_shape(replace(one, final=True), instructions=LONG)) == short
