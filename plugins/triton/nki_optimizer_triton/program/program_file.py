"""Launch programs read from the bytes that a candidate's process left (`writing.py`), and trusted in nothing.

Everything is counted before it is looked at; every type, name and number keeps its bound; every view lies within its
buffer, every buffer within the memory that there is. Whatever is otherwise is a ProgramDamaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from accelopt_core.toolchain import ArgumentSpec, TensorArgument
from nki_optimizer_triton.program.elements import BY_LANGUAGE, BY_NAME
from nki_optimizer_triton.program.launch_program import (
    Buffer,
    ConstexprValue,
    DescriptorValue,
    DtypeValue,
    Fill,
    FunctionValue,
    Launch,
    LaunchProgram,
    ModuleValue,
    Options,
    TensorValue,
    Tunable,
    TupleValue,
    Value,
)
from nki_optimizer_triton.program.modules import is_known_module
from nki_optimizer_triton.program.writing import MAGIC, MOST_BUFFERS, MOST_STEPS

MOST_BYTES = 16 << 20
MOST_OUTPUTS = 64
MOST_FUNCTIONS = 256
MOST_GLOBALS = 1_024
MOST_ARGUMENTS = 256
"""Of a launch; a CUDA kernel takes 4 KiB of them (CUDA C++ Programming Guide, Kernel Parameters)."""
MOST_CONFIGS = 1_024
MOST_ITEMS = 64
"""Of a tuple."""
MOST_TEXT = 1_000
MOST_DIMENSIONS = 16
MOST_LINE = 1_000_000
_DEEP = 4
_INTEGER = 1 << 63
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
"""Blocks along x, y and z (CUDA C++ Programming Guide, Technical Specifications per Compute Capability)."""


class ProgramDamaged(Exception):
    """The bytes are no launch program: the message says what is wrong."""


def loads(data: bytes, arguments: Sequence[ArgumentSpec], memory_bytes: int, files: int = 1) -> LaunchProgram:
    """The program in `data`, of a function that was given tensors as `arguments` says.

    `memory_bytes`: for all buffers together; `files`: how many source files there are. Raises ProgramDamaged.
    """
    try:
        return _Reader(arguments, memory_bytes, files).program(data)
    except ProgramDamaged:
        raise
    except (MemoryError, RecursionError):
        raise ProgramDamaged("it takes more than there is to read it") from None
    except Exception as error:  # whatever a check trips over, it has found a forgery
        raise ProgramDamaged(f"{type(error).__name__}: {str(error)[:200]}") from None


class _Reader:
    def __init__(self, arguments: Sequence[ArgumentSpec], memory_bytes: int, files: int) -> None:
        self._tensors = [argument for argument in arguments if isinstance(argument, TensorArgument)]
        self._memory_bytes = memory_bytes
        self._files = files
        self._buffers: tuple[Buffer, ...] = ()

    def program(self, data: bytes) -> LaunchProgram:
        if len(data) > MOST_BYTES:
            raise ProgramDamaged(f"{len(data):,} bytes, more than {MOST_BYTES:,}")
        if data[: len(MAGIC)] != MAGIC:
            raise ProgramDamaged("its first 8 bytes are not those of a launch program")
        try:
            read = json.loads(data[len(MAGIC) :], parse_float=_no_number, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ProgramDamaged(f"no JSON: {str(error)[:100]}") from None
        fields = {"arguments", "argument_shapes", "buffers", "steps", "outputs", "functions", "tunables"}
        if type(read) is not dict or set(read) != fields:
            raise ProgramDamaged("it has other fields")
        limits = {
            "buffers": MOST_BUFFERS, "steps": MOST_STEPS, "outputs": MOST_OUTPUTS, "functions": MOST_FUNCTIONS,
            "tunables": MOST_FUNCTIONS, "argument_shapes": MOST_BUFFERS,
        }  # fmt: skip
        for name, most in limits.items():
            if len(_listed(read[name], name)) > most:
                raise ProgramDamaged(f"{len(read[name]):,} {name}, more than {most:,}")
        self._buffers = tuple(self._buffer(entry) for entry in read["buffers"])
        shapes = tuple(_sizes(shape, "argument shape") for shape in read["argument_shapes"])
        self._check_arguments(read["arguments"], shapes)
        outputs = tuple(self._tensor(entry) for entry in read["outputs"])
        self._check_outputs(outputs, shapes)
        return LaunchProgram(
            len(shapes),
            shapes,
            self._buffers,
            tuple(self._step(entry) for entry in read["steps"]),
            outputs,
            tuple(self._function_and_names(entry) for entry in read["functions"]),
            tuple(self._tunable(entry) for entry in read["tunables"]),
        )

    def _buffer(self, entry: Any) -> Buffer:
        dtype, elements, line = _fields(entry, (str, int, int), "buffer")
        _one_of(dtype, BY_NAME, "element type")
        return Buffer(dtype, _within(elements, 0, 1 << 40, "elements of a buffer"), _line(line))

    def _check_arguments(self, count: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        if count != len(self._tensors) or len(shapes) != count or len(self._buffers) < count:
            raise ProgramDamaged(f"it was traced with {str(count)[:20]} tensors, not {len(self._tensors)}")
        for buffer, shape, given in zip(self._buffers, shapes, self._tensors):
            if shape != given.shape or buffer.dtype != given.dtype or buffer.elements != math.prod(given.shape):
                raise ProgramDamaged("its arguments are not those that it was traced with")
        total = sum(buffer.nbytes for buffer in self._buffers)
        if total > self._memory_bytes:
            raise ProgramDamaged(
                f"its tensors need {total >> 20:,} MiB, and there are {self._memory_bytes >> 20:,} MiB for them"
            )

    def _check_outputs(self, outputs: tuple[TensorValue, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
        if not outputs:
            raise ProgramDamaged("it returns no tensor")
        for output in outputs:
            if output.buffer >= len(shapes):
                continue
            whole = self._buffers[output.buffer]
            is_whole = output.offset == 0 and output.is_contiguous and output.shape == shapes[output.buffer]
            if not is_whole or output.dtype != whole.dtype:
                raise ProgramDamaged("it returns a part of an argument, or an argument as something else")

    def _step(self, entry: Any) -> Fill | Launch:
        kind = _listed(entry, "step")[0]
        if kind == "fill":
            _, tensor, value, line = _fields(entry, (str, list, list, int), "fill")
            filled = self._tensor(tensor)
            number = self._value(value)
            if not isinstance(number, (int, float)) or not filled.is_contiguous:
                raise ProgramDamaged("a fill with what is no number, or of elements that do not lie side by side")
            return Fill(filled, number, _line(line))
        if kind != "launch":
            raise ProgramDamaged(f"a step of the kind {str(kind)[:40]!r}")
        _, function, grid, arguments, options, line, config = _fields(
            entry, (str, list, list, list, list, int, (int, type(None))), "launch"
        )
        sizes = tuple(_fields(grid, (int, int, int), "grid"))
        for size, most in zip(sizes, GRID_LIMITS):
            _within(size, 0, most, "blocks of a grid")
        if len(arguments) > MOST_ARGUMENTS:
            raise ProgramDamaged(f"{len(arguments):,} arguments of a launch, more than {MOST_ARGUMENTS}")
        named = tuple(self._named(argument) for argument in arguments)
        if len({name for name, _ in named}) != len(named):
            raise ProgramDamaged("two arguments of a launch have one name")
        return Launch(
            self._function(function), (sizes[0], sizes[1], sizes[2]), named, _options(options), _line(line),
            None if config is None else _within(config, 0, MOST_CONFIGS, "number of a configuration"),
        )  # fmt: skip

    def _named(self, entry: Any) -> tuple[str, Value]:
        name, value = _fields(entry, (str, list), "named value")
        if not name.isidentifier() or len(name) > MOST_TEXT:
            raise ProgramDamaged(f"a name that is none: {name[:40]!r}")
        return name, self._value(value)

    def _function_and_names(self, entry: Any) -> tuple[FunctionValue, tuple[tuple[str, Value], ...]]:
        function, names = _fields(entry, (list, list), "function")
        if len(names) > MOST_GLOBALS:
            raise ProgramDamaged(f"{len(names):,} globals of a function, more than {MOST_GLOBALS:,}")
        return self._function(function), tuple(self._named(name) for name in names)

    def _tunable(self, entry: Any) -> Tunable:
        function, configs = _fields(entry, (list, list), "tunable")
        if len(configs) > MOST_CONFIGS or any(len(_listed(c, "configuration")) > MOST_GLOBALS for c in configs):
            raise ProgramDamaged(f"more than {MOST_CONFIGS:,} configurations of a kernel, or too many values in one")
        return Tunable(
            self._function(function), tuple(tuple(self._named(value) for value in config) for config in configs)
        )

    def _function(self, entry: Any) -> FunctionValue:
        value = self._value(entry)
        if not isinstance(value, FunctionValue):
            raise ProgramDamaged("where a function should stand")
        return value

    def _tensor(self, entry: Any) -> TensorValue:
        value = self._value(entry)
        if not isinstance(value, TensorValue):
            raise ProgramDamaged("where a tensor should stand")
        return value

    def _value(self, entry: Any, deep: int = 0) -> Value:
        if type(entry) is not list or not entry or deep > _DEEP:
            raise ProgramDamaged("a value that is none, or one inside too many others")
        kind, *fields = entry
        if kind in ("int", "bool", "str", "float", "none"):
            return _scalar(kind, fields)
        if kind == "tensor":
            return self._view(*_fields(fields, (int, str, int, list, list), "tensor"))
        if kind == "descriptor":
            tensor, block, padding = _fields(fields, (list, list, str), "descriptor")
            return self._descriptor(self._tensor(tensor), _sizes(block, "block of a descriptor"), padding)
        if kind == "dtype":
            (name,) = _fields(fields, (str,), "dtype")
            _one_of(name, BY_LANGUAGE, "element type")
            return DtypeValue(name)
        if kind == "function":
            number, name = _fields(fields, (int, str), "function")
            if not name.isidentifier() or len(name) > MOST_TEXT:
                raise ProgramDamaged(f"a function's name that is none: {name[:40]!r}")
            return FunctionValue(_within(number, 0, self._files - 1, "number of a file"), name)
        if kind == "tuple":
            (items,) = _fields(fields, (list,), "tuple")
            if len(items) > MOST_ITEMS:
                raise ProgramDamaged(f"a tuple of {len(items):,}, more than {MOST_ITEMS}")
            return TupleValue(tuple(self._value(item, deep + 1) for item in items))
        if kind == "module":
            (dotted,) = _fields(fields, (str,), "module")
            if not is_known_module(dotted):
                raise ProgramDamaged(f"{dotted[:80]!r} is nothing that kernels may name")
            return ModuleValue(dotted)
        if kind == "constexpr":
            (inner,) = _fields(fields, (list,), "constexpr")
            return ConstexprValue(self._value(inner, deep + 1))
        raise ProgramDamaged(f"a value of the kind {str(kind)[:40]!r}")

    def _view(self, buffer: int, dtype: str, offset: int, shape: list[Any], strides: list[Any]) -> TensorValue:
        _within(buffer, 0, len(self._buffers) - 1, "number of a buffer")
        _one_of(dtype, BY_NAME, "element type")
        found = TensorValue(
            buffer, dtype, _within(offset, 0, 1 << 40, "offset"), _sizes(shape, "shape"), _sizes(strides, "strides")
        )
        if len(found.shape) != len(found.strides):
            raise ProgramDamaged("a tensor with other strides than axes")
        size = BY_NAME[dtype].bytes
        last = found.offset + sum((s - 1) * stride for s, stride in zip(found.shape, found.strides))
        end = (last + 1 if found.elements else found.offset) * size
        if end > self._buffers[buffer].nbytes:
            raise ProgramDamaged(
                f"a tensor that reaches {end:,} bytes into a buffer of {self._buffers[buffer].nbytes:,}"
            )
        return found

    def _descriptor(self, tensor: TensorValue, block: tuple[int, ...], padding: str) -> DescriptorValue:
        _one_of(padding, ("zero", "nan"), "padding")
        if len(block) != len(tensor.shape) or not 1 <= len(block) <= 5:
            raise ProgramDamaged("a descriptor of more than 5 axes, or with another block than axes")
        if tensor.strides[-1] != 1 or 0 in block:
            raise ProgramDamaged("a descriptor whose last stride is not 1, or with an empty block")
        return DescriptorValue(tensor, block, padding)


def _no_number(text: str) -> None:
    raise ValueError(f"{text[:40]}, where floats are written as hexadecimal text")


def _scalar(kind: str, fields: list[Any]) -> Value:
    if kind == "none":
        _fields(fields, (), "none")
        return None
    (value,) = _fields(fields, ({"int": int, "bool": bool, "str": str, "float": str}[kind],), kind)
    if kind == "int":
        return _within(value, -_INTEGER, 2 * _INTEGER - 1, "integer")
    if kind == "float":
        if len(value) > 40:
            raise ProgramDamaged("a float of many digits")
        return float.fromhex(value)
    if kind == "str" and (len(value) > MOST_TEXT or not value.isprintable()):
        raise ProgramDamaged("a text that is too long or not printable")
    scalar: Value = value
    return scalar


def _fields(entry: Any, kinds: tuple[Any, ...], what: str) -> list[Any]:
    if type(entry) is not list or len(entry) != len(kinds):
        raise ProgramDamaged(f"{what}: expected {len(kinds)} fields")
    for value, kind in zip(entry, kinds):
        if type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise ProgramDamaged(f"{what}: unexpected value {str(value)[:40]!r}")
    return entry


def _listed(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        raise ProgramDamaged(f"{what} is no list")
    return value


def _within(value: int, low: int, high: int, what: str) -> int:
    if not low <= value <= high:
        raise ProgramDamaged(f"{what}: {str(value)[:40]} is not from {low:,} to {high:,}")
    return value


def _one_of(value: str, known: Any, what: str) -> None:
    if value not in known:
        raise ProgramDamaged(f"{what} {value[:40]!r}: one of {', '.join(known)}")


def _sizes(entry: Any, what: str) -> tuple[int, ...]:
    if type(entry) is not list or len(entry) > MOST_DIMENSIONS or any(type(n) is not int for n in entry):
        raise ProgramDamaged(f"{what}: at most {MOST_DIMENSIONS} whole numbers")
    return tuple(_within(n, 0, 1 << 40, what) for n in entry)


def _line(value: int) -> int:
    return _within(value, 0, MOST_LINE, "line")


def _options(entry: Any) -> Options:
    kind = (int, type(None))
    warps, stages, ctas, registers = _fields(entry, (kind,) * 4, "launch options")
    for value, low, high, what in (
        (warps, 1, 32, "num_warps"),
        (stages, 0, 32, "num_stages"),
        (ctas, 1, 16, "num_ctas"),
        (registers, 8, 255, "maxnreg"),
    ):
        if value is not None:
            _within(value, low, high, what)
    for value, what in ((warps, "num_warps"), (ctas, "num_ctas")):
        if value is not None and value & (value - 1):
            raise ProgramDamaged(f"{what}={value} is no power of 2")
    return Options(warps, stages, ctas, registers)
