"""NKI's element types and their NumPy storage."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.errors import NkiValidationError
from nki_sim.machine import SIMULATED_VERSION


class DType(str):
    """An NKI dtype: a string, as in NKI itself, that knows its storage."""

    numpy: np.dtype[Any]
    itemsize: int
    is_float: bool
    since: int
    """The first NeuronCore version that has it (NKI API pages): 2, the first with NKI, or 4."""

    def __new__(cls, name: str, storage: Any, is_float: bool, since: int = 2) -> DType:
        self = super().__new__(cls, name)
        self.since = since
        self.numpy = np.dtype(storage)
        self.itemsize = self.numpy.itemsize
        self.is_float = is_float
        return self

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        """A copy, through a pickle too, is the dtype itself."""
        return as_dtype, (str(self),)


bool_ = DType("bool", np.bool_, False)
int8 = DType("int8", np.int8, False)
int16 = DType("int16", np.int16, False)
int32 = DType("int32", np.int32, False)
uint8 = DType("uint8", np.uint8, False)
uint16 = DType("uint16", np.uint16, False)
uint32 = DType("uint32", np.uint32, False)
int64 = DType("int64", np.int64, False)
uint64 = DType("uint64", np.uint64, False)
float16 = DType("float16", np.float16, True)
float32 = DType("float32", np.float32, True)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, True)
tfloat32 = DType("tfloat32", np.float32, True)
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, True)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, True)
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, True)
# NeuronCore-v4 only: they can be named (kernels keep tables of them) but not allocated. Packed types as raw words.
float8_e8m0fnu = DType("float8_e8m0fnu", np.uint8, False, since=4)
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, False, since=4)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, False, since=4)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, False, since=4)

ALL: dict[str, DType] = {each: each for each in list(globals().values()) if isinstance(each, DType)}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL.values() if dtype != "tfloat32" and dtype.since <= SIMULATED_VERSION}


SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "f32": "float32", "fp8": "float8_e4m3"}
"""Names that people write on a command line."""


def as_dtype(value: Any) -> DType:
    """Accepts an NKI dtype, its name, or a NumPy or ml_dtypes dtype."""
    if type(value) is DType:
        return value
    if isinstance(value, str) and value in ALL:
        return ALL[value]
    if type(value).__module__ == "torch":  # torch.bfloat16 names its dtype after the dot
        return as_dtype(str(value).rpartition(".")[2])
    try:
        found = _BY_NUMPY.get(np.dtype(value))
    except TypeError:
        found = None
    if found is None:
        raise NkiValidationError(f"dtype {value!r} does not exist on the device; one of: {', '.join(ALL)}")
    return found
