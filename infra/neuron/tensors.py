"""Arrays to and from the files that the profiler reads and writes. Shipped; no pickle in either direction."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accelopt_core.toolchain import RunError, TensorArgument, ToolchainMissing

_SIZES = {"bfloat16": 2, "tfloat32": 4, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""NKI dtypes that NumPy lacks."""


def size_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense tensor of an NKI dtype; 0 for a dtype nobody knows, which then fits no declaration."""
    item = _SIZES.get(dtype, 0)
    if not item:
        with contextlib.suppress(TypeError):
            known = np.dtype(dtype)
            item = known.itemsize if known.kind in "biuf" else 0
    return math.prod(shape) * item


def write_input(stem: Path, tensor: np.ndarray) -> Path:
    """As .npy where NumPy has the dtype, else as raw bytes (.bin), which the profiler takes as they are."""
    tensor = np.ascontiguousarray(tensor)
    if tensor.dtype.kind in "biuf" and tensor.dtype.isbuiltin:
        path = stem.with_suffix(".npy")
        np.save(path, tensor, allow_pickle=False)
    else:
        path = stem.with_suffix(".bin")
        path.write_bytes(tensor.tobytes())
    return path


def read_output(folder: Path, name: str, spec: TensorArgument | None, printed: str) -> np.ndarray:
    """The output `name` of one execution, in the shape and the values that `spec` describes.

    The runtime may have lost the dtype (`void`) or know only a carrier of the same width; the bytes are
    then viewed as `spec` says. Raises RunError when file and spec cannot both be right.
    """
    path = _output_file(folder, name, printed)
    if path.suffix != ".npy":
        if spec is None:
            raise RunError(f"output {name} was saved as raw bytes and its shape is not known")
        return _viewed(path.read_bytes(), name, spec)
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise RunError(f"output {name} is not a readable .npy file: {error}") from None
    if spec is None:
        if array.dtype.kind == "V":
            raise RunError(
                f"output {name} has no dtype (void of {array.dtype.itemsize} bytes) and nothing else says it"
            )
        return array
    if array.nbytes == size_bytes(spec.shape, spec.dtype):
        return _viewed(array.tobytes(), name, spec)
    if array.dtype.kind in "biuf" and array.size == math.prod(spec.shape):
        return array.reshape(spec.shape)
    raise RunError(
        f"output {name} holds {array.nbytes} bytes ({array.dtype}); "
        f"{spec.dtype} of shape {list(spec.shape)} needs {size_bytes(spec.shape, spec.dtype)}"
    )


def _output_file(folder: Path, name: str, printed: str) -> Path:
    """Where the profiler says it saved it, else the documented name (`matches the output name`)."""
    said = re.findall(r'saved output "([^"]+)" as "([^"]+)"', printed)
    names = [Path(file).name for output, file in said if output == name] + [f"{name}.npy", name]
    for candidate in names:
        path = folder / candidate
        if path.is_file() and not path.is_symlink():
            return path
    there = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
    raise RunError(f"the profiler saved no output {name}; it left {there}")


def _viewed(content: bytes, name: str, spec: TensorArgument) -> np.ndarray:
    if len(content) != size_bytes(spec.shape, spec.dtype):
        raise RunError(
            f"output {name} holds {len(content)} bytes; {spec.dtype} of shape {list(spec.shape)} needs "
            f"{size_bytes(spec.shape, spec.dtype)}"
        )
    if spec.dtype == "bfloat16":
        wide = np.frombuffer(content, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(spec.shape)
    if spec.dtype.startswith("float8"):  # one of _SIZES, else the length would not have fitted
        try:
            import ml_dtypes
        except ImportError:
            raise ToolchainMissing(f"outputs of {spec.dtype} need the package ml_dtypes") from None
        return np.frombuffer(content, getattr(ml_dtypes, spec.dtype)).astype(np.float32).reshape(spec.shape)
    dtype = np.dtype(np.float32) if spec.dtype == "tfloat32" else np.dtype(spec.dtype)
    return np.frombuffer(content, dtype).reshape(spec.shape)
