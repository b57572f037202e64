"""The model of an instruction over a field says what the simulator says, where numbers show it: on integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nki_sim.contract.opcodes import OPCODES
from nki_sim.execution.executor import execute
from nki_sim.proofs.algebra import Algebra
from nki_sim.proofs.execution import FieldRun, Input
from nki_sim.proofs.proof import NotProvable
from nki_sim.proofs.rules import RULES
from tests.house.instructions import ARRAYS, CALLS, traced

UNMODELLED = {
    "dropout": "draws random numbers",
    "max8": "a search by value",
    "nc_find_index8": "a search by value",
    "nc_match_replace8": "a search by value",
    "nonzero_with_count": "a search by value",
    "rand_get_state": "reads the generators' state",
    "rand_set_state": "sets the generators' state",
    "rng": "draws random numbers",
    "sequence_bounds": "a search by value",
    "set_rng_seed": "sets the generators' state",
    "topk": "a search by value",
}
"""What is computed from these is not provable, and why they have no rule."""

IN_THE_EXECUTION = {"core_barrier", "sendrecv"}
"""Cores meet there."""

TRANSCENDENTAL = {"activation"}
"""Its call takes an exponential; `test_equivalence` has those."""


def test_every_opcode_has_a_rule_or_a_reason():
    assert set(RULES) | set(UNMODELLED) | IN_THE_EXECUTION == set(OPCODES)
    assert not set(RULES) & set(UNMODELLED)


def whole_numbers() -> list[np.ndarray]:
    """As `ARRAYS`, but small integers where those are floats."""
    random = np.random.default_rng(5)
    found = []
    for name, array in ARRAYS.items():
        if array.dtype.kind in "iu" or name in ("last", "runs"):
            found.append(array)
        else:
            found.append(random.integers(1, 5, array.shape).astype(array.dtype))
    return found


@pytest.mark.parametrize("name", sorted(set(CALLS) - TRANSCENDENTAL))
def test_a_rule_computes_what_the_simulator_computes(name):
    program = traced(name, "trn2").program
    inputs = whole_numbers()
    algebra = Algebra(3)
    run = FieldRun(program, [Input(array.astype(np.int64)) for array in inputs])
    if name in UNMODELLED:
        with pytest.raises(NotProvable, match=f"{name} has no model"):
            run.execute(algebra)
        return

    found = run.execute(algebra).outputs

    for got, numbers in zip(found, execute(program, inputs)):
        exact = np.abs(numbers.astype(np.float64)) < 2**20
        same = got.p == algebra.constants(numbers.astype(np.float64)).p
        assert exact.mean() > 0.1
        # a quotient of quotients is further off in float32 than half of its last bit, and then another fraction
        assert same[exact].mean() >= (0.8 if name == "bn_aggr" else 1.0)


def test_a_program_that_no_tracer_made_is_not_provable():
    program = traced("tensor_tensor", "trn2").program
    forged = [
        replace(t, operands=(*t.operands[:2], replace(t.operands[2], pattern=((64, 32), (1, 7)))))
        if t.opcode == "tensor_tensor"
        else t
        for t in program.templates
    ]
    run = FieldRun(replace(program, templates=tuple(forged)), [Input(None)] * len(ARRAYS))

    with pytest.raises(NotProvable, match="does not fit its model: ValueError: cannot reshape"):
        run.execute(Algebra(3))
