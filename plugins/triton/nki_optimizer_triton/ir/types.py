"""Types and operations of Triton's IR, as far as a kernel may consist of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Union


class IrError(Exception):
    """The text is no TTIR that a kernel may be compiled to: `line` is in the candidate's file where it is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


SCALAR_BYTES = {
    "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "index": 8,
    "f8E4M3FN": 1, "f8E5M2": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip
"""Element types by their MLIR names, with their size in memory: a stored i1 takes a byte, as Triton stores it."""

FLOATS = frozenset({"f8E4M3FN", "f8E5M2", "f16", "bf16", "f32", "f64"})


@dataclass(frozen=True)
class Pointer:
    """To an element in global memory."""

    to: str
    """Of SCALAR_BYTES."""


@dataclass(frozen=True)
class Pointers:
    """To pointers: a table of addresses in memory."""

    to: Pointer


Element = Union[str, Pointer, Pointers]


@dataclass(frozen=True)
class Scalar:
    element: Element

    shape = ()


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    element: Element

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class BlockPointer:
    """`!tt.ptr<tensor<...>>`: a block of a larger array, moved as a whole (Triton up to 3.8)."""

    block: Tensor


@dataclass(frozen=True)
class Descriptor:
    """`!tt.tensordesc<...>`: an array in memory of which blocks are loaded and stored."""

    block: Tensor


Type = Union[Scalar, Tensor, BlockPointer, Descriptor]

Attribute = Union[int, float, bool, str, "tuple[Attribute, ...]"]


@dataclass(frozen=True)
class Block:
    """Operations in their order; the first block of a region is its entry."""

    arguments: tuple[tuple[str, Type], ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Region:
    blocks: tuple[tuple[str, Block], ...]
    """Label and block; the first label may be empty."""

    @property
    def entry(self) -> Block:
        return self.blocks[0][1]


@dataclass(frozen=True)
class Successor:
    """Where a branch leads, and what it hands over."""

    label: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    name: str
    operands: tuple[str, ...]
    """Names of values, e.g. `x_3` or `2#1`."""
    operand_types: tuple[Type, ...]
    results: tuple[str, ...]
    result_types: tuple[Type, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """What else stands between name and types, e.g. `slt`, `rounding = rtne`."""
    regions: tuple[Region, ...] = ()
    successors: tuple[Successor, ...] = ()
    line: int | None = None
    """In the candidate's file; None for what no line of it accounts for."""

    def word(self, key: str) -> str | None:
        """The value of `key = value` among the words."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{key}=")), None)


@dataclass(frozen=True)
class Function:
    name: str
    arguments: tuple[tuple[str, Type], ...]
    results: tuple[Type, ...]
    body: Region
    is_public: bool


@dataclass(frozen=True)
class Module:
    functions: tuple[Function, ...]

    @property
    def kernel(self) -> Function:
        return next(function for function in self.functions if function.is_public)


def element_bytes(element: Element) -> int:
    return SCALAR_BYTES[element] if isinstance(element, str) else 8


def shape_of(type_: Type) -> tuple[int, ...]:
    """Of a scalar or a tensor."""
    return type_.shape if isinstance(type_, (Scalar, Tensor)) else ()


def operations_in(region: Region) -> list[Operation]:
    """All of a region's, those in inner regions included."""
    found: list[Operation] = []
    pending = [region]
    while pending:
        for _, block in pending.pop().blocks:
            for operation in block.operations:
                found.append(operation)
                pending.extend(operation.regions)
    return found
