"""An access through a copy: the same elements, where the copy took them from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nki_sim.loop_ir.affine import Affine
from nki_sim.loop_ir.tree import Access
from nki_sim.program.patterns import Pattern


@dataclass(frozen=True)
class CommonStep:
    """One dimension of a copy."""

    here: int
    """Its stride on the side that is read through."""
    there: int
    count: int


def through(access: Access, here: Access, there: Access, ranges: Mapping[str, tuple[int, int]]) -> Access | None:
    """The elements of `access`, which lie among those of `here`, where `there` has them; None where that is no access.

    `here` and `there`: the two sides of a copy, element by element in their order; where `here` is one of the tiles
    that a loop makes, in the pass that made the tile of `access`. `ranges`: of the counters.
    """
    if access.dtype != here.dtype or access.indirection is not None:
        return None
    if access.tile != here.tile:
        if any(form != Affine.variable(name) for form in here.tile for name in form.variables or ("",)):
            return None
        passes = {next(iter(form.variables)): theirs for form, theirs in zip(here.tile, access.tile)}
        here, there = here.substitute(passes), there.substitute(passes)
    steps = steps_of(here.pattern, there.pattern)
    if steps is None or access.tile != here.tile:
        return None
    steps = sorted((step for step in steps if step.count > 1), key=lambda step: -step.here)
    if any(step.here <= 0 for step in steps) or not _nested(steps):
        return None
    relative = access.offset - here.offset
    most = [0] * len(steps)
    moved = there.offset
    for name, factor in ((None, relative.constant), *relative.terms):
        digits = _digits(factor, steps)
        if digits is None:
            return None
        far = sum(digit * step.there for digit, step in zip(digits, steps))
        moved = moved + (far if name is None else Affine.of(0, {name: far}))
        if name is not None and ranges[name][0] < 0:
            return None
        times = 1 if name is None else ranges[name][1]
        most = [most[at] + digit * times for at, digit in enumerate(digits)]
    pattern: list[tuple[int, int]] = []
    for stride, count in access.pattern:
        for each_stride, each_count in _cut(stride, count, steps):
            digits = _digits(each_stride, steps) if each_count > 1 else [0] * len(steps)
            if digits is None:
                return None
            pattern.append((sum(digit * step.there for digit, step in zip(digits, steps)), each_count))
            most = [most[at] + digit * (each_count - 1) for at, digit in enumerate(digits)]
    if any(reach >= step.count for reach, step in zip(most, steps)):
        return None
    return replace(
        access,
        buffer=there.buffer,
        tile=there.tile,
        offset=moved,
        pattern=tuple((stride if count > 1 else 1, count) for stride, count in pattern),
        dtype=there.dtype,
    )


def steps_of(here: Pattern, there: Pattern) -> list[CommonStep] | None:
    """The two patterns cut into the same sizes, innermost last."""
    mine, theirs = [list(p) for p in here if p[1] > 1], [list(p) for p in there if p[1] > 1]
    steps: list[CommonStep] = []
    while mine and theirs:
        (a, n), (b, m) = mine[-1], theirs[-1]
        size = min(n, m)
        if max(n, m) % size:
            return None
        steps.insert(0, CommonStep(a, b, size))
        for side, stride, count in ((mine, a, n), (theirs, b, m)):
            if count == size:
                side.pop()
            else:
                side[-1] = [stride * size, count // size]
    return None if mine or theirs else steps


def _nested(steps: Sequence[CommonStep]) -> bool:
    """Is each dimension's stride beyond all that the smaller ones reach?"""
    reach = 0
    for step in reversed(steps):
        if step.here <= reach:
            return False
        reach += step.here * (step.count - 1)
    return True


def _digits(value: int, steps: Sequence[CommonStep]) -> list[int] | None:
    """How many steps of each dimension come to that; None where none do."""
    if value < 0:
        return None
    digits = []
    for step in steps:
        digit = min(value // step.here, step.count - 1) if value else 0
        digits.append(digit)
        value -= digit * step.here
    return None if value else digits


def _cut(stride: int, count: int, steps: Sequence[CommonStep]) -> list[tuple[int, int]]:
    """A walk that goes over from one dimension to the next larger one, as one walk in each; outermost first."""
    cut: list[tuple[int, int]] = []
    for step in reversed(steps):
        if count == 1 or stride <= 0 or stride % step.here or stride // step.here >= step.count:
            continue
        inner = step.count // (stride // step.here)
        if count <= inner:
            break
        if count % inner or stride * inner not in {other.here for other in steps}:
            break
        cut.insert(0, (stride, inner))
        stride, count = stride * inner, count // inner
    return [(stride, count), *cut]
