"""What a traced function comes to: buffers, fills and launches in their order, and what is returned.

Positions and sizes of tensors count elements of their own type, unless they say bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Union

from nki_optimizer_triton.program.elements import BY_NAME

MAIN = 0
"""The number of the candidate's own file; its neighbours follow."""


@dataclass(frozen=True)
class TensorValue:
    """A view of a buffer."""

    buffer: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """In C order, whatever the strides of axes of size 1 are."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def byte_offset(self) -> int:
        return self.offset * BY_NAME[self.dtype].bytes


@dataclass(frozen=True)
class DescriptorValue:
    """`TensorDescriptor` of the host: blocks of a tensor that kernels load and store by themselves."""

    tensor: TensorValue
    """Shape and strides are the descriptor's."""
    block_shape: tuple[int, ...]
    padding: str
    """`zero` or `nan`."""


@dataclass(frozen=True)
class DtypeValue:
    """An element type, given to a kernel at compile time."""

    language: str
    """Its name in `triton.language`."""


@dataclass(frozen=True)
class FunctionValue:
    """One of the candidate's @triton.jit functions, given to a kernel or used by one."""

    file: int
    name: str


@dataclass(frozen=True)
class TupleValue:
    items: tuple[Value, ...]


@dataclass(frozen=True)
class ModuleValue:
    """A module, or something in one, that kernels name: `triton.language`, `triton.language.extra.libdevice`,
    `math`."""

    dotted: str


@dataclass(frozen=True)
class ConstexprValue:
    """`tl.constexpr(...)` of a module's global."""

    value: Value


Value = Union[
    int, float, bool, str, None, TensorValue, DescriptorValue, DtypeValue, FunctionValue, TupleValue, ModuleValue,
    ConstexprValue,
]  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """Memory of one tensor's storage."""

    dtype: str
    elements: int
    line: int
    """Where the candidate allocated it; 0 for a tensor argument."""

    @property
    def nbytes(self) -> int:
        return self.elements * BY_NAME[self.dtype].bytes


@dataclass(frozen=True)
class Fill:
    """`torch.zeros`, `fill_` and their like: one value for every element of a contiguous view."""

    tensor: TensorValue
    value: int | float | bool
    line: int


@dataclass(frozen=True)
class Options:
    """Of a launch, as Triton names them; None: Triton's own default."""

    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    maxnreg: int | None = None


@dataclass(frozen=True)
class Launch:
    function: FunctionValue
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, Value], ...]
    """One for each parameter, in their order; defaults filled in."""
    options: Options
    line: int
    config: int | None = None
    """Which of the kernel's @triton.autotune configurations; None where it has none."""

    @property
    def programs(self) -> int:
        return prod(self.grid)


@dataclass(frozen=True)
class Tunable:
    """A kernel's declared configurations (@triton.autotune), as its user may choose among them."""

    function: FunctionValue
    configs: tuple[tuple[tuple[str, Value], ...], ...]
    """Of each its keyword values and launch options."""


@dataclass(frozen=True)
class LaunchProgram:
    arguments: int
    """The first so many buffers are the tensor arguments, whole and contiguous, in their order."""
    argument_shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Fill | Launch, ...]
    outputs: tuple[TensorValue, ...]
    functions: tuple[tuple[FunctionValue, tuple[tuple[str, Value], ...]], ...]
    """Every @triton.jit function that launches need, and the globals that it names."""
    tunables: tuple[Tunable, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def in_place(self) -> frozenset[int]:
        """Arguments that are returned: updated in place, by the function's own word."""
        return frozenset(output.buffer for output in self.outputs if output.buffer < self.arguments)

    @property
    def allocated_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers[self.arguments :])
