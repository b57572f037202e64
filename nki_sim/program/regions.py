"""Which operands touch the same bytes: the program's dependences.

Every distinct (buffer, offset, pattern) is a region. Regions of one buffer are compared as boxes in the
coordinates that the buffer's own strides span (for a tile of a matrix: rows and columns), so disjoint
tiles do not conflict although their byte ranges interleave. A box contains all that is touched, never less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nki_sim.errors import TooLong
from nki_sim.program.memory import Allocation
from nki_sim.program.program import Operand, Program
from nki_sim.program.region_lists import alike_lists, in_turn, overlapping, regions_of

_MOST_OVERLAPS = 5_000_000
"""Pairs of views of one buffer that share bytes; the shipped seeds have less than a fiftieth of it."""
_MAX_LEVELS = 6


@dataclass(frozen=True)
class Lists:
    """Many short lists of numbers as two int64 arrays: list k is values[starts[k]:starts[k + 1]]."""

    starts: np.ndarray
    values: np.ndarray

    @classmethod
    def empty(cls, count: int) -> Lists:
        return cls(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def by_row(cls, rows: np.ndarray, values: np.ndarray, count: int) -> Lists:
        """`rows` ascend."""
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=starts[1:])
        return cls(starts, np.ascontiguousarray(values, np.int64))

    @classmethod
    def of(cls, given: Sequence[Sequence[int] | None]) -> Lists:
        """Each of them, None as none."""
        starts = np.zeros(len(given) + 1, np.int64)
        np.cumsum([len(each) if each else 0 for each in given], out=starts[1:])
        return cls(starts, np.fromiter((value for each in given if each for value in each), np.int64, int(starts[-1])))


@dataclass(frozen=True)
class Regions:
    """The distinct views of buffers that instructions wait for each other about, by number."""

    reads: Lists
    """By instruction: the regions it reads, without those that no instruction writes."""
    writes: Lists
    """By instruction: the regions it writes or updates."""
    overlapping: Lists
    """By region: the other regions that share bytes with it."""
    buffers: np.ndarray
    """int64, by region: its buffer; ascending."""
    shapes: np.ndarray
    """int64, by region: its pattern and item size, as a number; ascending within a buffer."""
    offsets: np.ndarray
    """int64, by region: in elements; ascending within a buffer and shape. In two buffers of one shape the same bytes
    of both are meant where shapes and offsets are equal."""

    def __len__(self) -> int:
        return len(self.buffers)


def find_regions(program: Program) -> Regions:
    operands = [operand for template in program.templates for operand in template.operands]
    if not len(program) or not operands:
        none, nothing = Lists.empty(len(program)), np.zeros(0, np.int64)
        return Regions(none, none, Lists.empty(0), nothing, nothing, nothing)
    shapes: dict[tuple[object, ...], int] = {}
    shape_of = np.array([shapes.setdefault(_shape_key(operand), len(shapes)) for operand in operands])
    example: dict[int, Operand] = {}
    for operand, shape in zip(operands, shape_of.tolist()):
        example.setdefault(shape, operand)
    on_chip = program.sites.each(lambda a: a.region.on_chip) == 1
    *lists, buffers, shape_numbers, offsets, written = regions_of(
        *program.stream, *program.operand_table, shape_of, on_chip
    )
    of_region = (buffers, shape_numbers, offsets)
    shared = _all_overlaps(program, written, of_region, lambda shape: example[shape])
    return Regions(Lists(*lists[:2]), Lists(*lists[2:]), shared, *of_region)


def numbered(coarse: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """int64: a number for each pair, in the order of the pairs."""
    span = int(fine.max(initial=0)) + 1
    if int(coarse.max(initial=0)) >= (1 << 62) // span:
        _, coarse = np.unique(coarse, return_inverse=True)
    return coarse.reshape(-1).astype(np.int64) * span + fine


def _shape_key(operand: Operand) -> tuple[object, ...]:
    return (operand.pattern, operand.dtype.itemsize, operand.indirection is not None)


# --- boxes ----------------------------------------------------------------------------------------


def _all_overlaps(
    program: Program, written: np.ndarray, regions: tuple[np.ndarray, ...], example: Callable[[int], Operand]
) -> Lists:
    """By region, those that share bytes with it; nothing where nobody writes. `regions`: buffer, shape, offset."""
    region_buffer, region_shape, region_offset = regions
    begins = np.flatnonzero(np.diff(region_buffer, prepend=-1))  # of each buffer that has any; they ascend
    ends = np.append(begins[1:], len(region_buffer))
    chosen = (ends - begins > 1) & written[region_buffer[begins]]
    begins, ends = begins[chosen], ends[chosen]
    left = _MOST_OVERLAPS
    alike: list[tuple[np.ndarray, Lists]] = []
    """Of buffers with the same views: where their regions begin, and who overlaps."""
    for members in _with_same_views(program, begins, ends, regions):
        begin, end = int(begins[members[0]]), int(ends[members[0]])
        shapes, offsets = region_shape[begin:end], region_offset[begin:end]
        views = [(example(shape), offsets[shapes == shape]) for shape in dict.fromkeys(shapes.tolist())]
        pairs = _overlapping(program.allocations[int(region_buffer[begin])], views, left)
        left -= len(pairs.values)
        if len(pairs.values):
            alike.append((begins[members][:, None], pairs))
    starts = np.zeros(len(region_buffer) + 1, np.int64)
    for at, others in alike:
        starts[1:][at + np.arange(len(others.starts) - 1)] = np.diff(others.starts)
    np.cumsum(starts, out=starts)
    found = np.empty(starts[-1], np.int64)
    for at, others in alike:
        found[starts[at] + np.arange(len(others.values))] = at + others.values
    return Lists(starts, found)


def _with_same_views(
    program: Program, begins: np.ndarray, ends: np.ndarray, regions: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    """Buffers of one size whose regions have the same shapes and offsets: places in `begins`, ascending, in the order
    of the first of each. Buffer k has the regions begins[k] up to ends[k]."""
    buffers, shapes, offsets = regions
    sizes: dict[tuple[int, int], int] = {}
    size_of = program.sites.each(lambda a: sizes.setdefault((a.partition_bytes, a.nbytes), len(sizes)))
    kinds = size_of[buffers[begins]]
    numbers, count = alike_lists(begins, ends, kinds, shapes, offsets)
    return np.split(in_turn(numbers, count), np.cumsum(np.bincount(numbers, minlength=count))[:-1]) if count else []


def _overlapping(allocation: Allocation, views: Sequence[tuple[Operand, np.ndarray]], most: int) -> Lists:
    """For each view, the indices of the others it shares bytes with. Raises TooLong for more than `most` in all.

    `views`: those of each pattern, with their offsets in elements.
    """
    levels = _levels(allocation, [operand for operand, _ in views])
    boxes = [_boxes(operand, offsets, levels) for operand, offsets in views]
    low, high = (np.concatenate(sides) for sides in zip(*boxes))
    groups = _apart(low, high)
    counts, others = overlapping(low, high, groups.starts, groups.values, most)
    if len(counts) and counts[0] < 0:
        raise TooLong(
            f"more than {_MOST_OVERLAPS:,} pairs of its views share bytes, many of {allocation.describe()}: "
            "take fewer views that overlap"
        )
    return Lists(np.concatenate(([0], np.cumsum(counts))), others)


def _apart(low: np.ndarray, high: np.ndarray) -> Lists:
    """Groups of boxes, ascending in each, such that those of different groups share nothing."""
    group = np.zeros(len(low), np.int64)
    for level in range(low.shape[1]):
        component = _components(low[:, level], high[:, level])
        _, group = np.unique(group * (len(low) + 1) + component, return_inverse=True)
        group = group.reshape(-1)
    count = int(group.max(initial=-1)) + 1
    return Lists.by_row(np.sort(group), in_turn(group, count), count)


def _levels(allocation: Allocation, operands: Sequence[Operand]) -> list[int]:
    """Byte strides that span the buffer's coordinates, coarsest first, each a multiple of the next."""
    strides = {1}
    for operand in operands:
        strides.update(abs(s) * operand.dtype.itemsize for s, n in operand.pattern if n > 1 and s)
    if allocation.region.on_chip:
        strides = {s for s in strides if s < allocation.partition_bytes} | {allocation.partition_bytes, 1}
    chain: list[int] = []
    for stride in sorted(strides, reverse=True):
        if not chain or chain[-1] % stride == 0:
            chain.append(stride)
    if len(chain) > _MAX_LEVELS:
        chain = chain[: _MAX_LEVELS - 1] + [1]
    return chain


def _boxes(operand: Operand, offsets: np.ndarray, levels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """[low, high) along every level, of this operand at each of the offsets; int64 [offsets, levels]."""
    item = operand.dtype.itemsize
    if operand.indirection is not None:
        shape = len(offsets), len(levels)
        return np.zeros(shape, np.int64), np.full(shape, 1 << 62, np.int64)
    start = offsets * item
    extent = [0] * len(levels)
    extent[-1] = item - 1
    for stride, size in operand.pattern:
        step = stride * item
        if step < 0:
            start = start + step * (size - 1)
            step = -step
        if step == 0 or size == 1:
            continue
        if step in levels:
            extent[levels.index(step)] += size - 1
        else:
            extent[-1] += step * (size - 1)
    low = np.empty((len(offsets), len(levels)), np.int64)
    rest = start
    for k, stride in enumerate(levels):
        low[:, k] = rest // stride
        rest = rest % stride
    high = low + np.array(extent) + 1
    for k in range(len(levels) - 1, 0, -1):
        radix = levels[k - 1] // levels[k]
        over = high[:, k] > radix
        high[over, k - 1] += (high[over, k] - 1) // radix
        low[over, k], high[over, k] = 0, radix
    return low, high


def _components(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A number per interval; intervals with different numbers are disjoint."""
    order = np.argsort(low, kind="stable")
    reach = np.maximum.accumulate(high[order])
    starts = np.ones(len(order), np.int64)
    starts[1:] = low[order][1:] >= reach[:-1]
    component = np.empty(len(order), np.int64)
    component[order] = np.cumsum(starts)
    return component
