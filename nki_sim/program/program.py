"""A traced kernel: a static instruction stream over buffers, which is pure data.

Loops repeat the same instruction on other tiles, so an instruction is split in two: a `Template`
(opcode, engine, attributes, operand patterns and dtypes, source line), which is stored once and
costed once, and one row of the stream (template number, then buffer number and offset of each
operand). A program can be stored, shipped, executed on arrays and timed without the kernel's Python.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.program.allocations import Allocations
from nki_sim.program.memory import Allocation, MemoryRegion
from nki_sim.program.patterns import Pattern
from nki_sim.program.region_lists import gathered, uses_of


class Engine(Enum):
    """NKI's engines; `unknown` is resolved when an instruction is recorded, never stored."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6

    def __repr__(self) -> str:
        return f"nisa.engine.{self.name}"

    __hash__ = object.__hash__  # as in MemoryRegion: members are keys of hot tables


@dataclass(frozen=True)
class Operand:
    """How one instruction touches one tensor; where is in the stream."""

    role: str
    """The parameter's name, e.g. `dst`, `stationary`, `operand0`."""
    access: str
    """`r`, `w`, or `u` for read-modify-write."""
    region: MemoryRegion
    dtype: DType
    pattern: Pattern
    partition_start: int
    partition_elements: int
    """Elements of `dtype` per partition of the buffer, on chip; 0 off chip."""
    indirection: tuple[str, int, int, int] | None = None
    """(kind, stride, dim, extent); the index tensor is an operand of its own, right after this one."""
    free_offset: int = 0
    """PSUM only: elements between the start of the partition and the access; decides the banks."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(n for _, n in self.pattern)

    @property
    def partitions(self) -> int:
        return self.pattern[0][1] if self.region.on_chip else 1

    @property
    def free_size(self) -> int:
        """Elements per partition (on chip), or in all (off chip)."""
        return prod(n for _, n in (self.pattern[1:] if self.region.on_chip else self.pattern))

    @property
    def elements(self) -> int:
        return prod(n for _, n in self.pattern)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    @cached_property
    def free_span_bytes(self) -> tuple[int, int]:
        """[low, high) bytes touched in a partition (on chip) or in the buffer, relative to the offset."""
        free = self.pattern[1:] if self.region.on_chip else self.pattern
        low = sum(min(0, s * (n - 1)) for s, n in free)
        high = sum(max(0, s * (n - 1)) for s, n in free) + 1
        return low * self.dtype.itemsize, high * self.dtype.itemsize


class OperandView(NamedTuple):
    """What NumPy needs to see one operand; the same for every instruction of a template."""

    access: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    itemsize: int
    byte_strides: tuple[int, ...]
    fills_bytes: int
    """Bytes written if the operand is a destination in one dense run, else -1."""
    indirection: tuple[str, int, int, int] | None


def _view_of(operand: Operand) -> OperandView:
    item = operand.dtype.itemsize
    run = 1
    for stride, size in reversed(operand.pattern):
        if size != 1 and stride != run:
            run = -1
            break
        run *= size
    return OperandView(
        operand.access,
        operand.shape,
        operand.dtype.numpy,
        item,
        tuple(stride * item for stride, _ in operand.pattern),
        run * item if run > 0 and operand.access == "w" else -1,
        operand.indirection,
    )


@dataclass(frozen=True)
class Template:
    opcode: str
    engine: Engine
    attrs: Any
    """A NamedTuple of the opcode's own, or None."""
    operands: tuple[Operand, ...]
    line: int
    """Source line in the kernel file; the innermost line of user code."""

    @cached_property
    def views(self) -> tuple[OperandView, ...]:
        return tuple(_view_of(operand) for operand in self.operands)

    @cached_property
    def tfloat32_factors(self) -> tuple[int, ...]:
        """Operands of a product that TensorE reads as tfloat32; a transpose moves all 32 bits."""
        if not self.opcode.startswith("nc_matmul") or getattr(self.attrs, "is_transpose", False):
            return ()
        return tuple(at for at, o in enumerate(self.operands) if o.access == "r" and o.dtype == "tfloat32")

    def operand(self, role: str) -> Operand | None:
        return next((operand for operand in self.operands if operand.role == role), None)

    def describe(self) -> str:
        shapes = ", ".join(f"{o.role}{list(o.shape)} {o.dtype} {o.region.value}" for o in self.operands)
        return f"{self.opcode} on {self.engine.name}: {shapes} (line {self.line})"


@dataclass(frozen=True)
class TensorRef:
    """Where a kernel argument or result lies."""

    allocation: int
    offset: int
    pattern: Pattern
    dtype: DType


@dataclass(frozen=True)
class Edge:
    """An explicit scheduling edge: instruction `after` waits for instruction `before`."""

    before: int
    after: int


@dataclass(frozen=True)
class Bound:
    """A loop bound: a constant, or a register that is read when the loop starts."""

    value: int = 0
    register: int | None = None
    """Buffer number."""


@dataclass(frozen=True)
class Loop:
    """A device loop over rows [start, end) of the stream. Loops nest; outer ones come first.

    "for": `counter` (a register's buffer number) takes the values of range(lower, upper, step).
    "while": before every pass the condition, first `lower` and then register `next`, is written to
    `counter`; zero ends the loop.
    """

    kind: str
    start: int
    end: int
    counter: int
    lower: Bound
    upper: Bound = Bound()
    step: int = 1
    next: int = -1

    @property
    def trips(self) -> int | None:
        """Number of passes, when the bounds are constants."""
        if self.kind != "for" or self.lower.register is not None or self.upper.register is not None:
            return None
        return len(range(self.lower.value, self.upper.value, self.step))


@dataclass(frozen=True)
class Sites:
    """Where buffers are allocated: those alike in memory, shape, dtype, source line and address are of one site."""

    of_buffer: np.ndarray
    """int64 [allocations]: number of its site."""
    examples: tuple[Allocation, ...]
    """By site, one of its kinds."""

    def each(self, value: Callable[[Allocation], int]) -> np.ndarray:
        """int64 [allocations]: what `value` says of each buffer, asked once for each site."""
        return np.array([value(example) for example in self.examples], np.int64)[self.of_buffer]


@dataclass(frozen=True)
class Uses:
    """All int64 [allocations]."""

    first: np.ndarray
    """The first row that touches it; the number of rows if none does."""
    last: np.ndarray
    """The last one, loops not regarded; -1 if none does."""
    touches: np.ndarray
    """Operands that it is."""
    writes: np.ndarray
    """Those of them that are written."""


NO_MARKS = np.zeros((0, 4), np.int64)

_SITE = itemgetter(*map(Allocation._fields.index, ("region", "shape", "dtype", "line", "address")))


@dataclass(frozen=True)
class Program:
    kernel_name: str
    machine: str
    """What it was traced for, a key of `nki_sim.machine.MACHINES`."""
    templates: tuple[Template, ...]
    allocations: Allocations
    template_ids: np.ndarray
    """int32 [instructions]"""
    operand_starts: np.ndarray
    """int64 [instructions + 1]: row i's operands are operand_data[operand_starts[i]:operand_starts[i+1]]."""
    operand_data: np.ndarray
    """int64 [operands, 2]: buffer number, offset in elements of the operand's dtype."""
    inputs: tuple[TensorRef, ...]
    """Tensor arguments in the order of the call."""
    outputs: tuple[TensorRef, ...]
    returns_tuple: bool
    constants: dict[int, np.ndarray]
    """Buffers with contents known at trace time, by buffer number."""
    edges: tuple[Edge, ...] = ()
    source_file: str = ""
    loops: tuple[Loop, ...] = ()
    peers: tuple[Program, ...] = ()
    """With LNC 2: the other core's program. The nth shared_hbm buffer of every core is the same memory."""
    marks: np.ndarray = field(default_factory=lambda: NO_MARKS)
    """int64 [marks, 4]: where the kernel's own loops begin, go on and end (`loop_ir.marks`); a hint, and none of it is
    part of what the program does."""

    def __len__(self) -> int:
        return len(self.template_ids)

    def with_rows(self, order: np.ndarray, operand_data: np.ndarray | None = None) -> Program:
        """The program that runs these rows (int64, some of them, in any order, also more than once) and no loops.

        An edge holds between the first copies of its two rows, and goes where one of them does. `operand_data`
        replaces the whole stream's.
        """
        data = self.operand_data if operand_data is None else operand_data
        starts, data = gathered(_flat(order), _flat(self.operand_starts), _flat(data))
        first_copy = np.full(len(self) + 1 if self.edges else 0, -1, np.int64)
        if self.edges:
            first_copy[order[::-1]] = np.arange(len(order))[::-1]
        edges = tuple(
            Edge(int(first_copy[edge.before]), int(first_copy[edge.after]))
            for edge in self.edges
            if first_copy[edge.before] >= 0 and first_copy[edge.after] >= 0
        )
        ids = self.template_ids[order]
        return replace(
            self, template_ids=ids, operand_starts=starts, operand_data=data, edges=edges, loops=(), marks=NO_MARKS
        )

    @cached_property
    def sites(self) -> Sites:
        """Its buffers by what they have in common."""
        examples: dict[tuple[object, ...], Allocation] = {}
        for kind in self.allocations.kinds:
            examples.setdefault(_SITE(kind), kind)
        numbers = {site: number for number, site in enumerate(examples)}
        of_kind = np.array([numbers[_SITE(kind)] for kind in self.allocations.kinds], np.int64)
        return Sites(of_kind[self.allocations.kind_of], tuple(examples.values()))

    @cached_property
    def kinds(self) -> np.ndarray:
        """int64 [instructions]: a number for its template, the same for templates that differ in their lines only."""
        return np.array(self.alike, np.int64)[self.template_ids]

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """By template, the same number."""
        known: dict[Template, int] = {}
        return tuple(known.setdefault(replace(template, line=0), len(known)) for template in self.templates)

    @cached_property
    def operand_rows(self) -> np.ndarray:
        """int64 [operands]: the row that each belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.operand_starts))

    @cached_property
    def operand_numbers(self) -> np.ndarray:
        """int64 [operands]: which operand of a template each is, among those of all templates."""
        rows = self.operand_rows
        ids = self.template_ids[rows]
        return self.operand_table[0][ids] + np.arange(len(rows)) - self.operand_starts[:-1][rows]

    def of_operands(self, values: Sequence[Sequence[int]]) -> np.ndarray:
        """int64 [operands]: for every operand of the stream, its template's value for it."""
        return np.fromiter((value for each in values for value in each), np.int64)[self.operand_numbers]

    @property
    def stream(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """template_ids, operand_starts and operand_data as int64, as functions under `jit` want them."""
        return _flat(self.template_ids), _flat(self.operand_starts), _flat(self.operand_data)

    @cached_property
    def operand_table(self) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [templates]: where the operands of each begin among all templates'; bool: is that one written?)."""
        bases = np.cumsum([0, *[len(template.operands) for template in self.templates]])[:-1]
        writes = np.array([o.access != "r" for template in self.templates for o in template.operands], np.bool_)
        return bases, writes

    @cached_property
    def writes(self) -> np.ndarray:
        """bool [operands]: is it written?"""
        return self.operand_table[1][self.operand_numbers]

    @property
    def written(self) -> np.ndarray:
        """bool [allocations]: does some instruction write it?"""
        return np.bincount(self.operand_data[self.writes, 0], minlength=len(self.allocations)) > 0

    @cached_property
    def uses(self) -> Uses:
        """Who touches its buffers, in the order of the rows."""
        return Uses(*uses_of(*self.stream, *self.operand_table, len(self.allocations)))

    @cached_property
    def last_use(self) -> np.ndarray:
        """int64 [allocations]: the last row that touches it (a loop's last one, if it was touched before
        the loop as well), -1 if none does."""
        last = self.uses.last.copy() if self.loops else self.uses.last
        for loop in reversed(self.loops):
            for bound in (loop.lower, loop.upper):
                if bound.register is not None:
                    last[bound.register] = max(last[bound.register], loop.start)
            for register in (loop.counter, loop.next):
                if register >= 0:
                    last[register] = max(last[register], loop.end - 1)
            carried = (last >= loop.start) & (last < loop.end) & (self.first_use < loop.start)
            last[carried] = loop.end - 1
        return last

    @property
    def first_use(self) -> np.ndarray:
        """int64 [allocations]: the first row that touches it; the number of rows if none does."""
        return self.uses.first


def _flat(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)


@contextmanager
def collector_resting() -> Iterator[None]:
    """For what makes no cycles: to look for some takes an eighth of a schedule's time, a sixth of what looking for
    changes to a kernel takes, and most of a program's reading."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
