"""Program files that no tracer writes: an honest one taken apart, one thing in it changed, and put together again.

A candidate's process can leave any bytes at all. Each forgery here is the file of a kernel that computes the task's
sum and, beside it, a little of everything; unchanged it is accepted.
"""

from __future__ import annotations

import base64
import copy
import json
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import nki_sim
from nki_sim.dtypes import float32
from nki_sim.encoding import program_file
from nki_sim.tracing.session import TensorSpec
from tests.e2e import kernels
from tests.redteam.attacks import EVERY_FILE

HONEST = kernels.FAST.replace("STEP = 2048", "STEP = 512")

SPARE = """
            s = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            r = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            whole = nl.ndarray((128, 512), dtype=nl.int32, buffer=nl.sbuf)
            bits = nl.ndarray((128, 8), dtype=nl.uint32, buffer=nl.sbuf)
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            nisa.memset(dst=s, value=1.0)
            nisa.activation(dst=s, op=nl.square, data=a, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
            nisa.activation(dst=s, op=nl.square, data=a, reduce_op=nl.add, reduce_res=r,
                            reduce_cmd=nisa.reduce_cmd.reduce)
            nisa.activation(dst=s, op=nl.tanh, data=a, bias=r, scale=0.5)
            nisa.tensor_scalar(dst=s, data=a, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=r)
            nisa.tensor_scalar_reduce(dst=s, data=a, op0=nl.multiply, operand0=2.0, reduce_op=nl.add, reduce_res=r)
            nisa.nc_stream_shuffle(dst=s, src=a, shuffle_mask=[255] * 16 + list(range(16)))
            nisa.iota(dst=whole, pattern=[[1, 512]], offset=1)
            nisa.tensor_tensor(dst=whole, data1=whole, data2=whole, op=nl.add)
            nisa.dma_compute(dst=s, srcs=[a, b], reduce_op=nl.add)
            nisa.nc_matmul(dst=total, stationary=a[:, 0:128], moving=b)
            nisa.affine_select(dst=s, pattern=[[-1, 512]], channel_multiplier=1, on_true_tile=a, on_false_value=0.0,
                               cmp_op=nl.greater_equal)
            nisa.tensor_reduce(dst=r, op=nl.add, data=a, axis=1)
            nisa.rng(dst=bits)
            nisa.dropout(dst=s, data=a, prob=0.5)
            nisa.tensor_tensor_scan(dst=s, data0=a, data1=b, initial=0.0, op0=nl.multiply, op1=nl.add)
            nl.fori_loop(0, 3, lambda i: nisa.tensor_copy(dst=s, src=a))
            nl.fori_loop(0, nisa.register_alloc(3), lambda i: nisa.tensor_copy(dst=s, src=b))
            c = nl"""

EVERYTHING = HONEST.replace("\n            c = nl", SPARE)
assert EVERYTHING != HONEST


class Forgery:
    """A program file in parts, which may be changed at will."""

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[8:16], "little")
        self.header: dict[str, Any] = json.loads(data[16 : 16 + length])
        self.arrays: dict[str, np.ndarray] = {}
        at = 16 + length
        for name, kind, shape in self.header["arrays"]:
            dtype = np.dtype(kind)
            count = int(np.prod(shape))
            self.arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
        # By buffer, as if each were written out: region, shape, dtype, name, line, made before which row, address.
        kinds, columns = self.header["allocations"], ("allocation_kinds", "allocated_at")
        self.header["allocations"] = [
            [*again(kinds[kind])[:5], at, kinds[kind][5]]
            for kind, at in zip(*(self.arrays.pop(name).tolist() for name in columns))
        ]

    def template(self, opcode: str, nth: int = 0) -> list[Any]:
        """[opcode, engine, attributes, operands, line]."""
        found: list[list[Any]] = [t for t in self.header["templates"] if t[0] == opcode]
        return found[nth]

    def operand(self, opcode: str, role: str, nth: int = 0) -> list[Any]:
        """[role, access, region, dtype, pattern, partition start, partition elements, indirection, free offset]."""
        return next(operand for operand in self.template(opcode, nth)[3] if operand[0] == role)

    def rows(self, opcode: str, nth: int = 0) -> list[int]:
        """Numbers of the instructions of that template."""
        number = self.header["templates"].index(self.template(opcode, nth))
        return np.flatnonzero(self.arrays["template_ids"] == number).tolist()

    def buffer(self, opcode: str, role: str, nth: int = 0) -> int:
        """Number of the buffer that the first of those instructions has there."""
        place = self.template(opcode, nth)[3].index(self.operand(opcode, role, nth))
        start = int(self.arrays["operand_starts"][self.rows(opcode, nth)[0]])
        return int(self.arrays["operand_data"][start + place, 0])

    def place(self, opcode: str, role: str, nth: int = 0) -> np.ndarray:
        """(buffer, offset) of the first of those instructions; a view, to be written to."""
        at = self.template(opcode, nth)[3].index(self.operand(opcode, role, nth))
        start = int(self.arrays["operand_starts"][self.rows(opcode, nth)[0]])
        found: np.ndarray = self.arrays["operand_data"][start + at]
        return found

    def add_operand(self, opcode: str, operand: list[Any], buffer: int, offset: int = 0, nth: int = 0) -> None:
        """One operand more, behind the others, in every instruction of the template."""
        rows = self.rows(opcode, nth)
        self.template(opcode, nth)[3].append(operand)
        starts, data = self.arrays["operand_starts"], self.arrays["operand_data"]
        ends = starts[1:][rows]
        self.arrays["operand_data"] = np.insert(data, ends, [[buffer, offset]] * len(rows), axis=0)
        self.arrays["operand_starts"] = starts + np.searchsorted(np.array(rows) + 1, np.arange(len(starts)), "right")

    def drop_operand(self, opcode: str, role: str, nth: int = 0) -> None:
        rows, template = self.rows(opcode, nth), self.template(opcode, nth)
        at = template[3].index(self.operand(opcode, role, nth))
        del template[3][at]
        starts, data = self.arrays["operand_starts"], self.arrays["operand_data"]
        self.arrays["operand_data"] = np.delete(data, starts[:-1][rows] + at, axis=0)
        self.arrays["operand_starts"] = starts - np.searchsorted(np.array(rows) + 1, np.arange(len(starts)), "right")

    def add_buffer(self, region: str, shape: list[int], dtype: str = "float32") -> int:
        self.header["allocations"].append([region, shape, dtype, "", 0, 0, None])
        return len(self.header["allocations"]) - 1

    def add_row(self, template: list[Any], *places: tuple[int, int]) -> int:
        """One instruction more, before the last one; returns its number."""
        if template not in self.header["templates"]:
            self.header["templates"].append(template)
        number = self.header["templates"].index(template)
        ids, starts, data = (self.arrays[n] for n in ("template_ids", "operand_starts", "operand_data"))
        row = len(ids) - 1
        self.arrays["template_ids"] = np.insert(ids, row, number).astype(np.int32)
        self.arrays["operand_data"] = np.insert(data, starts[row], np.array(places).reshape(-1, 2), axis=0)
        self.arrays["operand_starts"] = np.concatenate((starts[: row + 1], starts[row:] + len(places)))
        return row

    def constant(self, number: int, contents: np.ndarray) -> None:
        self.arrays[f"constant {number}"] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)

    def dumps(self, header: bytes | None = None) -> bytes:
        """`header`: in place of its own."""
        kinds: dict[str, int] = {}
        """As they stand in the file, each once."""
        kind_of = [
            kinds.setdefault(json.dumps([*entry[:5], *entry[6:]]), len(kinds)) for entry in self.header["allocations"]
        ]
        columns = {
            "allocation_kinds": np.array(kind_of, np.int32),
            "allocated_at": np.array([entry[5] for entry in self.header["allocations"]], np.int64),
        }
        every = self.arrays | columns
        written = self.header | {
            "allocations": [json.loads(kind) for kind in kinds],
            "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in every.items()],
        }
        text = json.dumps(written).encode() if header is None else header
        arrays = [np.ascontiguousarray(array).tobytes() for array in every.values()]
        return b"".join([program_file.MAGIC, len(text).to_bytes(8, "little"), text, *arrays])


Change = Callable[[Forgery], "bytes | None"]
"""Changes a forgery, or returns the bytes of a file outright."""


@cache
def _traced(source: str) -> bytes:
    nki_sim.install()
    namespace: dict[str, Any] = {}
    exec(compile(source, "candidate.py", "exec"), namespace)
    tile = TensorSpec((128, 512), float32)
    return program_file.dumps(nki_sim.trace(namespace["kernel"], tile, tile, machine="trn2"))


def forged(change: Change, source: str = EVERYTHING) -> bytes:
    forgery = Forgery(_traced(source))
    changed = change(forgery)
    return forgery.dumps() if changed is None else changed


def leaving(data: bytes, source: str = EVERYTHING) -> str:
    """A candidate that leaves this file in place of its kernel's program."""
    packed = base64.b85encode(zlib.compress(data, 9)).decode()
    return (
        f"{source}\n{EVERY_FILE}\nimport base64, zlib\n"
        f"programs(zlib.decompress(base64.b85decode({packed!r})))\nos._exit(0)\n"
    )


def again(template: list[Any]) -> list[Any]:
    return copy.deepcopy(template)
