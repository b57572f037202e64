"""Domains of inputs: what they are found to be, and what the judge puts in place of an input's own values."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.judging.inputs.domains import Kind, Movement, moved_inputs, movements
from accelopt_core.judging.reference.verification import Reference, ReferenceCache
from accelopt_core.task import Domain
from infra.tasks.seed_index import task_from_text

SEEDS = (0, 1, 2)
ROWS, COLUMNS = 16, 24


def drawn(make: Callable[[np.random.Generator], np.ndarray]) -> list[list[np.ndarray]]:
    """Three draws of an input."""
    return [[make(np.random.default_rng(seed))] for seed in SEEDS]


def found(draws: list[list[np.ndarray]], *declared: Domain) -> Movement | None:
    return movements(draws, dict(enumerate(declared)))[0]


INTEGERS: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], float, float]] = {
    "lengths of the most": (lambda draw: np.full((ROWS, 1), 64, np.int32), 1, 64),
    "one length": (lambda draw: np.array([48], np.int32), 1, 48),
    "indices": (lambda draw: draw.permutation(200)[:ROWS].astype(np.int32)[:, None], 0, 199),
    "every index once": (lambda draw: draw.permutation(COLUMNS).astype(np.int32), 0, COLUMNS - 1),
    "places in their order": (lambda draw: np.arange(COLUMNS, dtype=np.int64), 0, COLUMNS - 1),
    "offsets of parts": (lambda draw: np.array([0, 5, 5, 40, 64], np.int32), 0, 64),
    "some of a table's rows, each once": (lambda draw: draw.permutation(99)[:7].astype(np.int32), 0, 98),
    "quantised": (lambda draw: draw.integers(-8, 8, (ROWS, COLUMNS)).astype(np.int8), -8, 7),
    "a mask": (lambda draw: np.ones((ROWS, COLUMNS), np.int32), 0, 1),
    "truths": (lambda draw: np.ones((ROWS, COLUMNS), np.bool_), 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_stay_in_their_range_reach_its_ends_and_all_change(name: str) -> None:
    make, low, high = INTEGERS[name]
    draws = drawn(make)
    movement = found(draws)
    assert movement is not None and movement.low >= low and movement.high <= high
    own = draws[0][0]
    seen = []
    for seed in range(8):
        one, other = (moved_inputs([own], [movement], seed, complement)[0] for complement in (False, True))
        for each in (one, other):
            assert each.dtype == own.dtype and each.shape == own.shape
            assert each.min() >= movement.low and each.max() <= movement.high
            if movement.ascending and not movement.distinct:
                assert (np.diff(each, axis=-1) >= 0).all()
            if movement.distinct:
                assert all(len(set(row)) == len(row) for row in each.reshape(-1, each.shape[-1]))
        seen += [one, other]
        if own.size > 1 and not (movement.ascending or movement.distinct):
            assert (one != other).all(), "a kernel that reads all but one element must see that one change"
    ends = {int(each.min()) for each in seen} | {int(each.max()) for each in seen}
    assert {int(movement.low), int(movement.high)} <= ends
    assert any((each != own).any() for each in seen)


CONSTANT: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], Kind | None]] = {
    "normal": (lambda draw: draw.normal(size=(ROWS, COLUMNS)).astype(np.float32), None),
    "zeros": (lambda draw: np.zeros((ROWS, COLUMNS), np.float32), Kind.CONSTANT),
    "ones in bfloat16": (lambda draw: np.ones((ROWS, COLUMNS), ml_dtypes.bfloat16), Kind.CONSTANT),
    "a mask to be added": (lambda draw: np.triu(np.full((ROWS, ROWS), -np.inf, np.float32), 1), Kind.TWO_VALUES),
    "a mask of floats": (
        lambda draw: (draw.random((ROWS, COLUMNS)) < 0.5).astype(np.float32), Kind.TWO_VALUES
    ),
    "a table": (lambda draw: np.cos(np.arange(ROWS * COLUMNS, dtype=np.float32)), Kind.TABLE),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANT)
def test_what_draws_do_not_move_is_moved(name: str) -> None:
    make, kind = CONSTANT[name]
    draws = drawn(make)
    movement = found(draws)
    assert (None if movement is None else movement.kind) == kind
    own = draws[0][0]
    one, other = (moved_inputs([own], [movement], 3, complement)[0] for complement in (False, True))
    assert one.dtype == own.dtype and one.shape == own.shape
    if kind is None:
        assert one is own
        return
    moved = (one != own) | (other != own)
    assert moved.all(), "every element is another in one of the two"
    assert (one != one).sum() == 0 and own.tobytes() == draws[0][0].tobytes()


def test_what_is_declared_holds_whatever_draws_say() -> None:
    lengths = drawn(lambda draw: np.full((ROWS, 1), 64, np.int32))
    assert found(lengths, Domain("lengths")) == Movement(Kind.FIXED, declared=True)
    movement = found(lengths, Domain("lengths", 8, 32))
    assert movement is not None and (movement.low, movement.high, movement.declared) == (8, 32, True)
    floats = drawn(lambda draw: draw.random((ROWS, COLUMNS)).astype(np.float32))
    movement = found(floats, Domain("share", 0, 1))
    moved = moved_inputs(floats[0], [movement], 5, False)[0]
    assert movement is not None and movement.kind is Kind.RANGE and {0.0, 1.0} <= set(moved.ravel().tolist())


GATHER = """
import numpy as np

R, V = 8, 300
PRESETS = {"small": {"V": 40}}
DECLARED = 0


def get_inputs():
    return [np.random.normal(size=(V, 4)).astype(np.float32), np.random.randint(0, 20, (R,)).astype(np.int32)]


def forward(table, rows):
    return table[rows]
"""


def reference(text: str, shape: int) -> Reference:
    task = task_from_text(text, "gather", "gather")
    found = Reference(task, task.presets[shape])
    ReferenceCache(None).movements(found)
    return found


@pytest.mark.parametrize(("shape", "high"), [(0, 39), (1, 299)])
def test_indices_go_to_the_end_of_the_axis_that_the_reference_shows(shape: int, high: int) -> None:
    of = reference(GATHER, shape)
    assert of.movements[1] is not None and of.movements[1].axis == (0, 0)
    assert max(of.inputs(seed, name)[1].max() for seed in range(4) for name in ("domain", "complement")) == high


def test_a_declared_domain_is_of_each_shape_and_fixed_inputs_never_change() -> None:
    text = GATHER.replace("DECLARED = 0", 'DOMAINS = {"rows": (2, V - 5), "table": "fixed"}')
    for shape, high in ((0, 35), (1, 295)):
        of = reference(text, shape)
        rows = of.inputs(3, "domain")[1]
        assert rows.min() >= 2 and rows.max() <= high and of.moves
        assert (of.inputs(3, "peaks")[0] == of.inputs(3)[0]).all()
