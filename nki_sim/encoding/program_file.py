"""Programs as files: plain bytes that can be shipped and are trusted in nothing.

Layout: 8 bytes magic, 8 bytes header length (little endian), a JSON header, then the arrays that the
header lists, back to back. No pickle. `load` checks every field, so a program made by a process that
ran somebody's kernel can be read by one that must not be fooled: a damaged or forged file raises
ProgramFormatError, and costs no more memory than a small multiple of its own size. Everything is
counted before it is looked at, and every instruction keeps its opcode's contract (nki_sim.contract.contracts).
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from math import prod
from typing import Any

import numpy as np

import nki_sim.nki  # noqa: F401  # fills OPCODES
from nki_sim.checks.in_place import check_in_place
from nki_sim.contract.array_tiles import check_array_tiles
from nki_sim.contract.contracts import HBM, MOST_DIMENSIONS, check_contract
from nki_sim.contract.opcodes import OPCODES
from nki_sim.contract.operands import check_operands
from nki_sim.dtypes import ALL, DType, int32
from nki_sim.encoding.stream import check_first_contents, check_stream, span
from nki_sim.errors import NkiError, ProgramFormatError
from nki_sim.machine import ISA, MACHINES
from nki_sim.program.allocations import Allocations
from nki_sim.program.memory import Allocation, MemoryRegion, layout
from nki_sim.program.passes import LOOPS_DEEP, MOST_ROWS, loops_inside
from nki_sim.program.program import (
    NO_MARKS,
    Bound,
    Edge,
    Engine,
    Loop,
    Operand,
    Program,
    Template,
    TensorRef,
    collector_resting,
)

FORMAT_VERSION = 5
MAGIC = b"NKIPROG\n"
MOST_HEADER_BYTES = 48_000_000
"""The largest of the shipped seeds needs an eighth; parsed, it may take twenty times as much memory."""
MOST_OPERANDS = 3 * MOST_ROWS
_ENTRIES = {
    "templates": 100_000,
    "allocations": 1_000_000,
    "loops": 10_000,
    "edges": 1_000_000,
    "inputs": 1_000,
    "outputs": 1_000,
    "arrays": 10_000,
}
"""At most, of each list of the header."""
_MOST_TEXT = 1_000
"""Characters of a name."""
_ARRAYS = {
    "template_ids": "<i4",
    "operand_starts": "<i8",
    "operand_data": "<i8",
    "allocation_kinds": "<i4",
    "allocated_at": "<i8",
}
_MARKS = "marks"
"""An array that may be missing: a program whose loops nobody marked is one all the same."""
_INT_LIMIT = 1 << 48
_HEADER = {"version", "kernel_name", "machine", "source_file", "returns_tuple", *_ENTRIES}


def dump(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program. The file is complete or absent: it is renamed into place."""
    partial = f"{os.fspath(path)}.partial"
    with open(partial, "wb") as file:
        file.write(dumps(program))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program. Raises ProgramFormatError, naming the file, when any field is not as `dump` writes it."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return loads(data)
    except ProgramFormatError as error:
        raise ProgramFormatError(f"{os.fspath(path)}: {error}") from None


def dumps(program: Program) -> bytes:
    """The file's bytes; equal programs give equal bytes."""
    with collector_resting():
        return _dumps(program)


def _dumps(program: Program) -> bytes:
    arrays: list[tuple[str, np.ndarray]] = [
        (name, np.ascontiguousarray(column, kind))
        for (name, kind), column in zip(
            _ARRAYS.items(),
            (
                program.template_ids,
                program.operand_starts,
                program.operand_data,
                program.allocations.kind_of,
                program.allocations.allocated_at,
            ),
        )
    ]
    if len(program.marks):
        arrays.append((_MARKS, np.ascontiguousarray(program.marks, "<i8")))
    for number in sorted(program.constants):
        contents = np.ascontiguousarray(program.constants[number]).reshape(-1).view(np.uint8)
        arrays.append((f"constant {number}", contents))
    for number, peer in enumerate(program.peers):
        arrays.append((f"peer {number}", np.frombuffer(dumps(peer), np.uint8)))
    header = {
        "version": FORMAT_VERSION,
        "kernel_name": program.kernel_name,
        "machine": program.machine,
        "source_file": program.source_file,
        "returns_tuple": program.returns_tuple,
        "templates": [template_to_json(template) for template in program.templates],
        "allocations": [_kind_to_json(kind) for kind in program.allocations.kinds],
        "inputs": [_ref_to_json(ref) for ref in program.inputs],
        "outputs": [_ref_to_json(ref) for ref in program.outputs],
        "loops": [_loop_to_json(loop) for loop in program.loops],
        "edges": [[edge.before, edge.after] for edge in program.edges],
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays],
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *[array.tobytes() for _, array in arrays]])


def loads(data: bytes, machine: str | None = None) -> Program:
    """The program in `data`, whose limits are those of `machine`; without it, of the one that the file names.

    Raises ProgramFormatError.
    """
    try:
        with collector_resting():
            return _loads(data, machine, may_have_peers=True)
    except ProgramFormatError:
        raise
    except MemoryError:
        raise ProgramFormatError("it takes more memory than there is") from None
    except Exception as error:  # whatever a check trips over, it has found a forgery
        raise ProgramFormatError(f"{type(error).__name__}: {str(error)[:200]}") from None


def _loads(data: bytes, machine: str | None, may_have_peers: bool) -> Program:
    reader, at = _header(data)
    version = reader.integer("version")
    if version != FORMAT_VERSION:
        raise ProgramFormatError(f"format version {version}, not {FORMAT_VERSION}: dump it again with this simulator")
    named = reader.text("machine")
    if named not in MACHINES:
        raise ProgramFormatError(f"machine {named!r}: one of {', '.join(MACHINES)}")
    if machine is not None and named != machine:
        raise ProgramFormatError(f"it says that it is for {named}, and {machine} is simulated")
    hbm_bytes = MACHINES[named].device_hbm_bytes
    arrays = _arrays(reader, data, at)
    count = len(arrays["template_ids"])
    if count > MOST_ROWS or len(arrays["operand_data"]) > MOST_OPERANDS:
        raise ProgramFormatError(f"{count:,} instructions, more than {MOST_ROWS:,}, or too many operands of them")
    allocations = _allocations(
        reader.list("allocations"), arrays["allocation_kinds"], arrays["allocated_at"], hbm_bytes
    )
    program = Program(
        kernel_name=reader.text("kernel_name"),
        machine=named,
        templates=tuple(_template(entry) for entry in reader.list("templates")),
        allocations=allocations,
        template_ids=arrays["template_ids"],
        operand_starts=arrays["operand_starts"],
        operand_data=arrays["operand_data"],
        inputs=tuple(_input(entry, allocations) for entry in reader.list("inputs")),
        outputs=tuple(_output(entry, allocations) for entry in reader.list("outputs")),
        returns_tuple=reader.boolean("returns_tuple"),
        constants=_constants(arrays, allocations),
        edges=tuple(_edge(entry, count) for entry in reader.list("edges")),
        source_file=reader.text("source_file"),
        loops=_loops(reader.list("loops"), count, allocations),
        peers=tuple(_peers(arrays, machine or named, may_have_peers)),
        marks=_marks(arrays, count, len(allocations)),
    )
    if not program.returns_tuple and len(program.outputs) > 1:
        raise ProgramFormatError(f"{len(program.outputs)} outputs, but it returns no tuple")
    numbers = [ref.allocation for ref in program.inputs]
    if len(set(numbers)) != len(numbers):
        raise ProgramFormatError("two inputs share a buffer")
    check_stream(program)
    try:
        check_array_tiles(program)
        check_in_place(program)
    except NkiError as error:
        raise ProgramFormatError(str(error)) from None
    shared = [(a.shape, a.dtype) for a in allocations.in_region(MemoryRegion.shared_hbm)]
    for peer in program.peers:
        if shared != [(a.shape, a.dtype) for a in peer.allocations.in_region(MemoryRegion.shared_hbm)]:
            raise ProgramFormatError("the cores' shared_hbm buffers differ")
    return program


def _header(data: bytes) -> tuple[_Reader, int]:
    """The header, with all of its lists counted, and where the arrays begin."""
    if data[: len(MAGIC)] != MAGIC:
        raise ProgramFormatError("not a program file: the first 8 bytes differ; make it with program_file.dump")
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if start + length > len(data):
        raise ProgramFormatError(f"truncated: the header needs {length} bytes, {len(data) - start} are there")
    if length > MOST_HEADER_BYTES:
        raise ProgramFormatError(f"the header has {length:,} bytes, more than {MOST_HEADER_BYTES:,}")
    try:
        header = json.loads(data[start : start + length], parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as error:
        raise ProgramFormatError(f"the header is not JSON: {error}") from None
    reader = _Reader(header)
    for name, most in _ENTRIES.items():
        if len(reader.list(name)) > most:
            raise ProgramFormatError(f"{len(reader.list(name)):,} {name}, more than {most:,}")
    if set(header) != _HEADER:
        raise ProgramFormatError("the header has other fields")
    return reader, start + length


def _no_float(text: str) -> None:
    raise ValueError(f"{text[:40]}, where floats are written as hexadecimal text")


def _peers(arrays: dict[str, np.ndarray], machine: str, allowed: bool) -> Iterator[Program]:
    numbers = [name for name in arrays if name.startswith("peer ")]
    most = ISA.logical_core_cores - 1 if allowed else 0
    if numbers != [f"peer {i}" for i in range(len(numbers))] or len(numbers) > most:
        raise ProgramFormatError("a program has at most one peer, which has none")
    for name in numbers:
        yield _loads(arrays[name].tobytes(), machine, may_have_peers=False)


def _loop_to_json(loop: Loop) -> list[Any]:
    bounds = [[b.value, b.register] for b in (loop.lower, loop.upper)]
    return [loop.kind, loop.start, loop.end, loop.counter, *bounds, loop.step, loop.next]


def _loops(entries: list[Any], rows: int, allocations: Allocations) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for entry in entries:
        kind, start, end, counter, lower, upper, step, following = _fields(
            entry, (str, int, int, int, list, list, int, int), "loop"
        )
        bounds = [Bound(*_fields(b, (int, (int, type(None))), "loop bound")) for b in (lower, upper)]
        registers = [counter, *[b.register for b in bounds if b.register is not None]]
        if kind == "while":
            registers.append(following)
        elif kind != "for" or following != -1:
            raise ProgramFormatError(f"loop: unknown kind {kind[:40]!r}")
        if any(
            not 0 <= r < len(allocations) or allocations[r][1:4] != (MemoryRegion.register, (1, 1), int32)
            for r in registers
        ):
            raise ProgramFormatError("loop: a counter or bound is not a register")
        if step < 1 or not 0 <= start <= end <= rows or any(abs(b.value) >= 1 << 31 for b in bounds):
            raise ProgramFormatError(f"loop over rows {start}..{end} of {rows}, step {step}")
        loops.append(Loop(kind, start, end, counter, bounds[0], bounds[1], step, following))
    if loops_inside(loops) > LOOPS_DEEP:
        raise ProgramFormatError(f"more than {LOOPS_DEEP} loops inside each other")
    return tuple(loops)


class _Reader:
    """Typed access to the header's fields."""

    def __init__(self, header: Any) -> None:
        if not isinstance(header, dict):
            raise ProgramFormatError("the header is not a JSON object")
        self._header = header

    def _get(self, name: str, kind: type) -> Any:
        value = self._header.get(name)
        if type(value) is not kind:
            raise ProgramFormatError(f"header field {name!r} must be a {kind.__name__}")
        return value

    def integer(self, name: str) -> int:
        return int(self._get(name, int))

    def text(self, name: str) -> str:
        return _text(str(self._get(name, str)), f"header field {name!r}")

    def boolean(self, name: str) -> bool:
        return bool(self._get(name, bool))

    def list(self, name: str) -> list[Any]:
        value: list[Any] = self._get(name, list)
        return value


def _text(value: str, what: str) -> str:
    """A name as people are shown it: printable, and not without end."""
    if len(value) > _MOST_TEXT or not value.isprintable():
        raise ProgramFormatError(f"{what} is no name: {value[:40]!r}")
    return value


def _fields(entry: Any, kinds: tuple[type | tuple[type, ...], ...], what: str) -> list[Any]:
    if type(entry) is not list or len(entry) != len(kinds):
        raise ProgramFormatError(f"{what}: expected {len(kinds)} fields")
    for value, kind in zip(entry, kinds):
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in allowed or (type(value) is int and abs(value) > _INT_LIMIT):
            raise ProgramFormatError(f"{what}: unexpected value {str(value)[:40]!r}")
    return entry


def _arrays(reader: _Reader, data: bytes, at: int) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for entry in reader.list("arrays"):
        name, kind, shape = _fields(entry, (str, str, list), "array")
        expected = "<i8" if name == _MARKS else _ARRAYS.get(name, "|u1")
        known = name in _ARRAYS or name == _MARKS or name.startswith(("constant ", "peer "))
        if kind != expected or name in found or not known:
            raise ProgramFormatError(f"array {name!r} of type {kind!r} does not belong here")
        if len(shape) > 2 or any(type(n) is not int or not 0 <= n < _INT_LIMIT for n in shape):
            raise ProgramFormatError(f"array {name!r}: bad shape")
        dtype = np.dtype(kind)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes > len(data) - at:
            raise ProgramFormatError(f"truncated: array {name!r} needs {nbytes} bytes, {len(data) - at} are left")
        found[name] = np.frombuffer(data, dtype, prod(shape), at).reshape(shape)
        at += nbytes
    if at != len(data):
        raise ProgramFormatError(f"{len(data) - at} bytes after the last array")
    missing = [name for name in _ARRAYS if name not in found]
    if missing:
        raise ProgramFormatError(f"array {missing[0]!r} is missing")
    return found


def _marks(arrays: dict[str, np.ndarray], rows: int, buffers: int) -> np.ndarray:
    """A forged one makes a loop tree that is not this program's, which whoever reads one finds out."""
    marks = arrays.get(_MARKS, NO_MARKS)
    if marks.ndim != 2 or marks.shape[1] != NO_MARKS.shape[1] or len(marks) > MOST_OPERANDS:
        raise ProgramFormatError("the marks of its loops have another form")
    kinds, lines, at = marks[:, 0], marks[:, 1], marks[:, 2:]
    within = (at >= 0).all() and (at <= (rows, buffers)).all() and (np.diff(at, axis=0) >= 0).all()
    known = (kinds >= 0).all() and (kinds <= 2).all() and (lines >= -_INT_LIMIT).all() and (lines <= _INT_LIMIT).all()
    if not within or not known:
        raise ProgramFormatError("the marks of its loops are out of order")
    return marks


def _constants(arrays: dict[str, np.ndarray], allocations: Allocations) -> dict[int, np.ndarray]:
    constants: dict[int, np.ndarray] = {}
    for name, contents in arrays.items():
        if not name.startswith("constant "):
            continue
        text = name[len("constant ") :]
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) >= len(allocations):
            raise ProgramFormatError(f"array {name!r} names no buffer")
        allocation = allocations[int(text)]
        if contents.nbytes != allocation.nbytes or int(text) in constants:
            raise ProgramFormatError(f"array {name!r} does not fill {allocation.describe()}")
        storage = allocation.dtype.numpy
        constants[int(text)] = contents.view(storage).reshape(allocation.shape)
        check_first_contents(allocation, constants[int(text)])
    return constants


def _pattern_to_json(pattern: tuple[tuple[int, int], ...]) -> list[list[int]]:
    return [[int(stride), int(size)] for stride, size in pattern]


def _pattern(value: Any, what: str) -> tuple[tuple[int, int], ...]:
    if type(value) is not list or not 1 <= len(value) <= MOST_DIMENSIONS:
        raise ProgramFormatError(f"{what}: a pattern has 1 to {MOST_DIMENSIONS} [stride, size] pairs")
    pairs = tuple((s, n) for s, n in (_fields(pair, (int, int), what) for pair in value))
    if any(n <= 0 for _, n in pairs) or prod(n for _, n in pairs) > _INT_LIMIT:
        raise ProgramFormatError(f"{what}: sizes must be positive")
    return pairs


def _dtype(name: str, what: str) -> DType:
    if name not in ALL:
        raise ProgramFormatError(f"{what}: unknown dtype {name[:40]!r}")
    return ALL[name]


def _member(kind: type[Enum], name: str, what: str) -> Any:
    if name not in kind.__members__:
        raise ProgramFormatError(f"{what}: unknown {kind.__name__} {name[:40]!r}")
    return kind[name]


def _kind_to_json(kind: Allocation) -> list[Any]:
    address = None if kind.address is None else [int(n) for n in kind.address]
    return [kind.region.name, list(kind.shape), str(kind.dtype), kind.name, kind.line, address]


def _allocations(entries: list[Any], kind_of: np.ndarray, at: np.ndarray, hbm_bytes: int) -> Allocations:
    """All of them. `entries`: their kinds; `kind_of`, `at`: by buffer, its kind and when it is made."""
    if kind_of.ndim != 1 or at.shape != kind_of.shape or len(kind_of) > _ENTRIES["allocations"]:
        raise ProgramFormatError(
            f"buffers of shapes {kind_of.shape} and {at.shape} do not belong together, or too many"
        )
    kinds = tuple(_kind(number, entry, hbm_bytes) for number, entry in enumerate(entries))
    if len(set(kinds)) != len(kinds):
        raise ProgramFormatError("a kind of buffers is there twice")
    if len(kind_of) and (kind_of.min() < 0 or kind_of.max() >= len(kinds)):
        raise ProgramFormatError(f"a buffer is of a kind outside 0..{len(kinds) - 1}")
    first = np.full(len(kinds), len(kind_of))
    first[kind_of[::-1]] = np.arange(len(kind_of))[::-1]  # the last assignment to an index stays
    if (np.diff(first, append=len(kind_of)) <= 0).any():
        raise ProgramFormatError("kinds of buffers are not in the order of their first buffers")
    if len(at) and (at.min() < 0 or at.max() > _INT_LIMIT):
        raise ProgramFormatError("a buffer is made before the program begins, or never")
    counts = np.bincount(kind_of, minlength=len(kinds)).tolist()
    off_chip = sum(kind.nbytes * count for kind, count in zip(kinds, counts) if not kind.region.on_chip)
    if off_chip > hbm_bytes:
        raise ProgramFormatError(f"HBM buffers take {off_chip} bytes, more than the device's {hbm_bytes}")
    return Allocations(kinds, kind_of, at)


def _kind(number: int, entry: Any, hbm_bytes: int) -> Allocation:
    what = f"kind {number} of buffers"
    region_name, shape, dtype_name, name, line, address = _fields(
        entry, (str, list, str, str, int, (list, type(None))), what
    )
    region = _member(MemoryRegion, region_name, what)
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or not 0 < n < _INT_LIMIT for n in shape):
        raise ProgramFormatError(f"{what}: bad shape")
    if address is not None and any(type(n) is not int or not 0 <= n < _INT_LIMIT for n in address):
        raise ProgramFormatError(f"{what}: bad address")
    dtype = _dtype(dtype_name, what)
    _text(name, what)
    if prod(shape) * dtype.itemsize > hbm_bytes:
        raise ProgramFormatError(f"{what}: larger than the device's memory")
    try:
        layout(region, tuple(shape), dtype)
    except NkiError as error:
        raise ProgramFormatError(f"{what}: {error}") from None
    return Allocation(0, region, tuple(shape), dtype, name, line, 0, None if address is None else tuple(address))


def _ref_to_json(ref: TensorRef) -> list[Any]:
    return [ref.allocation, ref.offset, _pattern_to_json(ref.pattern), str(ref.dtype)]


def _input(entry: Any, allocations: Allocations) -> TensorRef:
    """A whole tensor in HBM, as the caller has it."""
    ref = _ref(entry, allocations)
    allocation = allocations[ref.allocation]
    whole = layout(allocation.region, allocation.shape, allocation.dtype).pattern
    if allocation.region not in HBM or (ref.offset, ref.pattern, ref.dtype) != (0, whole, allocation.dtype):
        raise ProgramFormatError(f"an input is not the whole of {allocation.describe()}, in HBM")
    return ref


def _output(entry: Any, allocations: Allocations) -> TensorRef:
    """A view of a tensor in HBM, none of whose elements is there twice."""
    ref = _ref(entry, allocations)
    allocation = allocations[ref.allocation]
    if allocation.region not in HBM:
        raise ProgramFormatError(f"an output lies in {allocation.describe()}, not in HBM")
    if prod(n for _, n in ref.pattern) > allocation.nbytes // ref.dtype.itemsize:
        raise ProgramFormatError(f"an output has more elements than {allocation.describe()}")
    return ref


def _ref(entry: Any, allocations: Allocations) -> TensorRef:
    number, offset, pattern_json, dtype_name = _fields(entry, (int, int, list, str), "tensor reference")
    if not 0 <= number < len(allocations):
        raise ProgramFormatError(f"tensor reference names buffer {number} of {len(allocations)}")
    allocation = allocations[number]
    pattern, dtype = _pattern(pattern_json, "tensor reference"), _dtype(dtype_name, "tensor reference")
    low, high = span(pattern)
    if offset < 0 or offset + low < 0 or offset + high >= allocation.nbytes // dtype.itemsize:
        raise ProgramFormatError(f"tensor reference leaves {allocation.describe()}")
    return TensorRef(number, offset, pattern, dtype)


def _edge(entry: Any, count: int) -> Edge:
    before, after = _fields(entry, (int, int), "edge")
    if not 0 <= before < after < count:
        raise ProgramFormatError(f"edge {before} -> {after} in a program of {count} instructions")
    return Edge(before, after)


def template_to_json(template: Template) -> list[Any]:
    return [
        template.opcode,
        template.engine.name,
        encode_attrs(template.attrs),
        [
            [
                o.role,
                o.access,
                o.region.name,
                str(o.dtype),
                _pattern_to_json(o.pattern),
                o.partition_start,
                o.partition_elements,
                None if o.indirection is None else list(o.indirection),
                o.free_offset,
            ]
            for o in template.operands
        ],
        template.line,
    ]


def _template(entry: Any) -> Template:
    name, engine_name, attrs, operands, line = _fields(
        entry, (str, str, (list, dict, type(None)), list, int), "template"
    )
    opcode = OPCODES.get(name)
    if opcode is None:
        raise ProgramFormatError(f"unknown instruction {name[:40]!r}")
    what = f"template {name}"
    engine = _member(Engine, engine_name, what)
    if engine is Engine.unknown:
        raise ProgramFormatError(f"{what}: engine unknown is resolved when an instruction is recorded")
    parsed = tuple(_operand(operand, what) for operand in operands)
    template = Template(name, engine, decode_attrs(opcode.attrs_type, attrs, what), parsed, line)
    try:
        check_contract(template, opcode.contract)
        opcode.check(template)
        check_operands(template, opcode.contract)
    except NkiError as error:
        raise ProgramFormatError(f"{what}: {error}") from None
    except Exception as error:  # a check that trips over a forged template has found it forged
        raise ProgramFormatError(f"{what}: operands or attributes are not those of {name} ({error!r})") from None
    return template


def _operand(entry: Any, what: str) -> Operand:
    role, access, region_name, dtype_name, pattern, start, elements, indirection, free_offset = _fields(
        entry, (str, str, str, str, list, int, int, (list, type(None)), int), what
    )
    if access not in ("r", "w", "u") or start < 0 or elements < 0 or not 0 <= free_offset <= elements:
        raise ProgramFormatError(f"{what}: operand {role[:40]!r} is damaged")
    region = _member(MemoryRegion, region_name, what)
    if (start and not region.on_chip) or (free_offset and region is not MemoryRegion.psum):
        raise ProgramFormatError(f"{what}: operand {role[:40]!r} has a place that {region!r} has not")
    if region.on_chip != (elements > 0):
        raise ProgramFormatError(f"{what}: operand {role[:40]!r} has a partition size of {elements} in {region!r}")
    steer: tuple[str, int, int, int] | None = None
    if indirection is not None:
        kind, stride, dim, extent = _fields(indirection, (str, int, int, int), what)
        if kind not in ("scalar", "vector") or dim < 0 or extent <= 0:
            raise ProgramFormatError(f"{what}: operand {role[:40]!r} has a damaged indirection")
        steer = (kind, stride, dim, extent)
    dtype, parsed = _dtype(dtype_name, what), _pattern(pattern, what)
    return Operand(role, access, region, dtype, parsed, start, elements, steer, free_offset)


# --- attributes of an instruction -----------------------------------------------------------------


def encode_attrs(attrs: Any) -> Any:
    """A NamedTuple of None, bool, int, float, str, dtypes, enums, tuples and NamedTuples of them."""
    if attrs is None:
        return None
    return [_encode(value) for value in attrs]


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, DType):
        return {"dtype": str(value)}
    if isinstance(value, Enum):
        return {"enum": [type(value).__name__, value.name]}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    raise TypeError(f"an instruction attribute cannot be a {type(value).__name__}: {value!r}")


def decode_attrs(attrs_type: type | None, data: Any, what: str) -> Any:
    """Rebuild attributes. Raises ProgramFormatError unless every field has the type the opcode declares."""
    if attrs_type is None:
        if data is not None:
            raise ProgramFormatError(f"{what} takes no attributes")
        return None
    return _decode(attrs_type, data, what)


def _decode(hint: Any, data: Any, what: str) -> Any:
    if hint is Any:
        return _decode_untyped(data, what)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            try:
                return _decode(option, data, what)
            except ProgramFormatError:
                continue
        raise _mismatch(hint, data, what)
    if hint is None or hint is type(None):
        if data is None:
            return None
    elif hint is float:
        if type(data) is int:
            return data
        if isinstance(data, dict) and type(data.get("float")) is str:
            try:
                return float.fromhex(data["float"])
            except (ValueError, OverflowError):
                pass
    elif hint in (bool, int, str):
        if type(data) is hint:
            return data
        if hint is str and isinstance(data, dict) and data.get("dtype") in ALL:
            return ALL[data["dtype"]]
    elif hint is DType:
        if isinstance(data, dict) and type(data.get("dtype")) is str and data["dtype"] in ALL:
            return ALL[data["dtype"]]
    elif isinstance(hint, type) and issubclass(hint, Enum):
        pair = data.get("enum") if isinstance(data, dict) else None
        if type(pair) is list and len(pair) == 2 and pair[0] == hint.__name__ and type(pair[1]) is str:
            if pair[1] in hint.__members__:
                return hint[pair[1]]
    elif origin is tuple or hint is tuple:
        return _decode_tuple(hint, data, what)
    elif isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        hints = _hints(hint)
        if type(data) is list and len(data) == len(hints):
            return hint(*[_decode(kind, value, f"{what}.{name}") for (name, kind), value in zip(hints.items(), data)])
    raise _mismatch(hint, data, what)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode_tuple(hint: Any, data: Any, what: str) -> tuple[Any, ...]:
    if type(data) is not list:
        raise _mismatch(hint, data, what)
    kinds = typing.get_args(hint)
    if not kinds:
        return tuple(_decode_untyped(value, what) for value in data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], value, what) for value in data)
    if len(kinds) != len(data):
        raise _mismatch(hint, data, what)
    return tuple(_decode(kind, value, what) for kind, value in zip(kinds, data))


def _decode_untyped(data: Any, what: str) -> Any:
    """Any value but an enum, whose class only a declared type can name."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is list:
        return tuple(_decode_untyped(value, what) for value in data)
    if isinstance(data, dict) and "dtype" in data:
        return _decode(DType, data, what)
    return _decode(float, data, what)


def _mismatch(hint: Any, data: Any, what: str) -> ProgramFormatError:
    return ProgramFormatError(f"{what}: {str(data)[:60]} is not a {getattr(hint, '__name__', hint)}")
