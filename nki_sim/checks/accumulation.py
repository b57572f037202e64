"""Sums in PSUM that the simulator gets right and a device may not, found in a trace, without numbers.

A *group* is the products that TensorE adds up at one place in PSUM. Its first product marks the whole 2 KiB of its
bank: what is added next at a marked place replaces what is there. So a group that goes on after another one began in
its bank loses what it had. The compiler sets the marks itself where `accumulate` is left out; where the kernel gives
`accumulate`, nothing keeps products of different groups in the order of the text, unless one overwrites the other.

Sources: a published kernel with four such groups in one bank was 14.5 % off on a trn2, and AWS's simulator warns of
them since NKI 0.6; AWS's library has the same layout without the flag. That a product must not be added to what
`memset` or a copy left in PSUM is in NKI's reference of nc_matmul (SDK 2.33, NeuronCore v2 and v3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nki_sim.machine import ISA
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.passes import Nested, nested
from nki_sim.program.program import Engine, Operand, Program, Template

BEGINS, ADDS, AUTOMATIC, MOVES, FILLS = range(1, 6)
"""What an instruction does to PSUM: a product with accumulate=False, with True, without it; a transposition on
TensorE; a write by another engine."""


class DeviceDoubt(NamedTuple):
    """A place of a kernel that computes what it should on the simulator and is not proved for a device."""

    line: int
    rule: str
    message: str
    remedy: str

    def describe(self) -> str:
        return f"{self.message}; {self.remedy}"


def device_doubts(program: Program) -> tuple[DeviceDoubt, ...]:
    """The doubtful sums of a program on all of its cores, by line, each once."""
    found = {doubt for core in (program, *program.peers) for doubt in _of_core(core)}
    return tuple(sorted(found))


def _of_core(program: Program) -> Iterator[DeviceDoubt]:
    does = program.of_operands([[_does(t, o) for o in t.operands] for t in program.templates])
    buffers = program.operand_data[:, 0]
    kinds = {kind: np.unique(buffers[does == kind]) for kind in (BEGINS, ADDS, AUTOMATIC)}
    mixed = np.intersect1d(kinds[BEGINS], kinds[AUTOMATIC])
    wanted = np.zeros(len(program.allocations), np.bool_)
    wanted[np.union1d(kinds[ADDS], mixed)] = True
    if not wanted.any():
        return
    events, passes = _in_order(program, np.flatnonzero((does > 0) & wanted[buffers]))
    order = np.argsort(buffers[events], kind="stable")
    events, passes = events[order], passes[order]
    known: set[tuple[object, ...]] = set()
    cuts = np.flatnonzero(np.diff(buffers[events])) + 1
    for of_buffer, in_passes in zip(np.split(events, cuts), np.split(passes, cuts)):
        rows = program.operand_rows[of_buffer]
        slots = of_buffer - program.operand_starts[rows]
        number, offsets = int(buffers[of_buffer[0]]), program.operand_data[of_buffer, 1]
        site = int(program.sites.of_buffer[number])
        ids = program.template_ids[rows]
        key = (site, *(each.tobytes() for each in (ids, slots, offsets, in_passes)))
        if key in known:
            continue
        known.add(key)
        templates = [program.templates[id_] for id_ in ids.tolist()]
        touched = [(template, template.operands[slot]) for template, slot in zip(templates, slots.tolist())]
        tile = _Tile(program.allocations[number], min(operand.dtype.itemsize for _, operand in touched))
        for (template, operand), offset, in_pass in zip(touched, offsets.tolist(), in_passes.tolist()):
            doubt = tile.touched(template, operand, offset, in_pass)
            if doubt is not None:
                yield doubt
                break


def _does(template: Template, operand: Operand) -> int:
    """What an instruction does to one of its operands in PSUM; 0 for a read, and elsewhere."""
    if operand.region is not MemoryRegion.psum or operand.access == "r" or template.opcode == "core_barrier":
        return 0
    if template.engine is not Engine.tensor:
        return FILLS
    if not template.opcode.startswith("nc_matmul") or getattr(template.attrs, "is_transpose", False):
        return MOVES
    given = template.attrs.accumulate
    return AUTOMATIC if given is None else ADDS if given else BEGINS


def _in_order(program: Program, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(operands in the order in which a device meets them, the pass of the innermost loop that each is in).

    A device loop is gone through twice: what one pass leaves, the next one finds.
    """
    if not program.loops:
        return events, np.zeros(len(events), np.int64)
    rows = program.operand_rows[events]
    parts = [
        (events[low:high], np.full(high - low, number, np.int64))
        for start, end, number in _stretches(0, len(program), nested(program.loops), 0)
        for low, high in [np.searchsorted(rows, (start, end)).tolist()]
    ]
    return np.concatenate([part for part, _ in parts]), np.concatenate([number for _, number in parts])


def _stretches(start: int, end: int, loops: Sequence[Nested], number: int) -> Iterator[tuple[int, int, int]]:
    """(first row, end, pass) of what is executed in one go."""
    at = start
    for found in loops:
        yield at, found.loop.start, number
        trips = found.loop.trips
        for each in range(2 if trips is None else min(2, trips)):
            yield from _stretches(found.loop.start, found.loop.end, found.inner, each)
        at = found.loop.end
    yield at, end, number


@dataclass
class _Group:
    """Products that are added up at one place; or, with none, what something else put there."""

    line: int
    what: str
    """Opcode of its first instruction."""
    begun: int = 0
    """How many groups began in its bank before it, itself included."""
    products: int = 0
    given: bool = False
    """Does a product of it say accumulate=?"""
    before: frozenset[int] = frozenset()
    """Groups that it must come after, since it overwrote part of them; only those that may still be asked for."""

    @property
    def several(self) -> bool:
        return self.products > 1


@dataclass
class _Bank:
    begun: int = 0
    last_line: int = 0
    """Where the last group began."""
    last: list[int] = field(default_factory=list)
    """Groups of several products that none of several products has to come after."""
    last_given: list[int] = field(default_factory=list)
    """The same of those that say accumulate=."""


class _Tile:
    """A buffer in PSUM while instructions write it."""

    def __init__(self, allocation: Allocation, unit: int) -> None:
        """`unit`: bytes of the smallest elements that it is written in."""
        self._allocation = allocation
        self._unit = unit
        self._owners = np.full(allocation.nbytes // unit, -1, np.int32)
        """By unit, the number of the group that wrote it last; -1 for none."""
        self._groups: list[_Group] = []
        self._banks: dict[int, _Bank] = {}

    def touched(self, template: Template, operand: Operand, offset: int, in_pass: int) -> DeviceDoubt | None:
        """One write of an instruction. Returns what is doubtful about it."""
        offset = self._place(operand, offset, in_pass)
        view = self._view(operand, offset)
        does = _does(template, operand)
        owners = _distinct(view)
        bank = self._banks.setdefault(self._bank_of(operand, offset), _Bank())
        if does in (FILLS, MOVES, BEGINS):
            view[...] = self._new(template, bank, owners, does)
            return None
        filled = next((self._groups[n] for n in owners if n >= 0 and not self._groups[n].products), None)
        if does == ADDS and filled is not None:
            return _on_filled(template, filled)
        fresh = [n for n in owners if n < 0 or not self._groups[n].products]
        going_on = [n for n in owners if n not in fresh]
        doubt = None
        for number in going_on:
            doubt = doubt or self._goes_on(number, template, does, bank)
        if fresh:
            number = self._new(template, bank, fresh, does)
            view[np.isin(view, fresh)] = number
        return doubt

    def _new(self, template: Template, bank: _Bank, over: Sequence[int], does: int) -> int:
        """The number of a group that begins with this instruction, over these."""
        if does != FILLS:
            bank.begun += 1
            bank.last_line = template.line
        asked_for = {n for each in self._banks.values() for n in (*each.last, *each.last_given)}
        before = {n for n in over if n >= 0}
        before |= {m for n in before for m in self._groups[n].before if m in asked_for}
        products = 0 if does == FILLS else 1
        given = does in (BEGINS, ADDS)
        group = _Group(template.line, template.opcode, bank.begun, products, given, frozenset(before))
        self._groups.append(group)
        return len(self._groups) - 1

    def _goes_on(self, number: int, template: Template, does: int, bank: _Bank) -> DeviceDoubt | None:
        group = self._groups[number]
        group.products += 1
        group.given = group.given or does == ADDS
        if group.given and bank.begun > group.begun:
            return self._interleaved(group, template, bank)
        if number in bank.last and (not group.given or number in bank.last_given):
            return None
        others = bank.last if group.given else bank.last_given
        other = next((n for n in others if n != number and n not in group.before), None)
        if other is not None:
            return self._together(self._groups[other], group)
        bank.last = [*(n for n in bank.last if n not in group.before and n != number), number]
        if group.given:
            bank.last_given = [*(n for n in bank.last_given if n not in group.before), number]
        return None

    def _together(self, first: _Group, second: _Group) -> DeviceDoubt:
        return DeviceDoubt(
            second.line,
            "psum-groups",
            f"two sums of several products each, begun at {_lines(first.line, second.line)}, share a PSUM bank "
            f"({ISA.psum_bank_bytes} bytes per partition) of {self._allocation.describe()} and are given accumulate=: "
            "a device lost products of such sums",
            _REMEDY,
        )

    def _interleaved(self, group: _Group, template: Template, bank: _Bank) -> DeviceDoubt:
        return DeviceDoubt(
            template.line,
            "psum-groups",
            f"a sum begun at line {group.line} with accumulate= goes on after another began in its PSUM bank "
            f"({ISA.psum_bank_bytes} bytes per partition) of {self._allocation.describe()} at line {bank.last_line}: "
            "a device lost products of such sums",
            _REMEDY,
        )

    def _place(self, operand: Operand, offset: int, in_pass: int) -> int:
        """Where an access begins, in elements. One that only the device places is taken to go on with each pass of its
        loop: by its step if that is whole banks, else to the next place in the bank."""
        if operand.indirection is None:
            return offset
        step, item = operand.indirection[1], operand.dtype.itemsize
        if step * item % ISA.psum_bank_bytes:
            step = operand.free_span_bytes[1] // item
        moved = offset + in_pass * step
        reach = sum(stride * (size - 1) for stride, size in operand.pattern if stride > 0)
        return moved if (moved + reach + 1) * item <= self._allocation.nbytes else offset

    def _bank_of(self, operand: Operand, offset: int) -> int:
        item = operand.dtype.itemsize
        return (offset % operand.partition_elements * item + operand.free_span_bytes[0]) // ISA.psum_bank_bytes

    def _view(self, operand: Operand, offset: int) -> np.ndarray:
        each, item = operand.dtype.itemsize // self._unit, self._owners.itemsize
        strides = [*[stride * each * item for stride, _ in operand.pattern], item]
        return np.ndarray((*operand.shape, each), np.int32, self._owners, offset * each * item, strides)


_REMEDY = "leave accumulate out, or give each sum a bank of its own"


def _on_filled(template: Template, filled: _Group) -> DeviceDoubt:
    return DeviceDoubt(
        template.line,
        "psum-filled",
        f"{template.opcode} with accumulate=True adds to what {filled.what} at line {filled.line} put into PSUM: "
        "undefined on NeuronCore v2 and v3",
        "begin the sum with a product (accumulate=False, or leave it out) and add the rest with nisa.tensor_tensor",
    )


def _lines(first: int, second: int) -> str:
    return f"line {first}" if first == second else f"lines {first} and {second}"


def _distinct(view: np.ndarray) -> list[int]:
    first = view[(0,) * view.ndim]
    if (view == first).all():
        return [int(first)]
    return [int(n) for n in np.unique(view)]
