"""Runs a launch program in Triton's own interpreter: a process of its own, since TRITON_INTERPRET is read on import."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np


class Tensor:
    """What Triton's interpreter asks of a torch tensor."""

    def __init__(self, storage: np.ndarray, dtype: str, offset: int, shape: list[int], strides: list[int]) -> None:
        self.storage, self.name, self.offset, self.shape, self.strides = storage, dtype, offset, shape, strides
        self.dtype = _Dtype(dtype)

    def data_ptr(self) -> int:
        return int(self.storage.ctypes.data) + self.offset * self.storage.itemsize

    def untyped_storage(self) -> Any:
        return _Storage(self.storage)

    def storage_offset(self) -> int:
        return self.offset

    def size(self) -> list[int]:
        return self.shape

    def stride(self) -> list[int]:
        return self.strides

    def new_empty(self, *_: Any, **__: Any) -> Tensor:
        return Tensor(self.storage, self.name, 0, [], [])

    def set_(self, storage: Any, offset: int, shape: list[int], strides: list[int]) -> None:
        self.storage, self.offset, self.shape, self.strides = storage.array, offset, shape, strides

    def cpu(self) -> Tensor:
        return self

    def copy_(self, other: Any) -> None:
        """The same memory."""


class _Dtype:
    known: dict[str, _Dtype] = {}

    def __new__(cls, name: str) -> _Dtype:
        return cls.known.setdefault(name, super().__new__(cls))

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class _Storage:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def cpu(self) -> _Storage:
        return self

    def copy_(self, other: Any) -> None:
        """The same memory."""


def main(folder: Path) -> None:
    import triton.language as tl
    from triton.language.extra import libdevice

    job = json.loads((folder / "job.json").read_text())
    path = folder / "kernels_0.py"
    text = job["text"].replace("triton.language.constexpr", "tl.constexpr")  # the interpreter takes annotations as text
    path.write_text(text)
    module = types.ModuleType("kernels_0")
    known = {"triton.language": tl, "triton.language.extra.libdevice": libdevice}
    for name, value in job["globals"]:
        if value[0] == "module":
            module.__dict__[name] = known[value[1]]
    libdevice.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1  # the interpreter knows no libdevice
    exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    buffers = [np.zeros(elements, dtype) for dtype, elements in job["buffers"]]
    with np.load(folder / "inputs.npz") as given:
        for number, name in enumerate(given.files):
            buffers[number][:] = given[name].reshape(-1)

    def value_of(value: list[Any]) -> Any:
        if value[0] == "tensor":
            _, number, dtype, offset, shape, strides = value
            return Tensor(buffers[number], dtype, offset, shape, strides)
        return float.fromhex(value[1]) if value[0] == "float" else value[1]

    for name, grid, arguments in job["launches"]:
        getattr(module, name)[tuple(grid)](*(value_of(value) for value in arguments))
    np.savez(folder / "outputs.npz", *buffers)


def bfloat16() -> None:
    """1 + 1, as the interpreter's builder computes it."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    one = TensorHandle(np.array([0x3F80], np.uint16), tl.bfloat16)
    total = interpreter_builder.create_fadd(one, one).data.astype(np.uint32) << 16
    print(float(total.view(np.float32)[0]))


if __name__ == "__main__":
    bfloat16() if sys.argv[1] == "bfloat16" else main(Path(sys.argv[1]))
