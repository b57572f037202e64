"""How close is close enough: limits that follow what arithmetic can do, in all, per row, per column, per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.evaluation import CheckFailure
from accelopt_core.judging.reference.roundings import moved_by_roundings, summed_one_by_one
from accelopt_core.judging.reference.verification import NOISES, Reference
from accelopt_core.judging.tolerance.closeness import (
    FLOAT32,
    Arithmetic,
    Place,
    arithmetic_of,
    check_output,
    few_rows,
    needed,
)
from accelopt_core.judging.tolerance.excuses import excuse
from accelopt_core.judging.tolerance.storage import STORAGE, WIDE, storage_of
from accelopt_core.task import PrecisionPolicy, ShapePreset, Task
from nki_sim.isa.arithmetic.activation_functions import FUNCTIONS

SOURCE = """
import numpy as np

M, K, N = 64, 256, 48


def get_inputs():
    return [np.random.normal(size=(M, K)).astype(np.float32), np.random.normal(size=(K, N)).astype(np.float32)]


def forward(x, w):
    return x @ w


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [result]
"""
TASK = Task("product", SOURCE, (ShapePreset("full", ()),))
BF16 = replace(TASK, precision=PrecisionPolicy.BF16_ALLOWED, tolerance=1e-2)


def check(
    got: np.ndarray, expected: np.ndarray, noise: np.ndarray | None = None, arithmetic: Arithmetic = FLOAT32
) -> CheckFailure | None:
    return check_output(got, expected, place=Place(1, "p", 0, "large"), arithmetic=arithmetic, noise=noise)[1]


def noise_of(reference: Reference, *arguments: Any) -> tuple[np.ndarray, ...]:
    """Of all its draws: `arguments` are the last ones of `more_noise`."""
    noise = None
    for draw in range(NOISES):
        noise = reference.more_noise(noise, draw, *arguments)
    return noise or ()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def test_rounding_and_what_is_denormal_pass() -> None:
    expected = normal(100, 70)
    assert check(expected.astype(np.float32), expected) is None
    expected = np.full((4, 16), 1e200)
    assert check(expected, expected, noise=np.full((4, 16), 1e190, np.float64)) is None
    expected = np.geomspace(1e-36, 1e-45, 640).reshape(8, 80)
    assert check(np.zeros((8, 80)), expected) is None


@pytest.mark.parametrize("shape", [(1, 40), (3, 4), (300, 512), (2, 40, 70)])
def test_a_quick_comparison_decides_as_a_whole_one_does(shape: tuple[int, ...]) -> None:
    draws = np.random.default_rng(3)
    expected = draws.normal(size=shape)
    noise = np.abs(expected) * 2.0**-24
    verdicts = set()
    for size in (0.0, 20.0, 30.0, 40.0, 600.0):
        for rows in (slice(None), slice(-1, None)):
            got = expected.copy()
            got[..., rows, :] += size * noise[..., rows, :]
            whole, quick = (
                check_output(
                    got, expected, place=Place(1, "p", 0, "large"), arithmetic=FLOAT32, noise=noise, quick=quick
                )[1]
                for quick in (False, True)
            )
            assert (whole is None) == (quick is None)
            verdicts.add(whole is None)
    assert verdicts == {False, True}


def test_one_wrong_row_is_found_however_many_or_large_the_others_are() -> None:
    expected = normal(4096, 64)
    got = expected.copy()
    got[77] *= 1 + 3e-6
    failure = check(got, expected)
    assert failure is not None and failure.reason == "row 77 differs" and failure.distribution == "large"
    assert failure.worst_index is not None and failure.worst_index[0] == 77
    expected = normal(64, 64)
    expected[9] *= 1e-9
    got = expected.copy()
    got[9] *= 1.001
    failure = check(got, expected)
    assert failure is not None and failure.reason == "row 9 differs"


@pytest.mark.parametrize("shape", [(), (5,), (0,), (3, 0), (0, 3), (2, 3, 4)])
def test_any_shape_can_be_compared(shape: tuple[int, ...]) -> None:
    expected = np.ones(shape)
    assert check(expected.astype(np.float32), expected) is None
    assert (check(expected * 2, expected) is None) == (expected.size == 0)


@pytest.mark.parametrize("shape", [(4096, 64), (3, 512, 64)])
def test_one_wrong_column_is_found_though_every_row_is_close(shape: tuple[int, ...]) -> None:
    expected = normal(*shape)
    expected[..., 5] *= 1e-2
    got = expected.copy()
    got[-512:, ..., 5] *= 1 + 2e-5
    failure = check(got, expected)
    assert failure is not None and failure.reason == "column 5 differs"


def test_dropped_and_too_large_values_are_found_though_no_norm_shows_them() -> None:
    expected = np.random.default_rng(0).lognormal(sigma=6, size=(64, 512)) + 0.0
    expected /= expected.sum(axis=1, keepdims=True)
    noise = (expected * FLOAT32.unit).astype(np.float32)
    failure = check(np.where(expected < 1e-9, 0, expected), expected, noise)
    assert failure is not None and "dropped" in failure.reason
    assert check(expected.astype(np.float32), expected, noise) is None
    expected = np.tile([1.0, *np.geomspace(1e-3, 1e-80, 99)], (64, 1))
    noise = (expected * FLOAT32.unit).astype(np.float32)
    failure = check(np.maximum(expected, 2e-35), expected, noise)
    assert failure is not None and "too large" in failure.reason


def test_what_may_underflow_on_a_devices_way_may_vanish_even_a_whole_row_of_it_but_not_appear() -> None:
    expected = np.ones((8, 80))
    expected[3] = 4e-30
    without = np.where(expected == 1, 1.0, 0.0)
    noise = np.abs(expected).astype(np.float32) * 2.0**-24
    device = arithmetic_of(TASK, exact_functions=False)
    assert check(without, expected, noise, device) is None and check(without, expected, None, device) is None
    failure = check(expected, without, noise, device)
    assert failure is not None and "too large" in failure.reason
    assert check(without, expected, noise) is not None, "on the simulator only where the reference shows it"


@pytest.mark.parametrize(("task", "dtype"), [(TASK, np.float32), (BF16, ml_dtypes.bfloat16)], ids=["float32", "bf16"])
@pytest.mark.parametrize(("distribution", "left_out"), [("constant-rows", 0), ("reference", 0), ("reference", 64)])
def test_honest_products_pass_where_sums_cancel_and_one_without_a_tile_does_not(task, dtype, distribution, left_out):
    """Under constant rows a whole row of the product is one number, which cancels in some rows."""
    arithmetic = arithmetic_of(task, exact_functions=True)
    reference = Reference(task, task.full)
    for seed in range(40):
        x, w = reference.inputs(seed, distribution)
        expected = reference.expected([x, w])
        noise = noise_of(reference, [x, w], expected, arithmetic.unit, seed)
        x, w = (a.astype(dtype).astype(np.float32) for a in (x, w))
        x[:, x.shape[1] - left_out :] = 0
        assert (check(x @ w, expected[0], noise[0], arithmetic) is None) == (left_out == 0), f"seed {seed}"


TURNED = """
import numpy as np

PRESETS = {}
TOLERANCE = 2e-5
WORK = {"matmul_flops": 0, "vector_ops": 1, "hbm_bytes": 1}


def get_inputs():
    x, y, angle = (np.random.normal(size=(64, 256)).astype(np.float32) for _ in range(3))
    c, s = np.cos(angle), np.sin(angle)
    near = (x * c / s * (1 + 1e-3 * y)).astype(np.float32)
    return [x, near, c, s]


def forward(x, y, c, s):
    return x * c - y * s


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [kernel_result]
"""


def test_two_products_that_cancel_pass_whatever_is_drawn() -> None:
    """As in a rotary embedding: signs alone would say, of every fiftieth such element, that it hangs on nothing."""
    of_task = replace(TASK, reference_source=TURNED)
    reference = Reference(of_task, of_task.full)
    for seed in range(40):
        x, y, c, s = reference.inputs(seed)
        expected = reference.expected([x, y, c, s])
        noise = noise_of(reference, [x, y, c, s], expected, FLOAT32.unit, seed)
        assert check(x * c - y * s, expected[0], noise[0]) is None, f"seed {seed}"


@pytest.mark.parametrize("wrong", ["a factor off by 1e-5", "one factor in bfloat16", "the smaller product left out"])
def test_room_where_products_cancel_is_no_room_for_wrong_ones(wrong: str) -> None:
    """The noise there is of honest rounding: what a search would shave off the products is still far beyond it."""
    of_task = replace(TASK, reference_source=TURNED)
    reference = Reference(of_task, of_task.full)
    for seed in range(10):
        x, y, c, s = reference.inputs(seed)
        expected = reference.expected([x, y, c, s])
        noise = noise_of(reference, [x, y, c, s], expected, FLOAT32.unit, seed)
        got = {
            "a factor off by 1e-5": x * c * np.float32(1 + 1e-5) - y * s,
            "one factor in bfloat16": x * c - y * s.astype(ml_dtypes.bfloat16).astype(np.float32),
            "the smaller product left out": np.where(np.abs(x * c) > np.abs(y * s), x * c, -y * s),
        }[wrong]
        assert check(got, expected[0], noise[0]) is not None, f"seed {seed}"


def one_row_that_cancels() -> tuple[Reference, list[np.ndarray], np.ndarray, tuple[np.ndarray, ...]]:
    """A product, its inputs, what float32 makes of it and what it is; row 3 is a ten-thousandth of what it sums."""
    x, w = 1 + normal(128, 256), 1e4 + normal(256, 48)
    x[3] -= x[3].mean()
    inputs = [x.astype(np.float32), w.astype(np.float32)]
    reference = Reference(TASK, TASK.full)
    return reference, inputs, inputs[0] @ inputs[1], reference.expected(inputs)


@pytest.mark.parametrize(
    ("factor", "is_right"), [(1.0, True), (1.001, True), (2.0, False), (0.0, False), (np.nan, False)]
)
def test_a_few_rows_that_cancel_are_held_to_their_noise_as_all_are(factor: float, is_right: bool) -> None:
    reference, inputs, got, expected = one_row_that_cancels()
    got[3] *= factor
    noise = noise_of(reference, inputs, expected, FLOAT32.unit, 1)
    assert (check(got, expected[0], noise[0]) is None) == is_right
    few = few_rows(got, expected[0], FLOAT32, WIDE)
    if few is None:
        assert np.isnan(factor)  # which is said as such
        return
    assert few.numbers.tolist() == [3]
    part = (expected[0][few.numbers],)
    one: tuple[np.ndarray, ...] | None = None
    for draw in range(NOISES):
        one = reference.more_noise(one, draw, inputs, part, FLOAT32.unit, 1, [few.numbers])
    assert one is not None and np.array_equal(one[0], noise[0][few.numbers])
    assert few.are_right(got[few.numbers], part[0], one[0], FLOAT32, WIDE) == is_right


@pytest.mark.parametrize("wrong", [np.s_[60:64], np.s_[:, 5], np.s_[::7, ::9]], ids=["rows", "a column", "elements"])
def test_where_more_is_off_than_a_few_rows_these_decide_nothing(wrong: tuple[slice, ...]) -> None:
    _, _, got, expected = one_row_that_cancels()
    got[wrong] *= 1 + 1e-4
    assert few_rows(got, expected[0], FLOAT32, WIDE) is None


def test_the_noise_of_a_seed_is_always_the_same_and_grows_with_its_draws() -> None:
    reference = Reference(TASK, TASK.full)
    inputs = reference.inputs(3)
    expected = reference.expected(inputs)
    one, two, other = (noise_of(reference, inputs, expected, FLOAT32.unit, seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    reference = Reference(TASK, TASK.full)
    inputs = reference.inputs(3)
    expected = reference.expected(inputs)
    parts: list[np.ndarray] = []
    for draw in range(NOISES):
        less = (parts[-1].copy(),) if parts else None
        parts += reference.more_noise(less, draw, inputs, expected, FLOAT32.unit, 3)
    assert all((one <= two).all() for one, two in zip(parts, parts[1:]))
    assert np.array_equal(parts[-1], noise_of(reference, inputs, expected, FLOAT32.unit, 3)[0])


def test_limits_widen_as_far_as_float32_the_task_and_a_device_need() -> None:
    expected, noise = normal(64, 64), np.full((64, 64), 1e-7, np.float32)
    same = needed(FLOAT32, expected, expected, noise)
    assert same.times == 1 and same.elements is None
    wider = needed(FLOAT32, expected + 1e-5, expected, noise).times
    assert wider == pytest.approx(8 * 100 / FLOAT32.slack, rel=0.01)
    assert check(expected + 7e-5, expected, noise, FLOAT32.widened(wider)) is None
    assert arithmetic_of(TASK, exact_functions=True) == FLOAT32
    assert arithmetic_of(replace(TASK, tolerance=1e-4), exact_functions=True).slack == pytest.approx(5 * FLOAT32.slack)
    assert arithmetic_of(TASK, exact_functions=False).slack == 10 * FLOAT32.slack
    assert arithmetic_of(replace(TASK, tolerance=1e-6), exact_functions=True) == FLOAT32
    assert arithmetic_of(replace(TASK, tolerance=1e-4), exact_functions=True).tolerance == 1e-4


GELU = """
import math

import numpy as np

exact = np.vectorize(math.erf)


def get_inputs():
    return [np.random.normal(size=(128, 256)).astype(np.float32)]


def forward(x):
    return 0.5 * x * (1 + exact(x / 1.4142135623730951).astype(x.dtype))


def transform_to_nki_inputs(inputs):
    return list(inputs)


def transform_nki_outputs(kernel_result, reference):
    return [kernel_result]
"""


def gelu(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    FUNCTIONS["gelu"](x, out)
    return out


def gelu_in_parts(x: np.ndarray) -> np.ndarray:
    """Rounded elsewhere than the reference in float32 is."""
    erf = np.empty_like(x)
    FUNCTIONS["erf"](x * np.float32(np.sqrt(0.5)), erf)
    half = np.float32(0.5) * x
    return half + half * erf


def as_held(of_task: Task, distribution: str, seed: int, computed: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether what is computed of the only input passes, limits following the reference in float32."""
    reference = Reference(of_task, of_task.full)
    inputs = reference.inputs(seed, distribution)
    (expected,), (plain,) = reference.expected(inputs), reference.in_float32(inputs)
    (noise,) = noise_of(reference, inputs, (expected,), FLOAT32.unit, seed)
    asked = needed(FLOAT32, plain, expected, noise)
    place = Place(seed, "p", 0, distribution)
    failure = check_output(
        computed(inputs[0]), expected, place=place, arithmetic=FLOAT32.widened(asked.times), noise=noise,
        elements=asked.elements,
    )[1]  # fmt: skip
    return failure is None


@pytest.mark.parametrize("distribution", ["large", "heavy-tailed", "peaks"])
@pytest.mark.parametrize("honest", [gelu, gelu_in_parts])
def test_what_float32_itself_drops_may_be_dropped(distribution, honest) -> None:
    """1 + erf(x) is 0 in float32 below -5.5, and in float64 1e-7 and less for three more."""
    of_task = replace(TASK, reference_source=GELU)
    assert all(as_held(of_task, distribution, seed, honest) for seed in range(3))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: np.where(x < -5, 0, gelu(x)),
        lambda x: np.where(np.abs(gelu(x)) < 1e-6, 0, gelu(x)),
        lambda x: np.where(x < -4, np.minimum(gelu(x), np.float32(-1e-6)), gelu(x)),
        lambda x: np.minimum(gelu(x), 3),
        lambda x: FUNCTIONS["gelu_apprx_tanh"](x, out := np.empty_like(x)) or out,
    ],
    ids=["zero a little earlier", "small values as zero", "no zero at all", "clamped", "by tanh"],
)
def test_room_where_float32_drops_is_no_room_for_wrong_ones(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    of_task = replace(TASK, reference_source=GELU)
    assert not any(as_held(of_task, "large", seed, wrong) for seed in range(3))


def test_what_float32_drops_of_large_numbers_it_does_not_drop_of_small_ones() -> None:
    """Where a result of 1e-7 is far below what it is made of it may vanish; as a small x's own half it may not."""
    x = np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32) * 8
    x[::2] *= np.float32(1e-8)
    of_task = replace(TASK, reference_source=GELU)
    reference = Reference(of_task, of_task.full)
    (expected,), (plain,) = reference.expected([x]), reference.in_float32([x])
    (noise,) = noise_of(reference, [x], (expected,), FLOAT32.unit, 1)
    asked = needed(FLOAT32, plain, expected, noise)
    assert asked.elements is not None and asked.elements[1::2].max() > 1e-7
    small = expected[::2]
    assert (asked.elements[::2] < np.abs(small) * 1e-5).mean() > 0.99


@pytest.mark.parametrize("name", STORAGE)
def test_what_a_type_can_hold_is_right_and_a_second_rounding_to_it_is_not(name: str) -> None:
    dtype = np.dtype(name)
    limits = ml_dtypes.finfo(dtype)
    assert STORAGE[name].relative == float(limits.eps) / 2
    assert STORAGE[name].absolute == float(limits.smallest_subnormal) / 2
    exact = normal(64, 256).astype(np.float64)
    place = Place(0, "full", 0, "reference")

    def passes(got: np.ndarray, expected: np.ndarray, stored: object) -> bool:
        return check_output(
            got.astype(np.float32), expected, place=place, arithmetic=FLOAT32, noise=np.abs(expected) * 2.0**-24,
            bound=2e-5, stored=stored,
        )[1] is None  # fmt: skip

    once = exact.astype(dtype)
    assert passes(once, exact, storage_of(name, "float64", {name}))
    assert passes(once, once.astype(np.float64), storage_of(name, name, set()))
    assert not passes(once, exact, storage_of("float32", "float64", {name}))
    worse = (exact * (1 + 4 * STORAGE[name].relative)).astype(dtype)
    assert not passes(worse, exact, storage_of(name, "float64", {name}))


def test_a_type_counts_as_storage_where_the_reference_or_an_argument_has_one_as_narrow() -> None:
    assert storage_of("float32", "float64", {"float32"}) == WIDE
    assert storage_of("bfloat16", "float64", {"float32"}) == WIDE
    assert storage_of("bfloat16", "float64", {"float32", "bfloat16"}) == STORAGE["bfloat16"]
    assert storage_of("bfloat16", "float64", {"float8_e4m3"}) == STORAGE["bfloat16"]
    assert storage_of("float8_e4m3", "float64", {"bfloat16"}) == WIDE
    assert storage_of("bfloat16", "bfloat16", set()).relative == 2 * STORAGE["bfloat16"].relative
    assert storage_of("float32", "bfloat16", set()) == STORAGE["bfloat16"]


def test_the_tolerance_that_a_failure_names_accepts() -> None:
    expected = normal(64, 96)
    noise = (np.abs(expected) * FLOAT32.unit).astype(np.float32)
    got = expected * (1 + 4e-6 * np.sign(normal(64, 1)))
    failure = check(got, expected, noise)
    assert failure is not None and failure.limit.startswith("the limit is 32 times")
    tolerance = float(failure.limit.split("TOLERANCE = ")[1].split()[0])
    assert tolerance > TASK.tolerance
    wider = arithmetic_of(replace(TASK, tolerance=tolerance), exact_functions=True)
    assert check(got, expected, noise, wider) is None
    almost = arithmetic_of(replace(TASK, tolerance=0.8 * tolerance), exact_functions=True)
    assert check(got, expected, noise, almost) is not None


def excused(theirs: np.ndarray, mine: np.ndarray, expected: np.ndarray) -> CheckFailure | None:
    noise = np.full(expected.shape, FLOAT32.unit, np.float32)
    held, allowed = excuse(theirs, expected, noise)
    place = Place(1, "p", 0, "large")
    return check_output(mine, held, place=place, arithmetic=FLOAT32, noise=noise, allowance=allowed)[1]


def test_an_excuse_has_the_size_and_the_place_of_what_the_input_kernel_is_off() -> None:
    expected = 1 + np.random.default_rng(0).random((32, 64))
    theirs, mine = expected.copy(), expected.copy()
    theirs[3] += 1e-3 * normal(64)
    mine[3] -= 2e-3
    assert excused(theirs, mine, expected) is None, "another order of the same steps is off otherwise"
    mine[3] = 0
    assert excused(theirs, mine, expected) is not None, "wholly wrong where the input kernel is a little"
    mine[3], mine[4] = expected[3], expected[4] + 1e-3
    assert excused(theirs, mine, expected) is not None, "wrong where the input kernel is right"
    expected = 1 + np.random.default_rng(0).random((32, 64))
    theirs, mine = expected.copy(), expected.copy()
    theirs[3], mine[3] = np.nan, 7.0
    assert excused(theirs, mine, expected) is None
    mine[4, 5] = np.nan
    failure = excused(theirs, mine, expected)
    assert failure is not None and failure.worst_index == (4, 5)
    expected = 1 + np.random.default_rng(0).random((32, 64))
    expected[3] = np.nan
    theirs = np.where(np.isnan(expected), 0.5, expected)
    assert excused(theirs, np.where(np.isnan(expected), 0.50001, expected), expected) is None
    assert excused(theirs, np.where(np.isnan(expected), 0.6, expected), expected) is not None
    assert excused(theirs, expected, expected) is not None


def test_sums_one_by_one_are_those_of_a_loop() -> None:
    x = normal(8, 300).astype(np.float32)
    watched = summed_one_by_one(x)
    one_by_one = np.add.accumulate(x, axis=1)[:, -1]
    assert (np.asarray(np.sum(watched, axis=1)) == one_by_one).all()
    assert (np.asarray(np.mean(watched, axis=1)) == one_by_one / np.float32(300)).all()
    blocks = x[:, :128] @ x[:, :128].T + x[:, 128:256] @ x[:, 128:256].T + x[:, 256:] @ x[:, 256:].T
    assert (np.asarray(watched @ watched.T) == blocks).all()


def test_what_float64_cannot_hold_is_seen_whatever_the_reference_does_on_its_way() -> None:
    x = np.linspace(-80, 80, 321)

    def softplus(x: np.ndarray) -> np.ndarray:
        result = np.empty(x.shape)
        result[...] = np.log(1 + np.exp(np.where(x > 1e9, 0, x)))
        return result

    other = softplus(moved_by_roundings(x.copy(), np.random.default_rng(0)))
    off = np.abs(other - softplus(x))
    truth = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
    assert (np.abs(softplus(x) - truth)[x < -36.5] <= 4 * off.max()).all() and 0 < off.max() < 1e-13
