"""A reference module (docs/tasks.md) made of a definition and its workloads: it travels alone, with what they store.

The definition's own code computes. In torch, as the suite has it, it runs as it is: on tensors of the declared dtypes,
in its own precision, on the CPU of whoever judges, who must have torch. Where it imports NumPy and no torch it is given
arrays, in float64 as every reference of ours.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from accelopt_core.task import DEFAULT_TOLERANCE, PrecisionPolicy
from infra.tasks.reference_reader import FULL
from nki_optimizer_triton.flashinfer.definition import FLOATING, WORKLOAD, Definition, Tensor
from nki_optimizer_triton.flashinfer.workload import Workload

WITHIN = {"absolute": 1e-2, "relative": 1e-2}
"""The suite's default: an element is wrong where it is further off than both."""
NARROW_TOLERANCE = 5e-3
"""Relative L2, where a tensor is narrower than float32."""

TEMPLATE = '''\
"""FlashInfer-Bench's definition {name} with workloads of it, written by nki-optimizer."""

import base64 as _base64
import types as _types
import zlib as _zlib

import ml_dtypes as _ml_dtypes
import numpy as _np

{constants}

PRESETS = {presets}
TOLERANCE = {tolerance}
PRECISION = "{precision}"
WITHIN = {within}

_DEFINITION = {name!r}
_ON_TENSORS = {on_tensors}
_INPUTS = {inputs}
_OUTPUTS = {outputs}
_NUMBERS = {numbers}
_STORED = {stored}
_REFERENCE = {reference}

_INTEGERS = {{"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}}
_NARROW = {{"bfloat16": _ml_dtypes.bfloat16}}


def _loaded():
    module = _types.ModuleType("_" + _DEFINITION)
    try:
        if _ON_TENSORS:
            import torch

            globals()["_torch"] = torch
        exec(compile(_REFERENCE, "<reference of " + _DEFINITION + ">", "exec"), module.__dict__)
    except ModuleNotFoundError as error:
        lacks = (error.name or "").partition(".")[0]
        raise ImportError(
            f"FlashInfer-Bench has it in {{lacks}}, which the Python that judges lacks: pip install {{lacks}} there"
        ) from None
    return module.run


_run = _loaded()


def _size(axis):
    return globals()[axis]


def _dtype(name):
    return _np.dtype(_NARROW.get(name, name))


def _drawn(shape, dtype):
    if dtype == "bool":
        return _np.random.randint(0, 2, shape).astype(bool)
    if dtype in _INTEGERS:
        return _np.random.randint(-_INTEGERS[dtype], _INTEGERS[dtype], shape).astype(dtype)
    return _np.random.normal(size=shape).astype(_dtype(dtype))


def get_inputs():
    numbers, stored = _NUMBERS[WORKLOAD - 1], _STORED[WORKLOAD - 1]
    inputs = []
    for name, axes, dtype in _INPUTS:
        if name in numbers:
            inputs.append(numbers[name])
            continue
        shape = tuple(_size(axis) for axis in axes)
        if name in stored:
            elements = _zlib.decompress(_base64.b64decode(stored[name]))
            inputs.append(_np.frombuffer(elements, _dtype(dtype)).reshape(shape).copy())
        else:
            inputs.append(_drawn(shape, dtype))
    return inputs


def _tensor(array, dtype):
    array = _np.array(array, _dtype(dtype))
    if dtype == "bfloat16":
        return _torch.from_numpy(array.view(_np.int16)).view(_torch.bfloat16)
    return _torch.from_numpy(array)


def _array(value, name, dtype, wide):
    if not isinstance(value, _torch.Tensor):
        raise TypeError(f"run of {{_DEFINITION}} returns a {{type(value).__name__}} as {{name}}")
    if str(value.dtype) != "torch." + dtype:
        raise TypeError(
            f"run of {{_DEFINITION}} returns {{name}} in {{value.dtype}}, and its definition says {{dtype}}"
        )
    value = value.detach().cpu()
    return (value.to(getattr(_torch, wide)) if value.is_floating_point() else value).numpy().copy()


def forward(*inputs):
    """Of a kernel's outputs the values; floating ones as wide as the inputs are."""
    wide = "float32" if any(getattr(value, "dtype", None) == _np.float32 for value in inputs) else "float64"
    if _ON_TENSORS:
        inputs = [
            _tensor(value, dtype) if isinstance(value, _np.ndarray) else value
            for value, (_, _, dtype) in zip(inputs, _INPUTS)
        ]
    results = _run(*inputs)
    results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(results) != len(_OUTPUTS):
        raise ValueError(f"run of {{_DEFINITION}} returns {{len(results)}} values, and outputs are {{len(_OUTPUTS)}}")
    arrays = []
    for value, (name, axes, dtype) in zip(results, _OUTPUTS):
        array = _array(value, name, dtype, wide) if _ON_TENSORS else _np.asarray(value)
        shape = tuple(_size(axis) for axis in axes)
        if array.shape != shape:
            raise ValueError(
                f"run of {{_DEFINITION}} returns {{name}} as {{list(array.shape)}}, and its definition says "
                f"{{list(shape)}}"
            )
        arrays.append(array)
    return tuple(arrays)


def transform_nki_outputs(result, reference):
    """The suite takes outputs in the definition's shapes and dtypes, and in no other."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    if len(results) != len(_OUTPUTS):
        raise ValueError(f"{{len(results)}} tensors are returned, and outputs are {{len(_OUTPUTS)}}")
    for got, (name, axes, dtype) in zip(results, _OUTPUTS):
        shape = tuple(_size(axis) for axis in axes)
        if got.shape != shape:
            raise ValueError(f"{{name}} is {{list(got.shape)}}, and the definition says {{list(shape)}}")
        if got.dtype.name != dtype:
            raise ValueError(f"{{name}} is {{got.dtype.name}}, and the definition says {{dtype}}")
    return list(results)
'''


def reference_text(definition: Definition, workloads: Sequence[Workload]) -> str:
    """`workloads`: the one that is timed last."""
    last = workloads[-1]
    constants = {**dict(definition.constants), **dict(last.sizes), WORKLOAD: len(workloads)}
    presets = {
        workload.uuid: {**dict(workload.sizes), WORKLOAD: number} for number, workload in enumerate(workloads[:-1], 1)
    }
    text = TEMPLATE.format(
        name=definition.name,
        constants="\n".join(f"{name} = {value}" for name, value in constants.items()),
        presets=presets,
        tolerance=NARROW_TOLERANCE if definition.is_narrow else DEFAULT_TOLERANCE,
        precision=(PrecisionPolicy.BF16_ALLOWED if definition.is_narrow else PrecisionPolicy.FLOAT32_FAITHFUL).value,
        within=WITHIN,
        on_tensors=not is_in_numpy(definition.reference),
        inputs=_rows(definition.inputs),
        outputs=_rows(definition.outputs),
        numbers=[_numbers(definition, workload) for workload in workloads],
        stored=[{name: _packed(array) for name, array in workload.stored} for workload in workloads],
        reference=repr(definition.reference),
    )
    compile(text, "<reference>", "exec")
    return text


def is_in_numpy(reference: str) -> bool:
    """Does it import NumPy, and no torch?"""
    roots = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(reference))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    return "numpy" in roots and "torch" not in roots


def preset_of(workloads: Sequence[Workload], workload: Workload) -> str:
    """The name of its shape preset."""
    return FULL if workload is workloads[-1] else workload.uuid


def _rows(tensors: Sequence[Tensor]) -> str:
    rows = "".join(f"    ({tensor.name!r}, {tensor.axes!r}, {tensor.dtype!r}),\n" for tensor in tensors)
    return f"(\n{rows})"


def _numbers(definition: Definition, workload: Workload) -> dict[str, Any]:
    """Of every input that is one. The suite draws those that a workload does not give anew each time; a kernel is
    compiled with them, so here each has one value, which follows from the workload."""
    given = dict(workload.numbers)
    return {
        tensor.name: given[tensor.name] if tensor.name in given else _drawn_number(tensor, workload)
        for tensor in definition.inputs
        if tensor.axes is None
    }


def _drawn_number(tensor: Tensor, workload: Workload) -> int | float | bool:
    digest = hashlib.sha256(f"{workload.uuid}/{tensor.name}".encode()).digest()
    draw = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    if tensor.dtype in FLOATING:
        return float(np.float32(draw.standard_normal()))
    return bool(draw.integers(2)) if tensor.dtype == "bool" else int(draw.integers(-128, 128))


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
