"""Whether a timeline could have been: no resource is held by two at once, no data moves faster than it can.

The definition, apart from how a timeline is made. Every schedule is checked in tests; elsewhere where NKI_SIM_CHECK
is 1 in the environment.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

import numpy as np

from nki_sim.machine import ISA
from nki_sim.timing.cost import Cost

CHECKS = os.environ.get("NKI_SIM_CHECK") == "1"
SOFTWARE = "dma.gpsimd"
"""The queue whose descriptors GpSimd's cores write, in pieces where something else is ready first."""
_EPSILON_NS = 1e-3
_WHOLE_ARRAY = (0, 0, ISA.partitions, ISA.partitions)
"""Of TensorE: first row and column, rows, columns."""


class ResourceConflict(AssertionError):
    """The schedule is wrong: it names the resource and the time."""


def check_resources(
    costs: Sequence[Cost],
    template_ids: np.ndarray,
    issued: np.ndarray,
    released: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    slice_ns: float,
) -> None:
    """Raises ResourceConflict. By row: ns at which it is issued and its engine or queue is free again, at which it (of
    a transfer: its first byte) begins and ends. The time of the DMA engines is booked in slices of `slice_ns`, and an
    end is settled to within two of them, so that a transfer may end too early by three."""
    rows_of: dict[str, list[int]] = {}
    for number, price in enumerate(costs):
        for name in (price.resource, *(f"{port} port" for port in price.ports if port != "descriptors")):
            rows_of.setdefault(name, []).append(number)
    for name, numbers in rows_of.items():
        if name != SOFTWARE:
            rows = np.flatnonzero(np.isin(template_ids, numbers))
            _one_at_a_time(name, issued[rows], released[rows])
    _descriptors(costs, template_ids, issued, released)
    _array_parts(costs, template_ids, start, end)
    _transfers(costs, template_ids, start, end, slice_ns)


def _one_at_a_time(name: str, begin: np.ndarray, end: np.ndarray) -> None:
    order = np.argsort(begin, kind="stable")
    over = end[order][:-1] - begin[order][1:]
    if (over > _EPSILON_NS).any():
        at = int(np.argmax(over))
        raise ResourceConflict(f"{name} is held by two at {begin[order][at + 1]:,.1f} ns, for {over[at]:,.1f} ns")


def _descriptors(costs: Sequence[Cost], ids: np.ndarray, issued: np.ndarray, released: np.ndarray) -> None:
    """GpSimd's cores compute, or write descriptors."""
    holds = np.array([price.resource == SOFTWARE or "descriptors" in price.ports for price in costs], np.bool_)
    rows = np.flatnonzero(holds[ids])
    busy = np.array([price.busy_ns for price in costs])[ids[rows]]
    late, at = _latest(issued[rows], released[rows], busy)
    if late > _EPSILON_NS:
        raise ResourceConflict(f"GpSimd's cores have {late:,.1f} ns too much to do by {at:,.1f} ns")


def _array_parts(costs: Sequence[Cost], ids: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
    """Products on overlapping parts of TensorE's array run one after the other."""
    places: dict[tuple[int, int, int, int], list[int]] = {}
    if all(price.array_tile is None for price in costs):
        return
    for number, price in enumerate(costs):
        if price.resource == "tensor":
            tile = price.array_tile
            place = _WHOLE_ARRAY if tile is None else (tile.row, tile.column, tile.rows, tile.columns)
            places.setdefault(place, []).append(number)
    for one, numbers in places.items():
        rows = np.flatnonzero(np.isin(ids, numbers))
        _one_at_a_time(f"TensorE's part {one}", start[rows], end[rows])
        for other, others in places.items():
            if other <= one or any(
                one[k] >= other[k] + other[k + 2] or other[k] >= one[k] + one[k + 2] for k in (0, 1)
            ):
                continue
            both = np.flatnonzero(np.isin(ids, [*numbers, *others]))
            _one_at_a_time(f"TensorE's parts {one} and {other}", start[both], end[both])


def _transfers(costs: Sequence[Cost], ids: np.ndarray, start: np.ndarray, end: np.ndarray, slice_ns: float) -> None:
    """Each DMA engine moves what it is given between its start and its end, in and out together."""
    engines: dict[tuple[int, ...], int] = {}
    moves = [price.transfer for price in costs]
    for engine in range(max((move.last_engine + 1 for move in moves if move is not None), default=0)):
        numbers = tuple(n for n, m in enumerate(moves) if m is not None and m.first_engine <= engine <= m.last_engine)
        engines.setdefault(numbers, engine)
    lasts = np.array([move.engine_ns if move is not None else 0.0 for move in moves])
    for numbers, engine in engines.items():
        rows = np.flatnonzero(np.isin(ids, numbers))
        late, at = _latest(start[rows], end[rows], lasts[ids[rows]])
        if late > 3 * slice_ns + _EPSILON_NS:
            raise ResourceConflict(f"DMA engine {engine} has {late:,.1f} ns too much to move by {at:,.1f} ns")


def _latest(begin: np.ndarray, end: np.ndarray, work: np.ndarray) -> tuple[float, float]:
    """(by how much the latest of these jobs is late where one does them in the order of their ends, which is the best
    that can be; that job's end). Each is there from `begin` on and may be interrupted."""
    order = np.argsort(begin, kind="stable")
    waiting: list[tuple[float, float]] = []
    now, latest, at = 0.0, 0.0, 0.0
    jobs = zip(begin[order].tolist(), end[order].tolist(), work[order].tolist())
    coming = next(jobs, None)
    while waiting or coming is not None:
        if not waiting and coming is not None:
            now = max(now, coming[0])
        while coming is not None and coming[0] <= now:
            heapq.heappush(waiting, (coming[1], coming[2]))
            coming = next(jobs, None)
        due, left = heapq.heappop(waiting)
        if coming is not None and now + left > coming[0]:
            heapq.heappush(waiting, (due, left - (coming[0] - now)))
            now = coming[0]
            continue
        now += left
        if now - due > latest:
            latest, at = now - due, due
    return latest, at
