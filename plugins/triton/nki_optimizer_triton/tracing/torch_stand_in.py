"""What `import torch` means while a candidate is traced: allocations, types, devices, and refusals by name."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from nki_optimizer_triton.tracing.gpu_facts import GpuFacts
from nki_optimizer_triton.tracing.recorder import Refused
from nki_optimizer_triton.tracing.refusing import StandIn, Word
from nki_optimizer_triton.tracing.tensors import DTYPES, Device, Dtype, Size, Tensor, allocated, like, strided

_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}

VERSION = "2.9.0"
"""As `torch.__version__`: files ask it which spellings there are."""


def modules(gpu: GpuFacts) -> dict[str, StandIn]:
    """By the names under which a candidate may import them."""
    torch = StandIn("torch", _contents(gpu))
    functional = StandIn("torch.nn.functional", {})
    nn = StandIn("torch.nn", {"functional": functional, "Module": Module, "Parameter": Word("torch.nn.Parameter")})
    cuda = StandIn("torch.cuda", _cuda(gpu))
    autograd = StandIn("torch.autograd", {"Function": Function})
    found = {
        "torch": torch,
        "torch.nn": nn,
        "torch.nn.functional": functional,
        "torch.cuda": cuda,
        "torch.autograd": autograd,
        "torch.version": StandIn("torch.version", {"cuda": "12.8", "hip": None, "xpu": None}),
        "torch.backends": _Settings("torch.backends"),
        "torch.utils": StandIn("torch.utils", {}),
        "torch.compiler": StandIn("torch.compiler", {"disable": _unchanged, "allow_in_graph": _unchanged}),
        "torch.library": StandIn("torch.library", {}),
        "torch.distributed": StandIn("torch.distributed", {"is_available": lambda: False}),
    }
    for name, module in found.items():
        if "." in name and name.count(".") == 1:
            torch.__dict__[name.partition(".")[2]] = module
    return found


def _contents(gpu: GpuFacts) -> dict[str, Any]:
    contents: dict[str, Any] = {name: dtype for name, dtype in DTYPES.items()}
    contents.update({alias: DTYPES[name] for alias, name in _ALIASES.items()})
    contents.update(
        __version__=VERSION,
        Tensor=Tensor,
        dtype=Dtype,
        device=Device,
        Size=Size,
        strided="strided",
        contiguous_format=Word("torch.contiguous_format"),
        preserve_format=Word("torch.preserve_format"),
        channels_last=Word("torch.channels_last"),
        inf=float("inf"),
        nan=float("nan"),
        pi=math.pi,
        e=math.e,
        empty=_empty,
        zeros=lambda *size, **options: _empty(*size, **options).fill_(0),
        ones=lambda *size, **options: _empty(*size, **options).fill_(1),
        full=_full,
        empty_like=like,
        zeros_like=lambda tensor, **options: like(tensor, **options).fill_(0),
        ones_like=lambda tensor, **options: like(tensor, **options).fill_(1),
        full_like=lambda tensor, fill_value, **options: like(tensor, **options).fill_(fill_value),
        empty_strided=lambda size, stride, *, dtype=None, device=None, **options: strided(
            tuple(size), tuple(stride), dtype, device, options
        ),
        numel=lambda tensor: tensor.numel(),
        is_tensor=lambda value: isinstance(value, Tensor),
        is_floating_point=lambda tensor: tensor.is_floating_point(),
        transpose=lambda tensor, one, two: tensor.transpose(one, two),
        permute=lambda tensor, dims: tensor.permute(*dims),
        reshape=lambda tensor, shape: tensor.reshape(*shape),
        flatten=lambda tensor, start_dim=0, end_dim=-1: tensor.flatten(start_dim, end_dim),
        unsqueeze=lambda tensor, dim: tensor.unsqueeze(dim),
        squeeze=lambda tensor, dim=None: tensor.squeeze(dim),
        narrow=lambda tensor, dim, start, length: tensor.narrow(dim, start, length),
        split=lambda tensor, size, dim=0: tensor.split(size, dim),
        chunk=lambda tensor, chunks, dim=0: tensor.chunk(chunks, dim),
        unbind=lambda tensor, dim=0: tensor.unbind(dim),
        t=lambda tensor: tensor.t(),
        broadcast_shapes=lambda *shapes: Size(_broadcast(shapes)),
        finfo=_FloatFacts,
        iinfo=_IntFacts,
        no_grad=_NoEffect,
        enable_grad=_NoEffect,
        inference_mode=_NoEffect,
        set_grad_enabled=_NoEffect,
        set_float32_matmul_precision=lambda precision: None,
        is_grad_enabled=lambda: False,
    )
    return contents


def _cuda(gpu: GpuFacts) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": _NoEffect,
        "device_of": _NoEffect,
        "set_device": lambda device: None,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_properties": lambda device=None: _Properties(gpu),
    }


class _Properties:
    """`torch.cuda.get_device_properties`."""

    def __init__(self, gpu: GpuFacts) -> None:
        self.name = gpu.name
        self.major, self.minor = gpu.capability
        self.multi_processor_count = gpu.multiprocessors
        self.total_memory = gpu.memory_bytes
        self.L2_cache_size = gpu.l2_bytes
        self.shared_memory_per_block = 48 << 10
        self.shared_memory_per_block_optin = gpu.shared_bytes_per_block
        self.shared_memory_per_multiprocessor = gpu.shared_bytes_per_multiprocessor
        self.regs_per_multiprocessor = gpu.registers_per_multiprocessor
        self.max_threads_per_multi_processor = gpu.threads_per_multiprocessor
        self.warp_size = 32


def _empty(*size: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    shape = options.pop("size", size)
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    return allocated(tuple(shape), dtype, device, options)


def _full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    if options.get("dtype") is None:
        kind = "bool" if isinstance(fill_value, bool) else "int64" if isinstance(fill_value, int) else "float32"
        options["dtype"] = DTYPES[kind]
    return _empty(size, **options).fill_(fill_value)


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    found: list[int] = []
    for shape in shapes:
        longer, shorter = sorted([found, list(shape)], key=len, reverse=True)
        shorter = [1] * (len(longer) - len(shorter)) + shorter
        if any(1 not in (a, b) and a != b for a, b in zip(longer, shorter)):
            raise RuntimeError(f"shapes {shapes} cannot be broadcast to one")
        found = [b if a == 1 else a for a, b in zip(longer, shorter)]
    return found


def _unchanged(function: Any = None, **_: Any) -> Any:
    """A decorator that leaves a function as it is, with arguments or without."""
    return (lambda given: given) if function is None else function


class _NoEffect(contextlib.ContextDecorator):
    """`torch.no_grad` and its like: around a block, or a function, with or without arguments."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __new__(cls, *arguments: Any, **__: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not isinstance(arguments[0], (Device, Tensor, Word)):
            return arguments[0]  # a decorator without parentheses
        return super().__new__(cls)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class _Settings(StandIn):
    """`torch.backends`: settings of torch's own kernels, none of which runs here."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Settings(f"{self.__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None: ...


class _FloatFacts:
    """`torch.finfo`."""

    def __init__(self, dtype: Dtype = DTYPES["float32"]) -> None:
        import ml_dtypes  # loading it takes longer than tracing does

        facts: Any = ml_dtypes.finfo(dtype.element.name)  # type: ignore[no-untyped-call]
        self.min, self.max = float(facts.min), float(facts.max)
        self.eps, self.tiny = float(facts.eps), float(facts.tiny)
        self.smallest_normal, self.bits = self.tiny, 8 * dtype.itemsize


class _IntFacts:
    """`torch.iinfo`."""

    def __init__(self, dtype: Dtype = DTYPES["int32"]) -> None:
        self.bits = 8 * dtype.itemsize
        self.min = -(1 << self.bits - 1) if dtype.is_signed else 0
        self.max = (1 << self.bits - 1) - 1 if dtype.is_signed else (1 << self.bits) - 1


class _Context:
    """What `forward` of an autograd.Function is given: it may keep things for a backward pass that never comes."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *_: Any) -> None: ...

    def mark_non_differentiable(self, *_: Any) -> None: ...

    def mark_dirty(self, *_: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


class Function:
    """`torch.autograd.Function`: its forward pass."""

    @classmethod
    def apply(cls, *arguments: Any, **options: Any) -> Any:
        forward: Any = getattr(cls, "forward", None)
        if forward is None:
            raise Refused(f"{cls.__name__}.apply: the class has no forward")
        return forward(_Context(), *arguments, **options)


class Module:
    """`torch.nn.Module`, with neither parameters nor buffers: `forward` may launch kernels."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.forward(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("register_buffer", "register_parameter", "parameters", "cuda", "to", "eval", "train"):
            raise Refused(f"torch.nn.Module.{name}: hand tensors to the function as arguments")
        raise AttributeError(name)
