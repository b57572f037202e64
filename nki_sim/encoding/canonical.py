"""Is this the same program as that one? Told by a digest of the program in its canonical form.

Names, comments, source lines, what is declared and never used, and the order in which buffers are declared are no part
of it. All that decides what a program computes and how long it takes is: the instructions in their order, and what each
touches.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np

from nki_sim.by_object import by_object
from nki_sim.encoding.program_file import template_to_json
from nki_sim.program.memory import MemoryRegion
from nki_sim.program.program import Bound, Program, Template, TensorRef


def digest(program: Program) -> str:
    """32 hexadecimal digits: the same for programs that compute the same bits in the same time.

    Programs that differ in their digests may still do so.
    """
    found = hashlib.blake2b(digest_size=16)
    used, numbers = _in_order_of_use(program)
    known: dict[Template, int] = {}
    of_template = np.array([known.setdefault(_plain(each), len(known)) for each in program.templates], np.int64)
    instructions = of_template[program.template_ids]
    met, template_numbers = _first_come(instructions, len(known))
    plain = list(known)
    templates = ",".join(_text(plain[number]) for number in met.tolist())
    kinds, kind_of = _kinds(program, used)
    header = {
        "machine": program.machine,
        "returns_tuple": program.returns_tuple,
        "buffers": kinds,
        "lengths": [len(program.template_ids), len(program.operand_data), len(used)],
        "shared": _shared(program, numbers) if program.peers else [],
        "inputs": [_place(ref, numbers) for ref in program.inputs],
        "outputs": [_place(ref, numbers) for ref in program.outputs],
        "loops": [
            [loop.kind, loop.start, loop.end, _number(loop.counter, numbers), _bound(loop.lower, numbers),
             _bound(loop.upper, numbers), loop.step, _number(loop.next, numbers)]
            for loop in program.loops
        ],
        "edges": [[edge.before, edge.after] for edge in program.edges],
        "constants": sorted(
            (int(numbers[number]), hashlib.blake2b(np.ascontiguousarray(contents).tobytes()).hexdigest())
            for number, contents in program.constants.items()
        ),
        "peers": [digest(peer) for peer in program.peers],
    }  # fmt: skip
    found.update(f'{_json(header)[:-1]},"templates":[{templates}]}}'.encode())  # the last key in order
    operands = program.operand_data.astype("<i8")
    operands[:, 0] = numbers[operands[:, 0]]
    for array in (template_numbers[instructions], program.operand_starts, operands, kind_of):
        found.update(np.ascontiguousarray(array, "<i8").tobytes())
    return found.hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, default=int)


@by_object
def _text(template: Template) -> str:
    return _json(template_to_json(template))


@by_object
def _plain(template: Template) -> Template:
    """Without its line. A dimension of one element is never stepped through: its stride says nothing."""
    operands = tuple(
        replace(operand, pattern=tuple((stride if n > 1 else 1, n) for stride, n in operand.pattern))
        for operand in template.operands
    )
    return replace(template, line=0, operands=operands)


def _first_come(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64, the values that occur in the order of their first occurrence; int64 [count], each one's place there, -1
    for one that does not occur). `values`: integers below `count`."""
    first = np.full(count, len(values), np.int64)
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1)
    order = np.argsort(first, kind="stable")
    order = order[first[order] < len(values)]
    numbers = np.full(count, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return order, numbers


def _in_order_of_use(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """As `_first_come`, of the buffers that instructions, loops, inputs, outputs or constants name."""
    beside = [
        *(ref.allocation for ref in (*program.inputs, *program.outputs)),
        *(
            register
            for loop in program.loops
            for register in (loop.counter, loop.lower.register, loop.upper.register, loop.next)
            if register is not None and register >= 0
        ),
        *program.constants,
    ]
    named = np.concatenate((program.operand_data[:, 0], np.array(beside, np.int64)))
    return _first_come(named, len(program.allocations))


def _kinds(program: Program, used: np.ndarray) -> tuple[list[list[object]], np.ndarray]:
    """(what the buffers `used` are, each once, in the order of the first; int64 [used], which of these each is)."""
    kinds = program.allocations.kinds
    met, _ = _first_come(program.allocations.kind_of[used], len(kinds))
    numbers = np.zeros(len(kinds), np.int64)
    different: dict[str, tuple[int, list[object]]] = {}
    for at in met.tolist():
        kind = kinds[at]
        address = None if kind.address is None else [int(n) for n in kind.address]
        said = [kind.region.name, kind.shape, str(kind.dtype), address]
        numbers[at], _ = different.setdefault(repr(said), (len(different), said))  # of two names, one kind
    return [said for _, said in different.values()], numbers[program.allocations.kind_of[used]]


def _shared(program: Program, numbers: np.ndarray) -> list[list[object]]:
    """In the order by which two cores know them: the nth of each is the same memory."""
    return [[int(numbers[a.id]), a.shape, str(a.dtype)] for a in program.allocations.in_region(MemoryRegion.shared_hbm)]


def _number(buffer: int, numbers: np.ndarray) -> int:
    return int(numbers[buffer]) if buffer >= 0 else -1


def _bound(bound: Bound, numbers: np.ndarray) -> list[int]:
    return [bound.value, -1 if bound.register is None else int(numbers[bound.register])]


def _place(ref: TensorRef, numbers: np.ndarray) -> list[object]:
    """A dimension of one element is never stepped through: its stride is that of a tensor without gaps."""
    pattern: list[tuple[int, int]] = []
    for stride, n in reversed(ref.pattern):
        inner = pattern[-1][0] * pattern[-1][1] if pattern else 1
        pattern.append((stride if n > 1 else inner, n))
    return [int(numbers[ref.allocation]), ref.offset, tuple(reversed(pattern)), str(ref.dtype)]
