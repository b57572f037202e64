"""A kernel's TTIR executed on arrays: many programs of the grid at a time, every access checked.

What is executed is what Triton compiles for the GPU, before a GPU's own lowering: sums are formed in another order and
functions rounded otherwise than there, so an element may differ by rounding. Triton's own interpreter runs the kernel's
Python instead; it adds and multiplies bfloat16 as if their bits were integers (triton/runtime/interpreter.py, binary_op
and create_dot in 3.4 to 3.9), so it cannot be the judge of most kernels there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nki_optimizer_triton.ir.arguments import slots
from nki_optimizer_triton.ir.faults import KernelFault, NotHere
from nki_optimizer_triton.ir.frames import DescriptorValue, Frame, Value, merged
from nki_optimizer_triton.ir.memory import Memory
from nki_optimizer_triton.ir.numbers import held, rounded, to_tf32
from nki_optimizer_triton.ir.operations import moving
from nki_optimizer_triton.ir.operations.elementwise import compute
from nki_optimizer_triton.ir.operations.reducing import gathered, histogram, reduced, scanned
from nki_optimizer_triton.ir.races import MOST_BYTES, Races
from nki_optimizer_triton.ir.reading import names_used
from nki_optimizer_triton.ir.types import (
    FLOATS,
    Block,
    Descriptor,
    Function,
    Module,
    Operation,
    Pointer,
    Pointers,
    Region,
    Scalar,
    Tensor,
    Type,
    element_bytes,
    operations_in,
)

TOGETHER = 1 << 18
"""Elements of the largest block that programs executed side by side may have together: what a cache holds."""

MOST_WORK = 20_000_000_000
"""Element operations of one call of the candidate's function: minutes. What needs more needs a GPU."""

MOST_OPERATIONS = 1_000_000
"""Operations of one call, however few elements they have: a minute at most. What spins gets no further; the shipped
kernels have 118,000 at their full shapes."""

_SYNCHRONIZE = ("tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_load")


@dataclass
class Allowance:
    """Element operations that are left, over all launches of a call."""

    left: float = MOST_WORK
    operations_left: int = MOST_OPERATIONS
    spent: float = 0.0
    operations: int = 0

    def begin(self) -> None:
        """Another operation, block or pass of a loop."""
        self.operations += 1
        if self.operations > self.operations_left:
            raise NotHere(
                f"it has not ended after {self.operations_left:,} operations: whether it does, a GPU must show"
            )

    def take(self, count: float) -> None:
        self.spent += count
        if self.spent > self.left:
            raise NotHere(f"it needs more than {self.left:,.0f} element operations: it needs a GPU")


@dataclass(frozen=True)
class DescriptorArgument:
    """A tensor descriptor made on the host."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: float


Argument = int | float | bool | DescriptorArgument


class Kernel:
    """One kernel, read once and launched as often as one likes."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.name = module.kernel.name
        self._functions = {function.name: function for function in module.functions}
        self._used = names_used(module)
        operations = [op for function in module.functions for op in operations_in(function.body)]
        self.waits = any(op.name in _SYNCHRONIZE and self._is_used(op) for op in operations)
        """It uses what atomic operations return, so that programs may wait for each other: they run one by one."""
        self.adds_floats_atomically = any(
            (op.name == "tt.atomic_rmw" and "fadd" in op.words) or _reduces_floats(op) for op in operations
        )
        """Sums then depend on the order of programs, and so may their last bits."""
        self._largest = max(
            [1, *(t.numel for op in operations for t in (*op.operand_types, *op.result_types) if isinstance(t, Tensor))]
        )
        self.block_elements = self._largest
        self._granule = min([8, *_access_sizes(operations)])

    def launch(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[Argument],
        memory: Memory,
        allowance: Allowance,
        *,
        last_first: bool = False,
        look_for_races: bool = False,
        buffer_bytes: int = 0,
    ) -> None:
        """Every program of the grid. `last_first`: in the opposite order. `buffer_bytes`: of all buffers together.

        Raises KernelFault, and NotHere for what takes too much or is known to no CPU.
        """
        count = grid[0] * grid[1] * grid[2]
        together = 1 if self.waits else max(1, min(count, TOGETHER // self._largest))
        races = look_for_races and not self.waits and buffer_bytes <= MOST_BYTES and count < 1 << 31
        memory.races = Races(self._granule, count) if races else None
        starts = range(0, count, together)
        with np.errstate(all="ignore"):
            for number, start in enumerate(reversed(starts) if last_first else starts):
                programs = np.arange(start, min(start + together, count), dtype=np.int64)
                before = allowance.spent
                _Run(self, memory, allowance, grid).run(programs, arguments)
                if number == 0:
                    each = (allowance.spent - before) / len(programs)
                    needed = allowance.spent + each * (count - len(programs))
                    if needed > allowance.left:
                        raise NotHere(
                            f"about {needed:.2g} element operations ({count:,} programs of {self.name}, blocks of "
                            f"{self._largest:,} elements), and {allowance.left:.2g} are executed here: it needs a GPU"
                        )
        memory.races = None

    def _is_used(self, operation: Operation) -> bool:
        return any(self._used.get(name, 0) for name in operation.results)

    def is_used(self, operation: Operation) -> bool:
        return self._is_used(operation)

    def function(self, name: str) -> Function:
        return self._functions[name]


def _reduces_floats(operation: Operation) -> bool:
    type_ = operation.operand_types[0] if operation.operand_types else None
    return (
        operation.name == "tt.descriptor_reduce"
        and isinstance(type_, Descriptor)
        and type_.block.element in FLOATS
        and (not operation.words or "add" in operation.words)
    )


def _access_sizes(operations: Sequence[Operation]) -> Iterator[int]:
    for operation in operations:
        for type_ in (*operation.operand_types, *operation.result_types):
            if isinstance(type_, (Scalar, Tensor)) and isinstance(type_.element, (Pointer, Pointers)):
                yield element_bytes(type_.element.to)
            elif isinstance(type_, Descriptor):
                yield element_bytes(type_.block.element)


_Handler = Callable[["_Run", Frame, Operation], "list[Value]"]


class _Run:
    """Some programs of a launch, from the kernel's first operation to its last."""

    def __init__(self, kernel: Kernel, memory: Memory, allowance: Allowance, grid: tuple[int, int, int]) -> None:
        self.kernel = kernel
        self.memory = memory
        self.allowance = allowance
        self.grid = grid

    def run(self, programs: np.ndarray, arguments: Sequence[Argument]) -> None:
        frame = Frame(programs)
        function = self.kernel.module.kernel
        for (name, _), value in zip(function.arguments, _expanded(function.arguments, arguments)):
            frame.values[name] = value
        self._body(function.body, frame)

    # --- control flow -------------------------------------------------------------------------------

    def _body(self, region: Region, frame: Frame) -> list[Value]:
        """A function's blocks; what it returns. Programs that a branch parts go on by themselves."""
        blocks = dict(region.blocks)
        labels = {label: block for label, block in region.blocks}
        everyone = np.arange(frame.count)
        pending: list[tuple[Block, Frame, np.ndarray]] = [(region.entry, frame, everyone)]
        parts: list[tuple[np.ndarray, list[Value]]] = []
        while pending:
            block, inner, places = pending.pop()
            self.allowance.begin()
            last = self._straight(block, inner)
            if last.name == "tt.return":
                parts.append((places, [inner.value(name) for name in last.operands]))
                continue
            if last.name == "cf.br":
                pending.append((self._entered(last, 0, blocks, inner), inner, places))
                continue
            if last.name != "cf.cond_br":
                raise KernelFault(f"a function that ends with {last.name}", last.line)
            condition = np.broadcast_to(inner.array(last.operands[0]), (inner.count,))
            for number, taken in ((1, ~condition), (0, condition)):
                among = np.flatnonzero(taken)
                if len(among) == inner.count:
                    pending.append((self._entered(last, number, labels, inner), inner, places))
                elif len(among):
                    some = inner.some(among)
                    pending.append((self._entered(last, number, labels, some), some, places[among]))
        if not parts or not parts[0][1]:
            return []
        return merged(parts, frame.count)

    def _entered(self, branch: Operation, number: int, blocks: dict[str, Block], frame: Frame) -> Block:
        """The block that a branch leads to, once its arguments have their values."""
        successor = branch.successors[number]
        block = blocks[successor.label]
        values = [frame.value(name) for name in successor.operands]
        for (name, _), value in zip(block.arguments, values):
            frame.values[name] = value
        return block

    def _straight(self, block: Block, frame: Frame) -> Operation:
        """All operations of a block but the last, which says where to go and is returned."""
        for operation in block.operations[:-1]:
            self._one(operation, frame)
        return block.operations[-1]

    def _one(self, operation: Operation, frame: Frame) -> None:
        try:
            self.allowance.begin()
            results = self._results(operation, frame)
        except (KernelFault, NotHere) as error:
            if isinstance(error, KernelFault) and error.line is None:
                error.line = operation.line
            raise
        for name, value in zip(operation.results, results):
            frame.values[name] = value
            self.allowance.take(value.size if isinstance(value, np.ndarray) else 1)
        if not results:
            self.allowance.take(1)

    def _results(self, operation: Operation, frame: Frame) -> list[Value]:
        handler = _HANDLERS.get(operation.name)
        if handler is not None:
            return handler(self, frame, operation)
        found = compute(operation, [frame.array(name) for name in operation.operands])
        if found is None:
            raise NotHere(f"{operation.name} is executed on a GPU only")
        return list(found) if isinstance(found, tuple) else [found]

    def yielded(self, region: Region, frame: Frame) -> list[Value]:
        """What a region of one block ends with."""
        last = self._straight(region.entry, frame)
        return [frame.value(name) for name in last.operands]

    def loop(self, frame: Frame, operation: Operation) -> list[Value]:
        """scf.for. Programs whose bounds differ go through it in groups of the same."""
        bounds = [np.broadcast_to(frame.array(name), (frame.count,)) for name in operation.operands[:3]]
        if operation.words == ("unsigned",):
            bounds = [bound.view(np.dtype(f"u{bound.dtype.name}")) for bound in bounds]
        rows = np.stack([bound.astype(np.int64) for bound in bounds], 1)
        if (rows == rows[0]).all():
            return self._loop_of_one(frame, operation, [int(n) for n in rows[0]])
        parts: list[tuple[np.ndarray, list[Value]]] = []
        different, which = np.unique(rows, axis=0, return_inverse=True)
        for number, row in enumerate(different):
            among = np.flatnonzero(which.reshape(-1) == number)
            parts.append((among, self._loop_of_one(frame.some(among), operation, [int(n) for n in row])))
        return merged(parts, frame.count) if operation.results else []

    def _loop_of_one(self, frame: Frame, operation: Operation, bounds: list[int]) -> list[Value]:
        low, high, step = bounds
        if step <= 0:
            raise KernelFault(f"a loop that goes from {low} to {high} in steps of {step}", operation.line)
        (counter, kind), *carried = operation.regions[0].entry.arguments
        values = [frame.value(name) for name in operation.operands[3:]]
        dtype = held(kind.element) if isinstance(kind, Scalar) else np.dtype(np.int32)
        for number in range(low, high, step):
            inner = frame.all_of()
            inner.values[counter] = np.full(1, number, dtype)
            for (name, _), value in zip(carried, values):
                inner.values[name] = value
            values = self.yielded(operation.regions[0], inner)
        return values

    def condition(self, frame: Frame, operation: Operation) -> list[Value]:
        """scf.if."""
        condition = np.broadcast_to(frame.array(operation.operands[0]), (frame.count,))
        parts: list[tuple[np.ndarray, list[Value]]] = []
        for number, taken in enumerate((condition, ~condition)):
            among = np.flatnonzero(taken)
            if not len(among):
                continue
            if number >= len(operation.regions):
                continue
            inner = frame.all_of() if len(among) == frame.count else frame.some(among)
            parts.append((among, self.yielded(operation.regions[number], inner)))
        return merged(parts, frame.count) if operation.results else []

    def while_loop(self, frame: Frame, operation: Operation) -> list[Value]:
        """scf.while: the first region says whether to go on, the second is gone through. Programs leave one by one."""
        first, second = operation.regions
        places = np.arange(frame.count)
        inner = frame.all_of()
        values = [frame.value(name) for name in operation.operands]
        parts: list[tuple[np.ndarray, list[Value]]] = []
        while True:
            for (name, _), value in zip(first.entry.arguments, values):
                inner.values[name] = value
            last = self._straight(first.entry, inner)
            goes_on = np.broadcast_to(inner.array(last.operands[0]), (inner.count,))
            handed = [inner.value(name) for name in last.operands[1:]]
            leaving = np.flatnonzero(~goes_on)
            if len(leaving):
                left = inner.some(leaving)
                parts.append((places[leaving], [left.value(name) for name in last.operands[1:]]))
            staying = np.flatnonzero(goes_on)
            if not len(staying):
                return merged(parts, frame.count) if operation.results else []
            if len(leaving):
                some = inner.some(staying)
                handed = [some.value(name) for name in last.operands[1:]]
                places = places[staying]
                inner = frame.some(places)
            else:
                inner = frame.some(places) if inner.count != frame.count else frame.all_of()
            for (name, _), value in zip(second.entry.arguments, handed):
                inner.values[name] = value
            values = self.yielded(second, inner)
            self.allowance.begin()
            inner = frame.some(places) if inner.count != frame.count else frame.all_of()

    def call(self, frame: Frame, operation: Operation) -> list[Value]:
        """tt.call of a function that was not inlined."""
        function = self.kernel.function(next(word[1:] for word in operation.words if word.startswith("@")))
        inner = Frame(frame.programs)
        for (name, _), value in zip(function.arguments, [frame.value(name) for name in operation.operands]):
            inner.values[name] = value
        return self._body(function.body, inner)

    def combining(
        self, frame: Frame, region: Region
    ) -> Callable[[list[np.ndarray], list[np.ndarray]], list[np.ndarray]]:
        """Of a reduction or a scan: the region as a function of two lists of arrays."""
        names = [name for name, _ in region.entry.arguments]

        def combine(one: list[np.ndarray], two: list[np.ndarray]) -> list[np.ndarray]:
            inner = Frame(frame.programs, frame, None, dimensions=one[0].ndim - 1)
            for name, value in zip(names, [*one, *two]):
                inner.values[name] = value
            shape = np.broadcast_shapes(*(array.shape for array in (*one, *two)))
            found = self.yielded(region, inner)
            return [np.broadcast_to(value, shape) for value in found if isinstance(value, np.ndarray)]

        return combine


def _expanded(parameters: Sequence[tuple[str, Type]], arguments: Sequence[Argument]) -> Iterator[Value]:
    """Arguments as values, one for each parameter: a host's descriptor takes several."""
    types = [type_ for _, type_ in parameters]
    axes = [len(value.sizes) if isinstance(value, DescriptorArgument) else 0 for value in arguments]
    for value, (first, flags) in zip(arguments, slots(types, axes)):
        type_ = types[first]
        if not isinstance(value, DescriptorArgument):
            yield _scalar(type_, value)
            continue
        geometry = [*value.sizes, *value.strides]
        if isinstance(type_, Descriptor):
            yield _descriptor(type_, value)
            numbers: list[int] = geometry
        else:
            yield _scalar(type_, value.address)
            numbers = [*geometry, *[int(value.padding != 0), 0][:flags], *geometry]
        for place, number in enumerate(numbers, first + 1):
            yield _scalar(types[place], number)


def _descriptor(type_: Descriptor, value: DescriptorArgument) -> DescriptorValue:
    made = DescriptorValue(
        np.full(1, value.address, np.int64),
        tuple(np.full(1, size, np.int32) for size in value.sizes),
        tuple(np.full(1, stride, np.int64) for stride in value.strides),
        type_.block.shape,
        type_.block.element,
        value.padding,
    )
    moving.check_descriptor(made)
    return made


def _scalar(type_: Type, value: int | float | bool) -> np.ndarray:
    assert isinstance(type_, Scalar)
    if type_.element in FLOATS:
        return rounded(np.full(1, value, np.float64), type_.element)
    kind = held(type_.element)
    if kind == np.dtype(bool):
        return np.full(1, bool(value))
    bits = int(value) & ((1 << kind.itemsize * 8) - 1)
    return np.full(1, bits, np.dtype(f"u{kind.name}")).view(kind)


# --- the rest of the operations ---------------------------------------------------------------------


def _shape(operation: Operation) -> tuple[int, ...]:
    type_ = operation.result_types[0]
    assert isinstance(type_, Tensor)
    return type_.shape


def _constant(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    type_ = operation.result_types[0]
    assert isinstance(type_, (Scalar, Tensor))
    kind, value = held(type_.element), operation.attributes["value"]
    if kind.kind == "i":
        bits = int(value) & ((1 << kind.itemsize * 8) - 1)  # type: ignore[arg-type]
        one = np.full(1, bits, np.dtype(f"u{kind.name}")).view(kind)
    else:
        one = np.full(1, value, kind)
    return [np.broadcast_to(one.reshape((1,) * (1 + len(type_.shape))), (1, *type_.shape))]


def _program_id(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    axis = "xyz".index(operation.words[0])
    width = [1, run.grid[0], run.grid[0] * run.grid[1]][axis]
    return [((frame.programs // width) % run.grid[axis]).astype(np.int32)]


def _num_programs(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    return [np.full(1, run.grid["xyz".index(operation.words[0])], np.int32)]


def _range(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    start, end = operation.attributes["start"], operation.attributes["end"]
    return [np.arange(start, end, dtype=np.int32)[None]]  # type: ignore[arg-type]


def _broadcast(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    array, shape = frame.array(operation.operands[0]), _shape(operation)
    if operation.name == "tt.splat":
        array = array.reshape(array.shape[:1] + (1,) * len(shape))
    return [np.broadcast_to(array, (array.shape[0], *shape))]


def _reshape(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    array = frame.array(operation.operands[0])
    return [array.reshape(array.shape[0], *_shape(operation))]


def _unsplat(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    array = frame.array(operation.operands[0])
    return [array.reshape(array.shape[0])]


def _transposed(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    order = operation.attributes["order"]
    assert isinstance(order, tuple)
    return [np.transpose(frame.array(operation.operands[0]), (0, *(int(axis) + 1 for axis in order)))]  # type: ignore[arg-type]


def _joined(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    one, two = np.broadcast_arrays(*(frame.array(name) for name in operation.operands))
    return [np.stack([one, two], -1)]


def _split(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    array = frame.array(operation.operands[0])
    return [array[..., 0], array[..., 1]]


def _concatenated(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    one, two = (frame.array(name) for name in operation.operands)
    count = max(one.shape[0], two.shape[0])
    return [np.concatenate([np.broadcast_to(a, (count, *a.shape[1:])) for a in (one, two)], 1)]


def _gathered(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    source, indices = (frame.array(name) for name in operation.operands)
    return [gathered(source, indices, int(operation.attributes["axis"]))]  # type: ignore[arg-type]


def _histogram(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    arrays = [frame.array(name) for name in operation.operands]
    return [histogram(arrays[0], arrays[1] if len(arrays) > 1 else None, _shape(operation)[0])]


def _reduced(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    arrays = _together([frame.array(name) for name in operation.operands])
    combine = run.combining(frame, operation.regions[0])
    return list((reduced if operation.name == "tt.reduce" else scanned)(operation, arrays, combine))


def _mapped(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    """tt.map_elementwise with one element at a time."""
    arrays = _together([frame.array(name) for name in operation.operands])
    names = [name for name, _ in operation.regions[0].entry.arguments]
    if len(names) != len(arrays):
        raise NotHere("tl.map_elementwise with several elements at a time is executed on a GPU only")
    inner = Frame(frame.programs, frame, None, dimensions=arrays[0].ndim - 1)
    for name, value in zip(names, arrays):
        inner.values[name] = value
    return [
        np.broadcast_to(v, arrays[0].shape)
        for v in run.yielded(operation.regions[0], inner)
        if isinstance(v, np.ndarray)
    ]


def _together(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """As many rows in each as in the one with most."""
    count = max(array.shape[0] for array in arrays)
    return [np.broadcast_to(array, (count, *array.shape[1:])) for array in arrays]


def _dot(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    """tt.dot %a, %b, %c: products summed in float32 (float64 for float64, exactly for integers), then added to c."""
    one, two, start = (frame.array(name) for name in operation.operands)
    kinds = [t.element for t in operation.operand_types if isinstance(t, Tensor)]
    run.allowance.take(one.shape[-2] * one.shape[-1] * two.shape[-1] * max(one.shape[0], two.shape[0]) / 8)
    if kinds[0] not in FLOATS:
        # exact: products of 8-bit integers, and sums of a million of them, are less than 2^53
        unsigned_first = one.astype(np.float64), two.astype(np.float64)
        return [(np.matmul(*unsigned_first).astype(np.int64) + start).astype(start.dtype)]
    if kinds[0] == "f32" and operation.word("inputPrecision") == "tf32":  # printed where it is not ieee
        one, two = to_tf32(one), to_tf32(two)
    result = np.matmul(one, two) + start
    return [rounded(result, kinds[2])]


def _effect(act: Callable[..., None]) -> _Handler:
    def handler(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
        act(run.memory, frame, operation)
        return []

    return handler


def _weighed(count: int, run: _Run, value: np.ndarray) -> list[Value]:
    run.allowance.take(count * value.size)
    return [value]


def _barrier(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    """Here programs do each operation together as it is."""
    if run.memory.races is not None:
        run.memory.races.met(frame.programs)
    return []


def _nothing(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    """An assumption, which changes no result."""
    return []


def _poison(run: _Run, frame: Frame, operation: Operation) -> list[Value]:
    type_ = operation.result_types[0]
    assert isinstance(type_, (Scalar, Tensor))
    return [np.zeros((1, *type_.shape), held(type_.element))]


_HANDLERS: dict[str, _Handler] = {
    "arith.constant": _constant,
    "ub.poison": _poison,
    "tt.get_program_id": _program_id,
    "tt.get_num_programs": _num_programs,
    "tt.make_range": _range,
    "tt.splat": _broadcast,
    "tt.broadcast": _broadcast,
    "tt.unsplat": _unsplat,
    "tt.expand_dims": _reshape,
    "tt.reshape": _reshape,
    "tt.trans": _transposed,
    "tt.join": _joined,
    "tt.split": _split,
    "tt.cat": _concatenated,
    "tt.gather": _gathered,
    "tt.histogram": _histogram,
    "tt.reduce": _reduced,
    "tt.scan": _reduced,
    "tt.map_elementwise": _mapped,
    "tt.dot": _dot,
    "tt.addptr": lambda run, frame, op: [moving.added(op, *(frame.array(name) for name in op.operands))],
    "tt.load": lambda run, frame, op: _weighed(3, run, moving.load(run.memory, frame, op)),
    "tt.store": _effect(moving.store),
    "tt.atomic_load": lambda run, frame, op: _weighed(3, run, moving.load(run.memory, frame, op)),
    "tt.atomic_store": _effect(moving.store),
    "tt.make_tensor_ptr": lambda run, frame, op: [moving.block_pointer(frame, op)],
    "tt.advance": lambda run, frame, op: [moving.advanced(frame, op)],
    "tt.make_tensor_descriptor": lambda run, frame, op: [moving.descriptor(frame, op)],
    "tt.descriptor_load": lambda run, frame, op: _weighed(3, run, moving.descriptor_load(run.memory, frame, op)),
    "tt.descriptor_store": _effect(moving.descriptor_store),
    "tt.descriptor_reduce": _effect(moving.descriptor_reduce),
    "tt.atomic_rmw": lambda run, frame, op: [moving.atomic(run.memory, frame, op, run.kernel.is_used(op))],
    "tt.atomic_cas": lambda run, frame, op: [moving.compare_and_swap(run.memory, frame, op)],
    "tt.call": _Run.call,
    "scf.for": _Run.loop,
    "scf.if": _Run.condition,
    "scf.while": _Run.while_loop,
    "llvm.intr.assume": _nothing,
    "gpu.barrier": _barrier,
    "ttg.barrier": _barrier,
    "ttg.local_barrier": _barrier,
}
