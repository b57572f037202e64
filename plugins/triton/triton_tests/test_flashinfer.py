"""FlashInfer-Bench's definitions, workloads and solutions are read as the suite means them, or refused in one line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import config
from accelopt_core.judging.reference.verification import BadReference, Reference, UnusableOutputs
from accelopt_core.judging.tolerance.closeness import Place, check_elements
from accelopt_core.task import PrecisionPolicy, Within
from infra.assembly.problem import Problem, problem_of
from infra.settings_reader import SettingsError
from infra.tasks.reference_reader import TaskInvalid, read_reference
from triton_tests.flashinfer_samples import (
    IN_TORCH,
    INTO_OUTPUT,
    KERNEL,
    LARGE,
    RETURNING,
    SMALL,
    definition,
    solution,
    workload,
    write_safetensors,
    write_set,
)


def problem(kernel: Path, **settings: Any) -> Problem:
    return problem_of(config.from_keywords({"kernel": kernel, **settings}).settings)


# --- a definition and its workloads as a task -------------------------------------------------------


def test_a_definition_becomes_a_task_and_its_workloads_shapes(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path)
    found = problem(solved)
    task = found.task
    assert task.name == "rmsnorm_h96" and task.language == "triton"
    gate, full = (dict(preset.values) for preset in task.presets)
    assert gate == {"hidden_size": 96, "batch_size": 3, "WORKLOAD": 1}  # fewest bytes first, most are timed
    assert full == {"hidden_size": 96, "batch_size": 5, "WORKLOAD": 2}
    assert task.within == Within(1e-2, 1e-2) and task.tolerance == 2e-5
    assert task.precision is PrecisionPolicy.FLOAT32_FAITHFUL
    assert found.origin is not None and found.origin.workload["uuid"] == LARGE and found.written


def test_what_is_narrower_than_float32_has_its_tolerance(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path, definition("float16"))
    task = problem(solved).task
    assert task.tolerance == 5e-3 and task.precision is PrecisionPolicy.BF16_ALLOWED


def test_workloads_are_chosen_by_how_their_uuids_begin_and_the_last_is_timed(tmp_path: Path) -> None:
    place, solved = write_set(tmp_path)
    found = problem(solved, problem=place, workloads=("2222", "1111"))
    assert [preset.name for preset in found.task.presets] == [LARGE, "full"]
    assert found.origin is not None and found.origin.workload["uuid"] == SMALL
    (alone,) = problem(solved, workloads=(SMALL,)).task.presets
    assert dict(alone.values)["batch_size"] == 3
    with pytest.raises(TaskInvalid, match=r"h96.jsonl: there is no workload '33'; there are: 22222222-large, 1"):
        problem(solved, workloads=("33",))


def test_inputs_are_what_a_workload_says(tmp_path: Path) -> None:
    weight = np.arange(96, dtype=np.float32)
    given = {"type": "safetensors", "path": "./blob/w.safetensors", "tensor_key": "weight"}
    line = workload(SMALL, 3, weight=given, eps={"type": "scalar", "value": 0.5})
    write_safetensors(
        tmp_path / "blob" / "w.safetensors", {"other": np.ones(3, np.int32), "weight": weight},
        {"other": "I32", "weight": "F32"},
    )  # fmt: skip
    _, solved = write_set(tmp_path, workloads=[line, workload(LARGE, 5)])
    task = problem(solved).task
    small, large = (Reference(task, preset) for preset in task.presets)
    hidden, stored, eps = small.inputs(7)
    assert hidden.shape == (3, 96) and hidden.dtype == np.float32 and eps == 0.5
    np.testing.assert_array_equal(stored, weight)
    hidden, drawn, eps = large.inputs(7)
    assert hidden.shape == (5, 96) and eps == 1e-6 and not np.array_equal(drawn, weight)
    assert not np.array_equal(large.inputs(8)[0], hidden)
    x = hidden.astype(np.float64)
    (expected,) = large.expected([hidden, drawn, eps])
    assert expected.dtype == np.float64
    np.testing.assert_allclose(expected, x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * drawn, rtol=1e-12)


def test_integers_and_booleans_are_drawn_in_the_suite_s_ranges_and_a_missing_number_once(tmp_path: Path) -> None:
    axes = ["batch_size", "hidden_size"]
    changed = {
        "inputs": {
            **{
                name: {"shape": axes, "dtype": name} for name in ("int64", "int32", "int16", "int8", "bfloat16", "bool")
            },
            "scale": {"shape": None, "dtype": "float32"},
        },
        "reference": "import numpy as np\n\ndef run(*inputs):\n    return np.asarray(inputs[4])\n",
    }
    lines = [{**workload(LARGE, 40), "workload": {"uuid": LARGE, "axes": {"batch_size": 40}, "inputs": {}}}]
    place, _ = write_set(tmp_path, definition(**changed), lines)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(KERNEL.replace("import triton\n", "import torch\nimport triton\n", 1) + RETURNING)
    found = problem(kernel, problem=place)
    reference = Reference(found.task, found.task.full)
    *arrays, scale = reference.inputs(0)
    assert [array.dtype.name for array in arrays] == ["int64", "int32", "int16", "int8", "bfloat16", "bool"]
    for array, most in zip(arrays[:4], (1024, 1024, 1024, 128)):
        assert -most <= array.min() < -most * 0.9 and most * 0.9 < array.max() < most
    assert scale == reference.inputs(1)[-1] and type(scale) is float


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_reference_in_torch_runs_as_it_is(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("torch")
    _, solved = write_set(tmp_path, definition(dtype, IN_TORCH))
    task = problem(solved).task
    reference = Reference(task, task.full)
    inputs = reference.inputs(3)
    assert inputs[0].dtype.name == dtype
    (expected,) = reference.expected(inputs)
    x, weight = (value.astype(np.float64) for value in inputs[:2])
    exact = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    kind = np.dtype({"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype))
    np.testing.assert_array_equal(expected, expected.astype(kind).astype(np.float64))  # rounded, as the suite has it
    np.testing.assert_allclose(expected, exact, rtol=4 * float(ml_dtypes.finfo(kind).eps))
    assert expected.dtype == np.float64 and reference.in_float32(inputs)[0].dtype == np.float32


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_a_reference_in_it_says_what_to_install(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path, definition("bfloat16", IN_TORCH))
    task = problem(solved).task
    with pytest.raises(BadReference, match="rmsnorm_h96 cannot be loaded: .*in torch, .*pip install torch"):
        Reference(task, task.full)


def test_outputs_have_the_definition_s_shapes_and_dtypes_and_no_other(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path, definition("bfloat16"))
    task = problem(solved).task
    reference = Reference(task, task.full)
    expected = (np.zeros((5, 96)),)
    right = np.zeros((5, 96), ml_dtypes.bfloat16)
    assert reference.outputs([right], expected)[0].shape == (5, 96)
    for wrong, said in (
        (right.astype(np.float32), "output is float32, and the definition says bfloat16"),
        (right.reshape(-1), r"output is \[480\], and the definition says \[5, 96\]"),
    ):
        with pytest.raises(UnusableOutputs, match=said):
            reference.outputs([wrong], expected)
    with pytest.raises(UnusableOutputs, match="2 tensors are returned, and outputs are 1"):
        reference.outputs([right, right], expected)


# --- the suite's rule for elements ------------------------------------------------------------------

PLACE = Place(0, "full", 0, "reference")


@pytest.mark.parametrize(
    ("got", "expected", "said"),
    [
        ([1.0, 100.5], [1.0, 100.0], None),  # far by 0.5, and by half a percent
        ([0.005, 1.0], [0.0, 1.0], None),  # any times its value, and by less than 0.01
        ([1.0, 1.02], [1.0, 1.0], "an element is off by more than 0.01 and by more than 0.01 of the value"),
        ([2.0, 2.0], [1.0, 1.0], "2 of 2 elements are off"),
        ([1.0, np.inf], [1.0, np.inf], "infinite, which the suite takes for wrong"),
        ([np.nan, 1.0], [1.0, 1.0], "NaN, which the suite takes for wrong"),
    ],
)
def test_an_element_is_wrong_where_it_is_off_by_both(got: list[float], expected: list[float], said: str | None) -> None:
    arrays = np.array(got, np.float32), np.array(expected)
    off, failure = check_elements(*arrays, place=PLACE, within=Within(1e-2, 1e-2))
    assert failure is None if said is None else (failure is not None and said in failure.reason)
    if np.isfinite(got).all():
        error = np.abs(np.float64(arrays[0]) - arrays[1])
        assert off.absolute == error.max() and off.relative == (error / (np.abs(arrays[1]) + 1e-8)).max()


@pytest.mark.parametrize(
    "said", ['{"absolute": 1e-2}', '{"absolute": 1, "relative": "x"}', '{"absolute": 0, "relative": 1}']
)
def test_a_rule_that_lacks_a_number_is_refused(said: str) -> None:
    text = f"M = 4\nWITHIN = {said}\n\ndef get_inputs(): ...\ndef forward(): ...\n"
    with pytest.raises(TaskInvalid, match="WITHIN"):
        read_reference(text, "ref.py")


# --- solutions as kernels ---------------------------------------------------------------------------


def test_a_solution_that_is_given_its_outputs_gets_a_function_that_returns_them(tmp_path: Path) -> None:
    _, solved = write_set(tmp_path)
    found = problem(solved)
    assert found.task.around.function == "run_returning" and found.source.startswith(KERNEL + INTO_OUTPUT)
    assert (
        "output = torch.empty((hidden_states.shape[0], 96,), dtype=torch.float32, device=hidden_states.device)\n"
        "    run(hidden_states, weight, eps, output)\n    return output\n"
    ) in found.source


def test_one_that_returns_them_stays_as_it_is(tmp_path: Path) -> None:
    text = f"import torch\n{KERNEL}{RETURNING}"
    _, solved = write_set(tmp_path, solved=solution(text, {"destination_passing_style": False}))
    found = problem(solved)
    assert (found.source, found.task.around.function, found.task.around.neighbours) == (text, "run", ())


def test_its_other_files_are_the_kernel_s_neighbours(tmp_path: Path) -> None:
    sources = [
        {"path": "main.py", "content": f"from .parts.rows import rmsnorm_rows\nimport triton\n{INTO_OUTPUT}"},
        {"path": "parts/rows.py", "content": KERNEL},
    ]
    _, solved = write_set(tmp_path, solved=solution(sources=sources))
    around = problem(solved).task.around
    assert around.module == "solution.main" and around.neighbours == (("solution/parts/rows.py", KERNEL),)


# --- what is refused --------------------------------------------------------------------------------

ROWS = ["batch_size", "hidden_size"]
BAD_DEFINITIONS = {
    "unknown axis": ({"outputs": {"output": {"shape": ["rows"], "dtype": "float32"}}},
                     r"outputs.output.shape has the axis 'rows', and axes are hidden_size, batch_size"),
    "fp8": ({"outputs": {"output": {"shape": ROWS, "dtype": "float8_e4m3fn"}}},
            r"outputs.output.dtype is 'float8_e4m3fn', and one of these is read: float32, float16"),
    "int4": ({"inputs": {"x": {"shape": ROWS, "dtype": "int4"}}}, r"inputs.x.dtype is 'int4'"),
    "syntax": ({"reference": "def run(x:\n"}, r"reference is not Python \(its line 1\)"),
    "no run": ({"reference": "def forward(x):\n    return x\n"}, "reference defines no function run"),
    "arguments": ({"reference": "def run(x):\n    return x\n"}, "a run of 1 arguments, and there are 3 inputs"),
    "kind of axis": ({"axes": {"batch_size": {"type": "dynamic"}}}, "axes.batch_size.type is 'dynamic'"),
    "size of axis": ({"axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 0}}},
                     "axes.hidden_size.value is 0, and must be a positive whole number"),
    "name of axis": ({"axes": {"get_inputs": {"type": "var"}}}, "get_inputs cannot be the name of an axis"),
    "sampling": ({"op_type": "sampling"}, "op_type is 'sampling', whose outputs are drawn"),
    "path": ({"name": "../../evil"}, "name is '../../evil': use letters"),
    "no inputs": ({"inputs": {}}, "inputs has no tensor"),
    "missing": ({"outputs": None}, "outputs is missing"),
    "number out": ({"outputs": {"output": {"shape": ROWS, "dtype": "float32"}, "n": {"shape": None, "dtype": "int32"}}},
                   "outputs.n.shape is null: kernels write tensors"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_DEFINITIONS)
def test_a_definition_that_cannot_be_read_says_why_in_one_line(tmp_path: Path, what: str) -> None:
    changed, said = BAD_DEFINITIONS[what]
    place, solved = write_set(tmp_path, definition(**changed))
    with pytest.raises(TaskInvalid, match=said) as refused:
        problem(solved, problem=place)
    assert str(place) in str(refused.value) and "\n" not in str(refused.value)


def stored(path: str, key: str = "weight") -> dict[str, Any]:
    return {"weight": {"type": "safetensors", "path": path, "tensor_key": key}}


BAD_WORKLOADS = {
    "missing": (stored("blob/none.safetensors"), "none.safetensors: no such file"),
    "absolute": (stored("/etc/passwd"), "weight.path is '/etc/passwd', outside of the data set"),
    "upwards": (stored("blob/../../x.safetensors"), "outside of the data set"),
    "by a link": (stored("blob/link.safetensors"), "outside of the data set"),
    "no file of that kind": (stored("blob/text.safetensors"), "text.safetensors: no safetensors file"),
    "pointer": (stored("blob/pointer.safetensors"), "a Git LFS pointer: fetch"),
    "key": (stored("blob/w.safetensors", "bias"), "it has no tensor 'bias', only weight, short"),
    "shape": (stored("blob/w.safetensors", "short"), r"holds \[3\] of float32, and weight is \[96\] of float32"),
    "cut off": (stored("blob/cut.safetensors"), "it ends within weight"),
    "lying": (stored("blob/lying.safetensors"), r"weight has 384 bytes for \[97\] of F32"),
    "kind": ({"weight": {"type": "file"}}, "weight.type is 'file', and one of these is read: random, scalar"),
    "a number for a tensor": ({"weight": {"type": "scalar", "value": 1}}, "is scalar, and weight is a tensor"),
    "text for a number": ({"eps": {"type": "scalar", "value": "1"}}, "eps.value is '1', and eps is of float32"),
    "unknown input": ({"bias": {"type": "random"}}, "bias is no input of rmsnorm_h96"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_WORKLOADS)
def test_a_workload_that_cannot_be_read_says_why_in_one_line(tmp_path: Path, what: str) -> None:
    inputs, said = BAD_WORKLOADS[what]
    outside, folder, blob = tmp_path / "x.safetensors", tmp_path / "set", tmp_path / "set" / "blob"
    weight = np.ones(96, np.float32)
    write_safetensors(outside, {"weight": weight}, {"weight": "F32"})
    write_safetensors(
        blob / "w.safetensors", {"weight": weight, "short": weight[:3]}, {"weight": "F32", "short": "F32"}
    )
    (blob / "link.safetensors").symlink_to(outside)
    (blob / "text.safetensors").write_text("these are no tensors")
    (blob / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (blob / "cut.safetensors").write_bytes(outside.read_bytes()[:-1])
    (blob / "lying.safetensors").write_bytes(outside.read_bytes().replace(b"[96]", b"[97]"))
    _, solved = write_set(folder, workloads=[workload(LARGE, 5, **inputs)])
    with pytest.raises(TaskInvalid, match=said) as refused:
        problem(solved)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "axes.batch_size is None"),
        ({"batch_size": 0}, "is 0, and must be"),
        ({"batch_size": 2, "rows": 2}, "axes.rows is no"),
    ],
)
def test_sizes_that_a_definition_does_not_have_are_refused(tmp_path: Path, axes: dict[str, int], said: str) -> None:
    line = workload(LARGE, 5)
    line["workload"]["axes"] = axes
    _, solved = write_set(tmp_path, workloads=[line])
    with pytest.raises(TaskInvalid, match=said):
        problem(solved)


BAD_SOLUTIONS = {
    "cuda": (solution(spec={"language": "cuda"}), "spec.language is 'cuda', and solutions in triton are read"),
    "python": (solution(spec={"language": "python"}), "spec.language is 'python'"),
    "entry": (solution(spec={"entry_point": "main.py"}), "spec.entry_point is 'main.py', and has the form FILE.py::F"),
    "no such file": (solution(spec={"entry_point": "k.py::run"}), "names k.py, and sources are main.py"),
    "escape": (solution(sources=[{"path": "../main.py", "content": "x"}]), r"sources\[0\].path is '../main.py'"),
    "not Python": (solution("def run(:\n"), "main.py is not Python"),
    "another definition": (solution(definition="gemm"), "it solves gemm, and"),
    "no sources": (solution(sources=None), "sources is missing"),
}


@pytest.mark.parametrize("what", BAD_SOLUTIONS)
def test_a_solution_that_cannot_be_read_says_why_in_one_line(tmp_path: Path, what: str) -> None:
    document, said = BAD_SOLUTIONS[what]
    place, solved = write_set(tmp_path, solved=document)
    with pytest.raises(TaskInvalid, match=said) as refused:
        problem(solved, problem=place)
    assert "\n" not in str(refused.value)


def test_files_that_are_no_json_and_lie_in_no_data_set_are_told(tmp_path: Path) -> None:
    place, solved = write_set(tmp_path / "set")
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(solution()))
    with pytest.raises(TaskInvalid, match="alone.json: which definition"):
        problem(alone)
    place.write_text("{")
    with pytest.raises(TaskInvalid, match="rmsnorm_h96.json: not JSON"):
        problem(solved)
    place.unlink()
    with pytest.raises(TaskInvalid, match="0 definitions rmsnorm_h96.json"):
        problem(solved)


def test_settings_that_do_not_fit_are_told(tmp_path: Path) -> None:
    place, solved = write_set(tmp_path)
    reference, kernel = tmp_path / "ref.py", tmp_path / "kernel.py"
    kernel.write_text("import nki\n\n@nki.jit\ndef kernel(x):\n    return x\n")
    with pytest.raises(SettingsError, match="workloads: of which definition"):
        problem(kernel, problem=reference, workloads=("1",))
    with pytest.raises(SettingsError, match="in_place: a solution is no kernel file"):
        problem(solved, in_place=True)
    with pytest.raises(SettingsError, match="is a solution, and is held against its definition"):
        problem(solved, problem=reference)
    with pytest.raises(SettingsError, match="names its function itself"):
        problem(solved, function="run")
    with pytest.raises(TaskInvalid, match="a NKI kernel, and rmsnorm_h96 is for Triton's"):
        problem(kernel, problem=place)
