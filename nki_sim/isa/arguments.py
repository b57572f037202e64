"""What was wrong with a call, when Python itself stumbled over its arguments.

Instructions do not check the types of their arguments one by one, which would cost time in every call.
When one fails, `explain` looks at the call that failed and says it in the kernel's own words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.grids import NkiGrid
from nki_sim.session import Instruction
from nki_sim.tensor import NkiTensor

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
