"""Numbers: one instruction on its operands' bytes, and a whole program on input arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from enum import Enum
from math import inf
from typing import Any, NamedTuple

import numpy as np

from nki_sim.contract.opcodes import OPCODES, Opcode
from nki_sim.errors import NkiError, NkiValidationError, OutOfBounds, TooLong
from nki_sim.isa.arithmetic import numerics
from nki_sim.program.memory import Allocation, MemoryRegion, Storage
from nki_sim.program.passes import MOST_DECIDED_ROWS, Nested, PassCounter, Passes, must_be_counted, nested, together
from nki_sim.program.program import Bound, OperandView, Program, Template, TensorRef


def execute_one(
    opcode: Opcode, template: Template, storages: Sequence[Storage], offsets: Sequence[int], attrs: Any
) -> None:
    """Run one instruction. `storages` and `offsets` are in the template's order, index tensors included.

    What an instruction only reads, NumPy will not let it write.
    """
    arrays: list[np.ndarray] = []
    views = template.views
    indirect = False
    for view, storage, offset in zip(views, storages, offsets):
        access, shape, dtype, item, strides, fills, indirection = view
        if indirection is not None:
            indirect = True
            arrays.append(np.empty(0))
            continue
        if access == "r":
            raw = storage.readable()
        else:
            # unless the instruction reads it too: then what was never written must show
            overwrites = fills >= 0 and fills == storage.allocation.nbytes and storages.count(storage) == 1
            raw = storage.writable(overwrites)
        arrays.append(np.ndarray(shape, dtype, raw, offset * item, strides))
    for at in template.tfloat32_factors:
        arrays[at] = numerics.tfloat32(arrays[at])
    if indirect:
        _execute_indirect(opcode, template, storages, offsets, attrs, arrays)
    elif opcode.uses_psum_flags:
        opcode.compute(arrays, attrs, [_flags(*of) for of in zip(views, storages, offsets)])
    else:
        opcode.compute(arrays, attrs)


def _flags(view: OperandView, storage: Storage, offset: int) -> np.ndarray | None:
    """The accumulation flags behind a PSUM view, shaped like it; None elsewhere."""
    allocation = storage.allocation
    if allocation.region is not MemoryRegion.psum:
        return None
    flags, item = storage.written, view.itemsize
    unit = item if flags is None else allocation.nbytes // flags.size
    if flags is None:
        flags = storage.written = np.zeros(allocation.nbytes // item, np.bool_)
    elif unit != item and unit > 1:  # views of several element sizes: from now on one flag per byte
        flags = storage.written = np.repeat(flags, unit)
        unit = 1
    return np.ndarray(view.shape, np.bool_, flags, offset * item // unit, [s // unit for s in view.byte_strides])


class _Steered(NamedTuple):
    """An indirect operand at run time."""

    at: int
    flat: np.ndarray
    """The whole buffer in the operand's dtype."""
    where: np.ndarray
    """Element numbers, shaped like the operand; invalid ones are 0."""
    valid: np.ndarray | None
    """Same shape; None when all are."""


def _execute_indirect(
    opcode: Opcode,
    template: Template,
    storages: Sequence[Storage],
    offsets: Sequence[int],
    attrs: Any,
    arrays: list[np.ndarray],
) -> None:
    skip = getattr(getattr(attrs, "oob_mode", None), "name", "error") == "skip"
    steered: list[_Steered] = []
    for at, view in enumerate(template.views):
        if view.indirection is not None:
            operand = _steer(template, at, storages[at], offsets[at], arrays[at + 1], skip)
            steered.append(operand)
            arrays[at] = operand.flat[operand.where]
    # an index steers the operand before it; the instruction itself never sees it
    given = [at for at in range(len(arrays)) if at == 0 or template.views[at - 1].indirection is None]
    seen = [arrays[at] for at in given]
    hole = before = None
    if any(s.valid is not None for s in steered):  # a skipped element leaves the destination as it was, bit by bit
        skipped: dict[int, np.ndarray] = {s.at: ~s.valid for s in steered if s.valid is not None and s.at}
        moved = [skipped.get(at, np.zeros(arrays[at].shape, np.bool_)) for at in given]
        opcode.compute(moved, attrs)  # the same movement, of booleans
        hole, before = moved[0], seen[0].copy()
    if opcode.uses_psum_flags:
        opcode.compute(seen, attrs, [_flags(template.views[at], storages[at], offsets[at]) for at in given])
    else:
        opcode.compute(seen, attrs)
    if hole is not None and before is not None:
        np.copyto(seen[0], before, where=hole)
    for flat_at, flat, where, valid in steered:
        if template.views[flat_at].access != "r":
            values = arrays[flat_at]
            if valid is None:
                flat[where] = values
            else:
                flat[where[valid]] = values[valid]


def _steer(template: Template, at: int, storage: Storage, offset: int, index: np.ndarray, skip: bool) -> _Steered:
    view = template.views[at]
    assert view.indirection is not None
    kind, stride, dim, extent = view.indirection
    raw = storage.readable() if view.access == "r" else storage.writable()
    flat = raw[: raw.size // view.itemsize * view.itemsize].view(view.dtype)
    where = np.full((), offset, np.int64)
    for steps, size in zip(view.byte_strides, view.shape):
        where = where[..., None] + np.arange(size, dtype=np.int64) * (steps // view.itemsize)
    numbers = index.astype(np.int64).reshape(len(index), -1).T.reshape(-1)  # down the columns, as the DMA reads them
    if kind == "scalar":
        good = np.full((1,) * len(view.shape), numbers[0] >= 0)
        far = int(numbers[0]) * stride  # of a 64-bit scalar, beyond what an array holds
        moved = where + max(-flat.size, min(far, flat.size))
        row = template.operands[at].partition_elements
        if row and dim:  # a place within the partitions, which it does not leave
            good = good & (moved // row == where // row)
        where = moved
    else:
        rows = view.shape[0]
        if len(numbers) < rows:
            raise NkiValidationError(f"{template.describe()}: {len(numbers)} indices for {rows} rows")
        across = (rows,) + (1,) * (len(view.shape) - 1)
        good = ((numbers[:rows] >= 0) & (numbers[:rows] < extent)).reshape(across)
        where = where + (numbers[:rows] * stride).reshape(across)
    valid = good & (where >= 0) & (where < flat.size)
    if valid.all():
        return _Steered(at, flat, where, None)
    if not skip:
        bad = int(numbers[int(np.argmin(valid.reshape(len(valid), -1).all(axis=1))) if kind == "vector" else 0])
        raise OutOfBounds(
            f"index {bad} read on the device is outside dimension {dim} (size {extent}) of "
            f"{storage.allocation.describe()} in {template.describe()}"
        )
    return _Steered(at, flat, np.where(valid, where, 0), np.broadcast_to(valid, where.shape))


def execute(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program on arrays, in the order of its tensor arguments; returns its outputs as new arrays.

    No Python of the kernel runs, and the inputs are not modified. A buffer is released after its last
    use. Raises NkiValidationError when the arrays do not fit the program.
    """
    return execute_counting(program, inputs)[0]


class Unwritten(Enum):
    """What memory holds that nothing wrote."""

    poison = "NaN, and 4 for integers, so that it shows"
    zeros = "zeros, as an accident may have it"


class _Budget:
    """What is left of an execution: instructions, where registers decide how many there are, and time."""

    LOOK = 255
    """A mask: the clock is looked at once in so many instructions, and at every pass of a loop."""

    def __init__(self, program: Program, limit_s: float) -> None:
        self._rows = MOST_DECIDED_ROWS if must_be_counted(program) else inf
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s

    def spend(self, rows: int) -> None:
        """Raises TooLong."""
        self._rows -= rows
        if self._rows < 0:
            raise TooLong(
                f"its device loops make it longer than {MOST_DECIDED_ROWS:,} instructions and have not ended: give "
                "them bounds, or fewer passes"
            )
        self.look()

    def look(self) -> None:
        """Raises TooLong."""
        if time.monotonic() > self._until:
            raise TooLong(f"it takes more than {self._limit_s:g} s to simulate: give its loops fewer passes")


def execute_counting(
    program: Program,
    inputs: Sequence[np.ndarray],
    last_core_first: bool = False,
    limit_s: float = inf,
    unwritten: Unwritten = Unwritten.poison,
) -> tuple[list[np.ndarray], Passes]:
    """`execute`, and how often each device loop ran: what `profile.measure` needs where a register decides it.

    Between their meetings one core runs after the other; on the device nobody says which is first, so a program whose
    outputs change with `last_core_first` has a race; nor what never-written memory holds, so one whose outputs change
    with `unwritten` computes by chance. Raises TooLong after `limit_s`, and where loops whose bounds are
    registers do not end.
    """
    if len(inputs) != len(program.inputs):
        raise NkiValidationError(f"{program.kernel_name} takes {len(program.inputs)} tensors, got {len(inputs)}")
    budget = _Budget(program, limit_s)
    cores = [_Core(each, number, budget, unwritten) for number, each in enumerate((program, *program.peers))]
    shared = [cores[0].new(a) for a in program.allocations.in_region(MemoryRegion.shared_hbm)]
    for core in cores:
        core.bind(inputs, shared)
    streams = [core.run() for core in cores]
    waiting: dict[int, Exchange] = {}
    running = sorted(range(len(cores)), reverse=last_core_first)
    while running:
        for number in running:
            try:
                waiting[number] = next(streams[number])
            except StopIteration:
                waiting.pop(number, None)
        meet(waiting, len(cores))
        running = sorted(waiting, reverse=last_core_first)
    return [cores[0].read(ref) for ref in program.outputs], together([core.counter for core in cores])


def held_bytes(program: Program) -> int:
    """The most that one core's execution holds at once: all of HBM, and on chip what is released again after use."""
    sizes = program.sites.each(lambda allocation: allocation.nbytes)
    last = program.last_use.copy()
    used = last >= 0
    for loop in program.loops:  # as in `_Core.run`: what is used in a loop is kept
        last[(last >= loop.start) & (last < loop.end)] = len(program)
    on_chip = used & program.sites.each(lambda allocation: allocation.region.on_chip).astype(np.bool_)
    change = np.bincount(program.first_use[on_chip], sizes[on_chip], len(program) + 2)
    change -= np.bincount(last[on_chip] + 1, sizes[on_chip], len(program) + 2)
    return int(sizes[~on_chip].sum() + np.cumsum(change).max(initial=0))


class Exchange(NamedTuple):
    """What a core brings to a meeting point with the other one."""

    kind: str
    send_to: int
    receive_from: int
    pipe: int
    sent: np.ndarray | None
    received: np.ndarray | None
    """A view into the destination."""


def meet(waiting: dict[int, Exchange], cores: int) -> None:
    """Let cores that all stand at matching barriers or transfers go on. Raises NkiValidationError on a deadlock."""
    if not waiting:
        return
    kinds = {exchange.kind for exchange in waiting.values()}
    if len(waiting) < cores or len(kinds) > 1:
        at = ", ".join(f"core {core} at {exchange.kind}" for core, exchange in sorted(waiting.items()))
        gone = sorted(set(range(cores)) - set(waiting))
        raise NkiValidationError(f"deadlock: {at}" + (f"; core {gone[0]} has finished" if gone else ""))
    values = {core: None if e.sent is None else e.sent.copy() for core, e in waiting.items()}
    for core, exchange in sorted(waiting.items()):
        if exchange.received is None:
            continue
        other = waiting.get(exchange.receive_from)
        if other is None or other.send_to != core or other.pipe != exchange.pipe:
            raise NkiValidationError(
                f"sendrecv: core {core} receives from rank {exchange.receive_from} on pipe {exchange.pipe}, "
                "but that core does not send to it there"
            )
        value = values[exchange.receive_from]
        assert value is not None
        exchange.received[...] = value.reshape(exchange.received.shape)


class _Core:
    """One core's run of its program."""

    def __init__(self, program: Program, number: int, budget: _Budget, unwritten: Unwritten) -> None:
        self.program = program
        self.number = number
        self._budget = budget
        self._unwritten = unwritten
        self.storages: list[Storage | None] = [None] * len(program.allocations)
        self.counter = PassCounter(program)

    def new(self, allocation: Allocation) -> Storage:
        if self._unwritten is Unwritten.poison:
            return Storage(allocation)
        return Storage(allocation, np.zeros(allocation.nbytes, np.uint8))

    def bind(self, inputs: Sequence[np.ndarray], shared: list[Storage]) -> None:
        program = self.program
        if self.program.peers or self.number:
            own = [a.id for a in program.allocations.in_region(MemoryRegion.shared_hbm)]
            for at, storage in zip(own, shared):
                self.storages[at] = storage
        if self.number:
            return
        for number, contents in program.constants.items():
            raw = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
            self._fill(number, raw)
        for ref, array in zip(program.inputs, inputs):
            allocation = program.allocations[ref.allocation]
            if tuple(array.shape or (1,)) != allocation.shape or array.dtype != allocation.dtype.numpy:
                raise NkiValidationError(
                    f"{program.kernel_name} wants {allocation.describe()}, got {list(array.shape)} {array.dtype}"
                )
            self._fill(ref.allocation, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def _fill(self, number: int, raw: np.ndarray) -> None:
        storage = self.storages[number]
        if storage is None:
            self.storages[number] = Storage(self.program.allocations[number], raw, owned=False)
        else:
            storage.writable(True)[...] = raw

    def run(self) -> Generator[Exchange, None, None]:
        """Executes the stream; stops at every point where cores meet."""
        program = self.program
        self._opcodes = [OPCODES[template.opcode] for template in program.templates]
        self._starts = program.operand_starts.tolist()
        self._buffers = program.operand_data[:, 0].tolist()
        self._offsets = program.operand_data[:, 1].tolist()
        self._ids = program.template_ids.tolist()
        last = program.last_use.copy()
        for loop in program.loops:  # a later pass may need what this pass used last
            last[(last >= loop.start) & (last < loop.end)] = -1
        last[[ref.allocation for ref in program.outputs]] = -1
        self._last_use = last.tolist()
        yield from self._block(0, len(program), nested(program.loops))

    def _block(self, start: int, end: int, loops: Sequence[Nested]) -> Generator[Exchange, None, None]:
        at = start
        for found in loops:
            number, loop = found.number, found.loop
            yield from self._rows(at, loop.start)
            self.counter.enter(number)
            if loop.kind == "for":
                for value in range(self._bound(loop.lower), self._bound(loop.upper), loop.step):
                    yield from self._pass(found, value)
            else:
                condition = self._bound(loop.lower)
                while condition != 0:
                    yield from self._pass(found, condition)
                    condition = self._bound(Bound(register=loop.next))
            at = loop.end
        yield from self._rows(at, end)

    def _pass(self, found: Nested, counter: int) -> Generator[Exchange, None, None]:
        self._budget.spend(1 + found.loop.end - found.loop.start)
        self.counter.step(found.number)
        self._set(found.loop.counter, counter)
        yield from self._block(found.loop.start, found.loop.end, found.inner)

    def _rows(self, start: int, end: int) -> Generator[Exchange, None, None]:
        templates, opcodes, starts = self.program.templates, self._opcodes, self._starts
        buffers, offsets, storages, last_use = self._buffers, self._offsets, self.storages, self._last_use
        look, mask = self._budget.look, self._budget.LOOK
        for i in range(start, end):
            if not i & mask:
                look()
            number = self._ids[i]
            low, high = starts[i], starts[i + 1]
            numbers = buffers[low:high]
            held: list[Storage] = []
            for buffer in numbers:
                storage = storages[buffer]
                if storage is None:
                    storage = storages[buffer] = self.new(self.program.allocations[buffer])
                held.append(storage)
            opcode, template = opcodes[number], templates[number]
            if opcode.meets is None:
                execute_one(opcode, template, held, offsets[low:high], template.attrs)
            else:
                yield exchange(opcode, template, held, offsets[low:high])
            for buffer in numbers:
                if last_use[buffer] == i:
                    storages[buffer] = None

    def _set(self, register: int, value: int) -> None:
        storage = self.storages[register]
        if storage is None:
            storage = self.storages[register] = self.new(self.program.allocations[register])
        storage.writable(True).view(np.int32)[0] = value

    def _bound(self, bound: Bound) -> int:
        if bound.register is None:
            return bound.value
        storage = self.storages[bound.register]
        if storage is None or storage._bytes is None:
            raise NkiError(f"{self.program.kernel_name}: a loop bound is a register that was never loaded")
        return int(storage.readable().view(np.int32)[0])

    def read(self, ref: TensorRef) -> np.ndarray:
        """An output; not copied where this run made its buffer, which may be gigabytes, and it is all of that."""
        storage = self.storages[ref.allocation] or self.new(self.program.allocations[ref.allocation])
        item = ref.dtype.itemsize
        shape = [n for _, n in ref.pattern]
        strides = [s * item for s, _ in ref.pattern]
        raw = storage.readable()
        if storage.owned and ref.offset == 0 and raw.nbytes == item * math.prod(shape) and not self._read_before(ref):
            whole = np.ndarray(shape, ref.dtype.numpy, storage.writable(), 0, strides)
            if whole.flags.c_contiguous:
                return whole
        return np.array(np.ndarray(shape, ref.dtype.numpy, raw, ref.offset * item, strides))

    def _read_before(self, ref: TensorRef) -> bool:
        """Whether another output is of the same buffer: each is an array of its own."""
        return sum(other.allocation == ref.allocation for other in self.program.outputs) > 1


def exchange(opcode: Opcode, template: Template, storages: Sequence[Storage], offsets: Sequence[int]) -> Exchange:
    """What an instruction at which cores meet brings along. `attrs` of a transfer has its ranks and pipe."""
    if opcode.meets == "barrier":
        return Exchange("core_barrier", -1, -1, -1, None, None)
    arrays = []
    for view, storage, offset in zip(template.views, storages, offsets):
        raw = storage.readable() if view.access == "r" else storage.writable()
        arrays.append(np.ndarray(view.shape, view.dtype, raw, offset * view.itemsize, view.byte_strides))
    attrs = template.attrs
    by_role = {operand.role: array for operand, array in zip(template.operands, arrays)}
    return Exchange("sendrecv", attrs.send_to_rank, attrs.recv_from_rank, attrs.pipe_id, by_role["src"], by_role["dst"])
