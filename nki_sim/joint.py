"""The cores of a logical core on one clock (LNC 2).

Each core has engines, queues and DMA engines of its own; they share their HBM stack's bandwidth, and wait for each
other where they meet: at barriers and at transfers between them. What both touch in shared memory is finished before
a barrier and begins after it; what no barrier orders is a race and refused (nki_sim.races).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nki_sim.errors import NkiValidationError, NotSupported
from nki_sim.machine import Machine
from nki_sim.opcodes import kind_of_meeting, meeting_rows
from nki_sim.program import Edge, Program
from nki_sim.races import check_races, exchanged, shared_buffers
from nki_sim.schedule import Timeline, schedule

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
