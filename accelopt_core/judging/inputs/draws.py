"""Which inputs a kernel is run on: seeds and distributions, in tiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import COMPLEMENT, DOMAIN, REFERENCE

AT_FULL_SHAPE = ("mixed", "scaled-rows")
"""Changed inputs before a candidate can become the best: the first, and the next where float32 overflows on some rows.

`mixed` has rows of every kind that the others are made of: one draw does for all where a draw costs most."""

LONG = 100_000
"""Instructions from which a task's only shape is drawn like a full one: an execution takes seconds (21 µs of a
processor for an instruction on a small tile), and there would be twenty-two."""

WHERE_LONG = ("mixed", "offset-rows", DOMAIN, COMPLEMENT)
"""Distributions there; the winner gets all."""

OF_DOMAINS = (DOMAIN, COMPLEMENT)
"""Distributions that are the reference's own where no input has a domain that these alone draw from."""


@dataclass(frozen=True)
class Draw:
    """One set of inputs."""

    seed: int
    distribution: str
    otherwise: tuple[str, ...] = ()
    """Distributions to take, one after the other, where float32 overflows on this one."""
    twice: bool = False
    """Executed twice, and a fault where the bits differ."""


def count(draws: Sequence[Draw]) -> str:
    """For people."""
    return f"{len({d.seed for d in draws})} seeds, {len({d.distribution for d in draws})} input distributions"


def draws_at_a_gate(request: EvaluationRequest, proved_equal: bool = False, moves: bool = True) -> tuple[Draw, ...]:
    """Every seed with the reference's own inputs, every other distribution with one; all with all for the winner.

    Published seeds for the distributions, whose references are then computed once in a session. `proved_equal`: to the
    input kernel, on the simulator. Then the winner gets each distribution with the secret seeds. `moves`: an input has
    a domain that only its own distributions draw from.
    """
    published, secret = request.task.seeds, request.extra_seeds
    changed = published[:1]
    if request.final:
        changed = secret if proved_equal and secret else published + secret
    return _own(published + secret) + _others(request, changed, moves)


def draws_at_full_shape(
    request: EvaluationRequest, settled: bool = False, moves: bool = True, instructions: int = 0
) -> tuple[Draw, ...]:
    """One published and one secret seed, and changed inputs of a secret one; every seed for the final winner. Where
    `moves`, as in `draws_at_a_gate`, a draw from the domains too.

    A task of one shape has no gate: each distribution is drawn here, of a program of many `instructions` before the
    last check those of `WHERE_LONG`. `settled`: what is timed was proved equal to the
    input kernel where the gates are, or is the input kernel. Then one published seed does, whose references, which take
    longer than the kernel, are computed once in a session; in the last check changed inputs are of a secret one. The
    input kernel is run on those only where a winner fails them.
    """
    task = request.task
    seeds = task.seeds + request.extra_seeds
    if len(task.presets) == 1 and instructions >= LONG and not request.final:
        own = task.seeds[:1] + request.extra_seeds[:1]
        return tuple(
            draw
            for draw in _own(own) + _others(request, seeds[-1:], moves)
            if draw.distribution in (REFERENCE, *WHERE_LONG)
        )
    if len(task.presets) == 1:
        return _own(seeds) + _others(request, seeds[-1:], moves)
    if settled and task.seeds:
        own, changed = task.seeds[:1], seeds[-1] if request.final else task.seeds[0]
    else:
        own, changed = seeds if request.final else task.seeds[:1] + request.extra_seeds[:1], seeds[-1]
    names = [name for name in AT_FULL_SHAPE if name in task.distributions]
    if settled and request.is_input:
        return _own(own)
    mixed = (Draw(changed, names[0], tuple(names[1:])),) if names else ()
    others = OF_DOMAINS if request.final else OF_DOMAINS[:1]
    domain = (Draw(changed, name) for name in others if moves and name in task.distributions)
    return (*_own(own), *mixed, *domain)


def _own(seeds: tuple[int, ...]) -> tuple[Draw, ...]:
    return tuple(Draw(seed, REFERENCE) for seed in seeds)


def _others(request: EvaluationRequest, seeds: tuple[int, ...], moves: bool) -> tuple[Draw, ...]:
    names = (name for name in request.task.distributions[1:] if moves or name not in OF_DOMAINS)
    return tuple(Draw(seed, name) for name in names for seed in seeds)


def several(draws: Sequence[Draw]) -> list[int]:
    """Seeds that more than one of them is of."""
    return [seed for seed, times in Counter(draw.seed for draw in draws).items() if times > 1]
