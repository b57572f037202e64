"""One tensor of a safetensors file, with NumPy alone: the format is a header in JSON before the elements.

8 bytes, little-endian: the header's length. The header: by key `dtype`, `shape` and `data_offsets`, from behind it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.user_files import read_bytes

_DTYPES: dict[str, Any] = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "BOOL": np.bool_,
}  # fmt: skip
MOST_HEADER = 100 << 20
"""Bytes: as the format's own reader has it."""


def read_tensor(path: Path, key: str) -> np.ndarray:
    """Raises TaskInvalid, with what is wrong with the file or that it has no such key."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise TaskInvalid(f"{path}: no such file; the suite keeps them apart from its definitions: fetch it") from None
    except OSError as error:
        raise TaskInvalid(f"{path}: cannot be read: {error}") from error
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(MOST_HEADER, len(data) - 8):
        pointer = data.startswith(b"version https://git")
        raise TaskInvalid(
            f"{path}: {'a Git LFS pointer: fetch what it points to' if pointer else 'no safetensors file'}"
        )
    try:
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        if key not in header:
            raise TaskInvalid(f"{path}: it has no tensor {key!r}, only {', '.join(header) or 'none'}")
        dtype, shape = header[key]["dtype"], tuple(map(int, header[key]["shape"]))
        begin, end = map(int, header[key]["data_offsets"])
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise TaskInvalid(f"{path}: its header is damaged: {error!r}") from None
    if dtype not in _DTYPES:
        raise TaskInvalid(f"{path}: {key} is of {dtype}, and one of these is read: {', '.join(_DTYPES)}")
    kind = np.dtype(_DTYPES[dtype])
    if min(shape, default=0) < 0 or end - begin != math.prod(shape) * kind.itemsize or not 0 <= begin <= end:
        raise TaskInvalid(f"{path}: its header is damaged: {key} has {end - begin} bytes for {list(shape)} of {dtype}")
    if 8 + length + end > len(data):
        raise TaskInvalid(f"{path}: it ends within {key}: fetch it again")
    return np.frombuffer(data, kind, math.prod(shape), 8 + length + begin).reshape(shape)
