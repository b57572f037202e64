"""Tensors with everything but contents: shape, type, strides, device and storage; views of them, and fills.

Views follow torch's rules for shapes and strides; what would need a copy is refused, since a copy is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, NoReturn

from nki_optimizer_triton.program.elements import BY_LANGUAGE, BY_NAME, ElementType
from nki_optimizer_triton.program.launch_program import TensorValue
from nki_optimizer_triton.tracing.recorder import Recording, Refused, Storage, current
from nki_optimizer_triton.tracing.refusing import COMPUTES, Sealed


class Dtype:
    """`torch.float16` and its like; one object each."""

    def __init__(self, element: ElementType) -> None:
        self.element = element
        self.itemsize = element.bytes
        self.is_floating_point = element.kind == "float"
        self.is_complex = False
        self.is_signed = element.kind in ("int", "float")

    def __repr__(self) -> str:
        return f"torch.{self.element.name}"

    def __reduce__(self) -> Any:
        return dtype, (self.element.name,)


DTYPES = {name: Dtype(element) for name, element in BY_NAME.items()}


def dtype(name: str) -> Dtype:
    return DTYPES[name]


class Device:
    """`torch.device`: the one GPU, or the host."""

    def __init__(self, type: Any = "cuda", index: int | None = None) -> None:
        if isinstance(type, Device):
            type, index = type.type, type.index if index is None else index
        if isinstance(type, int):
            type, index = "cuda", type
        name, _, number = str(type).partition(":")
        if name not in ("cuda", "cpu", "meta"):
            raise Refused(f"torch.device({type!r}): there are cuda and cpu")
        self.type: str = name
        self.index: int | None = int(number) if number else index
        if self.type == "cuda" and self.index not in (None, 0):
            raise Refused(f"torch.device('cuda:{self.index}'): a kernel runs on one GPU, number 0")

    def __eq__(self, other: object) -> bool:
        other = Device(other) if isinstance(other, str) else other
        return isinstance(other, Device) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + ("" if self.index is None else f", index={self.index}") + ")"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __enter__(self) -> NoReturn:
        raise Refused("with torch.device(...): name the device of each tensor, e.g. device=x.device")

    def __exit__(self, *_: Any) -> None: ...


class Size(tuple[int, ...]):
    """`torch.Size`."""

    def numel(self) -> int:
        return prod(self)

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class Tensor(metaclass=Sealed):
    """`torch.Tensor`, without contents."""

    _sealed: ClassVar[bool] = False
    __slots__ = ("_dtype", "_offset", "_shape", "_storage", "_strides", "device")

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Refused("torch.Tensor(...): allocate with torch.empty(shape, dtype=..., device=...)")

    # --- what it is ---------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        return Size(self._shape)

    @property
    def dtype(self) -> Dtype:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def itemsize(self) -> int:
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def requires_grad(self) -> bool:
        return False

    @property
    def grad(self) -> None:
        return None

    @property
    def is_leaf(self) -> bool:
        return True

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def is_quantized(self) -> bool:
        return False

    @property
    def data(self) -> Tensor:
        return self

    @property
    def T(self) -> Tensor:
        return self._view_of(self._shape[::-1], self._strides[::-1])

    @property
    def mT(self) -> Tensor:
        return self.transpose(-1, -2)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self._shape[self._axis(dim)]

    def stride(self, dim: int | None = None) -> Any:
        return tuple(self._strides) if dim is None else self._strides[self._axis(dim)]

    def numel(self) -> int:
        return prod(self._shape)

    nelement = numel

    def dim(self) -> int:
        return len(self._shape)

    ndimension = dim

    def element_size(self) -> int:
        return self.itemsize

    def storage_offset(self) -> int:
        return self._offset

    def is_contiguous(self, memory_format: Any = None) -> bool:
        return self._value().is_contiguous

    def is_floating_point(self) -> bool:
        return self._dtype.is_floating_point

    def is_complex(self) -> bool:
        return False

    def is_signed(self) -> bool:
        return self._dtype.is_signed

    def get_device(self) -> int:
        return 0 if self.is_cuda else -1

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a 0-d tensor")
        return self._shape[0]

    def __repr__(self) -> str:
        return f"tensor(shape={list(self._shape)}, dtype={self._dtype!r}, device={str(self.device)!r})"

    def __hash__(self) -> int:
        return id(self)

    # --- views --------------------------------------------------------------------------------------

    def view(self, *shape: Any) -> Tensor:
        if len(shape) == 1 and isinstance(shape[0], Dtype):
            return self._as_type(shape[0])
        return self._reshaped(_shape_of(shape), "view")

    def reshape(self, *shape: Any) -> Tensor:
        return self._reshaped(_shape_of(shape), "reshape")

    def view_as(self, other: Tensor) -> Tensor:
        return self._reshaped(other._shape, "view_as")

    reshape_as = view_as

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        if not self._shape:
            return self._view_of((1,), (1,))
        start, end = self._axis(start_dim), self._axis(end_dim)
        middle = prod(self._shape[start : end + 1])
        return self._reshaped((*self._shape[:start], middle, *self._shape[end + 1 :]), "flatten")

    def ravel(self) -> Tensor:
        return self.flatten()

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        axis = self._axis(dim)
        whole = _filled_in(tuple(sizes), self._shape[axis])
        return self._reshaped((*self._shape[:axis], *whole, *self._shape[axis + 1 :]), "unflatten")

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        order = list(range(self.ndim))
        one, two = self._axis(dim0), self._axis(dim1)
        order[one], order[two] = two, one
        return self.permute(*order)

    swapaxes = swapdims = transpose

    def t(self) -> Tensor:
        if self.ndim > 2:
            raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
        return self.T

    def permute(self, *dims: Any) -> Tensor:
        order = [self._axis(dim) for dim in _shape_of(dims)]
        if sorted(order) != list(range(self.ndim)):
            raise RuntimeError("permute: repeated or missing dim")
        return self._view_of([self._shape[n] for n in order], [self._strides[n] for n in order])

    def movedim(self, source: int, destination: int) -> Tensor:
        order = [n for n in range(self.ndim) if n != self._axis(source)]
        order.insert(self._axis(destination), self._axis(source))
        return self.permute(*order)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        axis = self._axis(dim)
        if not 0 <= start <= start + length <= self._shape[axis]:
            raise RuntimeError(f"narrow: start {start} and length {length} do not fit size {self._shape[axis]}")
        shape = list(self._shape)
        shape[axis] = length
        return self._view_of(shape, self._strides, self._offset + start * self._strides[axis])

    def select(self, dim: int, index: int) -> Tensor:
        axis = self._axis(dim)
        index = _index(index, self._shape[axis])
        shape, strides = list(self._shape), list(self._strides)
        offset = self._offset + index * strides[axis]
        del shape[axis], strides[axis]
        return self._view_of(shape, strides, offset)

    def unsqueeze(self, dim: int) -> Tensor:
        axis = dim + self.ndim + 1 if dim < 0 else dim
        shape, strides = list(self._shape), list(self._strides)
        step = shape[axis] * strides[axis] if axis < self.ndim else 1
        shape.insert(axis, 1)
        strides.insert(axis, step)
        return self._view_of(shape, strides)

    def squeeze(self, dim: Any = None) -> Tensor:
        dims = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
        gone = {self._axis(d) for d in dims if self._shape[self._axis(d)] == 1}
        kept = [n for n in range(self.ndim) if n not in gone]
        return self._view_of([self._shape[n] for n in kept], [self._strides[n] for n in kept])

    def expand(self, *sizes: Any) -> Tensor:
        wanted = _shape_of(sizes)
        new = len(wanted) - self.ndim
        if new < 0:
            raise RuntimeError(f"expand: {list(wanted)} has fewer axes than {list(self._shape)}")
        shape, strides = [], []
        for number, size in enumerate(wanted):
            if number < new:
                shape.append(size)
                strides.append(0)
                continue
            own, step = self._shape[number - new], self._strides[number - new]
            if size in (-1, own):
                shape.append(own)
                strides.append(step)
            elif own == 1:
                shape.append(size)
                strides.append(0)
            else:
                raise RuntimeError(f"expand: size {size} does not fit {own} at axis {number}")
        return self._view_of(shape, strides)

    def expand_as(self, other: Tensor) -> Tensor:
        return self.expand(*other._shape)

    broadcast_to = expand

    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
        """Within the storage, as torch itself has it."""
        offset = self._offset if storage_offset is None else storage_offset
        return self._view_of(tuple(size), tuple(stride), offset)

    def contiguous(self, memory_format: Any = None) -> Tensor:
        if self.is_contiguous():
            return self
        raise Refused(
            "contiguous() of a tensor that is not contiguous copies it: copies are computed in Triton kernels; hand "
            "its strides to the kernel"
        )

    def detach(self) -> Tensor:
        return self

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        size = self._shape[self._axis(dim)]
        return self.split(max(1, -(-size // chunks)), dim)

    def split(self, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        size = self._shape[self._axis(dim)]
        if isinstance(split_size, int):
            lengths = [min(split_size, size - at) for at in range(0, size, split_size)]
        else:
            lengths = list(split_size)
        starts = [sum(lengths[:number]) for number in range(len(lengths))]
        return tuple(self.narrow(dim, start, length) for start, length in zip(starts, lengths))

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        return tuple(self.select(dim, number) for number in range(self._shape[self._axis(dim)]))

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    def __getitem__(self, index: Any) -> Tensor:
        found, axis = self, 0
        listed = list(index) if isinstance(index, tuple) else [index]
        taken = sum(1 for each in listed if each is not None and each is not Ellipsis)
        for each in listed:
            if each is Ellipsis:
                axis += self.ndim - taken
            elif each is None:
                found = found.unsqueeze(axis)
                axis += 1
            elif isinstance(each, slice):
                found = found._sliced(axis, each)
                axis += 1
            elif isinstance(each, int) and not isinstance(each, bool):
                found = found.select(axis, each)
            else:
                raise Refused(f"indexing a tensor with {type(each).__name__} copies what it finds: {COMPUTES}")
        return found

    def _sliced(self, axis: int, taken: slice) -> Tensor:
        start, stop, step = taken.indices(self._shape[axis])
        if step <= 0:
            raise ValueError("step must be greater than zero")
        shape, strides = list(self._shape), list(self._strides)
        shape[axis] = max(0, -(-(stop - start) // step))
        offset = self._offset + (start * strides[axis] if shape[axis] else 0)
        strides[axis] *= step
        return self._view_of(shape, strides, offset)

    # --- allocations like it ------------------------------------------------------------------------

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        return allocated(_shape_of(size), dtype or self._dtype, device or self.device, options)

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:
        return self.new_empty(*size, **options).zero_()

    def new_ones(self, *size: Any, **options: Any) -> Tensor:
        return self.new_empty(*size, **options).fill_(1)

    def new_full(self, size: Any, fill_value: Any, **options: Any) -> Tensor:
        return self.new_empty(size, **options).fill_(fill_value)

    def new_empty_strided(self, size: Any, stride: Any, **options: Any) -> Tensor:
        return strided(tuple(size), tuple(stride), options.pop("dtype", self._dtype), self.device, options)

    # --- fills --------------------------------------------------------------------------------------

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def fill_(self, value: Any) -> Tensor:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if not isinstance(value, bool):
                raise Refused(f"fill_ with {type(value).__name__}: {COMPUTES}")
        if not self.is_contiguous():
            raise Refused("a fill of a tensor that is not contiguous is computed: do it in a @triton.jit kernel")
        recording = current("fills a tensor")
        if self.numel():
            recording.fill(self._value(), value)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].fill_(value)

    # --- conversions that change nothing ------------------------------------------------------------

    def to(self, *arguments: Any, **options: Any) -> Tensor:
        for each in (*arguments, options.get("dtype"), options.get("device")):
            if isinstance(each, Dtype):
                self._unchanged(each)
            elif isinstance(each, Tensor):
                self._unchanged(each._dtype)
            elif isinstance(each, (Device, str, int)) and not isinstance(each, bool):
                if Device(each) != self.device:
                    raise Refused(f"to({str(each)!r}) copies a tensor to another device: tensors stay on the GPU")
        return self

    def _unchanged(self, wanted: Dtype) -> Tensor:
        if wanted is not self._dtype:
            raise Refused(
                f"a conversion from {self._dtype!r} to {wanted!r} is computed: do it in a @triton.jit kernel, "
                f"e.g. tl.load(...).to(tl.{wanted.element.language})"
            )
        return self

    def type_as(self, other: Tensor) -> Tensor:
        return self._unchanged(other._dtype)

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cuda")

    def requires_grad_(self, requires_grad: Any = True) -> Tensor:
        if requires_grad:
            raise Refused("requires_grad_(): nothing is differentiated here")
        return self

    # --- all else -----------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        why = _CONTENTS.get(name)

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise Refused(f"Tensor.{name} {why or COMPUTES}")

        return refuse

    # --- inside -------------------------------------------------------------------------------------

    def _value(self) -> TensorValue:
        return TensorValue(
            self._storage.number, self._dtype.element.name, self._offset, tuple(self._shape), tuple(self._strides)
        )

    def _axis(self, dim: int) -> int:
        if not -max(1, self.ndim) <= dim < max(1, self.ndim):
            raise IndexError(f"Dimension out of range (got {dim}, of {self.ndim})")
        return dim % max(1, self.ndim)

    def _view_of(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Tensor:
        return made(self._storage, self._dtype, self._offset if offset is None else offset, shape, strides, self.device)

    def _reshaped(self, shape: tuple[int, ...], what: str) -> Tensor:
        shape = _filled_in(shape, self.numel())
        strides = _strides_of_view(self._shape, self._strides, shape)
        if strides is None:
            raise Refused(
                f"{what} of a tensor with shape {list(self._shape)} and strides {list(self._strides)} copies it: "
                "copies are computed in Triton kernels; hand its strides to the kernel"
            )
        return self._view_of(shape, strides)

    def _as_type(self, wanted: Dtype) -> Tensor:
        """The same bits as another type."""
        own, new = self.itemsize, wanted.itemsize
        if own == new:
            return made(self._storage, wanted, self._offset, self._shape, self._strides, self.device)
        if not self._shape or self._strides[-1] != 1:
            raise RuntimeError("view(dtype): the last axis must be contiguous")
        if own % new and (self._shape[-1] * own % new or any(s * own % new for s in self._strides[:-1])):
            raise RuntimeError(f"view(dtype): {self._shape[-1]} elements of {own} bytes make no whole number of {new}")
        shape = (*self._shape[:-1], self._shape[-1] * own // new)
        strides = (*(step * own // new for step in self._strides[:-1]), 1)
        if self._offset * own % new:
            raise RuntimeError("view(dtype): it does not begin at a whole element")
        return made(self._storage, wanted, self._offset * own // new, shape, strides, self.device)


_CONTENTS = {
    "data_ptr": "is refused: a traced tensor has no address; hand the tensor itself to a kernel",
    "untyped_storage": "is refused: a traced tensor has no address; hand the tensor itself to a kernel",
    "storage": "is refused: a traced tensor has no address; hand the tensor itself to a kernel",
    "item": "reads a tensor's contents, which are not there while a function is traced: read them in a kernel",
    "tolist": "reads a tensor's contents, which are not there while a function is traced: read them in a kernel",
    "cpu": "reads a tensor's contents, which are not there while a function is traced: read them in a kernel",
    "numpy": "reads a tensor's contents, which are not there while a function is traced: read them in a kernel",
    "clone": "copies a tensor: copies are computed in Triton kernels; allocate with torch.empty_like and write all "
    "of it",
    "copy_": "copies a tensor: copies are computed in Triton kernels",
}

_ARITHMETIC = (
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv ifloordiv mod rmod pow "
    "rpow matmul rmatmul imatmul neg pos abs invert and rand or ror xor rxor lshift rshift lt le gt ge eq ne contains"
)
_READING = "bool int float index complex array"


def _arithmetic(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Tensor, *_: Any) -> NoReturn:
        raise Refused(f"the operator {name} of tensors {COMPUTES}")

    return refuse


def _reading(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Tensor, *_: Any) -> NoReturn:
        raise Refused(
            f"{name}(tensor) reads a tensor's contents, which are not there while a function is traced: read them in a "
            "kernel"
        )

    return refuse


def _unchanging(name: str) -> Callable[[Tensor], Tensor]:
    return lambda self: self._unchanged(DTYPES[name])


for _name, _kind in {
    "float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool",
}.items():  # fmt: skip
    setattr(Tensor, _name, _unchanging(_kind))
for _name in _ARITHMETIC.split():
    setattr(Tensor, f"__{_name}__", _arithmetic(_name))
for _name in _READING.split():
    setattr(Tensor, f"__{_name}__", _reading(_name))
Tensor._sealed = True


# --- making them ------------------------------------------------------------------------------------


def made(
    storage: Storage, dtype: Dtype, offset: int, shape: Sequence[int], strides: Sequence[int], device: Device
) -> Tensor:
    """Raises Refused for a view that leaves its storage."""
    shape, strides = tuple(shape), tuple(strides)
    if any(not isinstance(n, int) for n in (*shape, *strides, offset)) or min([0, offset, *shape, *strides]) < 0:
        raise Refused(f"a tensor of shape {list(shape)} with strides {list(strides)} from element {offset}")
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides)) if 0 not in shape else -1
    if (last + 1) * dtype.itemsize > storage.nbytes:
        raise Refused(
            f"a view of shape {list(shape)} with strides {list(strides)} reaches beyond its storage of "
            f"{storage.nbytes // dtype.itemsize:,} elements"
        )
    tensor = object.__new__(Tensor)
    for name, value in (
        ("_storage", storage), ("_dtype", dtype), ("_offset", offset), ("_shape", shape), ("_strides", strides),
        ("device", device),
    ):  # fmt: skip
        object.__setattr__(tensor, name, value)
    return tensor


_IGNORED = {"layout", "requires_grad", "pin_memory", "memory_format", "non_blocking"}


def allocated(shape: Sequence[Any], dtype: Any, device: Any, options: dict[str, Any]) -> Tensor:
    return strided(shape, row_major(shape), dtype, device, options)


def strided(shape: Sequence[Any], strides: Sequence[int], dtype: Any, device: Any, options: dict[str, Any]) -> Tensor:
    """Of a new storage."""
    for name, value in options.items():
        if name not in _IGNORED or (name == "requires_grad" and value):
            raise Refused(f"an allocation with {name}={value!r}")
    sizes = [_whole(size) for size in shape]
    kind = _dtype_of(dtype)
    extent = 1 + sum((size - 1) * step for size, step in zip(sizes, strides)) if 0 not in sizes else 0
    where = Device(device if device is not None else "cpu")
    storage = current("allocates a tensor").allocate(kind.element.name, extent)
    return made(storage, kind, 0, sizes, strides, where)


def like(tensor: Tensor, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    """As `torch.empty_like`: dense tensors keep the order of their axes."""
    order = sorted(range(tensor.ndim), key=lambda axis: (-tensor._strides[axis], axis))
    strides = [0] * tensor.ndim
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, tensor._shape[axis])
    dense = all(own == new or size == 1 for own, new, size in zip(tensor._strides, strides, tensor._shape))
    shape = tensor._shape
    if str(options.get("memory_format", "")).endswith("contiguous_format>") or not dense:
        strides = list(row_major(shape))
    return strided(shape, strides, dtype or tensor._dtype, device or tensor.device, options)


def given(recording: Recording, shape: tuple[int, ...], dtype_name: str) -> Tensor:
    """A tensor argument."""
    storage = recording.allocate(dtype_name, prod(shape), given=True)
    return made(storage, DTYPES[dtype_name], 0, shape, row_major(shape), Device("cuda", 0))


def reinterpreted(tensor: Tensor, language_name: str) -> Tensor:
    """`triton.reinterpret`: the same bits as another type of the same size."""
    return tensor._as_type(DTYPES[BY_LANGUAGE[language_name].name])


def row_major(shape: Sequence[Any]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed([_whole(size) for size in shape]):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _dtype_of(dtype: Any) -> Dtype:
    if dtype is None:
        return DTYPES["float32"]
    if isinstance(dtype, Dtype):
        return dtype
    raise Refused(f"an allocation of the type {dtype!r}: one of {', '.join(f'torch.{name}' for name in DTYPES)}")


def _whole(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise Refused(f"a size that is no int: {size!r}")
    if size < 0:
        raise Refused(f"a negative size: {size}")
    return size


def _shape_of(arguments: Sequence[Any]) -> tuple[int, ...]:
    """`(2, 3)` of both `f(2, 3)` and `f((2, 3))`."""
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        return tuple(arguments[0])
    return tuple(arguments)


def _index(index: int, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for size {size}")
    return index % size


def _filled_in(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """With the size that -1 stands for."""
    if shape.count(-1) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if -1 in shape:
        known = prod(size for size in shape if size != -1)
        if not known or elements % known:
            raise RuntimeError(f"shape {list(shape)} is invalid for {elements} elements")
        shape = tuple(elements // known if size == -1 else size for size in shape)
    if prod(shape) != elements:
        raise RuntimeError(f"shape {list(shape)} is invalid for {elements} elements")
    return shape


def _strides_of_view(shape: Sequence[int], strides: Sequence[int], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Of a view in another shape; None where there is none without a copy (the rule of torch's Tensor.view)."""
    if prod(wanted) == 0:
        return row_major(wanted)
    groups: list[tuple[int, int]] = []
    """Axes that lie in memory as one: how many elements, and their stride."""
    for size, step in zip(shape, strides):
        if size == 1:
            continue
        if groups and groups[-1][1] == size * step:
            groups[-1] = (groups[-1][0] * size, step)
        else:
            groups.append((size, step))
    found: list[int] = []
    left, step = groups.pop() if groups else (1, 1)
    for size in reversed(wanted):
        if size == 1:
            found.append(step)
            continue
        while left == 1 and groups:
            left, step = groups.pop()
        if left % size:
            return None
        found.append(step)
        left //= size
        step *= size
    return tuple(reversed(found))
