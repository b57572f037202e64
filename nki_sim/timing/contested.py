"""Contested facts: what AWS's documentation contradicts itself about, or a compiler crashed on.

A fact is contested if its source in `nki_sim.machine` says so; a calibration that decides it turns it into a measured
one. A simulated latency rests on a contested fact if the program does what that fact prices, which is read off its
instructions and the time at which they run, never off its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from nki_sim.timing.schedule import Timeline

FOUR_BYTES = 4


def transposes_four_bytes(timeline: Timeline) -> bool:
    """Whether a `dma_transpose` moves elements of four bytes or more."""
    return any(
        operand.dtype.itemsize >= FOUR_BYTES
        for template in timeline.program.templates
        if template.opcode == "dma_transpose"
        for operand in template.operands
    )


def products_share_the_array(timeline: Timeline) -> bool:
    """Whether two products are at work on different rows of TensorE's array at once."""
    tiles = {number: price.array_tile for number, price in enumerate(timeline.costs) if price.array_tile is not None}
    rows = {number: (tile.row, tile.row + tile.rows) for number, tile in tiles.items()}
    if len(set(rows.values())) < 2:
        return False
    holds = np.zeros(len(timeline.costs))
    for number, tile in tiles.items():  # the engine goes on to the next product sooner, and slower while it is cold
        holds[number] = tile.hold_ns / timeline.costs[number].busy_ns
    kinds = timeline.program.template_ids
    end_ns = timeline.start_ns + holds[kinds] * (timeline.end_ns - timeline.start_ns)
    parts = {part: np.isin(kinds, [number for number in rows if rows[number] == part]) for part in set(rows.values())}
    return any(
        _begins_within(timeline.start_ns[parts[other]], timeline.start_ns[parts[part]], end_ns[parts[part]])
        for part in parts
        for other in parts
        if part[1] <= other[0] or other[1] <= part[0]
    )


def _begins_within(begins: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
    """Whether one of `begins` lies in one of the stretches from `starts` to `ends`. All float64, in ns."""
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    last = np.searchsorted(starts, begins, side="right") - 1
    begun = last >= 0
    return bool((begins[begun] < latest[last[begun]]).any())


CONTESTED: Mapping[str, tuple[str, Callable[[Timeline], bool]]] = {
    "tensor_tile_slowdown": ("half-array products side by side", products_share_the_array),
    "dma_transpose_4byte_slowdown": ("4-byte dma_transpose", transposes_four_bytes),
}
"""By field of `Machine`: the fact in words, and whether a latency rests on it."""


def contested(timelines: Iterable[Timeline]) -> tuple[str, ...]:
    """Contested facts that the latency of a program rests on, in words; of all the cores that it runs on."""
    found = [
        what
        for timeline in timelines
        for name, (what, rests_on) in CONTESTED.items()
        if timeline.machine.sources[name].confidence == "contested" and rests_on(timeline)
    ]
    return tuple(sorted(set(found)))
