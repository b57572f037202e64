"""Hardware numbers and names of machines stand in `nki_sim/machine.py` and nowhere else."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from nki_sim.machine import ISA, MACHINES

PACKAGE = Path(__file__).resolve().parents[3] / "nki_sim"
MACHINE_NAME = re.compile(r"\b(trn|inf|gen)\d\b|\bTrainium\d\b")

SMALLEST = 16
"""Whole numbers below it are mostly counts of other things."""
POWERS = {2**n for n in range(4, 21)}

OTHER_MEANINGS = {
    "isa/arithmetic/numerics.py": {4096: "entries of a cache"},
    "isa/prng.py": {32: "bits of a random word"},
    "isa/registers/registers.py": {32: "bits of a register"},
    "isa/tensor_engine.py": {64: "entries of a cache"},
    "nki/language/creation.py": {2048: "our own choice of a fill tile's width"},
    "encoding/canonical.py": {16: "bytes of a digest"},
    "contract/contracts.py": {16: "most dimensions of a tensor", 64: "bits of an attribute"},
    "migrate/operands.py": {16: "characters of an expression that is not written twice"},
    "proofs/algebra.py": {16: "powers of two that integers are looked up by", 4096: "entries of a cache"},
    "proofs/equivalence.py": {16: "how the original's unwritten memory is told from the candidate's"},
    "proofs/field.py": {256: "terms that float64 adds up exactly", 4096: "entries of a cache"},
    "proofs/operators.py": {16: "powers written out as products"},
    "program/passes.py": {32: "loops inside each other"},
    "checks/precision.py": {64: "extents of a buffer remembered", 128: "exponents of float32"},
    "loop_ir/writing.py": {64: "elements of a constant that are written one by one"},
    "machine_code.py": {16: "characters of a digest"},
    "program/region_lists.py": {64: "entries of a table to begin with"},
    "timing/list_scheduler.py": {64: "idle gaps remembered, slices of time to grow by"},
}
"""By file: numbers that a machine has as well, and what they are there."""


def numbers_of_machines() -> set[tuple[type, float]]:
    """With their types: 7.0 ns are no seven words."""
    values: list[object] = []
    for facts in (ISA, *MACHINES.values()):
        for field in fields(facts):
            value = getattr(facts, field.name)
            values += value if isinstance(value, tuple) else [value]
    for core in MACHINES.values():
        values += [number for rate in core.rates.values() for number in (rate.fixed, rate.minimum)]
    return {
        (type(value), value)
        for value in values
        if (type(value) is float and value not in (0.0, 0.5, 1.0, 2.0, 4.0))
        or (type(value) is int and value >= SMALLEST)
    }


def hardware_numbers(source: str, allowed: dict[float, str]) -> list[str]:
    """What a file says of hardware in numbers: `line: number`."""
    known = numbers_of_machines() | {(int, power) for power in POWERS}
    return [
        f"{node.lineno}: {node.value}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and (type(node.value), node.value) in known
        and node.value not in allowed
    ]


def names_of_machines(source: str) -> list[str]:
    """Strings that name a machine: `line: string`. Docstrings may."""
    tree = ast.parse(source)
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"{node.lineno}: {node.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in spoken
        and MACHINE_NAME.search(node.value)
    ]


def files() -> list[str]:
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.name != "machine.py")


@pytest.mark.parametrize("file", files())
def test_a_file_of_the_simulator_has_no_hardware_number_and_no_machine_of_its_own(file: str) -> None:
    source = (PACKAGE / file).read_text(encoding="utf-8")
    found = hardware_numbers(source, OTHER_MEANINGS.get(file, {})) + names_of_machines(source)
    assert not found, f"nki_sim/{file}: put it into nki_sim/machine.py, with its source: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "LIMIT = 128",
        "bank = x // 2048",
        "ns = 1283.0",
        "clock_ghz = 0.96",
        "if machine == 'trn2': pass",
        "t = f'{x}: gen3'",
    ],
)
def test_a_number_or_a_name_that_slips_in_is_found(line: str) -> None:
    assert hardware_numbers(line, {}) + names_of_machines(line)


def test_what_is_allowed_is_still_there() -> None:
    for file, allowed in OTHER_MEANINGS.items():
        source = (PACKAGE / file).read_text(encoding="utf-8")
        for number in allowed:
            assert hardware_numbers(source, {other: "" for other in allowed if other != number}), (file, number)
