"""Bytes of shared memory that one core writes and another reads with nothing between that says who comes first.

A barrier orders what stands before it on one core and after it on the other. Between two barriers the cores run as
they like, so what one writes there the other must not read: on the device the result would depend on chance. That both
write the same bytes is no fault by itself: public kernels clear an output on both cores, or store one result twice.
Whether that is all they do, and what happens at places that only the device knows, shows when the cores are executed
in either order (`nki_sim.executor.execute_counting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.memory import Allocation, MemoryRegion
from nki_sim.program import Operand, Program, Template


@dataclass(frozen=True)
class Access:
    """One use of a shared buffer by one core."""

    start: int
    """First byte, of those that every stride walks upwards from."""
    walk: tuple[tuple[int, int], ...]
    """(bytes, times), outermost first, without the run."""
    run: int
    """Adjacent bytes at each place."""
    writes: bool
    template: Template


def shared_buffers(program: Program) -> list[Allocation]:
    """In the order of allocation: the nth of every core is the same memory."""
    return program.allocations.in_region(MemoryRegion.shared_hbm)


def exchanged(programs: Sequence[Program]) -> set[int]:
    """Positions among the shared buffers of those that several cores touch and at least one writes."""
    touched: list[set[int]] = []
    written: set[int] = set()
    for program in programs:
        places = {allocation.id: place for place, allocation in enumerate(shared_buffers(program))}
        mine = {places[number] for number in np.unique(program.operand_data[:, 0]).tolist() if number in places}
        touched.append(mine)
        written |= {places[number] for number in _written(program) if number in places}
    several = {place for place in set().union(*touched) if sum(place in mine for mine in touched) > 1}
    return several & written


def check_races(programs: Sequence[Program], phases: Sequence[np.ndarray]) -> None:
    """`phases`: by core and row, how many barriers come before it. Programs without device loops.

    Raises NkiValidationError naming both source lines.
    """
    buffers = shared_buffers(programs[0])
    for place in sorted(exchanged(programs)):
        found = [_accesses(program, place, phase) for program, phase in zip(programs, phases)]
        for phase in sorted(set(found[0]) & set(found[1])):
            mine, theirs = found[0][phase], found[1][phase]
            if {access.writes for access in (*mine, *theirs)} == {True, False}:
                _check(programs, buffers[place], mine, theirs)


def _check(programs: Sequence[Program], buffer: Allocation, mine: list[Access], theirs: list[Access]) -> None:
    unit = gcd(*[gcd(a.start, a.run, *[step for step, _ in a.walk]) for a in (*mine, *theirs)])
    marks = [_marks(buffer, unit, accesses) for accesses in (mine, theirs)]
    (read, written), (their_read, their_written) = marks
    for writes, both in ((True, written & their_read), (False, read & their_written)):
        if both.any():
            at = int(np.argmax(both))
            first = next(a for a in mine if a.writes is writes and _marked(buffer, unit, a)[at])
            other = next(a for a in theirs if a.writes is not writes and _marked(buffer, unit, a)[at])
            raise _race(programs, buffer, at * unit, first, other)


def _race(
    programs: Sequence[Program], buffer: Allocation, byte: int, first: Access, other: Access
) -> NkiValidationError:
    does = ["writes" if access.writes else "reads" for access in (first, other)]
    error = NkiValidationError(
        f"two cores race for {buffer.describe()}: core 0 {does[0]} byte {byte:,} at line {first.template.line}, "
        f"core 1 {does[1]} it at line {other.template.line}, and no nisa.core_barrier stands between: put one "
        "there, or let each core keep to its own part"
    )
    error.line, error.file = first.template.line, programs[0].source_file or None
    return error


def _written(program: Program) -> set[int]:
    """Numbers of the buffers that some instruction of one core writes."""
    changes = program.of_operands([[_changes(t, o) for o in t.operands] for t in program.templates]).astype(np.bool_)
    return set(np.unique(program.operand_data[changes, 0]).tolist())


def _changes(template: Template, operand: Operand) -> bool:
    """A barrier names the data that it protects; it does not touch it."""
    return operand.access != "r" and template.opcode != "core_barrier"


def _accesses(program: Program, place: int, phase: np.ndarray) -> dict[int, list[Access]]:
    """By phase, what a core does to a shared buffer, each once."""
    buffer = shared_buffers(program)[place]
    here = np.flatnonzero(program.operand_data[:, 0] == buffer.id)
    rows = program.operand_rows[here]
    slots = here - program.operand_starts[rows]
    columns = (phase[rows], program.template_ids[rows], slots, program.operand_data[here, 1])
    distinct = np.unique(np.stack(columns, axis=1), axis=0)
    found: dict[int, list[Access]] = {}
    for which, number, slot, offset in distinct.tolist():
        template = program.templates[number]
        if template.opcode != "core_barrier" and template.operands[slot].indirection is None:
            found.setdefault(which, []).append(_access(template, template.operands[slot], offset))
    return found


def _access(template: Template, operand: Operand, offset: int) -> Access:
    item = operand.dtype.itemsize
    start, run = offset * item, item
    walk: list[tuple[int, int]] = []
    for stride, size in reversed(operand.pattern):
        step = stride * item
        if size == 1 or step == 0:
            continue
        if step < 0:
            start += step * (size - 1)
            step = -step
        if not walk and step == run:
            run *= size
        else:
            walk.append((step, size))
    return Access(start, tuple(reversed(walk)), run, operand.access != "r", template)


def _marks(buffer: Allocation, unit: int, accesses: Sequence[Access]) -> tuple[np.ndarray, np.ndarray]:
    """Which units of the buffer are read, and which are written."""
    read, written = (np.zeros(-(-buffer.nbytes // unit), np.bool_) for _ in range(2))
    for access in accesses:
        _mark(written if access.writes else read, unit, access)
    return read, written


def _marked(buffer: Allocation, unit: int, access: Access) -> np.ndarray:
    marks = np.zeros(-(-buffer.nbytes // unit), np.bool_)
    _mark(marks, unit, access)
    return marks


def _mark(marks: np.ndarray, unit: int, access: Access) -> None:
    shape = [*[size for _, size in access.walk], access.run // unit]
    strides = [*[step // unit for step, _ in access.walk], 1]
    np.ndarray(shape, np.bool_, marks, access.start // unit, strides)[...] = True
