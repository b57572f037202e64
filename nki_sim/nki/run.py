"""Running kernels: `trace` makes a Program, `simulate` makes numbers."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.checks.in_place import check_in_place
from nki_sim.contract.array_tiles import check_array_tiles
from nki_sim.dtypes import as_dtype
from nki_sim.errors import NkiError, NkiValidationError
from nki_sim.execution.executor import Exchange, meet
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Program
from nki_sim.timing.capacity import check_capacity
from nki_sim.tracing.grids import NkiGrid
from nki_sim.tracing.session import Instruction, SharedMemory, TensorSpec, Tracer, running, target_machine, where
from nki_sim.tracing.tensor import NkiTensor, whole


def trace(kernel: Any, *arguments: Any, machine: str | None = None, **keywords: Any) -> Program:
    """The kernel as a Program, without computing a number. Tensor arguments: TensorSpec or arrays.

    `machine`: a key of `nki_sim.machine.MACHINES`; without it, `session.target_machine`.
    With LNC 2 (`kernel[2]`) the result is core 0's program and core 1's is its only peer. Raises
    NkiValidationError when a rule is broken, CapacityExceeded when on-chip memory is too small.
    """
    function, cores, schedule = _parts(kernel)
    programs = []
    for core in range(cores or 1):
        tracer = Tracer(machine or target_machine(), numbers=False, core=core, cores=cores)
        tracer.configuration = _configuration(kernel)
        result, inputs = _call(tracer, function, arguments, keywords, schedule)
        name, code = getattr(function, "__name__", "kernel"), getattr(function, "__code__", None)
        program = _traced(tracer, result, inputs, name, code.co_filename if code is not None else "")
        check_array_tiles(program)
        check_in_place(program)
        check_capacity(program, may_spill=_may_spill(kernel))
        programs.append(program)
    return programs[0] if len(programs) == 1 else replace(programs[0], peers=tuple(programs[1:]))


def simulate(kernel: Any, machine: str | None = None) -> Callable[..., Any]:
    """A callable that runs the kernel on NumPy arrays (or torch tensors) and returns the same kind.

    Arrays that the kernel modifies are updated in place. `machine`: as for `trace`.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        function, cores, schedule = _parts(kernel)
        meeting = _Meeting(cores) if cores is not None and cores > 1 else None
        shared = SharedMemory(cores) if cores is not None and cores > 1 else None
        on = machine or target_machine()
        tracers = [Tracer(on, True, core, cores, shared, meeting) for core in range(cores or 1)]
        for tracer in tracers:
            tracer.configuration = _configuration(kernel)
        results: list[Any] = [None] * len(tracers)
        if meeting is None:
            results[0] = _call(tracers[0], function, arguments, keywords, schedule)
        else:
            meeting.run([_job(results, t, function, arguments, keywords, schedule) for t in tracers])
        for tracer, (result, inputs) in zip(tracers, results):
            program = _traced(tracer, result, inputs, "kernel", "")
            check_array_tiles(program)
            check_in_place(program)
            check_capacity(program, may_spill=_may_spill(kernel))
            written = program.written
            for tensor, original in inputs:
                if written[tensor.storage.allocation.id]:
                    update(original, whole(tensor.storage).array())
        result, inputs = results[0]
        torch = any(is_torch(original) for _, original in inputs)
        arrays = [_result(tensor) for tensor in _returned(result)]
        values = [to_torch(array) if torch else array for array in arrays]
        if isinstance(result, (tuple, list)):
            return tuple(values)
        return values[0] if values else None

    return call


def _result(tensor: NkiTensor) -> np.ndarray:
    """A returned tensor's values: its own memory when nobody else has it, or else a copy."""
    values = tensor.array()
    return values if tensor.storage.owned and tensor.storage.allocation.line else values.copy()


def _job(results: list[Any], tracer: Tracer, *rest: Any) -> Callable[[], None]:
    def job() -> None:
        results[tracer.core] = _call(tracer, *rest)

    return job


def _parts(kernel: Any) -> tuple[Callable[..., Any], int | None, Sequence[tuple[str, Any]]]:
    """The Python function behind a kernel, its number of cores (None without a launch grid), its schedule."""
    cores: int | None = getattr(kernel, "cores", None)
    schedule: Sequence[tuple[str, Any]] = getattr(kernel, "schedule", ())
    return getattr(kernel, "__wrapped__", kernel), cores, schedule  # functools.wraps sets __wrapped__


def _configuration(kernel: Any) -> tuple[Any, Any]:
    return getattr(kernel, "compile_config", None), getattr(kernel, "specialization_config", None)


def _may_spill(kernel: Any) -> bool:
    """Unless it is configured without the compiler's own allocation, which spills (nki.compiler.CompileConfig)."""
    configured, _ = _configuration(kernel)
    return bool(getattr(configured, "nki_alloc_fallback", True))


Inputs = list[tuple[NkiTensor, Any]]
"""Each tensor argument with the caller's own array."""


def _call(
    tracer: Tracer,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    schedule: Sequence[tuple[str, Any]],
) -> tuple[Any, Inputs]:
    """Run the kernel's Python once. Returns what it returned, and its tensor arguments in order."""
    inputs: Inputs = []
    names = _parameter_names(function)
    try:
        # infinities and NaN are ordinary values of an engine: no warnings
        with running(tracer), np.errstate(all="ignore"):
            bound = [
                _bind(tracer, inputs, names[i] if i < len(names) else f"arg{i}", value)
                for i, value in enumerate(arguments)
            ]
            bound_keywords = {name: _bind(tracer, inputs, name, value) for name, value in keywords.items()}
            result = function(*bound, **bound_keywords)
        tracer.add_schedule(schedule)
    except NkiError as error:
        if error.line is None:
            error.line, error.file = where(error)
        raise
    except (AttributeError, TypeError, ValueError) as error:
        explained = explain(error, instructions())
        if explained is None:
            raise
        explained.line, explained.file = where(error)
        raise explained from error
    return result, inputs


def instructions() -> dict[str, Callable[..., Any]]:
    """The functions of `nki.isa` by name."""
    from nki_sim.nki import isa  # imports this module's neighbours, so only once they exist

    return {name: value for name, value in vars(isa).items() if inspect.isfunction(value)}


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a callable without a Python signature
        return []


def _bind(tracer: Tracer, inputs: Inputs, name: str, value: Any) -> Any:
    """An argument as the kernel sees it: arrays, wherever they are in it, become shared_hbm tensors.

    `name`: how the kernel's Python finds it.
    """
    if isinstance(value, TensorSpec):
        tensor = tracer.allocate(value.shape or (1,), value.dtype, MemoryRegion.shared_hbm, name)
        inputs.append((tensor, None))
        return tensor
    if isinstance(value, np.ndarray) or is_torch(value):
        contents = to_numpy(value)
        shape, dtype = contents.shape or (1,), as_dtype(contents.dtype)
        tensor = tracer.allocate(shape, dtype, MemoryRegion.shared_hbm, name, contents if tracer.numbers else None)
        inputs.append((tensor, value))
        return tensor
    if type(value) in (tuple, list):
        return type(value)([_bind(tracer, inputs, f"{name}[{i}]", item) for i, item in enumerate(value)])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_bind(tracer, inputs, f"{name}[{i}]", item) for i, item in enumerate(value)])
    if type(value) is dict:
        return {key: _bind(tracer, inputs, f"{name}[{key!r}]", item) for key, item in value.items()}
    fields = getattr(value, "__dict__", None)
    if fields and not isinstance(value, type) and not callable(value) and any(_has_tensor(v) for v in fields.values()):
        bound = copy.copy(value)
        for key, item in fields.items():
            object.__setattr__(bound, key, _bind(tracer, inputs, f"{name}.{key}", item))
        return bound
    return value


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (TensorSpec, np.ndarray)) or is_torch(value):
        return True
    if isinstance(value, (tuple, list)):
        return any(_has_tensor(item) for item in value)
    if isinstance(value, dict):
        return any(_has_tensor(item) for item in value.values())
    fields = getattr(value, "__dict__", None)
    return bool(fields) and not isinstance(value, type) and not callable(value) and _has_tensor(dict(fields or {}))


def _returned(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]


def _traced(tracer: Tracer, result: Any, inputs: Inputs, name: str, file: str) -> Program:
    """What was recorded. Raises NkiValidationError for what a kernel cannot return."""
    outputs = _returned(result)
    for tensor in outputs:
        if not isinstance(tensor, NkiTensor):
            made = ": name the kernel that it makes (--function)" if hasattr(tensor, "with_schedule") else ""
            raise NkiValidationError(f"a kernel returns tensors in nl.shared_hbm, not {type(tensor).__name__}{made}")
        if tensor.buffer is not MemoryRegion.shared_hbm:
            raise NkiValidationError(f"the returned {tensor!r} must be allocated with buffer=nl.shared_hbm")
    given = [tensor for tensor, _ in inputs]
    program = tracer.program(name, given, outputs, isinstance(result, (tuple, list)), file)
    held = {tensor.storage.allocation.id for tensor in given} | set(np.flatnonzero(program.written).tolist())
    for tensor in outputs:
        if tensor.storage.allocation.id not in held and not tracer.cores:
            raise NkiValidationError(
                f"the returned {tensor!r} is never written (NCC_IGCA090): store it with nisa.dma_copy(dst=...)"
            )
    return program


class _Meeting:
    """Two cores as two threads of which one runs at a time.

    They hand over where they meet, and after each transfer to shared_hbm: kernels that clear a buffer on both cores
    and then fill it without a barrier count on the cores keeping step, as they do on the device.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._turn = threading.Condition()
        self._runs = 0
        """The core whose turn it is."""
        self._waiting: dict[int, Exchange] = {}
        self._finished: set[int] = set()
        self._failure: BaseException | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._core, args=(core, job)) for core, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _core(self, core: int, job: Callable[[], None]) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._runs == core)
        try:
            if self._failure is None:
                job()
        except BaseException as error:  # it is raised again in the caller's thread
            self._failure = self._failure or error
        with self._turn:
            self._finished.add(core)
            self._next()

    def meet(self, core: int, exchange: Exchange) -> None:
        with self._turn:
            self._waiting[core] = exchange
            self._next()
            self._turn.wait_for(lambda: self._runs == core)
            if self._failure is not None:
                raise NkiError("stopped: the other core failed")

    def alternate(self, core: int) -> None:
        """Let the other core run until it has stored something too, unless it waits at a meeting point."""
        with self._turn:
            able = [c for c in range(self._cores) if c != core and c not in self._finished and c not in self._waiting]
            if able:
                self._runs = able[0]
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._runs == core)
            if self._failure is not None:
                raise NkiError("stopped: the other core failed")

    def _next(self) -> None:
        """Give the turn to a core that can run; when all stand at a meeting point, let them meet first."""
        able = [c for c in range(self._cores) if c not in self._finished and c not in self._waiting]
        if not able and self._waiting:
            able = sorted(self._waiting)
            try:
                if self._failure is None:
                    meet(self._waiting, self._cores)
            except NkiError as error:
                self._failure = error
            self._waiting = {}
        if able:
            self._runs = able[0]
        self._turn.notify_all()


def iterate(programs: Program) -> Iterator[Program]:
    """The programs of all cores, core 0 first."""
    yield programs
    yield from programs.peers


# --- arrays of torch ------------------------------------------------------------------------------


_VIEWED = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}
"""Types that torch and NumPy do not exchange directly: torch type -> (carrier, NumPy type)."""


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> np.ndarray:
    """The same memory as a NumPy array where torch allows it."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]
    tensor = value.detach().cpu()
    name = str(tensor.dtype).rpartition(".")[2]
    if name in _VIEWED:
        carrier, dtype = _VIEWED[name]
        viewed: np.ndarray = tensor.contiguous().view(getattr(torch, carrier)).numpy().view(dtype)
        return viewed
    array: np.ndarray = tensor.numpy()
    return array


def to_torch(array: np.ndarray) -> Any:
    torch = sys.modules["torch"]
    for name, (carrier, dtype) in _VIEWED.items():
        if array.dtype == dtype:
            return torch.from_numpy(array.view(carrier)).view(getattr(torch, name))
    return torch.from_numpy(array)


def update(original: Any, values: np.ndarray) -> None:
    """Write a kernel's changes back into the caller's array."""
    if isinstance(original, np.ndarray):
        original[...] = values.reshape(original.shape)
    elif original is not None:
        original.detach().copy_(to_torch(np.array(values)).reshape(original.shape))


# --- calls that do not fit ------------------------------------------------------------------------


_CALL = re.compile(r"^(\w+)\(\) (?:got an? |got some |got multiple |missing |takes )")
_USER_TYPES = (AttributeError, TypeError, ValueError)


def explain(error: BaseException, functions: dict[str, Callable[..., Any]]) -> NkiValidationError | None:
    """The mistake behind `error`, raised while a kernel ran; None when it is not a call to one of `functions`."""
    if not isinstance(error, _USER_TYPES):
        return None
    named = _CALL.match(str(error))
    if isinstance(error, TypeError) and named and named[1] in functions:
        return _wrong_signature(named[1], functions[named[1]], str(error))
    return _wrong_type(error.__traceback__, functions)


def _wrong_signature(name: str, function: Callable[..., Any], message: str) -> NkiValidationError:
    parameters = ", ".join(str(p).split(":")[0] for p in inspect.signature(function).parameters.values())
    hint = ""
    if "'dst'" in message and "missing" in message:
        hint = ": instructions return no tensor, allocate one with nl.ndarray and pass it as dst"
    return NkiValidationError(f"nisa.{message}{hint}; its parameters are ({parameters})")


def _wrong_type(traceback: TracebackType | None, functions: dict[str, Callable[..., Any]]) -> NkiValidationError | None:
    codes = {getattr(f, "__code__", None): (name, f) for name, f in functions.items()}
    while traceback is not None:
        found = codes.get(traceback.tb_frame.f_code)
        if found is not None:
            name, function = found
            for parameter in inspect.signature(function).parameters.values():
                value = traceback.tb_frame.f_locals.get(parameter.name)
                what = _unwanted(str(parameter.annotation), value)
                if what is not None:
                    return NkiValidationError(f"nisa.{name}: {parameter.name} {what}")
        traceback = traceback.tb_next
    return None


def _unwanted(annotation: str, value: Any) -> str | None:
    """What is wrong with an argument, if it is not of its declared kind."""
    if "NkiTensor" not in annotation:
        return None
    if annotation.startswith("Sequence"):
        bad = (
            [item for item in value if not isinstance(item, NkiTensor)] if isinstance(value, (list, tuple)) else [value]
        )
        return f"must be a list of tensors, got {_describe(bad[0])}" if bad else None
    if isinstance(value, NkiTensor) or (value is None and "None" in annotation):
        return None
    numbers = "Number" in annotation
    if numbers and isinstance(value, (bool, int, float, np.number)):
        return None
    return f"must be a tensor{' or a number' if numbers else ''}, got {_describe(value)}"


def _describe(value: Any) -> str:
    if isinstance(value, Instruction):
        return "the result of an instruction, which is no tensor: instructions write into their dst"
    if isinstance(value, NkiGrid):
        return f"a grid, {value!r}: append .data"
    if value is None:
        return "None: instructions and nl.store return nothing, allocate the tensor with nl.ndarray first"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of shape {value.shape}: pass it to the kernel as an argument, or use nl.shared_constant"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__}: make a tensor with nl.ndarray and fill it"
    return f"{value!r} ({type(value).__name__})"
