"""Programs as files: plain bytes that can be shipped and are trusted in nothing.

Layout: 8 bytes magic, 8 bytes header length (little endian), a JSON header, then the arrays that the
header lists, back to back. No pickle. `load` checks every field, so a program made by a process that
ran somebody's kernel can be read by one that must not be fooled: a damaged or forged file raises
ProgramFormatError, and costs no more memory than a small multiple of its own size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import Enum
from math import prod
from typing import Any

import numpy as np

from nki_sim.array_tiles import check_array_tiles
from nki_sim.attributes import decode_attrs, encode_attrs
from nki_sim.dtypes import ALL, DType, int32
from nki_sim.errors import NkiError, ProgramFormatError
from nki_sim.machine import ISA, MACHINES
from nki_sim.memory import Allocation, MemoryRegion, layout
from nki_sim.opcodes import OPCODES
from nki_sim.operands import check_operands
from nki_sim.program import Bound, Edge, Engine, Loop, Operand, Program, Template, TensorRef

FORMAT_VERSION = 4
MAGIC = b"NKIPROG\n"
MAX_BUFFERS = 1 << 24
MAX_RANK = 16
_ARRAYS = {"template_ids": "<i4", "operand_starts": "<i8", "operand_data": "<i8"}
_INT_LIMIT = 1 << 48


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
    arrays: list[tuple[str, np.ndarray]] = [
        (name, np.ascontiguousarray(getattr(program, name), kind)) for name, kind in _ARRAYS.items()
    ]
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
        "templates": [_template_to_json(template) for template in program.templates],
        "allocations": [_allocation_to_json(allocation) for allocation in program.allocations],
        "inputs": [_ref_to_json(ref) for ref in program.inputs],
        "outputs": [_ref_to_json(ref) for ref in program.outputs],
        "loops": [_loop_to_json(loop) for loop in program.loops],
        "edges": [[edge.before, edge.after] for edge in program.edges],
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays],
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *[array.tobytes() for _, array in arrays]])


def loads(data: bytes) -> Program:
    """The program in `data`. Raises ProgramFormatError."""
    return _loads(data, may_have_peers=True)


def _loads(data: bytes, may_have_peers: bool) -> Program:
    if data[: len(MAGIC)] != MAGIC:
        raise ProgramFormatError("not a program file: the first 8 bytes differ; make it with nki_sim.program_file.dump")
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if start + length > len(data):
        raise ProgramFormatError(f"truncated: the header needs {length} bytes, {len(data) - start} are there")
    try:
        header = json.loads(data[start : start + length])
    except (ValueError, RecursionError) as error:
        raise ProgramFormatError(f"the header is not JSON: {error}") from None
    reader = _Reader(header)
    version = reader.integer("version")
    if version != FORMAT_VERSION:
        raise ProgramFormatError(f"format version {version}, not {FORMAT_VERSION}: dump it again with this simulator")
    name = reader.text("machine")
    if name not in MACHINES:
        raise ProgramFormatError(f"machine {name!r}: one of {', '.join(MACHINES)}")
    hbm_bytes = MACHINES[name].device_hbm_bytes
    arrays = _arrays(reader, data, start + length)
    allocations = tuple(_allocation(i, entry, hbm_bytes) for i, entry in enumerate(reader.list("allocations")))
    if len(allocations) > MAX_BUFFERS:
        raise ProgramFormatError(f"{len(allocations)} buffers, more than {MAX_BUFFERS}")
    off_chip = sum(a.nbytes for a in allocations if not a.region.on_chip)
    if off_chip > hbm_bytes:
        raise ProgramFormatError(f"HBM buffers take {off_chip} bytes, more than the device's {hbm_bytes}")
    templates = tuple(_template(entry) for entry in reader.list("templates"))
    constants = _constants(arrays, allocations)
    count = len(arrays["template_ids"])
    program = Program(
        kernel_name=reader.text("kernel_name"),
        machine=name,
        templates=templates,
        allocations=allocations,
        template_ids=arrays["template_ids"],
        operand_starts=arrays["operand_starts"],
        operand_data=arrays["operand_data"],
        inputs=tuple(_ref(entry, allocations) for entry in reader.list("inputs")),
        outputs=tuple(_ref(entry, allocations) for entry in reader.list("outputs")),
        returns_tuple=reader.boolean("returns_tuple"),
        constants=constants,
        edges=tuple(_edge(entry, count) for entry in reader.list("edges")),
        source_file=reader.text("source_file"),
        loops=_loops(reader.list("loops"), count, allocations),
        peers=tuple(_peers(arrays, may_have_peers)),
    )
    if not program.returns_tuple and len(program.outputs) > 1:
        raise ProgramFormatError(f"{len(program.outputs)} outputs, but it returns no tuple")
    numbers = [ref.allocation for ref in program.inputs]
    if len(set(numbers)) != len(numbers):
        raise ProgramFormatError("two inputs share a buffer")
    check_stream(program)
    try:
        check_array_tiles(program)
    except NkiError as error:
        raise ProgramFormatError(str(error)) from None
    shared = [(a.shape, a.dtype) for a in allocations if a.region is MemoryRegion.shared_hbm]
    for peer in program.peers:
        if shared != [(a.shape, a.dtype) for a in peer.allocations if a.region is MemoryRegion.shared_hbm]:
            raise ProgramFormatError("the cores' shared_hbm buffers differ")
    return program


def _peers(arrays: dict[str, np.ndarray], allowed: bool) -> Iterator[Program]:
    numbers = [name for name in arrays if name.startswith("peer ")]
    most = ISA.logical_core_cores - 1 if allowed else 0
    if numbers != [f"peer {i}" for i in range(len(numbers))] or len(numbers) > most:
        raise ProgramFormatError("a program has at most one peer, which has none")
    for name in numbers:
        yield _loads(arrays[name].tobytes(), may_have_peers=False)


def _loop_to_json(loop: Loop) -> list[Any]:
    bounds = [[b.value, b.register] for b in (loop.lower, loop.upper)]
    return [loop.kind, loop.start, loop.end, loop.counter, *bounds, loop.step, loop.next]


def _loops(entries: list[Any], rows: int, allocations: tuple[Allocation, ...]) -> tuple[Loop, ...]:
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
    for at, loop in enumerate(loops):
        for other in loops[at + 1 :]:
            nested = other.start >= loop.start and other.end <= loop.end
            if other.start < loop.start or not (nested or other.start >= loop.end):
                raise ProgramFormatError("loops cross each other")
    if len(loops) > 10_000:
        raise ProgramFormatError(f"{len(loops)} loops, more than 10000")
    return tuple(loops)


def check_stream(program: Program) -> None:
    """Every row must name a template and give each of its operands a buffer it stays inside.

    Raises ProgramFormatError naming the first row that does not.
    """
    ids, starts, data = program.template_ids, program.operand_starts, program.operand_data
    templates, allocations = program.templates, program.allocations
    if ids.ndim != 1 or starts.shape != (len(ids) + 1,) or data.ndim != 2 or data.shape[1] != 2:
        raise ProgramFormatError(f"stream shapes {ids.shape}, {starts.shape}, {data.shape} do not belong together")
    if len(ids) and (ids.min() < 0 or ids.max() >= len(templates)):
        raise ProgramFormatError(f"a row names a template outside 0..{len(templates) - 1}")
    operand_counts = np.array([len(t.operands) for t in templates] or [0], np.int64)
    expected = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(operand_counts[ids], out=expected[1:])
    if not np.array_equal(starts, expected) or len(data) != expected[-1]:
        raise ProgramFormatError("the rows' operand counts are not their templates'")
    if not len(data):
        return
    if data[:, 0].min() < 0 or data[:, 0].max() >= len(allocations):
        raise ProgramFormatError(f"an operand names a buffer outside 0..{len(allocations) - 1}")
    _check_operands(program, operand_counts)


def _check_operands(program: Program, operand_counts: np.ndarray) -> None:
    templates, allocations = program.templates, program.allocations
    operands = [operand for template in templates for operand in template.operands]
    first = np.zeros(len(operand_counts), np.int64)
    np.cumsum(operand_counts[:-1], out=first[1:])
    counts = operand_counts[program.template_ids]
    rows = np.repeat(np.arange(len(program.template_ids)), counts)
    which = np.repeat(first[program.template_ids], counts) + np.arange(len(rows)) - program.operand_starts[rows]
    buffers, offsets = program.operand_data[:, 0], program.operand_data[:, 1]
    regions = list(MemoryRegion)
    buffer_region = np.array([regions.index(a.region) for a in allocations], np.int64)
    buffer_bytes = np.array([a.nbytes for a in allocations], np.int64)
    buffer_row_bytes = np.array([a.partition_bytes if a.region.on_chip else 0 for a in allocations], np.int64)
    spans = np.array([_span(o.pattern) for o in operands], np.int64).reshape(-1, 2)
    item = np.array([o.dtype.itemsize for o in operands], np.int64)
    region = np.array([regions.index(o.region) for o in operands], np.int64)
    row_bytes = np.array([o.partition_elements * o.dtype.itemsize for o in operands], np.int64)
    partition_start = np.array([o.partition_start for o in operands], np.int64)
    free_offset = np.array([o.free_offset for o in operands], np.int64)
    row_elements = np.maximum(np.array([o.partition_elements for o in operands], np.int64), 1)

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            operand = operands[int(which[at])]
            raise ProgramFormatError(
                f"instruction {int(rows[at])}, {operand.role}{list(operand.shape)} at offset {int(offsets[at])} "
                f"of {allocations[int(buffers[at])].describe()}: {why}"
            )

    refuse(buffer_region[buffers] != region[which], "the template is for another memory")
    refuse((buffer_row_bytes[buffers] != row_bytes[which]), "the template is for another partition size")
    limit = buffer_bytes[buffers] // item[which]
    refuse(
        (offsets < 0) | (offsets >= limit) | (offsets + spans[which, 0] < 0) | (offsets + spans[which, 1] >= limit),
        "the access leaves its buffer",
    )
    on_chip = row_bytes[which] > 0
    refuse(on_chip & (offsets // row_elements[which] != partition_start[which]), "the start partition differs")
    in_psum = region[which] == regions.index(MemoryRegion.psum)
    refuse(in_psum & (offsets % row_elements[which] != free_offset[which]), "the place in the partition differs")


def _span(pattern: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Lowest and highest element touched, relative to the offset."""
    low = sum(min(0, s * (n - 1)) for s, n in pattern)
    high = sum(max(0, s * (n - 1)) for s, n in pattern)
    return low, high


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
        return str(self._get(name, str))

    def boolean(self, name: str) -> bool:
        return bool(self._get(name, bool))

    def list(self, name: str) -> list[Any]:
        value: list[Any] = self._get(name, list)
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
        expected = _ARRAYS.get(name, "|u1")
        known = name in _ARRAYS or name.startswith(("constant ", "peer "))
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


def _constants(arrays: dict[str, np.ndarray], allocations: tuple[Allocation, ...]) -> dict[int, np.ndarray]:
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
        if allocation.region.on_chip:
            raise ProgramFormatError(
                f"array {name!r}: {allocation.describe()} is filled by instructions, not before them"
            )
        storage = allocation.dtype.numpy
        constants[int(text)] = contents.view(storage).reshape(allocation.shape)
    return constants


def _pattern_to_json(pattern: tuple[tuple[int, int], ...]) -> list[list[int]]:
    return [[int(stride), int(size)] for stride, size in pattern]


def _pattern(value: Any, what: str) -> tuple[tuple[int, int], ...]:
    if type(value) is not list or not 1 <= len(value) <= MAX_RANK:
        raise ProgramFormatError(f"{what}: a pattern has 1 to {MAX_RANK} [stride, size] pairs")
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


def _allocation_to_json(a: Allocation) -> list[Any]:
    address = None if a.address is None else [int(n) for n in a.address]
    return [a.region.name, list(a.shape), str(a.dtype), a.name, a.line, a.allocated_at, address]


def _allocation(number: int, entry: Any, hbm_bytes: int) -> Allocation:
    what = f"buffer {number}"
    region_name, shape, dtype_name, name, line, at, address = _fields(
        entry, (str, list, str, str, int, int, (list, type(None))), what
    )
    region = _member(MemoryRegion, region_name, what)
    if len(shape) > MAX_RANK or any(type(n) is not int or not 0 < n < _INT_LIMIT for n in shape):
        raise ProgramFormatError(f"{what}: bad shape")
    if address is not None and any(type(n) is not int or not 0 <= n < _INT_LIMIT for n in address):
        raise ProgramFormatError(f"{what}: bad address")
    dtype = _dtype(dtype_name, what)
    if prod(shape) * dtype.itemsize > hbm_bytes:
        raise ProgramFormatError(f"{what}: larger than the device's memory")
    try:
        layout(region, tuple(shape), dtype)
    except NkiError as error:
        raise ProgramFormatError(f"{what}: {error}") from None
    return Allocation(number, region, tuple(shape), dtype, name, line, at, None if address is None else tuple(address))


def _ref_to_json(ref: TensorRef) -> list[Any]:
    return [ref.allocation, ref.offset, _pattern_to_json(ref.pattern), str(ref.dtype)]


def _ref(entry: Any, allocations: tuple[Allocation, ...]) -> TensorRef:
    number, offset, pattern_json, dtype_name = _fields(entry, (int, int, list, str), "tensor reference")
    if not 0 <= number < len(allocations):
        raise ProgramFormatError(f"tensor reference names buffer {number} of {len(allocations)}")
    allocation = allocations[number]
    pattern, dtype = _pattern(pattern_json, "tensor reference"), _dtype(dtype_name, "tensor reference")
    low, high = _span(pattern)
    if offset < 0 or offset + low < 0 or offset + high >= allocation.nbytes // dtype.itemsize:
        raise ProgramFormatError(f"tensor reference leaves {allocation.describe()}")
    return TensorRef(number, offset, pattern, dtype)


def _edge(entry: Any, count: int) -> Edge:
    before, after = _fields(entry, (int, int), "edge")
    if not 0 <= before < after < count:
        raise ProgramFormatError(f"edge {before} -> {after} in a program of {count} instructions")
    return Edge(before, after)


def _template_to_json(template: Template) -> list[Any]:
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
    for at, operand in enumerate(parsed):
        if operand.indirection is not None and (at + 1 == len(parsed) or parsed[at + 1].indirection is not None):
            raise ProgramFormatError(f"{what}: the indirect operand {operand.role} has no index behind it")
    template = Template(name, engine, decode_attrs(opcode.attrs_type, attrs, what), parsed, line)
    try:
        opcode.check(template)
        check_operands(template, opcode.operands)
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
