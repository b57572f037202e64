"""In which types a program computes: which results are rounded to fewer bits than float32 has, and then used.

Engines compute in float32 whatever their operands' types are (`numerics`), so that reading a narrow type is
exact; what counts is the rounding of a result on its way into one. Moving a narrow value, and widening it, rounds
nothing. A result that is rounded and goes out as an output of that very type is no low-precision computation either:
that is what the output can hold. All other use of a rounded result is.

What is known of the values in a buffer is kept by places (partitions and bytes) on chip, and as one of a buffer in HBM.
Where a place is not known exactly, more counts as rounded, never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import ml_dtypes

from nki_sim import dtypes
from nki_sim.dtypes import DType
from nki_sim.isa.arithmetic import ops
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Loop, Operand, Program, Template


class Rounded(NamedTuple):
    """A use of a result that was rounded before."""

    name: str
    """The narrow type, or the bits that were taken for another type."""
    line: int
    """Where it was rounded."""


def low_precision(program: Program) -> tuple[Rounded, ...]:
    """Every narrow type that some core computes in, with the first line that rounds to it, by name."""
    cores = (program, *program.peers)
    if not any(is_narrow(operand.dtype) for each in cores for t in each.templates for operand in t.operands):
        return ()
    first: dict[str, int] = {}
    for name, line in _Walk(cores).found():
        first[name] = min(line, first.get(name, line))
    return tuple(Rounded(name, line) for name, line in sorted(first.items()))


# --- types ----------------------------------------------------------------------------------------


def is_narrow(dtype: DType) -> bool:
    """Has it fewer bits of mantissa than float32?"""
    return dtype.is_float and (dtype.itemsize < 4 or dtype == "tfloat32")


def _range_of(dtype: DType) -> tuple[int, int, int]:
    """(bits of the significand, exponent of the smallest number, exponent of the largest)."""
    if not dtype.is_float:
        bits = 1 if dtype == "bool" else 8 * dtype.itemsize - (dtype.startswith("int"))
        return bits, 0, bits
    if dtype == "tfloat32":
        return 11, -126 - 10, 128
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(limits.nmant) + 1, int(limits.minexp) - int(limits.nmant), int(limits.maxexp)


_RANGES = {dtype: _range_of(dtype) for dtype in dtypes.ALL.values() if dtype.since <= 3}


def holds(one: DType, other: DType) -> bool:
    """Is every number of the type `other` one of the type `one`?"""
    if one == other:
        return True
    if not one.is_float:
        return False
    (bits, least, most), (their_bits, their_least, their_most) = _RANGES[one], _RANGES[other]
    return bits >= their_bits and least <= their_least and most >= their_most


def _common(one: DType, other: DType) -> DType:
    return one if holds(one, other) else other if holds(other, one) else dtypes.float32


# --- instructions ---------------------------------------------------------------------------------

_MOVED = {
    "sendrecv": ("src",),
    "dma_copy": ("src",),
    "dma_transpose": ("src",),
    "nc_stream_shuffle": ("src",),
    "nc_n_gather": ("data",),
    "local_gather": ("src_buffer",),
    "tensor_copy": ("src",),
    "affine_select": ("on_true_tile",),
    "nc_transpose": ("data",),
    "max8": ("src",),
    "tensor_copy_predicated": ("src",),
    "nc_match_replace8": ("data",),
    "topk": ("src",),
}
"""Instructions whose results are values of these operands, or constants."""

_CHOOSING = frozenset(("maximum", "minimum"))
_COMPARING = frozenset(
    name for name in ops.ALU if name.startswith(("equal", "not_equal", "greater", "less", "logical_"))
)


_SMALL = (0, 1)
"""Constants that every type has."""


class _Access(NamedTuple):
    """How a template touches one buffer: what is the same in all of its rows."""

    at: int
    """Among the operands."""
    dtype: DType
    partitions: tuple[int, int]
    """[first, end); (0, 1) in HBM."""
    span: tuple[int, int]
    """[low, high) bytes from the offset in a partition."""
    width: int
    """Elements of `dtype` in a partition of the buffer, by which offsets are counted; 0 in HBM."""
    exact: bool
    """Is every byte of that touched?"""
    whole: bool
    """May it be anywhere in the buffer?"""


@dataclass(frozen=True)
class _Step:
    """One template."""

    line: int
    moves: bool
    """Are its results values of its sources, or constants?"""
    is_small: bool
    """Are its results 0 and 1, whatever its sources are?"""
    is_sent: bool
    """Does another core have its result?"""
    sources: tuple[_Access, ...]
    results: tuple[tuple[_Access, bool], ...]
    """With: is what was there gone?"""
    factors: tuple[int, ...]
    """Sources that TensorE reads as tfloat32, by their place among the operands."""


def _access(at: int, operand: Operand) -> _Access:
    low, high = operand.free_span_bytes
    first, end, dense = 0, 1, operand.indirection is None
    if operand.region.on_chip:
        stride, count = operand.pattern[0]
        step = max(1, stride // max(1, operand.partition_elements))
        first, end = operand.partition_start, operand.partition_start + (count - 1) * step + 1
        dense = dense and (step == 1 or count == 1)
    dense = dense and operand.free_size * operand.dtype.itemsize == high - low
    width = operand.partition_elements if operand.region.on_chip else 0
    return _Access(at, operand.dtype, (first, end), (low, high), width, dense, operand.indirection is not None)


def _step(template: Template) -> _Step | None:
    """None where nothing is computed or moved."""
    if template.opcode == "core_barrier" or any(o.region is MemoryRegion.register for o in template.operands):
        return None
    attrs = template.attrs
    names = [getattr(attrs, each, None) for each in ("op", "op0", "op1", "reduce_op")]
    operators = [getattr(name, "name", name) for name in names if name is not None]
    roles: tuple[str, ...] | None = _MOVED.get(template.opcode)
    if template.opcode == "nc_matmul" and attrs.is_transpose:
        roles = ("moving",)
    if template.opcode in ("tensor_tensor", "tensor_reduce") and _CHOOSING.issuperset(operators):
        roles = tuple(o.role for o in template.operands if o.access == "r")
    is_comparison = template.opcode in ("tensor_tensor", "tensor_scalar") and bool(operators)
    is_comparison = is_comparison and operators[-1] in _COMPARING
    indices = {f"{o.role}.index" for o in template.operands}
    sources, results = [], []
    for at, operand in enumerate(template.operands):
        if operand.access != "r":
            gone = operand.access == "w" or (roles is not None and template.opcode == "nc_matmul")
            results.append((_access(at, operand), gone))
        if operand.role not in indices and (operand.role in roles if roles else operand.access != "w"):
            sources.append(_access(at, operand))
    is_small = is_comparison or (template.opcode == "memset" and attrs.value in _SMALL)
    moves = roles is not None or template.opcode == "memset"
    return _Step(
        template.line, moves, is_small, template.opcode == "sendrecv", tuple(sources), tuple(results),
        template.tfloat32_factors,
    )  # fmt: skip


# --- values ---------------------------------------------------------------------------------------


class _Values(NamedTuple):
    """What is known of the values in a place."""

    stored: DType
    """The type whose bits lie there."""
    of: DType
    """A type that has all of them."""
    rounded: Rounded | None
    """Where results became of that type."""

    def joined(self, other: _Values) -> _Values:
        stored = self.stored if self.stored == other.stored else dtypes.float32
        return _Values(stored, _common(self.of, other.of), self.rounded or other.rounded)


class _Extent(NamedTuple):
    first: int
    end: int
    low: int
    high: int
    values: _Values


_FAR = 1 << 60
"""Beyond every buffer."""
_MOST_EXTENTS = 64
"""Of one buffer; more are joined into one."""
_MOST_PASSES = 8
"""Of a loop, and of all cores, until nothing new is known of any buffer."""


class _Walk:
    """What is known of the buffers of all cores, row by row."""

    def __init__(self, cores: Sequence[Program]) -> None:
        self._cores = cores
        self._bits_count = any(is_narrow(ref.dtype) for each in cores for ref in each.outputs)
        """Are bits that are taken for another type told? Of float32 the numbers show what becomes of them."""
        self._found: dict[Rounded, None] = {}
        self._places: dict[tuple[int, int], list[_Extent]] = {}
        """By core and buffer; core -1 for the nth buffer that they share."""
        self._sent: _Values | None = None
        """What cores send each other, all of it together."""
        self._steps = [[_step(template) for template in each.templates] for each in cores]
        self._names = [_names(number, each, len(cores) > 1) for number, each in enumerate(cores)]
        self._program, self._name = cores[0], self._names[0]
        self._starts: list[int] = []
        self._data: list[list[int]] = []

    def found(self) -> Iterator[Rounded]:
        """Every use of a rounded result; to be an output of another type is one."""
        for number, each in enumerate(self._cores):
            for buffer, contents in each.constants.items():
                kind = each.allocations[buffer].dtype
                is_small = bool(((contents == 0) | (contents == 1)).all())
                values = _Values(kind, dtypes.bool_ if is_small else kind, None)
                self._places[self._names[number][buffer]] = [_Extent(0, _FAR, 0, _FAR, values)]
        self._until_settled(self._all_rows, once=len(self._cores) == 1)
        for each, names in zip(self._cores, self._names):
            for ref in each.outputs:
                for extent in self._places.get(names[ref.allocation], ()):
                    if extent.values.rounded is not None and extent.values.rounded.name != ref.dtype:
                        self._found[extent.values.rounded] = None
        yield from self._found

    def _all_rows(self) -> None:
        for number, program in enumerate(self._cores):
            self._program, self._name = program, self._names[number]
            self._starts, self._data = program.operand_starts.tolist(), program.operand_data.tolist()
            self._block(self._steps[number], 0, len(program), program.loops)

    def _until_settled(self, once_more: Callable[[], None], once: bool = False) -> None:
        for _ in range(1 if once else _MOST_PASSES):
            before = self._kept()
            once_more()
            if before == self._places:
                break

    def _kept(self) -> dict[tuple[int, int], list[_Extent]]:
        return {name: list(extents) for name, extents in self._places.items()}

    def _block(self, steps: Sequence[_Step | None], start: int, end: int, loops: Sequence[Loop]) -> None:
        """Rows [start, end) with these loops among them, outer ones first."""
        at = start
        while loops:
            loop = loops[0]
            inner = [each for each in loops[1:] if each.start >= loop.start and each.end <= loop.end]
            loops = [each for each in loops[1:] if each not in inner]
            self._rows(steps, at, loop.start)
            before = self._kept()
            self._until_settled(partial(self._block, steps, loop.start, loop.end, inner))
            if not loop.trips:  # it may not run at all
                for name, extents in before.items():
                    self._places.setdefault(name, []).extend(extents)
            at = loop.end
        self._rows(steps, at, end)

    def _rows(self, steps: Sequence[_Step | None], start: int, end: int) -> None:
        starts = self._starts
        for row, template in enumerate(self._program.template_ids[start:end].tolist(), start):
            step = steps[template]
            if step is not None:
                self._row(step, self._data[starts[row] : starts[row + 1]])

    def _row(self, step: _Step, operands: Sequence[Sequence[int]]) -> None:
        read: _Values | None = None
        for access in step.sources:
            number, offset = operands[access.at]
            values = self._read(access, step, number, offset)
            if access.at in step.factors and not holds(dtypes.tfloat32, values.of):
                self._found[Rounded("tfloat32", step.line)] = None
            if values.rounded is not None and not step.moves:
                self._found[values.rounded] = None
            read = values if read is None else read.joined(values)
        if step.is_sent and read is not None:
            read = self._sent = read if self._sent is None else read.joined(self._sent)
        for access, gone in step.results:
            number, offset = operands[access.at]
            self._write(access, number, offset, gone, self._result(access.dtype, step, read))

    def _result(self, dtype: DType, step: _Step, read: _Values | None) -> _Values:
        if step.is_small:
            return _Values(dtype, dtypes.bool_, None)
        if step.moves and (read is None or holds(dtype, read.of)):
            return _Values(dtype, dtype if read is None else read.of, None if read is None else read.rounded)
        rounds = is_narrow(dtype) or (self._bits_count and _is_quantized(dtype, read))
        if step.moves and read is not None and read.rounded is not None:
            if not rounds:
                return _Values(dtype, dtype, read.rounded)
            self._found[read.rounded] = None
        return _Values(dtype, dtype, Rounded(str(dtype), step.line) if rounds else None)

    # --- places -----------------------------------------------------------------------------------

    def _box(self, access: _Access, offset: int) -> tuple[int, int, int, int]:
        if access.whole:
            return 0, _FAR, 0, _FAR
        at = (offset % access.width if access.width else offset) * access.dtype.itemsize
        return *access.partitions, at + access.span[0], at + access.span[1]

    def _read(self, access: _Access, step: _Step, number: int, offset: int) -> _Values:
        first, end, low, high = self._box(access, offset)
        found: _Values | None = None
        for extent in self._places.get(self._name[number], ()):
            if extent.first < end and first < extent.end and extent.low < high and low < extent.high:
                found = extent.values if found is None else found.joined(extent.values)
        if found is None:
            kind = self._program.allocations[number].dtype
            found = _Values(kind, kind, None)
        if found.stored == access.dtype or {found.stored, access.dtype} == {dtypes.float32, dtypes.tfloat32}:
            return found
        return self._reinterpreted(found, access, step)

    def _reinterpreted(self, found: _Values, access: _Access, step: _Step) -> _Values:
        """Bits of one type that are read as another."""
        taken, stored = access.dtype, found.stored
        if step.moves and access.exact and all(result.dtype == taken for result, _ in step.results):
            return found  # all bits go on as they are
        if step.moves and taken.itemsize >= stored.itemsize and all(r.dtype == taken for r, _ in step.results):
            return found  # whole values do
        if not (is_narrow(taken) or is_narrow(stored) or self._bits_count):
            return _Values(taken, taken, found.rounded)
        name = str(taken) if is_narrow(taken) else str(stored) if is_narrow(stored) else f"bits of {stored} as {taken}"
        return _Values(taken, taken, found.rounded or Rounded(name, step.line))

    def _write(self, access: _Access, number: int, offset: int, gone: bool, values: _Values) -> None:
        places = self._places.setdefault(self._name[number], [])
        if not access.width:  # in HBM one for all
            joined = values if not places else places[0].values.joined(values)
            places[:] = [_Extent(0, _FAR, 0, _FAR, joined)]
            return
        first, end, low, high = self._box(access, offset)
        if gone and access.exact:
            places[:] = [
                each
                for each in places
                if not (first <= each.first and each.end <= end and low <= each.low and each.high <= high)
            ]
        places.append(_Extent(first, end, low, high, values))
        if len(places) > _MOST_EXTENTS:
            joined = places[0].values
            for each in places[1:]:
                joined = joined.joined(each.values)
            places[:] = [_Extent(0, _FAR, 0, _FAR, joined)]


def _names(core: int, program: Program, shares: bool) -> list[tuple[int, int]]:
    """How its buffers are called: those that cores share by their number among these."""
    names = [(core, number) for number in range(len(program.allocations))]
    if shares:
        for number, allocation in enumerate(program.allocations.in_region(MemoryRegion.shared_hbm)):
            names[allocation.id] = (-1, number)
    return names


def _is_quantized(dtype: DType, read: _Values | None) -> bool:
    """Is it an integer of few bits, made of numbers that are none?"""
    return not dtype.is_float and dtype.itemsize <= 2 and read is not None and read.of.is_float
