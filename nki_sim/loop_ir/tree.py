"""The loop tree's types. All are immutable; a rule makes a new tree of an old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from operator import is_
from typing import Any, Union

import numpy as np

from nki_sim.dtypes import DType
from nki_sim.loop_ir.affine import Affine
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.patterns import Pattern
from nki_sim.program.program import Bound, Engine


def dense(sizes: Sequence[int]) -> Pattern:
    """All elements of those dimensions, the last one innermost."""
    return tuple((prod(sizes[at + 1 :]), n) for at, n in enumerate(sizes))


@dataclass(frozen=True)
class Buffer:
    """What `Allocate` makes anew each time it is reached; parameters and constants exist from the start."""

    region: MemoryRegion
    shape: tuple[int, ...]
    dtype: DType
    name: str = ""
    line: int = 0
    """Source line that allocates it; 0 for a parameter."""
    address: tuple[int, ...] | None = None
    """Manual placement."""
    contents: np.ndarray | None = field(default=None, compare=False)
    """Of a constant."""

    @cached_property
    def partition_elements(self) -> int:
        """Elements per partition of its own dtype; for HBM, all."""
        return prod(self.shape[1:] if self.region.on_chip else self.shape)


@dataclass(frozen=True)
class Access:
    """One operand of an instruction: which elements of which buffer."""

    role: str
    access: str
    """`r`, `w`, or `u` for read-modify-write."""
    buffer: int
    """Key in `LoopKernel.buffers`."""
    tile: tuple[Affine, ...]
    """Which of the buffers that its Allocate makes: a counter for each loop around that Allocate, outermost first."""
    offset: Affine
    """In elements of `dtype`."""
    pattern: Pattern
    dtype: DType
    indirection: tuple[str, int, int, int] | None = None
    """(kind, stride, dim, extent); the index is the next operand."""

    @property
    def elements(self) -> int:
        return prod([n for _, n in self.pattern])

    @cached_property
    def variables(self) -> frozenset[str]:
        return self.offset.variables.union(*(each.variables for each in self.tile))

    def substitute(self, values: Mapping[str, Union[Affine, int]]) -> Access:
        if self.variables.isdisjoint(values):
            return self
        return self.at(tuple([each.substitute(values) for each in self.tile]), self.offset.substitute(values))

    def at(self, tile: tuple[Affine, ...], offset: Affine) -> Access:
        """The same elsewhere."""
        return Access(self.role, self.access, self.buffer, tile, offset, self.pattern, self.dtype, self.indirection)


@dataclass(frozen=True)
class Instruction:
    opcode: str
    engine: Engine
    attrs: Any
    """A NamedTuple of the opcode's own, or None."""
    operands: tuple[Access, ...]
    line: int = 0

    def on(self, operands: tuple[Access, ...]) -> Instruction:
        """The same with other operands; itself where all are its own."""
        if all(map(is_, operands, self.operands)):
            return self
        return Instruction(self.opcode, self.engine, self.attrs, operands, self.line)

    def operand(self, role: str) -> Access | None:
        return next((operand for operand in self.operands if operand.role == role), None)


@dataclass(frozen=True)
class Allocate:
    buffer: int


@dataclass(frozen=True)
class Loop:
    """Unrolled by the compiler: the body for each value from `start` to below `start + extent`."""

    variable: str
    """Unique in the kernel."""
    start: Affine
    extent: Affine
    body: tuple[Node, ...]
    site: int = 0
    """Source line of its `for`; 0 for one that no line shows."""

    @property
    def where(self) -> str:
        """For people."""
        return f"line {self.site}" if self.site else "the blocks"


@dataclass(frozen=True)
class DeviceLoop:
    """Runs on the device: its body is in the program once. Fields as in `program.Loop`, registers by buffer key."""

    kind: str
    counter: int
    lower: Bound
    upper: Bound
    step: int
    next: int
    body: tuple[Node, ...]


Node = Union[Instruction, Allocate, Loop, DeviceLoop]


@dataclass(frozen=True)
class Result:
    """A returned tensor."""

    buffer: int
    tile: tuple[Affine, ...]
    offset: int
    pattern: Pattern
    dtype: DType


@dataclass(frozen=True)
class LoopKernel:
    name: str
    machine: str
    buffers: Mapping[int, Buffer]
    parameters: tuple[int, ...]
    """Buffers of the tensor arguments in the order of the call."""
    permanent: tuple[int, ...]
    """Buffers that nothing allocates: constants, and the engines' own registers."""
    body: tuple[Node, ...]
    outputs: tuple[Result, ...]
    returns_tuple: bool
    source_file: str = ""


def walk(body: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[Node, tuple[Loop, ...]]]:
    """Every node in program order, with the static loops around it, outermost first."""
    found: list[tuple[Node, tuple[Loop, ...]]] = []
    for node in body:
        found.append((node, around))
        if isinstance(node, (Loop, DeviceLoop)):
            found += walk(node.body, (*around, node) if isinstance(node, Loop) else around)
    return iter(found)


def rebuilt(body: tuple[Node, ...], change: Callable[[Node], tuple[Node, ...]]) -> tuple[Node, ...]:
    """Each node replaced by what `change` makes of it, inner ones first; a tree in which nothing changes is itself."""
    made: list[Node] = []
    for node in body:
        if isinstance(node, (Loop, DeviceLoop)):
            inner = rebuilt(node.body, change)
            if inner is not node.body:
                node = replace(node, body=inner)
        made += change(node)
    return body if len(made) == len(body) and all(map(is_, made, body)) else tuple(made)
