"""A program run on elements of a field, in the recorded order, and what it did to memory on the way.

As `executor` runs it on numbers: device loops, registers, places that only the device knows, cores that meet.
Memory that was never written holds elements drawn for it, so that what depends on it changes with the drawing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract.opcodes import OPCODES
from nki_sim.dtypes import DType
from nki_sim.errors import NkiError
from nki_sim.execution.executor import Exchange, meet
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.program import Bound, Loop, Operand, Program, Template, TensorRef
from nki_sim.proofs.arithmetic import Arithmetic, Value
from nki_sim.proofs.operators import EXPONENTIAL
from nki_sim.proofs.proof import NotProvable
from nki_sim.proofs.rules import RULES

MOST_PASSES = 1 << 20
"""Of all device loops together."""

MOST_INSTRUCTIONS = 1 << 17
"""That run on a core: some twenty seconds of a processor, at 0.17 ms for an instruction on a small tile."""

MOST_ELEMENTS = 1 << 28
"""Of all operands of all instructions that run on a core: some ten seconds."""

MOST_HELD = 1 << 27
"""Elements of all buffers that a core has at once: 1 GiB a lane."""


ZEROS = -1
"""In place of a drawing of never-written memory: a drawn element is hardly ever 0, and a mask of them always true."""

_MOVES = frozenset(("dma_copy", "dma_transpose", "nc_transpose", "nc_stream_shuffle", "tensor_copy"))
"""Instructions that keep every bit of what they move, where its type stays the same."""


_MISFITS = (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError)
"""What NumPy and the rules raise for a program that no tracer made: no candidate ends a judge."""


class Input(NamedTuple):
    """What an argument of a kernel is."""

    numbers: np.ndarray | None
    """None: drawn. Integers are always themselves, since they steer addresses and loops."""


class Unwritten(NamedTuple):
    """The first read of memory that nothing had written."""

    line: int
    buffer: str


@dataclass(frozen=True)
class Execution:
    """One program on one drawing."""

    outputs: list[Value]
    unwritten: Unwritten | None
    missing: list[np.ndarray]
    """bool, by output and shaped like it: elements that nothing wrote."""
    rewritten: int
    """Elements of the outputs that were stored again, by something that did not read them."""


class _Cells:
    """One buffer."""

    def __init__(self, allocation: Allocation, element: np.dtype[Any], needed: bool, counted: bool) -> None:
        size = allocation.nbytes // allocation.dtype.itemsize
        self.allocation = allocation
        self.value = Value(np.empty(size, element), np.empty(size, element) if needed else None)
        self.written = np.zeros(size, np.bool_)
        self.known = False
        """Is every element written, or drawn?"""
        self.full = False
        """Is every element written?"""
        self.flags = np.zeros(size, np.bool_) if allocation.region is MemoryRegion.psum else None
        self.stores = np.zeros(size, np.uint8) if counted else None

    def fill(self, value: Value) -> None:
        self.written[...] = False
        self.draw(value)
        self.written[...] = self.full = True

    def draw(self, value: Value) -> None:
        """Let what was never written hold this."""
        for mine, theirs in zip(self.value, value):
            if mine is not None and theirs is not None:
                np.copyto(mine, theirs.reshape(-1), where=~self.written)
        self.known = True


def _view(flat: np.ndarray, offset: int, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    item = flat.itemsize
    return np.ndarray(shape, flat.dtype, flat, offset * item, [stride * item for stride in strides])


def _alike(one: DType, other: DType) -> bool:
    """Do elements of one type, seen as the other, stay the numbers that they are?"""
    if one.itemsize != other.itemsize:
        return False
    return one == other or {one, other} == {"float32", "tfloat32"} or not (one.is_float or other.is_float)


class _Access(NamedTuple):
    """One operand of one row."""

    cells: _Cells
    offset: int
    operand: Operand
    where: np.ndarray | None
    """Element numbers, where only the device knows them."""

    def of(self, flat: np.ndarray) -> np.ndarray:
        if self.where is not None:
            return flat[self.where]
        pattern = self.operand.pattern
        return _view(flat, self.offset, [n for _, n in pattern], [s for s, _ in pattern])


class _Row:
    """One instruction with its operands (`nki_sim.proofs.rules.Row`)."""

    def __init__(self, core: _Core, template: Template, accesses: dict[str, _Access]) -> None:
        self._core = core
        self._accesses = accesses
        self._factors = [template.operands[at].role for at in template.tfloat32_factors]
        self._moves = template.opcode in _MOVES
        self.attrs: Any = template.attrs
        self.algebra = core.algebra

    def has(self, role: str) -> bool:
        return role in self._accesses

    def updates(self, role: str) -> bool:
        return self._accesses[role].operand.access == "u"

    def shape(self, role: str) -> tuple[int, ...]:
        return self._accesses[role].operand.shape

    def narrow(self, role: str) -> bool:
        return self._accesses[role].operand.dtype.itemsize <= 4

    def read(self, role: str) -> Value:
        access = self._accesses[role]
        cells = access.cells
        if not cells.known and not access.of(cells.written).all():
            self._core.reads_unwritten(access.cells)
        value = cells.value
        found = Value(access.of(value.p), None if value.q is None else access.of(value.q))
        return self.algebra.loaded(found, access.operand.dtype) if role in self._factors else found

    def flags(self) -> np.ndarray | None:
        access = self._accesses["dst"]
        return None if access.cells.flags is None else access.of(access.cells.flags)

    def write(self, role: str, value: Value) -> None:
        access = self._accesses[role]
        cells, dtype = access.cells, access.operand.dtype
        if not self._moves or any(each.operand.dtype != dtype for each in self._accesses.values()):
            value = self.algebra.stored(value, dtype)
        _put(access, cells.value.p, value.p)
        if cells.value.q is not None:
            if value.q is None:
                raise NotProvable(f"line {self.algebra.line} lost what an exponential needs of it")
            _put(access, cells.value.q, value.q)
        if cells.stores is not None and access.operand.access == "w" and not self._reads(cells):
            _put(access, cells.stores, np.minimum(access.of(cells.stores), 1) + 1)
        if not cells.full:
            _put(access, cells.written, np.True_)
            cells.full = bool(cells.written.all())
            cells.known = cells.known or cells.full

    def _reads(self, cells: _Cells) -> bool:
        return any(each.cells is cells and each.operand.access != "w" for each in self._accesses.values())


def _put(access: _Access, flat: np.ndarray, values: Any) -> None:
    shape = access.operand.shape
    if isinstance(values, np.ndarray) and values.size == np.prod(shape) and values.shape != shape:
        values = values.reshape(shape)
    if access.where is not None:
        flat[access.where] = values
    else:
        access.of(flat)[...] = values


class _Core:
    """One core's run."""

    def __init__(self, program: Program, algebra: Arithmetic, memory: int, number: int, needs: frozenset[int]) -> None:
        self.program = program
        self.algebra = algebra
        self.number = number
        self.unwritten: Unwritten | None = None
        self._memory = memory
        self._needs = needs
        self._outputs = {ref.allocation for ref in program.outputs}
        self._cells: dict[int, _Cells] = {}
        self._passes = 0
        self._instructions = 0
        self._elements = 0
        self._held = 0
        self._work = [sum(operand.elements for operand in template.operands) for template in program.templates]
        last = program.last_use.copy()
        for loop in program.loops:  # a later pass may need what this pass used last
            last[(last >= loop.start) & (last < loop.end)] = -1
        last[[ref.allocation for ref in program.outputs]] = -1
        self._last_use = last.tolist()

    # --- memory ---------------------------------------------------------------------------------------

    def cells(self, number: int) -> _Cells:
        found = self._cells.get(number)
        if found is None:
            allocation = self.program.allocations[number]
            self._held += allocation.nbytes // allocation.dtype.itemsize
            if self._held > MOST_HELD:
                raise NotProvable(f"it holds more than {MOST_HELD:,} elements at once; a smaller shape is provable")
            found = self._cells[number] = _Cells(
                allocation, self.algebra.element, number in self._needs, number in self._outputs
            )
        return found

    def bind(self, inputs: Sequence[Input], shared: dict[int, _Cells]) -> None:
        self._cells.update(shared)
        if self.number:
            return
        for number, contents in self.program.constants.items():
            self.cells(number).fill(self.algebra.constants(np.asarray(contents)))
        for at, (ref, given) in enumerate(zip(self.program.inputs, inputs)):
            cells = self.cells(ref.allocation)
            if given.numbers is not None:
                cells.fill(self.algebra.given(given.numbers))
            else:
                generator = np.random.default_rng([self.algebra.seed, 1, at])
                cells.fill(self._drawn(generator, cells))

    def reads_unwritten(self, cells: _Cells) -> None:
        if self.unwritten is None:
            self.unwritten = Unwritten(self.algebra.line, cells.allocation.describe())
        if self._memory == ZEROS:
            cells.draw(self.algebra.integers(np.zeros(cells.written.shape, np.int64)))
            return
        generator = np.random.default_rng([self.algebra.seed, 2, self._memory, self.number, cells.allocation.id])
        cells.draw(self._drawn(generator, cells))

    def _drawn(self, generator: np.random.Generator, cells: _Cells) -> Value:
        return self.algebra.random(generator, cells.written.shape, cells.value.q is not None)

    def read(self, ref: TensorRef) -> tuple[Value, np.ndarray, int]:
        """An output, where nothing wrote it, and how many of its elements were stored again."""
        cells = self.cells(ref.allocation)
        shape, strides = [n for _, n in ref.pattern], [s for s, _ in ref.pattern]
        of = [
            None if flat is None else _view(flat, ref.offset, shape, strides)
            for flat in (cells.value.p, cells.value.q, cells.written, cells.stores)
        ]
        assert of[0] is not None and of[2] is not None and of[3] is not None
        return Value(of[0], of[1]), ~of[2], int(np.count_nonzero(of[3] > 1))

    # --- rows -----------------------------------------------------------------------------------------

    def run(self) -> Generator[Exchange, None, None]:
        """Stops at every point where cores meet."""
        yield from self._block(0, len(self.program), list(enumerate(self.program.loops)))

    def _block(self, start: int, end: int, loops: list[tuple[int, Loop]]) -> Generator[Exchange, None, None]:
        at = start
        while loops:
            _, loop = loops[0]
            inner = [each for each in loops[1:] if each[1].start >= loop.start and each[1].end <= loop.end]
            loops = [each for each in loops[1:] if each not in inner]
            yield from self._rows(at, loop.start)
            if loop.kind == "for":
                for value in range(self._bound(loop.lower), self._bound(loop.upper), loop.step):
                    yield from self._pass(loop, value, inner)
            else:
                condition = self._bound(loop.lower)
                while condition != 0:
                    yield from self._pass(loop, condition, inner)
                    condition = self._bound(Bound(register=loop.next))
            at = loop.end
        yield from self._rows(at, end)

    def _pass(self, loop: Loop, value: int, inner: list[tuple[int, Loop]]) -> Generator[Exchange, None, None]:
        self._passes += 1
        if self._passes > MOST_PASSES:
            raise NotProvable(f"its device loops run more than {MOST_PASSES:,} times")
        self.cells(loop.counter).fill(self.algebra.integers(np.array([value])))
        yield from self._block(loop.start, loop.end, inner)

    def _bound(self, bound: Bound) -> int:
        if bound.register is None:
            return bound.value
        return int(self.algebra.small_integers(self.cells(bound.register).value)[0])

    def _rows(self, start: int, end: int) -> Generator[Exchange, None, None]:
        program, last_use = self.program, self._last_use
        self._instructions += end - start
        if self._instructions > MOST_INSTRUCTIONS:
            raise NotProvable(f"it runs more than {MOST_INSTRUCTIONS:,} instructions; a smaller shape is provable")
        for i in range(start, end):
            template = program.templates[program.template_ids[i]]
            low, high = program.operand_starts[i], program.operand_starts[i + 1]
            operands = program.operand_data[low:high].tolist()
            self._elements += self._work[program.template_ids[i]]
            if self._elements > MOST_ELEMENTS:
                raise NotProvable(f"it moves more than {MOST_ELEMENTS:,} elements; a smaller shape is provable")
            self.algebra.line, self.algebra.engine = template.line, template.engine.name
            self.algebra.wants_q = any(
                number in self._needs and operand.access != "r"
                for (number, _), operand in zip(operands, template.operands)
            )
            accesses = self._accesses(template, operands)
            meets = OPCODES[template.opcode].meets
            if meets is not None:
                yield from self._meet(meets, template, accesses)
                continue
            rule = RULES.get(template.opcode)
            if rule is None:
                raise NotProvable(f"line {template.line}: {template.opcode} has no model over a field")
            rule(_Row(self, template, accesses))
            for number, _ in operands:
                if last_use[number] == i and number in self._cells:
                    self._held -= len(self._cells.pop(number).written)

    def _accesses(self, template: Template, operands: Sequence[Sequence[int]]) -> dict[str, _Access]:
        found: dict[str, _Access] = {}
        for at, (operand, (number, offset)) in enumerate(zip(template.operands, operands)):
            cells = self.cells(number)
            if not _alike(operand.dtype, cells.allocation.dtype):
                raise NotProvable(
                    f"line {template.line}: {template.opcode} takes the bits of {cells.allocation.describe()} for "
                    f"{operand.dtype}"
                )
            found[operand.role] = _Access(cells, offset, operand, None)
            if at and template.operands[at - 1].indirection is not None:
                steered = template.operands[at - 1].role
                found[steered] = self._steered(template, found[steered], found.pop(operand.role))
        return found

    def _steered(self, template: Template, access: _Access, index: _Access) -> _Access:
        """The operand at the places that `index` says, as `nki_sim.execution.executor` finds them."""
        operand = access.operand
        assert operand.indirection is not None
        kind, stride, _, extent = operand.indirection
        where = np.full((), access.offset, np.int64)
        for step, size in operand.pattern:
            where = where[..., None] + np.arange(size, dtype=np.int64) * step
        numbers = self.algebra.small_integers(Value(index.of(index.cells.value.p), None))
        numbers = numbers.reshape(len(numbers), -1).T.reshape(-1)
        if kind == "scalar":
            good = np.asarray(numbers[0] >= 0)
            where = where + numbers[0] * stride
        else:
            rows = operand.shape[0]
            if len(numbers) < rows:
                raise NotProvable(f"line {template.line}: {len(numbers)} indices for {rows} rows")
            across = (rows,) + (1,) * (len(operand.shape) - 1)
            good = ((numbers[:rows] >= 0) & (numbers[:rows] < extent)).reshape(across)
            where = where + (numbers[:rows] * stride).reshape(across)
        if not (good & (where >= 0) & (where < access.cells.value.p.size)).all():
            raise NotProvable(f"line {template.line}: an index read on the device is outside its tensor")
        return access._replace(where=where)

    def _meet(self, kind: str, template: Template, accesses: dict[str, _Access]) -> Generator[Exchange, None, None]:
        if kind == "barrier":
            yield Exchange("core_barrier", -1, -1, -1, None, None)
            return
        row = _Row(self, template, accesses)
        sent = row.read("src")
        received = np.empty((2, *sent.shape), self.algebra.element)
        both = np.stack([sent.p, sent.p if sent.q is None else sent.q])
        attrs = template.attrs
        yield Exchange("sendrecv", attrs.send_to_rank, attrs.recv_from_rank, attrs.pipe_id, both, received)
        row.write("dst", Value(received[0], None if sent.q is None else received[1]))


@dataclass(frozen=True)
class FieldRun:
    """What is run, on what, and how memory and cores are drawn."""

    program: Program
    inputs: Sequence[Input]
    memory: int = 0
    """Which drawing never-written memory holds, or `ZEROS`."""
    last_core_first: bool = False

    def execute(self, algebra: Arithmetic) -> Execution:
        """Raises NotProvable for what has no model."""
        with np.errstate(over="ignore"):
            try:
                return self._execute(algebra)
            except NkiError as error:
                raise NotProvable(str(error)) from None
            except _MISFITS as error:
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                raise NotProvable(f"line {algebra.line} does not fit its model: {what}") from error

    def _execute(self, algebra: Arithmetic) -> Execution:
        programs = (self.program, *self.program.peers)
        needs = needed_by_exponentials(self.program)
        if algebra.always_both:
            needs = frozenset(range(max(len(each.allocations) for each in programs)))
        cores = [_Core(each, algebra, self.memory, number, needs) for number, each in enumerate(programs)]
        shared = _shared(cores) if len(cores) > 1 else [{}]
        for core, memory in zip(cores, shared):
            core.bind(self.inputs, memory)
        streams = [core.run() for core in cores]
        waiting: dict[int, Exchange] = {}
        running = sorted(range(len(cores)), reverse=self.last_core_first)
        while running:
            for number in running:
                try:
                    waiting[number] = next(streams[number])
                except StopIteration:
                    waiting.pop(number, None)
            meet(waiting, len(cores))
            running = sorted(waiting, reverse=self.last_core_first)
        read = [cores[0].read(ref) for ref in self.program.outputs]
        unwritten = next((core.unwritten for core in cores if core.unwritten is not None), None)
        return Execution(
            [value for value, _, _ in read], unwritten, [missing for _, missing, _ in read], sum(n for _, _, n in read)
        )


def _shared(cores: Sequence[_Core]) -> list[dict[int, _Cells]]:
    """By core: its shared_hbm buffers, the nth of every core being the same memory."""
    numbers = [[a.id for a in core.program.allocations.in_region(MemoryRegion.shared_hbm)] for core in cores]
    return [dict(zip(mine, (cores[0].cells(number) for number in numbers[0]))) for mine in numbers]


def needed_by_exponentials(program: Program) -> frozenset[int]:
    """Numbers of buffers, found backwards from the exponentials of every core.

    With device loops, until nothing is added. Of several cores, which meet in memory, all buffers are taken.
    """
    cores = (program, *program.peers)
    if not any(_exponential(template) for each in cores for template in each.templates):
        return frozenset()
    found: set[int] = set()
    if program.peers:
        return frozenset(range(max(len(each.allocations) for each in cores)))
    while True:
        before = len(found)
        _backwards(program, found)
        if not program.loops or len(found) == before:
            return frozenset(found)


def _exponential(template: Template) -> bool:
    return template.opcode == "activation" and template.attrs.op in EXPONENTIAL


def _backwards(program: Program, found: set[int]) -> None:
    """Add what the rows read that compute what is found."""
    templates = program.templates
    reads = [[o.access != "w" or o.role == "accumulators" for o in template.operands] for template in templates]
    writes = [[operand.access != "r" for operand in template.operands] for template in templates]
    exponential = [_exponential(template) for template in templates]
    buffers, starts, ids = program.operand_data[:, 0].tolist(), program.operand_starts.tolist(), program.template_ids
    for i in range(len(program) - 1, -1, -1):
        number = ids[i]
        row = buffers[starts[i] : starts[i + 1]]
        if exponential[number] or any(w and buffer in found for buffer, w in zip(row, writes[number])):
            found.update(buffer for buffer, r in zip(row, reads[number]) if r)
