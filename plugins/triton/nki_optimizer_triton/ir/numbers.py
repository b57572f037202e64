"""Element types as arrays: how each is held while a kernel is executed, rounded, and laid out in memory.

Half and 8-bit floats are held as float32 that they represent exactly; arithmetic is done in float32 and rounded, which
for +, -, *, / and sqrt gives the bits that the narrow operation gives (24 bits are more than twice 11 and 2 more).
Integers are held signed, as MLIR's are signless; operations that read them unsigned view them so.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from nki_optimizer_triton.ir.types import Element

_HELD: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(bool), "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "index": np.dtype(np.int64), "f64": np.dtype(np.float64),
}  # fmt: skip
_STORED: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.uint8), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16), "f32": np.dtype(np.float32),
    "f8E4M3FN": np.dtype(np.uint8), "f8E5M2": np.dtype(np.uint8),
}  # fmt: skip
_EIGHT_BITS = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
_LARGEST = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0}
"""What PTX's cvt.rn.satfinite saturates to (PTX ISA, cvt), which is how Triton converts to these types."""


def held(element: Element) -> np.dtype[np.generic]:
    """How an array of this type is held: pointers as addresses in int64."""
    if not isinstance(element, str):
        return np.dtype(np.int64)
    return _HELD.get(element, np.dtype(np.float32))


def stored(element: Element) -> np.dtype[np.generic]:
    """How it lies in memory, as NumPy can view it."""
    if not isinstance(element, str):
        return np.dtype(np.int64)
    return _STORED[element] if element in _STORED else _HELD[element]


def decoded(array: np.ndarray, element: Element) -> np.ndarray:
    """From memory: `array` has the type of `stored`."""
    if element == "bf16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if element in _EIGHT_BITS:
        return np.take(_table(str(element)), array)
    if element == "i1":
        return array != 0
    return array.astype(held(element), copy=False)


def encoded(array: np.ndarray, element: Element) -> np.ndarray:
    """For memory; `array` holds values of the element's type exactly."""
    if element == "bf16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16)
    if element in _EIGHT_BITS:
        return array.astype(_EIGHT_BITS[str(element)]).view(np.uint8)
    return array.astype(stored(element), copy=False)


def rounded(array: np.ndarray, element: Element) -> np.ndarray:
    """To nearest even, a float array to the values of `element`, held as `held` says."""
    if element == "f32":
        return array.astype(np.float32, copy=False)
    if element == "f64":
        return array.astype(np.float64, copy=False)
    if element == "bf16":
        return _to_bf16(np.ascontiguousarray(array, np.float32))
    if element == "f16":
        return array.astype(np.float16).astype(np.float32)
    limit = _LARGEST[str(element)]
    kept = np.clip(array.astype(np.float32, copy=False), -limit, limit)  # NaN stays one
    return kept.astype(_EIGHT_BITS[str(element)]).astype(np.float32)


def rounded_to_zero(array: np.ndarray, element: Element) -> np.ndarray:
    """As `rounded`, but never away from zero."""
    near = rounded(array, element)
    if element == "bf16":
        cut = (np.ascontiguousarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isnan(array), near, cut)
    if element == "f16":
        half = near.astype(np.float16)
        inward = np.nextafter(half, np.float16(0)).astype(np.float32)
        return np.where(np.abs(near) > np.abs(array), inward, near)
    return near


def to_tf32(array: np.ndarray) -> np.ndarray:
    """As a tensor core reads float32: it ignores the lower 13 bits (PTX ISA, mma with .tf32)."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _to_bf16(array: np.ndarray) -> np.ndarray:
    bits = array.view(np.uint32)
    up = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    cut = (up & np.uint32(0xFFFF0000)).view(np.float32)
    nan = np.isnan(array)
    return np.where(nan, np.float32(np.nan), cut) if nan.any() else cut


@cache
def _table(element: str) -> np.ndarray:
    """The float32 value of each of 256 patterns."""
    return np.arange(256, dtype=np.uint8).view(_EIGHT_BITS[element]).astype(np.float32)


def reinterpreted(array: np.ndarray, before: Element, after: Element) -> np.ndarray:
    """The same bits as another type of the same size (arith.bitcast, tt.bitcast)."""
    bits = np.ascontiguousarray(encoded(array, before))
    return decoded(bits.view(stored(after)), after)


def unsigned(array: np.ndarray) -> np.ndarray:
    """The same bits read without a sign."""
    if array.dtype == np.dtype(bool):
        return array.astype(np.uint8)
    if array.dtype.kind == "u":
        return array
    return array.view(np.dtype(f"u{array.dtype.name}"))


def signed(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """An unsigned array in the type that `like` has."""
    if like.dtype == np.dtype(bool):
        return (array & 1).astype(bool)
    return array.astype(np.dtype(f"u{like.dtype.name}"), copy=False).view(like.dtype)
