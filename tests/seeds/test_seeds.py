"""Every shipped seed computes what its reference says, and the index finds what a user means."""

from __future__ import annotations

import json
import types
from pathlib import Path

import numpy as np
import pytest

import nki_sim
from accelopt_core.task import Domain, PrecisionPolicy, Work
from infra.tasks.reference_reader import TaskInvalid
from infra.tasks.seed_index import SEEDS, TaskNotFound, find_reference, load_seed, seed_index, task_from_files
from nki_sim.lint import VERSIONS, check_source

nki_sim.install()
NAMES = [seed.name for seed in seed_index()]

REFERENCE = """
import numpy as np

M = 4
N: int = 8
K = M * 2


def get_inputs():
    return []


def forward(x):
    return None


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [result]
"""


def _module(path: Path) -> types.ModuleType:
    module = types.ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [0, 42])
def test_a_seed_computes_what_its_reference_says(name, number):
    import nki

    seed = load_seed(name)
    reference = _module(seed.reference_path)
    for key, value in seed.presets[0].values:
        setattr(reference, key, value)
    np.random.seed(number)
    inputs = reference.get_inputs()
    expected = reference.forward(*inputs)

    result = nki.simulate(_module(seed.kernel_path).kernel)(*reference.transform_to_nki_inputs(inputs))

    wanted = expected if isinstance(expected, tuple) else (expected,)
    outputs = reference.transform_nki_outputs(result, expected)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted):
        exact = want.astype(np.float64)
        assert np.linalg.norm(got.astype(np.float64) - exact) < seed.tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_seed_is_clean_in_every_supported_dialect(name, version):
    assert list(check_source(load_seed(name).kernel_source, version)) == []


@pytest.mark.parametrize("name", NAMES)
def test_presets_cover_exactly_the_constants_of_the_reference(name):
    seed = load_seed(name)
    reference = _module(seed.reference_path)

    for preset in seed.presets:
        assert preset.work is not None
        for key, _ in preset.values:
            assert isinstance(getattr(reference, key), int)
    assert dict(seed.task().full.values) == {key: getattr(reference, key) for key, _ in seed.task().full.values}


@pytest.mark.parametrize("name", NAMES)
def test_declared_work_is_what_inputs_and_outputs_weigh(name):
    """hbm_bytes is every input read once and every output written once; counted at the small shape."""
    seed = load_seed(name)
    reference = _module(seed.reference_path)
    small = seed.presets[0]
    for key, value in small.values:
        setattr(reference, key, value)
    inputs = reference.get_inputs()
    outputs = reference.forward(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    arrays = [a for a in (*inputs, *outputs) if isinstance(a, np.ndarray)]

    assert small.work.hbm_bytes == sum(a.nbytes for a in arrays)


def test_a_seed_kernel_finds_its_own_task():
    assert find_reference(SEEDS / "silu" / "kernel.py").task == load_seed("silu").task()


@pytest.mark.parametrize("name", ["x_reference.py", "x_ref.py", "reference.py", "ref.py", "x_numpy_1.py"])
def test_a_reference_next_to_the_kernel_is_found_by_its_name(tmp_path, name):
    (tmp_path / "x.py").write_text("def kernel(): pass\n")
    (tmp_path / name).write_text(REFERENCE)

    task = find_reference(tmp_path / "x.py").task

    assert (task.name, [p.name for p in task.presets]) == ("x", ["full"])
    assert dict(task.full.values) == {"M": 4, "N": 8}


def test_the_kernels_own_reference_goes_before_a_general_one(tmp_path):
    (tmp_path / "x.py").write_text("def kernel(): pass\n")
    (tmp_path / "reference.py").write_text(REFERENCE.replace("M = 4", "M = 5"))
    (tmp_path / "x_ref.py").write_text(REFERENCE)

    assert dict(find_reference(tmp_path / "x.py").task.full.values)["M"] == 4


def test_a_kernel_of_nkibench_itself_has_its_own_reference(tmp_path):
    for folder in ("kernels", "reference"):
        (tmp_path / folder).mkdir()
    kernel = tmp_path / "kernels" / "silu_M4096_N7168_0.py"
    kernel.write_text("def kernel(): pass\n")
    (tmp_path / "reference" / "silu_M4096_N7168_numpy_1.py").write_text(REFERENCE)

    assert dict(find_reference(kernel).task.full.values)["M"] == 4


def test_a_copy_of_a_seed_kernel_is_recognised_by_its_code(tmp_path):
    copy = tmp_path / "mine.py"
    copy.write_text("# my copy\n" + load_seed("matmul").kernel_source)

    assert find_reference(copy).task.name == "matmul"
    adopted = find_reference(copy)
    assert adopted.reference == load_seed("matmul").reference_path and "has that seed's code" in adopted.why


def test_a_changed_seed_kernel_is_recognised_by_its_name(tmp_path):
    (tmp_path / "add_rmsnorm_matmul_v2.py").write_text("def kernel(): pass\n")

    assert find_reference(tmp_path / "add_rmsnorm_matmul_v2.py").task.name == "add_rmsnorm_matmul"
    assert "name alone" in find_reference(tmp_path / "add_rmsnorm_matmul_v2.py").why


def test_when_nothing_is_found_then_every_place_is_named(tmp_path):
    (tmp_path / "x.py").write_text("def kernel(): pass\n")

    with pytest.raises(TaskNotFound) as failure:
        find_reference(tmp_path / "x.py")

    for place in ("x_reference.py", "x_ref.py", "reference.py", "ref.py", "x_numpy*.py", *NAMES, "--problem"):
        assert place in str(failure.value)


def test_a_missing_kernel_and_an_unknown_seed_are_named(tmp_path):
    with pytest.raises(TaskNotFound, match="no such file"):
        find_reference(tmp_path / "none.py")
    with pytest.raises(TaskNotFound, match="there are: matmul"):
        load_seed("none").task()


def test_a_reference_is_read_and_never_executed(tmp_path):
    trap = tmp_path / "sprung"
    (tmp_path / "ref.py").write_text(REFERENCE + f"open({str(trap)!r}, 'w')\n")

    task_from_files(tmp_path / "ref.py")

    assert not trap.exists()


@pytest.mark.parametrize("asked", ["problem", "kernel", "task"])
def test_a_kernel_in_a_runs_folder_is_held_against_what_the_run_was(tmp_path, asked):
    (tmp_path / "mine_reference.py").write_text(REFERENCE)
    (tmp_path / "mine.py").write_text("def kernel(): pass\n")
    run = tmp_path / "checkpoints" / "r1"
    run.mkdir(parents=True)
    (run / "best_kernel.py").write_text("def kernel(): return 1\n")
    given = {"problem": str(tmp_path / "mine_reference.py"), "kernel": str(tmp_path / "mine.py"), "task": "silu"}
    asked_for = {"problem": None, "kernel": None, "task": "matmul", asked: given[asked]}
    (run / "config.json").write_text(json.dumps({"run": asked_for}))

    with pytest.raises(TaskNotFound):  # not the folder of a run
        find_reference(run / "best_kernel.py")
    (run / "manifest.json").write_text("{}")

    found = find_reference(run / "best_kernel.py")
    assert found.why.startswith("of the shipped task silu: of its run" if asked == "task" else "of its run")
    assert found.task.name == {"problem": "mine_reference", "kernel": "mine", "task": "silu"}[asked]


@pytest.mark.parametrize("text", ["{", "[]", '{"run": {"problem": "gone.py"}}', '{"run": {"task": "no such seed"}}'])
def test_a_runs_folder_that_does_not_say_leaves_it_open(tmp_path, text):
    (tmp_path / "best_kernel.py").write_text("def kernel(): return 1\n")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TaskNotFound, match="no NumPy reference"):
        find_reference(tmp_path / "best_kernel.py")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def forward(:\n", r"ref\.py:1: not Python: [^<]*$"),
        ("def forward(): pass\n", r"must define get_inputs: def get_inputs\(\): return \[np.random.*--shape 128x512"),
        ("def gelu(x): pass\n", "must define get_inputs and forward: rename gelu to forward; def get_inputs"),
        ("def get_inputs(): pass\n", r"must define forward: def forward\(x\): \.\.\., what the kernel computes \("),
        ("x = 1\x00\n", "not Python"),
    ],
)
def test_an_unusable_reference_is_refused_by_name(tmp_path, text, reason):
    (tmp_path / "ref.py").write_text(text)

    with pytest.raises(TaskInvalid, match=reason):
        task_from_files(tmp_path / "ref.py")


DECLARING = (
    REFERENCE
    + """
PRESETS = {"small": {"M": 2}}
TOLERANCE = 1e-4
PRECISION = "bf16-allowed"
WORK = {"matmul_flops": 2 * M * N, "vector_ops": M * N // 2, "hbm_bytes": 4 * (M + N)}
DISTRIBUTIONS_LEFT_OUT = {"zero-rows": "0/0"}
DOMAINS = {"x": (-1.5, M * N - 1)}
"""
)


def test_a_reference_declares_gates_tolerance_precision_and_work(tmp_path):
    (tmp_path / "ref.py").write_text(DECLARING)

    task = task_from_files(tmp_path / "ref.py")

    small, full = task.presets
    assert (small.name, dict(small.values), small.work) == ("small", {"M": 2, "N": 8}, Work(32, 8, 40))
    assert (full.name, dict(full.values), full.work) == ("full", {"M": 4, "N": 8}, Work(64, 16, 48))
    assert (task.tolerance, task.precision) == (1e-4, PrecisionPolicy.BF16_ALLOWED)
    assert "zero-rows" not in task.distributions
    assert [preset.domains for preset in task.presets] == [(Domain("x", -1.5, 15),), (Domain("x", -1.5, 31),)]


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ("TOLERANCE = 2", r"tolerance 2.0 is not in"),
        ("TOLERANCE = True", "TOLERANCE must be a number, not True"),
        ('PRESETS = {"small": {"K": 2}}', "sets K, which the file does not define as a .* .it has: M, N"),
        ('PRESETS = {"full": {"M": 2}}', "full is the name of the file's own constants"),
        ('PRESETS = {"small": {"M": 2.5}}', "not a whole number"),
        ('PRESETS = {"small": {"M": -2}}', "need an identifier and a positive size"),
        ("PRESETS = make()", "ref.py:24: PRESETS must be written out"),
        ("PRESETS = 5", "must be a plain dictionary"),
        ('TOLERANCE = "2"', "TOLERANCE must be a number, not '2'"),
        ('TOLERANCE = "close"', r"ref\.py:\d+: TOLERANCE must be a number, not 'close'"),
        ('PRECISION = "fast"', "'fast' is not a valid PrecisionPolicy"),
        ('WORK = {"matmul_flops": 2 * Q}', "'Q' is not made of whole numbers and shape constants"),
        ('WORK = {"matmul_flops": len("x")}', "is not made of whole numbers"),
        ('WORK = {"matmul_flops": M // 0}', "divides by zero"),
        ('WORK = {"matmul_flops": M}', "it needs matmul_flops, vector_ops, hbm_bytes"),
        ('WORK = {"matmul_flops": 0, "vector_ops": 0, "hbm_bytes": 0}', "every kernel reads and writes something"),
        ('WORK = {"matmul_flops": 9 ** 9, "vector_ops": 0, "hbm_bytes": 1}', "is not made of whole numbers"),
        ('DISTRIBUTIONS_LEFT_OUT = {"tiny": "x"}', "cannot leave out 'tiny'"),
        ('DOMAINS = {"gain": (0, 1)}', r"DOMAINS names gain, which is no parameter of forward \(x\)"),
        ('DOMAINS = {"x": 5}', 'x needs two ends, as .1, N., or "fixed"'),
        ('DOMAINS = {"x": (2, 1)}', "x cannot lie from 2 to 1"),
        ('DOMAINS = {"x": (0, len("x"))}', "DOMAINS: .* is not made of whole numbers"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_by_name(tmp_path, declaration, reason):
    (tmp_path / "ref.py").write_text(f"{REFERENCE}\n{declaration}\n")

    with pytest.raises(TaskInvalid, match=reason):
        task_from_files(tmp_path / "ref.py")


def test_a_reference_that_is_not_text_is_refused_by_name(tmp_path):
    (tmp_path / "ref.py").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(TaskInvalid, match="cannot be read"):
        task_from_files(tmp_path / "ref.py")
