"""`@triton.jit`, `@triton.autotune` and `@triton.heuristics` while a candidate is traced: launches are recorded.

No kernel's body runs here. A configuration is chosen as `Choices` says, the first where it says nothing; hooks that a
configuration runs before its kernel (zeroing an output, mostly) are recorded like any other fill. `perf_model` and
`top_k`, by which Triton decides which configurations to measure, choose nothing here: nothing is measured.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki_optimizer_triton.program.launch_program import (
    DescriptorValue,
    DtypeValue,
    FunctionValue,
    Launch,
    Options,
    TensorValue,
    Tunable,
    TupleValue,
    Value,
)
from nki_optimizer_triton.tracing.language_stand_in import LanguageDtype, constexpr
from nki_optimizer_triton.tracing.recorder import Refused, current
from nki_optimizer_triton.tracing.refusing import Word
from nki_optimizer_triton.tracing.tensors import Dtype, Tensor, made

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_REFUSED_OPTIONS = {
    "debug", "launch_pdl", "launch_cooperative_grid", "extern_libs", "ptx_options", "ptx_version", "ir_override",
    "warmup", "stream", "device", "device_type", "sanitize_overflow", "allow_fp8e4nv", "instrumentation_mode", "clc",
    "sched4reg", "enable_fp_fusion", "enable_reflect_ftz", "min_shared_mem", "generate_native_code", "optnone",
}  # fmt: skip


class Choices:
    """Which configuration of each autotuned kernel is taken, by the kernel's name."""

    def __init__(self, chosen: Mapping[str, int]) -> None:
        self.chosen = dict(chosen)
        self.tunables: dict[FunctionValue, Tunable] = {}


choices = Choices({})
files: dict[str, int] = {}
"""Path -> number of a source file."""
known: dict[FunctionValue, Jit] = {}
"""Every kernel that was launched, handed over or named by one."""


class Jit:
    """`@triton.jit`: a function of the device."""

    def __init__(self, function: Any) -> None:
        if not inspect.isfunction(function):
            raise Refused("triton.jit of something that is no function")
        self.fn = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.signature = inspect.signature(function)
        self.arg_names = list(self.signature.parameters)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *arguments, **options: self.launched(grid, arguments, options, None)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Refused(
            f"{self.__name__}(...) is called without a grid: launch it with {self.__name__}[grid](...); only kernels "
            "call it directly"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(f"{self.__name__}.{name}: kernels are launched with {self.__name__}[grid](...), and nothing else")

    def value(self) -> FunctionValue:
        number = files.get(self.fn.__code__.co_filename)
        if number is None:
            raise Refused(f"the kernel {self.__name__} is in no file of the candidate's: write it there")
        function = FunctionValue(number, self.__name__)
        known[function] = self
        return function

    def launched(self, grid: Any, arguments: Sequence[Any], options: Mapping[str, Any], config: int | None) -> Any:
        recording = current(f"launches {self.__name__}")
        names = self.signature.parameters
        if not self.fn.__qualname__ == self.fn.__name__:
            raise Refused(
                f"the kernel {self.__name__} is defined inside something else: define it at the top of its file"
            )
        chosen = {name: value for name, value in options.items() if name not in names}
        bound = self.signature.bind(*arguments, **{n: v for n, v in options.items() if n in names})
        bound.apply_defaults()
        values = tuple((name, encoded(value, f"{self.__name__}'s {name}")) for name, value in bound.arguments.items())
        recording.launch(
            Launch(
                self.value(),
                _grid(grid, bound.arguments, self.__name__),
                values,
                _options(chosen, self.__name__),
                recording.line(),
                config,
            )
        )
        return Word(f"the compiled kernel of {self.__name__}", "is not there while a function is traced")


def jit(function: Any = None, **options: Any) -> Any:
    """What its options say is read from the candidate's text."""
    return Jit if function is None else Jit(function)


class Config:
    """`triton.Config`."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        ir_override: Any = None,
    ) -> None:
        if ir_override is not None:
            raise Refused("triton.Config(ir_override=...): kernels are compiled from the candidate's text")
        self.kwargs = dict(kwargs)
        self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = num_warps, num_stages, num_ctas, maxnreg
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in OPTIONS}
        return {**self.kwargs, **{name: value for name, value in options.items() if value is not None}}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())


class _Wrapped:
    """A kernel under a decorator that adds to its arguments."""

    def __init__(self, inner: Any) -> None:
        if not isinstance(inner, (Jit, _Wrapped)):
            raise Refused("a decorator of triton's on a function that is not decorated with @triton.jit")
        self.fn = inner
        self.kernel: Jit = inner if isinstance(inner, Jit) else inner.kernel
        self.__name__ = self.kernel.__name__
        self.arg_names = self.kernel.arg_names

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *arguments, **options: self.launched(grid, arguments, options, None)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.kernel()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def launched(self, grid: Any, arguments: Sequence[Any], options: Mapping[str, Any], config: int | None) -> Any:
        raise NotImplementedError

    def named(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, arguments)), **options}


class _Heuristics(_Wrapped):
    def __init__(self, inner: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(inner)
        self._values = dict(values)

    def launched(self, grid: Any, arguments: Sequence[Any], options: Mapping[str, Any], config: int | None) -> Any:
        found = dict(options)
        for name, heuristic in self._values.items():
            found[name] = heuristic(self.named(arguments, found))
        return self.fn.launched(grid, arguments, found, config)


class _Autotuned(_Wrapped):
    def __init__(self, inner: Any, configs: Sequence[Config], prune: Mapping[str, Any] | None) -> None:
        super().__init__(inner)
        self._configs = list(configs) or [Config({})]
        self._prune = (prune or {}).get("early_config_prune")

    def launched(self, grid: Any, arguments: Sequence[Any], options: Mapping[str, Any], config: int | None) -> Any:
        configs = self._configs
        if self._prune is not None:
            configs = list(self._prune(configs, self.named(arguments, {}), **options)) or configs
        self._declare()
        number = choices.chosen.get(self.__name__, 0)
        if not 0 <= number < len(configs):
            raise Refused(
                f"{self.__name__} has {len(configs)} configurations that can be taken here, and no number {number}"
            )
        chosen = configs[number]
        found = {**options, **chosen.all_kwargs()}
        if chosen.pre_hook is not None:
            chosen.pre_hook(self.named(arguments, found))
        return self.fn.launched(
            grid, arguments, found, self._configs.index(chosen) if chosen in self._configs else number
        )

    def _declare(self) -> None:
        function = self.kernel.value()
        if function not in choices.tunables:
            listed = tuple(
                tuple((name, encoded(value, name)) for name, value in config.all_kwargs().items())
                for config in self._configs
            )
            choices.tunables[function] = Tunable(function, listed)


def autotune(
    configs: Sequence[Config],
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Any = None,
    restore_value: Any = None,
    pre_hook: Any = None,
    post_hook: Any = None,
    **_: Any,
) -> Callable[[Any], Any]:
    """`reset_to_zero`, `restore_value` and the hooks are for measuring several configurations: none is measured."""
    return lambda inner: _Autotuned(inner, configs, prune_configs_by)


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Any]:
    return lambda inner: _Heuristics(inner, values)


class TensorDescriptor:
    """`triton.tools.tensor_descriptor.TensorDescriptor`."""

    def __init__(
        self, base: Any, shape: Sequence[int], strides: Sequence[int], block_shape: Sequence[int], padding: str = "zero"
    ) -> None:
        if not isinstance(base, Tensor):
            raise Refused("a TensorDescriptor of something that is no tensor")
        self.base, self.shape, self.strides = base, list(shape), list(strides)
        self.block_shape, self.padding = list(block_shape), padding

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)


# --- values -----------------------------------------------------------------------------------------


def encoded(value: Any, what: str) -> Value:
    """Of a kernel's argument, or of a global that it names. Raises Refused."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value
    if isinstance(value, Tensor):
        return _tensor(value, what)
    if isinstance(value, constexpr):
        return encoded(value.value, what)
    if isinstance(value, LanguageDtype):
        return DtypeValue(value.name)
    if isinstance(value, Dtype):
        raise Refused(f"{what} is {value!r}: kernels take tl.{value.element.language}")
    if isinstance(value, (Jit, _Wrapped)):
        return (value if isinstance(value, Jit) else value.kernel).value()
    if isinstance(value, TensorDescriptor):
        whole = made(
            value.base._storage, value.base._dtype, value.base._offset, value.shape, value.strides, value.base.device
        )
        return DescriptorValue(_tensor(whole, what), tuple(value.block_shape), value.padding)
    if isinstance(value, (tuple, list)):
        return TupleValue(tuple(encoded(item, what) for item in value))
    raise Refused(
        f"{what} is a {type(value).__name__}: kernels take tensors, numbers, texts and types of triton.language"
    )


def _tensor(tensor: Tensor, what: str) -> TensorValue:
    if tensor._storage.recording is not current(f"hands {what} to a kernel"):
        raise Refused(f"{what} is a tensor of an earlier call: nothing may be kept between calls")
    if tensor.device.type != "cuda":
        raise Refused(f"{what} is a tensor on {tensor.device}: allocate it on the GPU, e.g. device=x.device")
    return tensor._value()


def _grid(grid: Any, arguments: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    found = grid(dict(arguments)) if callable(grid) and not isinstance(grid, (tuple, list)) else grid
    if not isinstance(found, (tuple, list)) or not 1 <= len(found) <= 3:
        raise Refused(f"{name}[{found!r}]: a grid is a tuple of one to three whole numbers, e.g. {name}[(n,)]")
    sizes = [*found, 1, 1][:3]
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            number = isinstance(size, float) and math.isfinite(size)
            hint = "; divide with // or triton.cdiv" if number else ""
            raise Refused(f"{name}[{found!r}]: a grid is of whole numbers{hint}")
    return sizes[0], sizes[1], sizes[2]


def _options(options: Mapping[str, Any], name: str) -> Options:
    for option, value in options.items():
        if option in _REFUSED_OPTIONS:
            raise Refused(f"{name}[...]({option}={value!r}): of launch options there are {', '.join(OPTIONS)}")
        if option not in OPTIONS:
            raise Refused(f"{name}[...]({option}=...): the kernel has no parameter {option}, and Triton no such option")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise Refused(f"{name}[...]({option}={value!r}): a whole number")
    return Options(*(options.get(option) for option in OPTIONS))
