"""Ways to search a grid, told apart by what they try next. Each goes on until the device is spent or nothing is left.

A price is a prediction and costs nothing; an evaluation is of the device.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from accelopt_core.evaluation import Bottleneck
from accelopt_core.loop.beam import Archive, Cell
from benchmarks.search_grids import Device, Grid, Setting, by_price
from ka_extensions.divergence_guard import DivergenceGuard
from nki_sim.timing import ties

Strategy = Callable[[Grid, Device, Setting, random.Random], None]
"""(grid, device, the kernel it begins with, whose time is known, chance)."""

NOISE = DivergenceGuard().noise


def at_random(grid: Grid, device: Device, start: Setting, chance: random.Random) -> None:
    for setting in chance.sample(grid.settings, len(grid.settings)):
        device.time(setting)


def greedy_by_price(grid: Grid, device: Device, start: Setting, chance: random.Random) -> None:
    for setting in by_price(chance.sample(grid.settings, len(grid.settings))):
        device.time(setting)


def single_lineage(grid: Grid, device: Device, start: Setting, chance: random.Random) -> None:
    """As the catalogue goes: of the changes to one block size the best by price that is not tried yet; kept where it is
    faster. Where none promises more than a tie, of two changes from there."""
    least = max(NOISE, ties.shipped().within)
    parent, parent_us, tried = start, device.time(start), {start}
    assert parent_us is not None
    while True:
        untried = [each for each in grid.settings if each not in tried]
        for far in (1, 2):
            near = by_price([each for each in untried if 0 < _changes(parent, each) <= far])
            if near and _gain(parent, near[0]) >= least:
                break
        else:
            return
        tried.add(near[0])
        us = device.time(near[0])
        if us is not None and us < (1 - NOISE) * parent_us:
            parent, parent_us = near[0], us


BEAM, PLANS, SAMPLES = 6, 12, 2
ITERATIONS = 16
"""Of the beam; a grid may have settings that no single change leads to."""


def accelopts_beam(grid: Grid, device: Device, start: Setting, chance: random.Random) -> None:
    """Of each of 6 parents 12 plans, of each plan 2 samples; the 6 fastest of an iteration are the next parents.

    A plan is one block size to change, and a sample what it is changed to. Nothing is priced, and parents are not
    compared with their children.
    """
    parents = [start]
    for _ in range(ITERATIONS):
        found: dict[Setting, float] = {}
        for parent in parents:
            for _ in range(PLANS):
                at = chance.randrange(3)
                choices = [each for each in grid.settings if _changed(parent, each) == [at]]
                for setting in chance.choices(choices, k=SAMPLES) if choices else ():
                    us = device.time(setting)
                    if us is not None:
                        found[setting] = us
        parents = sorted(found, key=found.__getitem__)[:BEAM] or [chance.choice(grid.settings)]


def archive_and_sweep(grid: Grid, device: Device, start: Setting, chance: random.Random) -> None:
    """From an elite of the archive the changes of structure (one dimension more in blocks, or one less, or the same);
    the block sizes of each are swept by price, and the best of all is timed."""
    archive = Archive[Setting]()
    first_us = device.time(start)
    assert first_us is not None
    archive.offer(_cell(start), start, first_us)
    measured, tried = {start: first_us}, {start}
    while len(tried) < len(grid.settings):
        (parent,) = archive.draw()
        near = [each for each in grid.settings if each not in tried and len(each.techniques ^ parent.techniques) <= 1]
        # Where the near ones are used up, and where nothing near has a price, any other will do.
        swept = by_price(near) or by_price([each for each in grid.settings if each not in tried])
        if not swept:
            return
        tried.add(swept[0])
        us = device.time(swept[0])
        archive.went_on_from(parent, us is not None and us < (1 - NOISE) * measured[parent])
        if us is not None:
            measured[swept[0]] = us
            archive.offer(_cell(swept[0]), swept[0], us)


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random,
    "greedy by price": greedy_by_price,
    "single lineage": single_lineage,
    f"AccelOpt's beam ({BEAM} x {PLANS} x {SAMPLES})": accelopts_beam,
    "archive + sweep": archive_and_sweep,
}


def _changed(one: Setting, other: Setting) -> list[int]:
    """Which of the block sizes differ."""
    return [at for at, (a, b) in enumerate(zip(one.values, other.values)) if a != b]


def _changes(one: Setting, other: Setting) -> int:
    return len(_changed(one, other))


def _gain(parent: Setting, child: Setting) -> float:
    """Predicted, of the parent's time; all of it where the simulator refuses the parent."""
    assert child.predicted_us is not None
    return 1 - child.predicted_us / parent.predicted_us if parent.predicted_us else 1.0


def _cell(setting: Setting) -> Cell:
    return Cell(setting.bottleneck or Bottleneck.UNDERUTILIZED, setting.techniques)
