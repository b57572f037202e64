"""What every instruction of `nki.isa` must have. What a new one is made of: docs/extending.md."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import nki_sim.isa
from nki_sim.contract.opcodes import OPCODES
from nki_sim.encoding import program_file
from nki_sim.encoding.canonical import digest
from nki_sim.errors import NkiError, NotSupported
from nki_sim.isa.generations import MODES_SINCE, SINCE
from nki_sim.lint import VERSIONS
from nki_sim.loop_ir.reading import read
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.writing import written
from nki_sim.machine import ISA, MACHINES, SIMULATED_VERSION
from nki_sim.nki import isa as nisa
from nki_sim.profile import profile
from nki_sim.reference import api_reference
from nki_sim.timing.cost import OPERATIONS, cost
from tests.house import instructions
from tests.house.instructions import (
    ARRAYS,
    CALLS,
    functions,
    inputs,
    results,
    simulated,
    through_a_file,
    traced,
    untouched,
)
from tests.house.structure import ROOT
from tests.kernel_texts import HEADER, kernel_of

EVERY = pytest.mark.parametrize("name", simulated())
ON_EVERY = pytest.mark.parametrize("machine", MACHINES)

NO_RESULT = {
    "core_barrier", "rand_set_state", "register_alloc", "register_load", "register_move", "scalar_load", "set_rng_seed",
}  # fmt: skip
"""They write no tile."""
OF_THE_ENGINE = {"accumulators", "state"}
"""Operands that are registers of the engine and no argument of the call."""

COUNTS_NONE = {
    # moves or fills
    "iota", "local_gather", "memset", "nc_n_gather", "nc_stream_shuffle", "tensor_copy", "tensor_copy_predicated",
    "rand_get_state", "rand_set_state", "rng", "set_rng_seed",
    # searches and statistics, for which NKIBench counts nothing
    "bn_aggr", "bn_stats", "max8", "nc_find_index8", "nc_match_replace8", "nonzero_with_count", "sequence_bounds",
    "topk",
}  # fmt: skip
"""Opcodes of Vector, Scalar and GpSimd that are no arithmetic: all others are in `cost.OPERATIONS`."""


def test_every_instruction_of_an_engine_is_exposed() -> None:
    issuing = set()
    for info in pkgutil.walk_packages(nki_sim.isa.__path__, "nki_sim.isa."):
        module = importlib.import_module(info.name)
        for name, each in vars(module).items():
            if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_"):
                if inspect.signature(each).return_annotation in ("Instruction", "NkiScalar", "VirtualRegister"):
                    issuing.add(name)
    assert issuing <= set(functions()), "import them in nki_sim/nki/isa/__init__.py and list them in its __all__"
    assert not [name for name in nisa.__all__ if name not in vars(nisa)], "listed, and not imported"


def test_every_opcode_belongs_to_an_instruction() -> None:
    assert set(CALLS) == set(simulated()), "tests/house/instructions.py has a small call of each"
    issued = {template.opcode for name in CALLS for template in traced(name, "trn2").own}
    assert issued == set(OPCODES), "defined, and issued by no instruction"


@cache
def texts_of_tests() -> str:
    found = sorted((ROOT / "tests" / "nki_sim").rglob("test_*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


@pytest.mark.parametrize("name", sorted(functions()))
def test_tests_of_the_simulator_name_it(name: str) -> None:
    named = re.search(rf'nisa\.{name}\(|"{name}"', texts_of_tests())
    assert named or name == "get_nc_sub_version", f"no test in tests/nki_sim calls {name}"


@EVERY
def test_the_executor_runs_it(name: str) -> None:
    """The program runs on arrays, in which no Python of the kernel takes part."""
    written = results(traced(name, "trn2").program)
    assert bool(written) != (name in NO_RESULT)
    assert not [array for array in written if untouched(array)], "its compute writes nothing"


@EVERY
def test_it_goes_through_a_program_file(name: str) -> None:
    program = traced(name, "trn2").program
    stored = through_a_file(program)
    assert stored.templates == program.templates
    assert program_file.dumps(stored) == program_file.dumps(program)
    for array, again in zip(results(program), results(stored), strict=True):
        np.testing.assert_array_equal(array.view(np.uint8), again.view(np.uint8))


@EVERY
def test_its_check_refuses_a_template_that_is_not_its_own(name: str) -> None:
    """What a candidate's process leaves is forged at will; `check` is all that stands before `compute`."""
    for template in traced(name, "trn2").own:
        if template.opcode in ("core_barrier", "register_set"):  # of one operand, whose shape does not matter
            continue
        at = next(i for i, operand in enumerate(template.operands) if operand.role not in OF_THE_ENGINE)
        (stride, _), *free = template.operands[at].pattern
        tall = list(template.operands)
        tall[at] = replace(tall[at], pattern=((stride, ISA.partitions + 1), *free))
        for operands in ((), tuple(tall)):
            with pytest.raises((NkiError, LookupError, ValueError)):
                OPCODES[template.opcode].check(replace(template, operands=operands))


@ON_EVERY
@EVERY
def test_it_has_a_cost_on_every_machine(name: str, machine: str) -> None:
    core, call = MACHINES[machine], traced(name, machine)
    for template in call.own:
        paid = cost(template, core)
        assert paid.busy_ns > 0 and paid.busy_ns == paid.busy_ns
        assert paid.latency_ns >= 0
    assert profile.measure(call.program).latency_us > 0


def test_it_counts_as_arithmetic_or_is_said_not_to() -> None:
    templates = [template for name in CALLS for template in traced(name, "trn2").own]
    elementwise = {each.opcode for each in templates if each.engine.name in ("vector", "scalar", "gpsimd")}
    uncounted = elementwise - set(OPERATIONS) - COUNTS_NONE - {"core_barrier"}
    assert not uncounted, "add them to OPERATIONS of nki_sim/timing/cost.py, or to COUNTS_NONE here"
    assert not COUNTS_NONE & set(OPERATIONS)
    assert set(OPERATIONS) | COUNTS_NONE <= set(OPCODES) | set(functions())


@cache
def api_text(machine: str) -> str:
    return api_reference("import nki", machine, VERSIONS[-1:], also=" ".join(functions()))


@ON_EVERY
@EVERY
def test_a_model_reads_of_it_where_the_machine_has_it(name: str, machine: str) -> None:
    text = api_text(machine)
    shown = re.search(rf"nisa\.{name}\(.*\)`? *\n?(.*)", text)
    has = SINCE.get(name, 0) <= MACHINES[machine].neuron_core_version
    assert bool(shown) == has
    assert len((functions()[name].__doc__ or "").partition("\n")[0]) > 20, "its docstring is what a model reads of it"


def test_what_came_with_a_generation_is_there() -> None:
    assert set(SINCE) <= set(functions())
    for enum, member in MODES_SINCE:
        assert member in getattr(nisa, enum).__members__


@pytest.mark.parametrize("name", sorted(set(functions()) - set(simulated()) - instructions.QUERIES))
def test_one_that_is_not_simulated_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(NotSupported, match=rf"nisa\.{name} needs \w+ .*: \w+ .*nisa\.\w+"):
        functions()[name]()
    assert SINCE[name] > SIMULATED_VERSION


@EVERY
def test_its_text_is_the_same_program(name: str) -> None:
    """Read as a loop tree and written out, as every kernel of the catalogue is."""
    program = traced(name, "trn2").program
    text = written([read(program)], KernelText(f"{HEADER}def kernel({', '.join(ARRAYS)}):\n    return a\n", "kernel"))
    again = nki_sim.trace(kernel_of(text), *inputs(), machine="trn2")
    assert digest(again) == digest(program), f"{name} is written as another: nki_sim/loop_ir/spelling.py"
