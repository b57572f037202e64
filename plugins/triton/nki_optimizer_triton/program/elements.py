"""Element types that a kernel's tensors may have, by the name that NumPy (with ml_dtypes) and torch share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ElementType:
    name: str
    """E.g. `float16`, `float8_e4m3fn`."""
    triton: str
    """In a kernel's signature, e.g. `fp16`, `fp8e4nv`."""
    language: str
    """In `triton.language`, e.g. `float16`, `float8e4nv`."""
    bytes: int
    kind: Literal["float", "int", "uint", "bool"]


_ALL = (
    ElementType("bool", "u1", "int1", 1, "bool"),
    ElementType("int8", "i8", "int8", 1, "int"),
    ElementType("int16", "i16", "int16", 2, "int"),
    ElementType("int32", "i32", "int32", 4, "int"),
    ElementType("int64", "i64", "int64", 8, "int"),
    ElementType("uint8", "u8", "uint8", 1, "uint"),
    ElementType("uint16", "u16", "uint16", 2, "uint"),
    ElementType("uint32", "u32", "uint32", 4, "uint"),
    ElementType("uint64", "u64", "uint64", 8, "uint"),
    ElementType("float8_e4m3fn", "fp8e4nv", "float8e4nv", 1, "float"),
    ElementType("float8_e5m2", "fp8e5", "float8e5", 1, "float"),
    ElementType("float16", "fp16", "float16", 2, "float"),
    ElementType("bfloat16", "bf16", "bfloat16", 2, "float"),
    ElementType("float32", "fp32", "float32", 4, "float"),
    ElementType("float64", "fp64", "float64", 8, "float"),
)

BY_NAME = {element.name: element for element in _ALL}
BY_TRITON = {element.triton: element for element in _ALL}
BY_LANGUAGE = {element.language: element for element in _ALL}
