"""The cores of a logical core on one clock (LNC 2).

Each core has engines, queues and DMA engines of its own; they share their HBM stack's bandwidth, and wait for each
other where they meet: at barriers and at transfers between them. What both touch in shared memory is finished before
a barrier and begins after it; what no barrier orders is a race and refused (nki_sim.timing.joint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from nki_sim.contract.opcodes import kind_of_meeting, meeting_rows
from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.machine import Machine
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.program import Edge, Operand, Program, Template
from nki_sim.timing.schedule import Timeline, schedule

_ROUNDS = 12
"""Of putting off what one core does until the other is there; then delays are added up instead."""
_SAME_NS = 1e-3


def schedule_jointly(programs: Sequence[Program], machine: Machine) -> tuple[Timeline, ...]:
    """Every core's timeline on the common clock, core 0 first. Of programs without device loops and peers.

    Raises NkiValidationError as `check_cores`, and NotSupported as `schedule`.
    """
    check_cores(programs)
    fenced = [_fenced(program, exchanged(programs)) for program in programs]
    shared = sharing(machine, len(programs))
    begins = np.zeros(len(meeting_rows(programs[0])))
    for attempt in range(2 * _ROUNDS):
        timelines = tuple(schedule(each, shared, meetings=begins.tolist()) for each in fenced)
        came = np.array([line.issued_ns[meeting_rows(line.program)] for line in timelines])
        if not len(begins) or (came.max(axis=0) <= begins + _SAME_NS).all():
            return timelines
        begins = np.maximum(begins, came.max(axis=0)) if attempt < _ROUNDS else _delayed(begins, came)
    raise NotSupported(f"the {len(begins)} meetings of the cores do not settle: use fewer, or one core")


def check_cores(programs: Sequence[Program]) -> None:
    """Raises NkiValidationError where the cores do not come to the same meetings, and where they race."""
    stops = [_stops(program) for program in programs]
    for number, (one, other) in enumerate(zip(*stops)):
        if one != other:
            raise NkiValidationError(f"deadlock: at meeting {number}, core 0 is at {one} and core 1 at {other}")
    if len({len(each) for each in stops}) > 1:
        raise NkiValidationError(
            f"deadlock: the cores come to {' and '.join(str(len(each)) for each in stops)} meetings; each must call "
            "nisa.core_barrier and nisa.sendrecv as often"
        )
    check_races(programs, [_barriers_before(program) for program in programs])


def sharing(machine: Machine, cores: int) -> Machine:
    """The machine as one of several cores has it that use the same HBM stack at once: with its share of the stack.

    A core beside an idle one would get more; kernels on two cores are written to keep both busy.
    """
    share = machine.hbm_bytes_per_ns / cores / machine.dma_engines
    if share >= machine.dma_engine_bytes_per_ns:
        return machine
    sustained = min(machine.dma_sustained, machine.hbm_sustained)
    return replace(machine, dma_engine_bytes_per_ns=share, dma_sustained=sustained)


def _stops(program: Program) -> list[str]:
    """What this core is at, meeting by meeting; cores that meet are at the same."""
    found = []
    for row in meeting_rows(program).tolist():
        template = program.templates[program.template_ids[row]]
        pipe = getattr(template.attrs, "pipe_id", None)
        found.append(template.opcode if pipe is None else f"{template.opcode} on pipe {pipe}")
    return found


def _barriers(program: Program) -> np.ndarray:
    """int64: the rows at which cores wait for each other and move nothing."""
    rows = meeting_rows(program)
    kinds = [kind_of_meeting(program.templates[number].opcode) for number in program.template_ids[rows].tolist()]
    return rows[np.array([kind == "barrier" for kind in kinds], np.bool_)]


def _barriers_before(program: Program) -> np.ndarray:
    """int64 [instructions]: how many barriers come before each row."""
    return np.searchsorted(_barriers(program), np.arange(len(program)))


def _fenced(program: Program, places: set[int]) -> Program:
    """With edges that keep what a core does to exchanged memory on its side of every barrier.

    `places`: of the exchanged buffers among the shared ones. A barrier itself waits for what concerns its `data`, and
    what concerns that waits for it, so a buffer that is the whole `data` of every barrier needs none.
    """
    barriers = _barriers(program)
    if not len(barriers):
        return program
    numbers = {buffer.id for place, buffer in enumerate(shared_buffers(program)) if place in places}
    guarded = {_guarded(program, row) for row in barriers.tolist()}
    numbers -= guarded if len(guarded) == 1 else set()
    rows = np.unique(program.operand_rows[np.isin(program.operand_data[:, 0], sorted(numbers))])
    rows = rows[~np.isin(rows, barriers)]
    edges: list[Edge] = []
    for row, passed in zip(rows.tolist(), np.searchsorted(barriers, rows).tolist()):
        if passed < len(barriers):
            edges.append(Edge(row, int(barriers[passed])))
        if passed:
            edges.append(Edge(int(barriers[passed - 1]), row))
    return replace(program, edges=program.edges + tuple(edges)) if edges else program


def _guarded(program: Program, barrier: int) -> int:
    """The buffer that is a barrier's `data`, if all of it is; else -1."""
    number, offset = program.operand_data[program.operand_starts[barrier]].tolist()
    data = program.templates[program.template_ids[barrier]].operands[0]
    return int(number) if not offset and data.nbytes == program.allocations[number].nbytes else -1


def _delayed(begins: np.ndarray, came: np.ndarray) -> np.ndarray:
    """When the meetings begin if every delay is handed on in full to all that comes later: never too early.

    `came`: when each core came to each of them, as long as none began before `begins`; ns [cores, meetings].
    """
    later = begins.copy()
    late = np.zeros(len(came))
    for number in range(len(begins)):
        later[number] = max(begins[number], (came[:, number] + late).max())
        late = np.maximum(late, later[number] - came[:, number])
    return later


# --- races for shared memory ----------------------------------------------------------------------


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
