"""Arithmetic of a field, and the model of each instruction in it, say what Python and the simulator say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from nki_sim.contract.opcodes import OPCODES
from nki_sim.execution.executor import execute
from nki_sim.proofs.algebra import Algebra, fraction
from nki_sim.proofs.execution import FieldRun, Input
from nki_sim.proofs.field import MOST_TERMS, SAFE_PRIMES, Field
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


PRIMES = [SAFE_PRIMES[0], SAFE_PRIMES[-1], SAFE_PRIMES[0] // 2]


def elements(field: Field, *shape: int) -> np.ndarray:
    """Random ones, and among them the smallest, the largest and those in the middle."""
    found = np.random.default_rng(3).integers(0, field.prime, shape, np.uint64)
    ends = [0, 1, field.prime - 1, field.prime // 2, field.prime // 2 + 1]
    found.reshape(-1)[: len(ends)] = ends[: found.size]
    return found


@pytest.mark.parametrize("prime", PRIMES)
def test_sums_products_and_quotients(prime):
    field = Field(prime)
    x, y = elements(field, 41), elements(field, 41)[::-1]
    a, b = x.tolist(), y.tolist()

    assert field.add(x, y).tolist() == [(i + j) % prime for i, j in zip(a, b)]
    assert field.subtract(x, y).tolist() == [(i - j) % prime for i, j in zip(a, b)]
    assert field.multiply(x, y).tolist() == [i * j % prime for i, j in zip(a, b)]
    assert int(field.total(x, -1)) == sum(a) % prime
    assert [i * j % prime for i, j in zip(a, field.inverse(x).tolist())] == [int(i != 0) for i in a]
    product = 1
    for i in a[1:]:
        product = product * i % prime
    assert int(field.product(x[1:])) == product


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("terms", [128, MOST_TERMS])
@pytest.mark.parametrize("filled", [False, True])
def test_a_product_of_matrices_is_exact_at_its_longest_and_largest(prime, terms, filled):
    field = Field(prime)
    left, right = elements(field, 5, terms), elements(field, terms, 7)
    if filled:  # all as far from 0 as it goes, with one sign
        left[...] = prime // 2
        right[...] = prime // 2 if terms == MOST_TERMS else prime - 1

    exact = (left.astype(object) @ right.astype(object)) % prime

    assert field.matmul(left, right).tolist() == exact.tolist()
    with pytest.raises(ValueError, match="at most 256"):
        field.matmul(np.ones((1, 257), np.uint64), np.ones((257, 1), np.uint64))


@pytest.mark.parametrize("count", [1, 2, 7, 64, 100])
def test_a_recurrence_in_blocks_is_the_recurrence(count):
    field = Field(PRIMES[0])
    start, factors, terms = elements(field, 3, 1), elements(field, 3, count), elements(field, 3, count)
    expected = []
    for row in range(3):
        state = int(start[row, 0])
        for factor, term in zip(factors[row].tolist(), terms[row].tolist()):
            state = (state * factor + term) % field.prime
            expected.append(state)

    assert field.recurrence(start, factors, terms).reshape(-1).tolist() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, Fraction(0)),
        (-3.0, Fraction(-3)),
        (0.5, Fraction(1, 2)),
        (0.1, Fraction(1, 10)),
        (float(np.float32(0.1)), Fraction(1, 10)),
        (1 - 0.9, Fraction(1, 10)),
        (-1 / 768, Fraction(-1, 768)),
        (float(np.float32(1e-6)), Fraction(1, 1_000_000)),
        (1e20, None),
    ],
)
def test_a_constant_is_the_simplest_fraction_that_float32_takes_for_it(value, expected):
    found = fraction(value)

    assert expected is None or found == expected
    assert np.float32(float(found)) == np.float32(value)


def test_neighbours_in_float32_stay_apart():
    numbers = np.float32(1e-6) * (1 + np.arange(-5, 6) * np.float32(2**-23))
    assert len({fraction(float(number)) for number in numbers}) == len(set(numbers.tolist()))


def test_a_prime_that_would_overflow_is_refused():
    with pytest.raises(ValueError, match="below 2\\^31"):
        Field(2**31 + 11)
