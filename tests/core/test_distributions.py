"""Inputs beside the reference's own: what changes, and what must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.judging.inputs.distributions import changed_inputs
from accelopt_core.judging.inputs.draws import OF_DOMAINS
from accelopt_core.judging.reference.verification import Reference, ReferenceCache
from accelopt_core.judging.tolerance.closeness import rows_within_float32
from accelopt_core.task import DISTRIBUTIONS, ShapePreset, Task

SOURCE = """
import numpy as np

M, N = 14, 32

def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32), np.arange(M, dtype=np.int32), 1e-5]

def forward(x, index, eps):
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps * KEPT)

def transform_to_nki_inputs(inputs):
    return inputs

def transform_nki_outputs(result, reference):
    return [result]
"""


def reference(epsilon: bool = True) -> Reference:
    task = Task("norm", SOURCE + f"\nKEPT = {int(epsilon)}\n", (ShapePreset("full", ()),))
    return Reference(task, task.full)


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name not in OF_DOMAINS])
def test_shapes_dtypes_integers_and_numbers_stay(name: str) -> None:
    own, changed = reference().inputs(3), reference().inputs(3, name)
    assert changed[0].shape == own[0].shape and changed[0].dtype == own[0].dtype
    assert np.array_equal(changed[1], own[1]) and changed[2] == own[2]
    assert np.array_equal(changed[0], own[0]) == (name == "reference")
    assert np.array_equal(changed[0], reference().inputs(3, name)[0]), "the same seed draws the same inputs"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_never_negative_stays_so(name: str) -> None:
    second_moment = np.abs(np.random.default_rng(1).normal(size=(64, 64))).astype(np.float32)
    assert (changed_inputs([second_moment], name, 5)[0] >= 0).all()


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("large", lambda x: np.abs(x).max() > 16),
        ("small", lambda x: np.abs(x).max() < 1e-2),
        ("positive", lambda x: (x >= 0).all()),
        ("heavy-tailed", lambda x: np.abs(x).max() > 12 * np.median(np.abs(x))),
        ("constant-rows", lambda x: (np.ptp(x, axis=-1) == 0).all()),
        ("zeros-mixed", lambda x: 0.2 < np.mean(x == 0) < 0.4),
        ("zero-rows", lambda x: (x[::7] == 0).all() and (x[:, 5] == 0).all() and (x[1, :5] != 0).all()),
        ("peaks", lambda x: 150 <= np.abs(x).max() <= 200 and np.median(np.abs(x).max(axis=1)) < 5),
        ("scaled-rows", lambda x: np.ptp(np.log10(np.abs(x).max(axis=1))) > 2),
        ("offset", lambda x: 90 < np.abs(x.mean()) / x.std() < 110),
        ("offset-rows", lambda x: np.ptp(np.log10(np.abs(x.mean(axis=1)) / x.std(axis=1))) > 1),
        ("mixed", lambda x: 150 <= np.abs(x).max() <= 200 and np.ptp(np.log10(np.abs(x).max(axis=1))) > 2),
    ],
)
def test_each_is_what_its_name_says(name: str, holds: Callable[[np.ndarray], bool]) -> None:
    assert holds(reference().inputs(0, name)[0])


def test_mixed_inputs_have_rows_of_every_kind_and_bfloat16_is_changed_too() -> None:
    own = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    rows = changed_inputs([own], "mixed", 4)[0]
    assert (rows >= 0).all(axis=1).any() and (rows <= 0).all(axis=1).any()
    assert (np.ptp(rows, axis=1) == 0).any() and (np.mean(rows == 0, axis=1) > 0.1).any()
    own = np.ones((4, 8), ml_dtypes.bfloat16)
    assert (changed_inputs([own], "large", 0)[0] == 8).all() and changed_inputs([own], "large", 0)[0].dtype == own.dtype


@pytest.mark.parametrize("seed", range(3))
def test_each_input_is_at_its_peak_beside_others_that_are_not(seed: int) -> None:
    """What all of them make at their peaks is often beyond float32, where a clamp of one would not show."""
    own = np.random.default_rng(seed).normal(scale=0.05, size=(3, 64, 16)).astype(np.float32)
    high = np.stack([np.abs(each).max(axis=1) >= 150 for each in changed_inputs(list(own), "peaks", seed)])
    assert all((each & (high.sum(axis=0) == 1)).any() for each in high)


def test_a_reference_that_overflows_in_float32_is_known() -> None:
    for epsilon, finite in ((True, True), (False, False)):
        ref = reference(epsilon)
        (plain,) = ref.in_float32(ref.inputs(0, "zero-rows"))
        within = rows_within_float32(plain)
        assert within.shape == (*plain.shape[:-1], 1)
        assert within.all() == finite and within[::7].any() == finite
        assert within[1:7].all()


def test_leaving_out_needs_a_known_name_and_a_reason() -> None:
    def task(*left_out: tuple[str, str]) -> Task:
        return Task("t", SOURCE, (ShapePreset("full", ()),), left_out=left_out)

    assert "zero-rows" not in task(("zero-rows", "0/0")).distributions
    for name, reason in (("zero-rows", " "), ("no-such", "why"), ("reference", "why")):
        with pytest.raises(ValueError, match="task t"):
            task((name, reason))


@pytest.mark.parametrize("damage", ["another array", "another seal", "no array", "not an array"])
def test_a_cached_reference_without_its_seal_is_computed_again(tmp_path: Path, damage: str) -> None:
    ref = reference()
    inputs = ref.inputs(0)
    true = ReferenceCache(tmp_path, key=b"k" * 32).kept(ref, "0", lambda: ref.expected(inputs))
    (array,) = tmp_path.glob("*.npy")
    if damage == "another array":
        np.save(array, np.zeros_like(true[0]))
    elif damage == "another seal":
        next(tmp_path.glob("*.complete")).write_text("0" * 32)
    elif damage == "no array":
        array.unlink()
    else:
        array.write_bytes(b"PK\x03\x04")
    again = ReferenceCache(tmp_path, key=b"k" * 32).kept(ref, "0", lambda: ref.expected(inputs))
    assert np.array_equal(again[0], true[0])
