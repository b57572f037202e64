"""Views: every tensor is a buffer, an offset and a pattern of (stride, size) pairs.

Slices, reshapes, broadcasts and explicit access patterns all produce this one form, so every
instruction, the executor and the machine model know only one kind of operand. Strides and offsets
count elements of the view's dtype in the buffer's row-major order; on chip the first pair walks the
partitions and its stride is a whole number of partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nki_sim.dtypes import DType, as_dtype
from nki_sim.errors import NkiValidationError, NotSupported, OutOfBounds
from nki_sim.machine import first_with
from nki_sim.program.memory import MemoryRegion, Storage, layout
from nki_sim.program.patterns import Pattern, infer, merged, split


@dataclass(frozen=True)
class DynamicSlice:
    """`nl.ds(start, size)`: `size` elements from `start`."""

    start: Any
    size: int


@dataclass(frozen=True)
class Indirection:
    """An index read on the device when the instruction runs.

    `kind` "scalar": one index for the whole access; "vector": one per partition of the view.
    The index times `stride` elements is added to the offset.
    """

    kind: str
    index: NkiTensor
    stride: int
    dim: int
    extent: int
    """Valid indices are 0 <= index < extent."""


class DeviceNumber:
    """An integer in a register, which steers addresses: see `nki_sim.isa.registers.scalars`."""

    __slots__ = ("register",)

    def __init__(self, register: NkiTensor) -> None:
        self.register = register

    def steering(self) -> NkiTensor:
        """The register, for an offset."""
        return self.register


class NkiTensor:
    """A view of a buffer. Never copies; a new view for every operation."""

    __slots__ = ("storage", "offset", "pattern", "dtype", "indirection")

    counted_from_end = 0
    """Negative indices so far, of all tensors."""

    def __init__(
        self, storage: Storage, offset: int, pattern: Pattern, dtype: DType, indirection: Indirection | None = None
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.pattern = pattern
        self.dtype = dtype
        self.indirection = indirection

    # --- what it is -------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([size for _, size in self.pattern])

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple([stride for stride, _ in self.pattern])

    @property
    def ndim(self) -> int:
        return len(self.pattern)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.allocation.region

    @property
    def name(self) -> str:
        return self.storage.allocation.name

    @property
    def address(self) -> tuple[int, ...] | None:
        """Where the kernel placed it (NKI 0.7): (partition, byte in the partition), None where the compiler does."""
        return self.storage.allocation.address

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything about the operand but which buffer it is in and where; equal keys cost the same.

        On chip the start partition is part of it, and in PSUM the whole offset, because rules depend on them.
        """
        storage, dtype, offset = self.storage, self.dtype, self.offset
        if not storage.on_chip:
            key: tuple[Any, ...] = (dtype, storage.region, self.pattern)
        else:
            row = storage.partition_elements
            if dtype is not storage.allocation.dtype:
                row = row * storage.allocation.dtype.itemsize // dtype.itemsize
            place = offset if storage.region is MemoryRegion.psum else offset // row
            key = (dtype, storage.region, self.pattern, row, place)
        steer = self.indirection
        return key if steer is None else (*key, steer.kind, steer.stride, steer.dim, steer.extent)

    @property
    def _partition_stride_elements(self) -> int:
        """Elements of this view's dtype per partition of the buffer."""
        allocation = self.storage.allocation
        return self.storage.partition_elements * allocation.dtype.itemsize // self.dtype.itemsize

    @property
    def partition_start(self) -> int:
        """First partition touched; 0 off chip."""
        return self.offset // self._partition_stride_elements if self.storage.on_chip else 0

    def is_contiguous(self) -> bool:
        """For kernels (NKI API); on chip, within a partition."""
        expected = 1
        free = self.pattern[1:] if self.storage.on_chip else self.pattern
        for stride, size in reversed(free):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def get_pattern(self) -> list[list[int]]:
        return [[stride, size] for stride, size in self.pattern]

    def is_indirect(self) -> bool:
        """For kernels (NKI API)."""
        return self.indirection is not None

    def __repr__(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.buffer.value}"

    def __bool__(self) -> bool:
        """True: `if bias:` asks whether a tensor was given, never what it holds, which only the device knows."""
        return True

    def __iter__(self) -> Any:
        raise NkiValidationError(f"cannot iterate over {self!r}: loop over range(n) and slice")

    def __len__(self) -> int:
        return self.pattern[0][1]

    # --- contents (of a kernel that runs with numbers) -----------------------------------------------

    def array(self) -> np.ndarray:
        """The view as a NumPy array on the buffer itself. Direct views only."""
        item = self.dtype.itemsize
        pattern = self.pattern
        return np.ndarray(
            [n for _, n in pattern],
            self.dtype.numpy,
            self.storage.writable(),
            self.offset * item,
            [s * item for s, _ in pattern],
        )

    # --- views ------------------------------------------------------------------------------------

    def _view(self, offset: int, pattern: Sequence[tuple[int, int]]) -> NkiTensor:
        return NkiTensor(self.storage, offset, tuple(pattern), self.dtype, self.indirection)

    def __getitem__(self, key: Any) -> NkiTensor:
        if type(key) is not tuple:
            key = (key,)
        pattern = self.pattern
        if len(key) > len(pattern) or Ellipsis in key:
            key = self._expand_ellipsis(key)
        offset = self.offset
        storage = self.storage
        on_chip = storage.on_chip
        out: list[tuple[int, int]] = []
        axis = 0
        for item in key:
            stride, size = pattern[axis]
            if type(item) is slice:
                start, stop, step = item.start, item.stop, item.step
                start = 0 if start is None else start
                stop = size if stop is None else stop
                if type(start) is not int or type(stop) is not int:
                    start, stop = self._static(start, axis), self._static(stop, axis)
                if start < 0 or stop < 0:
                    NkiTensor.counted_from_end += 1
                    start += size if start < 0 else 0
                    stop += size if stop < 0 else 0
                if not 0 <= start < stop <= size:
                    raise self._out_of_bounds(item, axis)
                offset += start * stride
                if step is None or step == 1:
                    out.append((stride, stop - start))
                else:
                    step = self._static(step, axis)
                    if step < 1:
                        raise NkiValidationError(f"slice step {step} of dimension {axis} of {self!r}: must be >= 1")
                    out.append((stride * step, -(-(stop - start) // step)))
            elif type(item) is DynamicSlice:
                start, length = self._static(item.start, axis), self._static(item.size, axis)
                if not (start >= 0 and length > 0 and start + length <= size):
                    raise self._out_of_bounds(f"ds({start}, {length})", axis)
                offset += start * stride
                out.append((stride, length))
            else:
                index = self._static(item, axis)
                if index < 0:
                    NkiTensor.counted_from_end += 1
                    index += size
                if not 0 <= index < size:
                    raise self._out_of_bounds(item, axis)
                offset += index * stride
                if on_chip and axis == 0:
                    out.append((stride, 1))
            axis += 1
        if axis < len(pattern):
            out += pattern[axis:]
        if len(out) < 2:
            if not out:
                out = [(1, 1)]
            elif on_chip:
                out.append((1, 1))
        if self.indirection is not None:
            self._check_indirect_index(key)
        return NkiTensor(storage, offset, tuple(out), self.dtype, self.indirection)

    def _expand_ellipsis(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        dots = sum(item is Ellipsis for item in key)
        given = len(key) - dots
        if dots > 1 or given > len(self.pattern):
            raise OutOfBounds(f"{given} indices for {self!r}, which has {self.ndim} dimensions")
        if dots == 0:
            return key
        at = next(i for i, item in enumerate(key) if item is Ellipsis)
        fill = (slice(None),) * (len(self.pattern) - given)
        return key[:at] + fill + key[at + 1 :]

    def _static(self, value: Any, axis: int) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise NkiValidationError(
                f"index {value!r} of dimension {axis} of {self!r} is not a static integer: an index known only on the "
                f"device goes through .ap(scalar_offset=...) or .select()"
            ) from None

    def _out_of_bounds(self, item: Any, axis: int) -> OutOfBounds:
        text = f"{item.start}:{item.stop}" if isinstance(item, slice) else str(item)
        return OutOfBounds(
            f"out-of-bound access: index {text} of dimension {axis} (size {self.pattern[axis][1]}) of {self!r}; "
            f"clip the last tile, e.g. min(tile, size - start)"
        )

    def _check_indirect_index(self, key: tuple[Any, ...]) -> None:
        assert self.indirection is not None
        dim = self.indirection.dim
        if dim < len(key) and self.indirection.kind == "vector" and key[dim] != slice(None):
            raise NkiValidationError(f"dimension {dim} of {self!r} is indirect and cannot be sliced")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NkiValidationError(
            f"cannot assign into {self!r}: pass the destination to an instruction, "
            "e.g. nisa.tensor_copy(dst=..., src=...)"
        )

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """An explicit access pattern of [stride, count] pairs over the buffer itself (like as_strided)."""
        new_dtype = self.dtype if dtype is None else as_dtype(dtype)
        base = self.offset * self.dtype.itemsize
        if base % new_dtype.itemsize:
            raise NkiValidationError(
                f".ap(dtype={new_dtype}) of {self!r}: offset is not aligned to {new_dtype.itemsize} bytes"
            )
        start = base // new_dtype.itemsize + (0 if offset is None else operator.index(offset))
        pairs = tuple((operator.index(s), operator.index(n)) for s, n in pattern)
        if not pairs or any(n <= 0 for _, n in pairs):
            raise NkiValidationError(f".ap(pattern={pattern}) of {self!r}: every count must be positive")
        indirection = self.indirection
        if scalar_offset is not None or vector_offset is not None:
            if scalar_offset is not None and vector_offset is not None:
                raise NkiValidationError(f".ap of {self!r}: scalar_offset and vector_offset exclude each other")
            if indirection is not None:
                raise NkiValidationError(f".ap of {self!r}: the view is already indirect")
            indirect_dim = self._dim(indirect_dim)
            index: Any = _steering(scalar_offset) if scalar_offset is not None else vector_offset
            stride, extent = self.pattern[indirect_dim]
            if new_dtype.itemsize != self.dtype.itemsize:
                stride = stride * self.dtype.itemsize // new_dtype.itemsize
            if not isinstance(index, NkiTensor):
                start += operator.index(index) * stride
            elif scalar_offset is not None:
                indirection = Indirection("scalar", index, stride, indirect_dim, extent)
            else:
                if indirect_dim != 0:
                    raise NkiValidationError(f".ap(vector_offset=...) of {self!r}: indirect_dim must be 0")
                if index.size < pairs[0][1]:
                    raise NkiValidationError(
                        f".ap of {self!r}: vector_offset {list(index.shape)} has fewer indices than the pattern's "
                        f"{pairs[0][1]} rows"
                    )
                pairs = ((0, pairs[0][1]), *pairs[1:])  # each row starts at its own index; the given stride is ignored
                indirection = Indirection("vector", index, stride, 0, extent)
        view = NkiTensor(self.storage, start, pairs, new_dtype, indirection)
        try:
            check_inside(view)
        except OutOfBounds as error:  # only an access is wrong: kernels make patterns that a guard then leaves unused
            return _Stray(view, error)
        return view

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start to end (exclusive) of one dimension."""
        dim = self._dim(dim)
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of a dimension, which disappears; `index` may be a tensor holding one integer."""
        dim = self._dim(dim)
        stride, size = self.pattern[dim]
        rest = self.pattern[:dim] + self.pattern[dim + 1 :]
        index = _steering(index)
        if isinstance(index, NkiTensor):
            if self.indirection is not None:
                raise NkiValidationError(f"select on {self!r}: the view is already indirect")
            if self.storage.on_chip and dim == 0:
                raise NkiValidationError(f"select on {self!r}: the partition dimension cannot be indexed dynamically")
            return NkiTensor(
                self.storage, self.offset, rest, self.dtype, Indirection("scalar", index, stride, dim, size)
            )
        at = self._static(index, dim)
        if not 0 <= at < size:
            raise self._out_of_bounds(index, dim)
        if self.storage.on_chip and dim == 0:
            rest = ((stride, 1),) + rest
        return self._view(self.offset + at * stride, rest)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Each partition reads from its own index of dimension 0 of an HBM tensor."""
        if dim != 0 or self.storage.on_chip:
            raise NkiValidationError(f"vector_select on {self!r}: only dimension 0 of an HBM tensor")
        if self.indirection is not None:
            raise NkiValidationError(f"vector_select on {self!r}: the view is already indirect")
        stride, size = self.pattern[0]
        pattern = ((0, vector_offset.shape[0]),) + self.pattern[1:]
        return NkiTensor(
            self.storage, self.offset, pattern, self.dtype, Indirection("vector", vector_offset, stride, 0, size)
        )

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip dimension 0 stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise NkiValidationError(
                f"permute{tuple(dims)} of {self!r}: not a permutation of its {self.ndim} dimensions"
            )
        if dims[0] != 0:
            self._keep_partition(0, "permute")
        return self._view(self.offset, [self.pattern[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of size 1 repeated `size` times; on chip not dimension 0."""
        dim = self._dim(dim)
        self._keep_partition(dim, "broadcast")
        if self.pattern[dim][1] != 1:
            raise NkiValidationError(f"broadcast of dimension {dim} of {self!r}: its size must be 1")
        return self._view(self.offset, self.pattern[:dim] + ((0, size),) + self.pattern[dim + 1 :])

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dimension of size 1 at position `dim`; on chip not before dimension 0."""
        dim = dim + self.ndim + 1 if dim < 0 else dim
        if not 0 <= dim <= self.ndim:
            raise NkiValidationError(f"expand_dim({dim}) of {self!r}: no such position")
        self._keep_partition(dim, "expand_dim")
        return self._view(self.offset, self.pattern[:dim] + ((1, 1),) + self.pattern[dim:])

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without dimension `dim`, whose size must be 1."""
        dim = self._dim(dim)
        self._keep_partition(dim, "squeeze_dim")
        if self.pattern[dim][1] != 1:
            raise NkiValidationError(
                f"squeeze_dim({dim}) of {self!r}: the dimension's size is {self.pattern[dim][1]}, not 1"
            )
        return self._view(self.offset, self.pattern[:dim] + self.pattern[dim + 1 :])

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """One dimension split into several; one size may be -1."""
        dim = self._dim(dim)
        stride, size = self.pattern[dim]
        sizes = infer(list(shape), size, f"reshape_dim({dim}, {tuple(shape)}) of {self!r}")
        if len(sizes) > 1:
            self._keep_partition(dim, "reshape_dim")
        pairs = []
        inner = size
        for n in sizes:
            inner //= n
            pairs.append((stride * inner, n))
        return self._view(self.offset, (*self.pattern[:dim], *pairs, *self.pattern[dim + 1 :]))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions start_dim to end_dim (inclusive) as one; they must be contiguous."""
        start_dim, end_dim = self._dim(start_dim), self._dim(end_dim)
        if start_dim < end_dim:
            self._keep_partition(start_dim, "flatten_dims")
        walk = merged(self.pattern[start_dim : end_dim + 1])
        if len(walk) != 1:
            raise NkiValidationError(
                f"flatten_dims({start_dim}, {end_dim}) of {self!r}: the dimensions are not contiguous"
            )
        return self._view(self.offset, (*self.pattern[:start_dim], *walk, *self.pattern[end_dim + 1 :]))

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements in row-major order under another shape; never copies."""
        what = f"reshape{tuple(shape)} of {self!r}"
        sizes = infer([operator.index(n) for n in shape], self.size, what)
        if self.storage.on_chip:
            if sizes[0] != self.pattern[0][1]:
                raise NkiValidationError(f"{what}: the partition dimension must stay {self.pattern[0][1]}")
            free = split(merged(self.pattern[1:]), sizes[1:], what)
            return self._view(self.offset, (self.pattern[0], *free))
        if self.indirection is not None and self.indirection.kind == "vector":
            if sizes[0] != self.pattern[0][1]:
                raise NkiValidationError(f"{what}: the indirect dimension must stay {self.pattern[0][1]}")
            return self._view(self.offset, (self.pattern[0], *split(merged(self.pattern[1:]), sizes[1:], what)))
        return self._view(self.offset, split(merged(self.pattern), sizes, what))

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Split, reorder and merge named dimensions; a tuple of names is a group."""
        fixed = fixed_sizes or {}
        if len(src_pattern) != self.ndim:
            raise NkiValidationError(f"rearrange of {self!r}: {len(src_pattern)} source dimensions for {self.ndim}")
        split, view = 0, self
        names: list[str] = []
        for entry in src_pattern:
            group = (entry,) if isinstance(entry, str) else tuple(entry)
            view = view.reshape_dim(split, [fixed.get(name, -1) for name in group]) if len(group) > 1 else view
            names.extend(group)
            split += len(group)
        wanted: list[str] = []
        for entry in dst_pattern:
            wanted.extend((entry,) if isinstance(entry, str) else entry)
        if sorted(wanted) != sorted(names):
            raise NkiValidationError(f"rearrange of {self!r}: names differ, {names} and {wanted}")
        view = view.permute([names.index(name) for name in wanted])
        at = 0
        for entry in dst_pattern:
            if not isinstance(entry, str) and len(entry) > 1:
                view = view.flatten_dims(at, at + len(entry) - 1)
            at += 1
        return view

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension grows or shrinks accordingly."""
        new = as_dtype(dtype)
        old_item, new_item = self.dtype.itemsize, new.itemsize
        if self.indirection is not None:
            raise NkiValidationError(f"view({new}) of {self!r}: not on an indirect view")
        if old_item == new_item:
            return NkiTensor(self.storage, self.offset, self.pattern, new)
        stride, size = self.pattern[-1]
        if stride != 1 and size != 1:
            raise NkiValidationError(f"view({new}) of {self!r}: the last dimension is not contiguous")
        if (
            (size * old_item) % new_item
            or (self.offset * old_item) % new_item
            or any(s * old_item % new_item for s, n in self.pattern[:-1] if n > 1)
        ):
            raise NkiValidationError(f"view({new}) of {self!r}: sizes do not divide")
        pattern = [(s * old_item // new_item, n) for s, n in self.pattern[:-1]]
        pattern.append((1, size * old_item // new_item))
        return NkiTensor(self.storage, self.offset * old_item // new_item, tuple(pattern), new)

    reinterpret_cast = view

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Tensor indirection, of NeuronCore-v4."""
        raise NotSupported(f"indirect on {self!r} needs {first_with(4)}: gather with nisa.nc_n_gather")

    def _dim(self, dim: int) -> int:
        found = dim + self.ndim if dim < 0 else dim
        if not 0 <= found < self.ndim:
            raise NkiValidationError(f"{self!r} has no dimension {dim}")
        return found

    def _keep_partition(self, dim: int, what: str) -> None:
        if dim == 0 and self.storage.on_chip:
            raise NkiValidationError(f"{what} on {self!r}: the partition dimension (0) cannot be changed on chip")
        if dim == 0 and self.indirection is not None and self.indirection.kind == "vector":
            raise NkiValidationError(f"{what} on {self!r}: the indirect dimension (0) cannot be changed")


def _no_operator(sign: str, instead: str) -> Any:
    """A method that raises: Python's operators on tensors were Beta 1."""

    def refuse(self: NkiTensor, other: Any) -> Any:
        raise NkiValidationError(f"tensors have no `{sign}` ({self!r}): write {instead}")

    return refuse


for _name, _sign, _instead in (
    ("add", "+", "nl.add(a, b)"),
    ("sub", "-", "nl.subtract(a, b)"),
    ("mul", "*", "nl.multiply(a, b)"),
    ("truediv", "/", "nl.multiply(a, nl.reciprocal(b))"),
    ("pow", "**", "nl.power(a, b)"),
    ("matmul", "@", "nl.matmul(a, b, transpose_x=True)"),
):
    for _prefix in ("", "r"):
        setattr(NkiTensor, f"__{_prefix}{_name}__", _no_operator(_sign, _instead))


def _steering(index: Any) -> Any:
    """The register of a scalar; anything else as it is."""
    return index.steering() if isinstance(index, DeviceNumber) else index


class _Stray(NkiTensor):
    """An access pattern that leaves its buffer: an error once an instruction uses it."""

    __slots__ = ("_error",)

    def __init__(self, view: NkiTensor, error: OutOfBounds) -> None:
        super().__init__(view.storage, view.offset, view.pattern, view.dtype, view.indirection)
        self._error = error

    @property
    def key(self) -> tuple[Any, ...]:
        raise self._error


def whole(storage: Storage) -> NkiTensor:
    """The view of a whole buffer."""
    allocation = storage.allocation
    pattern = layout(allocation.region, allocation.shape, allocation.dtype).pattern
    return NkiTensor(storage, 0, pattern, allocation.dtype)


def check_inside(view: NkiTensor) -> None:
    """An explicit pattern must stay inside its buffer, and on chip inside its partitions."""
    allocation = view.storage.allocation
    total = allocation.nbytes // view.dtype.itemsize
    low = view.offset + sum(min(0, s * (n - 1)) for s, n in view.pattern)
    high = view.offset + sum(max(0, s * (n - 1)) for s, n in view.pattern)
    if low < 0 or high >= total:
        raise OutOfBounds(
            f"out-of-bound access: pattern {view.get_pattern()} at offset {view.offset} leaves "
            f"{allocation.describe()}, which has {total} elements of {view.dtype}"
        )
    if view.storage.on_chip:
        row = view._partition_stride_elements
        stride, size = view.pattern[0]
        start = view.offset % row
        free_low = start + sum(min(0, s * (n - 1)) for s, n in view.pattern[1:])
        free_high = start + sum(max(0, s * (n - 1)) for s, n in view.pattern[1:])
        if (size > 1 and stride % row) or free_low < 0 or free_high >= row:
            raise OutOfBounds(
                f"access pattern {view.get_pattern()} at offset {view.offset} crosses the partitions of "
                f"{allocation.describe()}: the first pair must be [{row}, partitions] and the others stay within "
                f"{row} elements"
            )
