"""The verdict on numbers: what passes, what does not, and what is said about it."""

from __future__ import annotations

import json
import resource
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Incorrect
from accelopt_core.judging import correctness
from accelopt_core.judging.checks import Compiled, Failed, Passed
from accelopt_core.judging.correctness import Verifier
from accelopt_core.judging.inputs.draws import Draw
from accelopt_core.judging.judge import judge
from accelopt_core.judging.reference.verification import (
    BadReference,
    Reference,
    ReferenceCache,
    argument_specs,
    has_finite,
)
from accelopt_core.judging.tolerance.closeness import FLOAT32, Place, check_output
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import REFERENCE, ShapePreset, Task
from accelopt_core.toolchain import ConstantArgument, DtypeArgument, TensorArgument
from infra.prediction.predictor import decode_arguments
from infra.simulator.toolchain import Simulated
from tests.core.test_closeness import noise_of
from tests.e2e import kernels
from tests.mutations.judging import TracedHere

SOURCE = """
import ml_dtypes
import numpy as np

M, N = 8, 4

def get_inputs():
    return [np.random.normal(size=(M, N)).astype(np.float32), 0.5]

def forward(x, scale):
    return x * scale, x.sum(axis=1)

def transform_to_nki_inputs(inputs):
    return inputs

def transform_nki_outputs(result, reference):
    return [np.reshape(r, e.shape) for r, e in zip(result, reference)]
"""


def task(source: str = SOURCE, **values: int) -> Task:
    return Task("scale", source, (ShapePreset("full", tuple(values.items())),))


def reference(**values: int) -> Reference:
    chosen = task(**values)
    return Reference(chosen, chosen.full)


def check(got: np.ndarray, expected: np.ndarray, bound: float | None = None):
    return check_output(got, expected, place=Place(7, "full", 0, REFERENCE), arithmetic=FLOAT32, bound=bound)


def test_a_dtype_that_no_device_has_is_the_references_fault() -> None:
    text = (
        "import numpy as np\nN = 4\ndef get_inputs(): return [np.float32([1]), np.random.normal(size=(4, N))]\n"
        "def forward(x, y): return x + y\n"
    )
    preset = ShapePreset("full", (("N", 4),))
    reference = Reference(Task("add", text, (preset,)), preset)
    with pytest.raises(BadReference, match=r"float64 as its argument 1, which no device has: .*astype"):
        reference.kernel_arguments(reference.inputs(0))
    elsewhere = Reference(Task("add", text, (preset,), language="other"), preset)
    assert len(elsewhere.kernel_arguments(elsewhere.inputs(0))) == 2


@pytest.mark.parametrize(("bound", "limit"), [(None, FLOAT32.slack * FLOAT32.unit), (5e-7, 5e-7)])
def test_a_distance_at_the_limit_passes_and_above_it_fails(bound: float | None, limit: float) -> None:
    expected = np.ones(100)
    assert check(expected * (1 + 0.95 * limit), expected, bound)[1] is None
    distance, failure = check(expected * (1 + 1.05 * limit), expected, bound)
    assert failure is not None and distance == pytest.approx(1.05 * limit) and failure.tolerance == pytest.approx(limit)


def test_a_failure_names_seed_index_shape_and_both_values() -> None:
    expected = np.ones((4, 5))
    got = expected.copy()
    got[2, 3] = 9.0
    _, failure = check(got, expected)
    assert (failure.seed, failure.worst_index, failure.expected, failure.got) == (7, (2, 3), 1.0, 9.0)
    assert "[2, 3]" in failure.describe() and "seed 7" in failure.describe()
    _, failure = check(np.ones((2, 3)), np.ones((3, 2)))
    assert failure is not None and "shape [2, 3] instead of [3, 2]" in failure.reason
    expected = np.array([1.0, np.inf])
    assert check(np.array([1.0, np.inf], np.float32), expected)[1] is None


@pytest.mark.parametrize(("bad", "said"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_a_value_that_is_not_finite_fails_wherever_it_is(bad: float, said: str) -> None:
    expected = np.ones((3, 5_000_000 // 3))
    got = expected.astype(np.float32)
    got[2, -1] = bad
    _, failure = check(got, expected)
    assert failure is not None and said in failure.reason
    assert failure.worst_index == (2, expected.shape[1] - 1)


def test_inputs_are_of_the_shape_and_the_seed_and_computed_in_float64() -> None:
    inputs = reference(M=3, N=2).inputs(seed=0)
    assert inputs[0].shape == (3, 2)
    one, two, other = (reference().inputs(seed)[0] for seed in (42, 42, 43))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    ref = reference()
    assert [e.dtype for e in ref.expected(ref.inputs(0))] == [np.float64, np.float64]
    ref = reference(M=3, N=2)
    specs = argument_specs(ref.kernel_arguments(ref.inputs(0)))
    assert specs == (TensorArgument((3, 2), "float32"), ConstantArgument(0.5))


def test_a_kernel_is_given_plain_values_and_dtypes_and_nothing_else() -> None:
    given = [((1, 1), [0, 2]), "silu", None, np.float32, np.dtype("int8"), ml_dtypes.bfloat16, np.int32(3), True]
    specs = argument_specs(given)
    assert specs == (
        ConstantArgument(((1, 1), (0, 2))), ConstantArgument("silu"), ConstantArgument(None), DtypeArgument("float32"),
        DtypeArgument("int8"), DtypeArgument("bfloat16"), ConstantArgument(3), ConstantArgument(True),
    )  # fmt: skip
    assert decode_arguments(json.loads(json.dumps([asdict(spec) for spec in specs]))) == specs
    for wrong in (float, object(), {"a": 1}, (1, np.zeros(2)), 1j):
        with pytest.raises(BadReference, match="let its parameter default to anything else"):
            argument_specs([wrong])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def get_inputs(: pass", "cannot be loaded"),
        ("raise KeyError('x')", "cannot be loaded"),
        ("M = 8\nN = 4\ndef get_inputs(): return []", "lacks forward"),
        (SOURCE.replace("M, N = 8, 4", "N = 4"), "no shape constant M"),
    ],
)
def test_a_reference_that_breaks_the_protocol_is_refused_in_one_line(source: str, said: str) -> None:
    broken = task(source, M=8)
    with pytest.raises(BadReference, match=said) as raised:
        Reference(broken, broken.full)
    assert "\n" not in str(raised.value)


def test_a_reference_that_fails_says_which_function_and_shape() -> None:
    broken = task(SOURCE.replace("return x * scale", "return 1 / 0"), M=8)
    ref = Reference(broken, broken.full)
    with pytest.raises(BadReference, match=r"forward\(\) .* M8: ZeroDivisionError"):
        ref.expected(ref.inputs(0))


def test_expected_outputs_are_computed_once_per_seed(tmp_path: Path) -> None:
    counting = task(
        SOURCE + "\ncalls = []\nplain = forward\ndef forward(*a):\n    calls.append(1)\n    return plain(*a)\n"
    )
    ref = Reference(counting, counting.full)
    cache = ReferenceCache(tmp_path)
    first = cache.kept(ref, "0", lambda: ref.expected(ref.inputs(0)))
    again = cache.kept(ref, "0", lambda: ref.expected(ref.inputs(0)))
    cache.kept(ref, "21", lambda: ref.expected(ref.inputs(21)))
    assert len(ref._module.calls) == 2
    assert all(np.array_equal(a, b) for a, b in zip(first, again))


def test_a_cache_without_room_keeps_nothing_and_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    ref = reference()
    ReferenceCache(tmp_path, budget_bytes=10).kept(ref, "0", lambda: ref.expected(ref.inputs(0)))
    assert not list(tmp_path.iterdir())
    ref = reference()
    large = np.zeros(1 << 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        (kept,) = ReferenceCache(tmp_path).kept(ref, "0", lambda: (large,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept is large and not list(tmp_path.iterdir())


OUTER = """
def get_inputs():
    return [np.random.normal(size=(M, 1)).astype(np.float32), np.random.normal(size=(1, M)).astype(np.float32)]


def forward(x, y):
    return x * y


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [result]
"""


def test_noise_holds_little_more_than_the_reference_itself() -> None:
    """Outputs of a full shape have gigabytes."""
    source = SOURCE[: SOURCE.index("def get_inputs")] + OUTER
    of_task = task(source, M=2048)
    reference = Reference(of_task, of_task.full)
    inputs = reference.inputs(0)
    expected = reference.expected(inputs)
    tracemalloc.start()
    try:
        noise = noise_of(reference, inputs, expected, 2.0**-24, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * expected[0].nbytes, "the outputs for moved inputs in float64, and half as much for the noise"
    relative = np.abs(noise[0] / expected[0])
    assert 2.0**-25 < np.sqrt(np.mean(relative**2)) < 2.0**-22


def test_one_finite_value_is_found_wherever_it_is() -> None:
    values = np.full((2, 1 << 18), np.nan)
    assert not has_finite(values) and not has_finite(values.T) and not has_finite(np.zeros(0))
    values[-1, -1] = 0
    assert has_finite(values) and has_finite(values.T) and has_finite(np.array(1.0))


BEYOND_ITS_NOISE = """
import numpy as np

def get_inputs():
    return [np.random.normal(size=(16, 64)).astype(np.float32)]

calls = []

def forward(x):
    calls.append(x.dtype.itemsize)
    large = np.asarray(x.dtype.type(OFFSET))
    return (x + large) - large
"""
"""Rounded between inputs and outputs, by an OFFSET that is in neither."""


class _Float32s:
    """A toolchain whose kernel is forward() in float32, a little further off with each kernel."""

    parallel_runs = 1
    simulated = True

    def rounded_integers(self, artifact: float) -> bool:
        return False

    def counts(self, artifact: float) -> bool:
        return False

    def memory_bytes(self, artifact: float) -> int:
        return 0

    def run(self, artifact: float, tensors: list[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        (x,) = tensors
        exact = x.astype(np.float64)
        return [(exact + artifact * np.resize([1, -1], x.shape)).astype(np.float32)]


@pytest.mark.parametrize(("offset", "draws"), [(1e3, 4), (1.0, 1)])
def test_what_decided_for_one_kernel_decides_for_the_next_without_the_reference(tmp_path, offset, draws) -> None:
    of_task = task(BEYOND_ITS_NOISE.replace("OFFSET", str(offset)))
    reference = Reference(of_task, of_task.full)
    (x,) = reference.inputs(1)
    specs = argument_specs([x])
    # three rounded sums of `offset` off: far beyond the noise of an x about 1, within float32's own
    kernel = 1e-4 if draws == 4 else 0.0
    compiled = Compiled(of_task.full, reference, specs, kernel, x.nbytes)
    request = EvaluationRequest(of_task, Candidate("h", "", "input"))
    cache = ReferenceCache(tmp_path)
    seed = of_task.seeds[0]
    assert isinstance(Verifier(request, _Float32s(), compiled, cache)._check(Draw(seed, "positive")), Passed)
    assert reference._module.calls.count(8) == 1 + draws
    asked = len(reference._module.calls)
    assert isinstance(Verifier(request, _Float32s(), compiled, cache)._check(Draw(seed, "positive")), Passed)
    assert len(reference._module.calls) == asked
    wrong = replace(compiled, artifact=0.5)
    assert isinstance(Verifier(request, _Float32s(), wrong, cache)._check(Draw(seed, "positive")), Failed)


ONE_ROW_CANCELS = """
import numpy as np

def get_inputs():
    x, w = np.random.normal(1, 1, (128, 256)), np.random.normal(1e4, 1, (256, 48))
    x[3] -= x[3].mean()
    return [x.astype(np.float32), w.astype(np.float32)]

calls = []

def forward(x, w):
    calls.append(x.dtype.itemsize)
    return x @ w
"""


class _Products(_Float32s):
    """The third row is off by a factor that is the artifact."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, artifact: float, tensors: list[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        self.runs += 1
        product = tensors[0] @ tensors[1]
        product[3] *= artifact
        return [product]


@pytest.mark.parametrize(("factor", "runs", "right"), [(1.0, 1, True), (1.1, 2, False)])
def test_rows_of_a_large_output_are_decided_alone_and_what_they_do_not_decide_is_executed_again(
    monkeypatch: pytest.MonkeyPatch, factor: float, runs: int, right: bool
) -> None:
    monkeypatch.setattr(correctness, "LARGE", 1)
    of_task = task(ONE_ROW_CANCELS)
    reference = Reference(of_task, of_task.full)
    inputs, toolchain = reference.inputs(1), _Products()
    compiled = Compiled(of_task.full, reference, argument_specs(inputs), factor, 1)
    request = EvaluationRequest(of_task, Candidate("h", "", "input"))
    verdict = Verifier(request, toolchain, compiled, ReferenceCache(None))._check(Draw(1, "large"))
    assert isinstance(verdict, Passed if right else Failed)
    assert toolchain.runs == runs
    assert (reference._module.calls == [8, 8]) == right


NARROW = """
import math
import ml_dtypes
import numpy as np
N = 4096
def get_inputs():
    return [np.random.normal(size=(8, N)).astype(ml_dtypes.bfloat16)]
def forward(x):
    wide = x.astype(np.float32)
    return RESULT
"""


def narrow_reference(result: str) -> Reference:
    of_task = task(NARROW.replace("RESULT", result))
    return Reference(of_task, of_task.full)


def test_a_reference_of_bfloat16_computes_in_float64_whatever_it_casts_to() -> None:
    reference = narrow_reference("np.exp(wide / 3).astype(ml_dtypes.bfloat16)")
    inputs = reference.inputs(0)
    (expected,) = reference.expected(inputs)
    np.testing.assert_allclose(expected, np.exp(inputs[0].astype(np.float64) / 3), rtol=1e-15)
    noise = noise_of(reference, inputs, (expected,), 2.0**-24, 1)[0]
    assert 0 < np.median(noise / np.abs(expected)) < 1e-6  # no steps of bfloat16 in it


ROW_BY_ROW = "\n    for i, row in enumerate(wide): y[i] = row * row\n    return y"
GIVING = {
    "cast at last": "return (wide * wide).astype(TYPE)",
    "filled, then cast": f"y = np.zeros(x.shape){ROW_BY_ROW}.astype(TYPE)",
    "filled as its inputs are": "y = np.empty(x.shape, x.dtype); y[:] = wide * wide; return y.astype(TYPE)",
    "narrow, then filled": f"y = np.empty(x.shape, TYPE){ROW_BY_ROW}",
    "by a name of its own": "y = blank(x.shape, np.float32); y[:] = wide * wide; return y.astype(TYPE)",
    "put together": "return np.stack([row * row for row in wide]).astype(TYPE)",
    "of a list": "return np.array([row * row for row in wide]).astype(TYPE)",
    "chosen": "return np.where(wide > 0, wide * wide, wide * wide).astype(TYPE)",
    "added up": "y = np.zeros_like(wide); y += wide * wide; return y.astype(TYPE)",
    "copied": "return np.asarray((wide * wide).astype(TYPE)).copy()",
    "turned": "return (wide.T * wide.T).astype(TYPE).T.reshape(4, -1)[:, :].reshape(x.shape)",
    "cast row by row": "return np.stack([(row * row).astype(TYPE) for row in wide])",
    "a list of rows": "return np.array([(row * row).astype(TYPE) for row in wide])",
    "made of its type": "return np.array(wide * wide, dtype=TYPE)",
    "like another": "y = np.zeros_like(wide, dtype=TYPE); y[:] = (wide * wide).astype(TYPE); return y",
    "by parts": "y = np.empty(x.shape, TYPE); part = y[:]; part[:] = wide * wide; return y",
}


@pytest.mark.parametrize("taken", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("given", ["bfloat16", "float16", "float8_e4m3"])
@pytest.mark.parametrize("form", GIVING)
def test_a_result_is_taken_before_it_is_rounded_however_it_is_made(form: str, given: str, taken: str) -> None:
    of_task = task(
        "import ml_dtypes\nimport numpy as np\nfrom numpy import empty as blank\nN = 64\n"
        f"def get_inputs(): return [np.random.normal(size=(8, N)).astype('{taken}')]\n"
        f"def forward(x):\n    wide = x.astype(np.float32)\n    {GIVING[form].replace('TYPE', repr(given))}\n"
    )
    reference = Reference(of_task, of_task.full)
    (x,) = inputs = reference.inputs(0)
    exact = np.square(x.astype(np.float64))
    plain, one_by_one = reference.in_float32(inputs)[0], reference.in_float32_one_by_one(inputs)[0]
    expected, empty = reference.expected_of_types(inputs)
    np.testing.assert_allclose(expected, exact, rtol=1e-15)
    assert empty.dtype == np.dtype(given)
    assert plain.dtype == one_by_one.dtype == np.float32
    np.testing.assert_allclose(plain, exact, rtol=1e-6)
    np.testing.assert_allclose(reference.in_other_float64(inputs, 0)[0], exact, rtol=1e-14)
    noise = noise_of(reference, inputs, (expected,), 2.0**-24, 1)[0]
    assert 0 < np.median(noise / exact) < 1e-6, "it moves by steps of its type"


@pytest.mark.parametrize("result", ["wide.tolist()", "float(wide.sum())", "wide.sum()", "(wide, wide.sum(axis=0))"])
def test_a_result_need_not_be_an_array(result: str) -> None:
    reference = narrow_reference(result)
    found = reference.expected_of_types(reference.inputs(0))
    assert [each.dtype for each in found] == [np.float64] * (4 if result.startswith("(") else 2)


@pytest.mark.parametrize(
    "rounded",
    [
        "y = (wide * wide).astype('bfloat16').astype(np.float32) / 1",
        "y = (wide * wide).astype('bfloat16'); y[1:] = y[1:] * 1",
        "y = np.zeros(x.shape, 'bfloat16'); np.add(y, (wide * wide).astype('bfloat16'), out=y)",
        "y = 1 * np.maximum((wide * wide).astype('bfloat16'), 0)",
    ],
)
def test_what_is_used_or_written_to_after_it_was_rounded_stays_so(rounded: str) -> None:
    of_task = task(NARROW.replace("return RESULT", f"{rounded}\n    return y"))
    reference = Reference(of_task, of_task.full)
    inputs = reference.inputs(0)
    wanted = np.square(inputs[0].astype(np.float64)).astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(reference.expected(inputs)[0].astype(np.float64), wanted)


def test_what_is_beyond_the_type_of_the_result_stays_so() -> None:
    reference = narrow_reference("(wide * 1e3).astype('float8_e4m3')")
    inputs = reference.inputs(0)
    exact = inputs[0].astype(np.float64) * 1e3
    rounded = exact.astype("float8_e4m3").astype(np.float64)
    expected = reference.expected(inputs)[0]
    np.testing.assert_array_equal(np.isfinite(expected), np.isfinite(rounded))
    np.testing.assert_allclose(expected, np.where(np.isfinite(rounded), exact, rounded), rtol=1e-15)


@pytest.mark.parametrize("result", ["(1 + np.tanh(wide)) * np.sqrt(2)", "1 + np.vectorize(math.tanh)(wide)"])
def test_a_reference_of_bfloat16_shows_what_float32_gets_wrong_though_numpy_makes_float64_of_it(result: str) -> None:
    reference = narrow_reference(result)
    plain = reference.in_float32([np.full((1, 4), -12.0).astype(ml_dtypes.bfloat16)])[0]
    assert plain.dtype == np.float32 and (plain == 0).all()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "float8_e5m2", "float16", "float32"])
def test_arrays_of_every_type_are_kept_as_they_are(name: str, tmp_path: Path) -> None:
    reference, cache = Reference(task(), task().full), ReferenceCache(tmp_path, key=b"k")
    seed = reference.task.seeds[0]
    inputs = reference.inputs(seed)
    kept = [cache.of_draw(reference, seed, "r", lambda: (inputs[0].astype(name),))[0] for _ in range(2)]
    assert kept[0].dtype == kept[1].dtype == np.dtype(name)
    assert kept[0].tobytes() == kept[1].tobytes()
    assert kept[0] is not kept[1], "it was computed again, or never read"


class _Unsteady(TracedHere):
    """Every other run is off by one bit, which no limit shows."""

    runs = 0

    def run(self, artifact: Simulated, tensors: Sequence[np.ndarray], timeout_s: float) -> list[np.ndarray]:
        outputs = super().run(artifact, tensors, timeout_s)
        type(self).runs += 1
        if self.runs % 2:
            outputs[0].reshape(-1).view(np.int32)[0] ^= 1
        return outputs


@pytest.mark.parametrize("presets", [1, 2])
def test_a_kernel_is_executed_twice_whether_it_has_one_shape_or_two(presets: int) -> None:
    shapes = (ShapePreset("small", (("P", 128), ("N", 512), ("T", 1))), ShapePreset("full", (("T", 2), ("N", 512))))
    of_task = Task("sum", kernels.REFERENCE, shapes[:presets], seeds=(0,))
    request = EvaluationRequest(of_task, Candidate("h", kernels.FAST.replace("2048", "512")))
    result = judge(request, _Unsteady("trn2"), lambda step, detail: None, ReferenceCache(None))
    assert isinstance(result, Incorrect) and "different bits" in result.failure.reason, result
