"""Numbers of the machine have a source, stand in one place, and are told where they are contested."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from infra.calibration.constants import CONSTANTS
from infra.calibration.model import TimingModel
from nki_sim import dtypes
from nki_sim.machine import ISA, MACHINES, TRN1, TRN2, TRN3, Confidence, InstructionSet, Machine
from nki_sim.profile.profile import measure
from nki_sim.program.program import Program
from nki_sim.timing.calibration import calibrated_machine
from nki_sim.timing.contested import CONTESTED, contested
from nki_sim.timing.schedule import schedule
from tests.nki_sim.machine.traced_kernels import P, filled, instruction, nisa, nl, tile, traced

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data"
MICRO = DATA / "trn2_micro.csv"
KERNELS = [file for file in sorted((*DATA.glob("*.csv"), *DATA.glob("trn2_device/*.csv"))) if file != MICRO]


def read(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


@pytest.mark.parametrize("facts", [ISA, *MACHINES.values()], ids=["every", *MACHINES])
def test_every_number_of_every_generation_names_its_source(facts: InstructionSet | Machine) -> None:
    for field in fields(facts):
        if field.name in ("name", "product", "calibration", "sources"):
            continue
        source = facts.sources[field.name]
        assert source.text.strip(), field.name
        assert source.confidence in get_args(Confidence)


def test_a_fitted_number_names_the_rows_it_was_fitted_to() -> None:
    sources = {**TRN2.sources, **{f"rates {name}": rate.source for name, rate in TRN2.rates.items()}}
    fitted = {name: source.text for name, source in sources.items() if source.confidence == "fitted"}
    assert fitted
    ids = {row["id"] for file in (*KERNELS, MICRO) for row in read(file)}
    for name, text in fitted.items():
        named = set(re.findall(r"\b[A-Z]\d{2,3}\b", text))
        assert named and named <= ids, f"{name}: {text}"


@pytest.mark.parametrize(
    ("core", "bf16", "fp32", "vector", "dma"),
    [
        (TRN2, 78.64e3, 19.66e3, 276.5, 435.2),
        (TRN1, 91.75e3, 22.94e3, 322.6, 272.0),
        (TRN3, 78.64e3, 19.66e3, 307.2, 528.0),
    ],
    ids=["trn2", "trn1", "trn3"],
)
def test_the_peak_rates_follow_from_the_numbers(core, bf16, fp32, vector, dma) -> None:
    assert core.matmul_bf16_flops_per_ns == pytest.approx(bf16, rel=1e-3)
    assert core.matmul_fp32_flops_per_ns == pytest.approx(fp32, rel=1e-3)
    assert core.vector_pool_ops_per_ns == pytest.approx(vector, rel=1e-3)
    assert core.dma_bytes_per_ns == pytest.approx(dma, rel=1e-3)


@pytest.mark.parametrize("core", MACHINES.values(), ids=MACHINES)
def test_a_machine_accepts_what_instructions_are_checked_against(core: Machine) -> None:
    shared = {field.name for field in fields(ISA)} & {field.name for field in fields(core)} - {"sources"}
    assert len(shared) == 7
    assert {name: getattr(core, name) for name in shared} == {name: getattr(ISA, name) for name in shared}


def test_only_trn2_rests_on_measurements_and_it_counts_them() -> None:
    assert [core.name for core in MACHINES.values() if core.calibrated] == ["trn2"]
    kernels = sum(bool(row.get("latency_us") or row.get("measured_us")) for file in KERNELS for row in read(file))
    micro = sum(bool(row["measured_ns"]) for row in read(MICRO))
    assert f"{kernels} whole kernels and {micro} micro rows" in TRN2.calibration


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


HALVES, TRANSPOSE = "half-array products side by side", "4-byte dma_transpose"


def facts(program: Program) -> tuple[str, ...]:
    return contested([schedule(program, TRN2)])


def products(places: Sequence[tuple[int, int]], size: tuple[int, int], waiting: bool = False) -> Program:
    """A product at each of these tiles of the array; `waiting`: each multiplies what the one before computed."""

    def body() -> None:
        left = filled(tile(P, nl.bfloat16))
        right = filled(tile(P, nl.bfloat16))
        for row, column in places:
            rows = slice(row, row + size[0])
            done = tile(P, buffer=nl.psum)
            nisa.nc_matmul(
                dst=done[column : column + size[1], :], stationary=left[rows, : size[1]], moving=right[rows, :],
                tile_position=(row, column), tile_size=size,
            )  # fmt: skip
            if waiting:
                nisa.tensor_copy(dst=right, src=done)

    return instruction(body)


def test_contested_are_the_facts_that_have_words_and_a_probe_on_every_machine() -> None:
    for core in MACHINES.values():
        assert {name for name, source in core.sources.items() if source.confidence == "contested"} == set(CONTESTED)
    assert set(CONTESTED) <= {each.name for each in CONSTANTS if each.beside is not None}


def test_halves_of_the_array_side_by_side_are_contested() -> None:
    assert facts(products([(0, 0), (64, 0)], (64, 128))) == (HALVES,)
    assert facts(products([(0, 0), (32, 0)], (32, 128))) == (HALVES,)


def test_halves_of_the_array_that_wait_for_each_other_are_not() -> None:
    """The same instructions: only when they run tells."""
    assert facts(products([(0, 0), (64, 0)], (64, 128), waiting=True)) == ()


def transposed(dtype: Any) -> Program:
    def body(source: Any, result: Any) -> None:
        turned = tile(P, dtype)
        nisa.dma_transpose(dst=turned, src=source[:, :P])
        nisa.dma_copy(dst=result[:, :P], src=turned)

    return traced(body, P, dtype)


def test_a_transpose_of_four_byte_elements_by_dma_is_contested() -> None:
    assert facts(transposed(dtypes.float32)) == (TRANSPOSE,)
    assert facts(transposed(dtypes.bfloat16)) == ()
    measured = measure(transposed(dtypes.float32))
    assert measured.contested == (TRANSPOSE,) and measured.rests_on[-1] == f"contested: {TRANSPOSE}"


class Measured:
    """A calibration that decided one of them."""

    machine, line, label = "trn2", "calibrated: by a test", "calibrated by a test"
    constants = (("dma_transpose_4byte_slowdown", 4.0),)


def test_a_calibration_that_decides_a_contested_fact_makes_it_a_measured_one() -> None:
    core = calibrated_machine("trn2", Measured())
    assert core.sources["dma_transpose_4byte_slowdown"].confidence == "measured"
    assert core.sources["tensor_tile_slowdown"].confidence == "contested"
    assert contested([schedule(transposed(dtypes.float32), core)]) == ()


@pytest.mark.parametrize("name", CONTESTED)
def test_its_two_probes_decide_it(name: str) -> None:
    """Beside the kernel that rests on it stands one that does not, and the difference follows the fact."""
    (constant,) = (each for each in CONSTANTS if each.name == name)
    model = TimingModel("trn2", constant.kernels, (constant,))
    shown, beside = (model.programs[kernel.name] for kernel in constant.kernels)
    assert facts(shown) == (CONTESTED[name][0],) and facts(beside) == ()
    shipped = getattr(TRN2, name)

    def difference(value: float) -> float:
        core = replace(TRN2, **{name: value})
        return schedule(shown, core).latency_us - schedule(beside, core).latency_us

    more = [difference(factor * shipped) for factor in (1.0, 1.5, 2.0)]
    assert more[2] - more[1] == pytest.approx(more[1] - more[0], rel=0.05) and more[1] - more[0] > 5
