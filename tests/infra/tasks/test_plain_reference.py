"""A plain function as a reference: what is written for it computes the same, and what cannot travel is named."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.task import PrecisionPolicy
from infra.tasks.plain_reference import Inputs, reference_module, with_inputs
from infra.tasks.reference_reader import TaskInvalid, read_reference
from tests.e2e import kernels

EPSILON = 1e-6
GROUPS = {"heads": (8, 2), "name": None}
KIND = np.dtype("float32")
HALF = np.float32(0.5)
TABLE = np.zeros(3)
NARROW = ml_dtypes.bfloat16


def mean_square(x: np.ndarray) -> np.ndarray:
    return np.mean(np.square(x), axis=-1, keepdims=True)


def rmsnorm(x: np.ndarray, gain: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    """Normalizes rows."""
    return x / np.sqrt(mean_square(x) + epsilon) * gain


def draws() -> list[np.ndarray]:
    return [np.random.normal(size=(4, 8)).astype(KIND), np.ones(8, KIND)]


def uses_constants(x: np.ndarray) -> np.ndarray:
    return [x * GROUPS["heads"][0] * HALF * math.pi for _ in range(1)][0].astype(KIND) + np.float32(NARROW(1))


def forward(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + y, x - y


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def by_parity(x: np.ndarray) -> np.ndarray:
    return x if even(x.shape[0]) else -x


def written(reference: Callable[..., Any], inputs: Inputs) -> dict[str, Any]:
    """The names of the written module, as the judge's process has them: nothing of this file's is there."""
    text = reference_module(reference, inputs)
    read_reference(text, "reference.py")
    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(text, "reference.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("reference", "inputs"),
    [
        (rmsnorm, [(4, 8), (8,)]),
        (rmsnorm, draws),
        (uses_constants, [(4, 8)]),
        (by_parity, [(3, 8)]),
        (forward, [(4, 8), (4, 8)]),
    ],
)
def test_the_written_module_computes_what_the_function_does(reference: Callable[..., Any], inputs: Inputs) -> None:
    module = written(reference, inputs)
    np.random.seed(7)
    drawn = module["get_inputs"]()
    wanted, got = reference(*drawn), module["forward"](*drawn)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    assert module["transform_to_nki_inputs"](drawn) == drawn


def test_inputs_are_drawn_anew_and_outputs_take_the_shape_of_the_reference_s() -> None:
    module = written(rmsnorm, [(4, 8), (8,)])
    np.random.seed(0)
    first = module["get_inputs"]()
    np.random.seed(21)
    assert not np.array_equal(first[0], module["get_inputs"]()[0])
    of_kernel = written(forward, [(4, 8), (4, 8)])["transform_nki_outputs"]
    reference = (np.zeros((4, 8)), np.zeros((4, 8)))
    assert [each.shape for each in of_kernel((np.zeros(32), np.zeros((8, 4))), reference)] == [(4, 8), (4, 8)]
    with pytest.raises(ValueError, match="returns 1 arrays, and the reference 2"):
        of_kernel(np.zeros((4, 8)), reference)


def drawn_like(example: Any) -> Any:
    np.random.seed(3)
    return written(mean_square, [example])["get_inputs"]()[0]


def test_examples_lend_their_shape_type_spread_sign_and_range() -> None:
    assert drawn_like((128, 64)).dtype == np.float32 and drawn_like((128, 64)).shape == (128, 64)
    assert abs(drawn_like((128, 64)).std() - 1) < 0.05
    assert drawn_like(((16, 4), "bfloat16")).dtype == ml_dtypes.bfloat16
    assert drawn_like(((16, 4), np.float16)).dtype == np.float16
    example = np.random.default_rng(0).normal(100, 5, size=(64, 64)).astype(np.float32)
    like = drawn_like(example)
    assert abs(like.mean() - 100) < 1 and abs(like.std() - 5) < 0.5 and like.dtype == np.float32
    assert (drawn_like(np.abs(np.random.default_rng(0).normal(size=(64, 64)))) >= 0).all()
    like = drawn_like(np.array([[3, 9], [4, 5]] * 50, np.int32))
    assert like.dtype == np.int32 and (like.min(), like.max()) == (3, 9)
    assert set(np.unique(drawn_like(np.zeros((8, 8), bool)))) == {False, True}
    assert drawn_like(3) == 3 and drawn_like(0.25) == 0.25


@pytest.mark.parametrize("filled", [0, 1])
def test_an_example_whose_elements_are_all_alike_says_nothing_of_values(filled: float) -> None:
    like = drawn_like(np.full((64, 64), filled, np.float32))
    assert abs(like.mean()) < 0.1 and abs(like.std() - 1) < 0.1


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (None, "what are its arguments"),
        ([], "the list is empty"),
        (np.zeros(3), "a list with one example per argument"),
        ("4x8", "a list with one example per argument"),
        ([(4, 0)], "no shape"),
        ([(4.0, 8)], "no shape"),
        ([((4, 8), "float33")], "no dtype"),
        ([((4, 8), "int32")], "which int32 values"),
        ([np.array([1.0, np.inf])], "infinities or NaN"),
        ([np.zeros((0, 4))], "empty"),
        ([np.array(["a"])], "takes no"),
        ([{"x": 1}], "not a dict"),
        ([float("nan")], "not a float"),
    ],
)
def test_inputs_that_say_too_little_are_named(inputs: Any, said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        reference_module(mean_square, inputs)


def closure() -> Callable[..., Any]:
    scale = 3

    def scaled(x: np.ndarray) -> np.ndarray:
        return x * scale

    return scaled


def inner() -> Callable[..., Any]:
    def plain(x: np.ndarray) -> np.ndarray:
        return x

    return plain


@functools.wraps(mean_square)
def decorated(x: np.ndarray) -> np.ndarray:
    return x


class Holder:
    def method(self, x: np.ndarray) -> np.ndarray:
        return x


def uses_array(x: np.ndarray) -> np.ndarray:
    return x + TABLE


def uses_our_module(x: np.ndarray) -> np.ndarray:
    return x + len(kernels.SLOW)


def uses_nothing_known(x: np.ndarray) -> np.ndarray:
    return x + missing  # type: ignore[name-defined]  # noqa: F821


def get_inputs(x: np.ndarray) -> np.ndarray:
    return x


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x: x, "a lambda has no name"),
        (closure(), "scaled is a closure over scale"),
        (inner(), "plain is defined inside inner"),
        (decorated, "decorated"),
        (Holder().method, "method is a method"),
        (Holder.method, "method is defined inside Holder"),
        (np.exp, "exp is a ufunc"),
        (len, "len is a builtin_function_or_method"),
        (functools.partial(mean_square), "is a partial"),
        (uses_array, "uses 'TABLE', an array"),
        (uses_our_module, "your module tests.e2e.kernels"),
        (uses_nothing_known, "uses 'missing', which its module does not define"),
        (get_inputs, "'get_inputs', which in a reference module means something else"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(reference: Any, said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        reference_module(reference, [(4, 8)])


PLAIN = """
import numpy as np


def _squares(x):
    return x * x


def norm(x, gain, epsilon=1e-6):
    return x / np.sqrt(_squares(x).mean(axis=1, keepdims=True) + epsilon) * gain
"""


def test_a_file_of_one_plain_function_draws_inputs_of_the_shapes_that_are_named() -> None:
    text = with_inputs(PLAIN, ("16x32:bf16", "1x32:int8"), "ref.py")
    assert dict(read_reference(text, "ref.py").constants) == {"X_0": 16, "X_1": 32, "GAIN_0": 1, "GAIN_1": 32}
    module: dict[str, Any] = {}
    exec(text, module)
    module["X_0"] = 8  # as a table of shapes sets it
    x, gain = module["get_inputs"]()
    assert (x.shape, x.dtype, gain.shape, gain.dtype) == ((8, 32), ml_dtypes.bfloat16, (1, 32), np.int8)
    assert np.array_equal(module["forward"](x, gain), module["norm"](x, gain))
    assert read_reference(text, "ref.py").precision is PrecisionPolicy.BF16_ALLOWED, "as init writes it"
    many = drawn_like(((4096,), "int8"))
    assert (many.min(), many.max()) == (-128, 127)


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        (PLAIN, ("16x32",), r"1 shapes for norm\(x, gain\) of ref.py, which takes 2"),
        (PLAIN, ("16x32", "32", "1", "1"), "4 shapes for norm"),
        (PLAIN, ("16x32", "0x32"), "write it as 128x512"),
        (PLAIN, ("16x32", "1x32:int32"), "gain: which int32 values"),
        (PLAIN + "\n\ndef other(x):\n    return x\n", ("16x32", "32"), "which of norm, other"),
        ("def get_inputs():\n    return []\n", ("16x32",), "draws its own inputs"),
        ("X_0 = 3\n" + PLAIN, ("16x32", "32"), "has a name X_0"),
        ("x = 1\n", ("16x32",), "no function"),
        ("def f(:\n", ("16x32",), "not Python"),
    ],
)
def test_what_shapes_cannot_complete_is_named(text: str, shapes: tuple[str, ...], said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        with_inputs(text, shapes, "ref.py")
