"""Compile, run and time through the fixtures: real processes, real files, a pretend compiler and device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from accelopt_core.toolchain import (
    CompileError,
    ConstantArgument,
    RunError,
    StepTimeout,
    TensorArgument,
    ToolchainMissing,
)
from infra.neuron.compilation.compiling import Neff
from infra.neuron.profiling.profile_reader import PARQUET_READER, ProfileReader
from infra.neuron.profiling.profiler import Profiler
from infra.neuron.toolchain import NeuronToolchain
from tests.processes import eventually, running
from tests.toolchains.pretend_sdk import FIXTURES, READS_TABLES, PretendSdk, opened_on

A = TensorArgument((4, 3), "float32")
HEAD = "import nki\nimport nki.language as nl\n\n@nki.jit\n"
SUBTRACT = HEAD + "def kernel(a, b):\n    return nl.subtract(a, b)\n"
LEFT = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = np.full((4, 3), 0.5, np.float32)


def test_values_of_every_kind_go_in_and_out_in_order(toolchain: NeuronToolchain) -> None:
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert neff.inputs == ("a", "b") and neff.outputs == ("output_0",)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)
    assert np.array_equal(toolchain.run(neff, [RIGHT, LEFT], 60)[0], RIGHT - LEFT)
    source = HEAD + "def kernel(a, b):\n    return nl.row_sum(a), nl.add(a, b), nl.subtract(a, b)\n"
    outputs = toolchain.run(toolchain.compile(source, [A, A], 60), [LEFT, RIGHT], 60)
    for got, expected in zip(outputs, [LEFT.sum(axis=1), LEFT + RIGHT, LEFT - RIGHT], strict=True):
        assert np.array_equal(got, expected)
    source = HEAD + "def optimized_kernel(unused, scale, a):\n    return nl.add(a, scale)\n"
    neff = toolchain.compile(source, [A, ConstantArgument(2.5), A], 60)
    assert neff.inputs == (None, "a")
    assert np.array_equal(toolchain.run(neff, [RIGHT, LEFT], 60)[0], LEFT + 2.5)
    narrow = TensorArgument((4, 3), "bfloat16")
    values = LEFT.astype(ml_dtypes.bfloat16)
    neff = toolchain.compile(HEAD + "def kernel(a, b):\n    return nl.add(a, b)\n", [narrow, narrow], 60)
    assert np.array_equal(toolchain.run(neff, [values, values], 60)[0], 2 * LEFT)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    with pytest.raises(RunError, match="NRT_INVALID"):
        toolchain.run(neff, [LEFT[:2], RIGHT], 60)
    with pytest.raises(RunError, match="1 tensors were given to a kernel compiled for 2"):
        toolchain.run(neff, [LEFT], 60)
    source = (
        SUBTRACT + "import os\nopen(os.path.join(os.environ['NKI_ARTIFACTS_DIR'], 'stage1.neff'), 'w').write('x')\n"
    )
    neff = toolchain.compile(source, [A, A], 60)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)


def test_a_runtime_that_forgets_dtypes_does_no_harm(sdk: PretendSdk, toolchain: NeuronToolchain) -> None:
    sdk.behave(void=True)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    got = toolchain.run(neff, [LEFT, RIGHT], 60)[0]
    assert got.dtype == np.float32 and np.array_equal(got, LEFT - RIGHT)


def test_latencies_are_the_devices_own_without_the_warm_up(sdk: PretendSdk, toolchain: NeuronToolchain) -> None:
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    sdk.behave(total_time_s=[9e-3, 1e-4, 1e-4])
    assert toolchain.time(neff, [LEFT, RIGHT], 0, 2, 60).samples_us == pytest.approx((100, 100)), "the first never"
    sdk.behave(total_time_s=[9e-3, 2e-3, 5e-4, 1e-4, 3e-4, 2e-4])
    timing = toolchain.time(neff, [LEFT, RIGHT], warmup=3, iterations=3, timeout_s=60)
    assert timing.samples_us == pytest.approx((100.0, 300.0, 200.0))
    facts = toolchain.facts(neff)
    assert facts.fields["total_time"] == 2e-4, "the facts are those of the median execution"
    assert (facts.matmul_flops, facts.hbm_bytes, facts.low_precision) == (2000, 3 * 48, ())
    hot_lines = [(hot.line, hot.engine, hot.active_us) for hot in facts.hot_lines]
    assert hot_lines == [(6, "tensor", 100.0), (7, "vector", 50.0)]


def test_a_device_that_computes_something_else_when_timed_is_found_out(sdk, toolchain) -> None:
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    toolchain.run(neff, [LEFT, RIGHT], 60)
    sdk.behave(lies_when_timed=True)
    with pytest.raises(RunError, match="other outputs than the verified one"):
        toolchain.time(neff, [LEFT, RIGHT], 1, 2, 60)


def test_profiles_that_take_too_long_to_read_cost_samples_and_not_the_measurement(toolchain, monkeypatch, caplog):
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    reading = toolchain._summary
    clock = {"now": 0.0}
    for module in ("toolchain", "profiling.profile_reader"):
        monkeypatch.setattr(f"infra.neuron.{module}.time", SimpleNamespace(monotonic=lambda: clock["now"]))

    def slowly(neff: Neff, session: Path, deadline: float) -> dict[str, float]:
        clock["now"] += 90
        return reading(neff, session, clock["now"] + 60)

    monkeypatch.setattr(toolchain, "_summary", slowly)
    timing = toolchain.time(neff, [LEFT, RIGHT], 1, 10, timeout_s=600)
    assert 3 <= len(timing.samples_us) < 10
    assert "of 10 samples are used" in caplog.text


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"operands": "src=bf16@0x0 dst=fp32@0x100"}, ("bfloat16",)),
        ({"summary": {"adjusted_hardware_flops": 6000}}, ("below-float32 matmul operands",)),
    ],
)
def test_arithmetic_below_float32_is_reported(sdk, toolchain, state, expected) -> None:
    sdk.behave(**state)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    toolchain.time(neff, [LEFT, RIGHT], 1, 1, 60)
    assert toolchain.facts(neff).low_precision == expected


def test_the_former_name_of_the_profiler_works_with_its_fewer_flags(tmp_path: Path) -> None:
    sdk = PretendSdk(tmp_path, profiler="neuron-profile")
    toolchain = opened_on(sdk)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)
    assert len(toolchain.time(neff, [LEFT, RIGHT], 2, 3, 60).samples_us) == 3
    assert "neuron-profile 2.32.38.0" in toolchain.name
    toolchain.close()


def test_name_and_fingerprint_say_what_a_latency_depends_on(sdk: PretendSdk, toolchain: NeuronToolchain) -> None:
    assert toolchain.name == "trn2 (NKI 0.6.0+fixture, neuron-explorer 2.32.38.0)"
    assert (toolchain.machine.name, toolchain.simulated) == ("trn2", False)
    again = opened_on(sdk)
    assert again.fingerprint == toolchain.fingerprint
    (sdk.installation.system_folder / "module/neuron/version").write_text("2.99\n")
    changed = opened_on(sdk)
    assert changed.fingerprint != toolchain.fingerprint, "another driver may mean other latencies"
    again.close()
    changed.close()


def test_an_sdk_that_saves_neffs_only_through_the_runtime_is_asked_again(sdk, toolchain, tmp_path) -> None:
    packages = next((tmp_path / "venv").rglob("site-packages"))
    (packages / "sitecustomize.py").write_text("import os\nos.environ['PRETEND_NKI_MODE'] = 'inspect-only'\n")
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)


def test_a_kernel_that_fails_while_it_is_compiled_on_the_device_still_leaves_its_neff(toolchain) -> None:
    source = HEAD + "def kernel(a, b):\n    return nl.device_fault(a, 'NRT_EXEC_OOB (1006)')\n"
    assert toolchain.compile(source, [A, A], 60).output_specs == (None,), "what it returns was never seen"


@pytest.mark.parametrize(
    ("source", "says", "line"),
    [
        ("def kernel(a:\n", "SyntaxError", 1),
        ("x = 1\n", "the file defines no kernel: name it kernel or optimized_kernel", None),
        ("import torch_lightning\n", "ModuleNotFoundError", 1),
        (HEAD + "def kernel(a, b):\n    return nl.frobnicate(a)\n", "no attribute 'frobnicate'", 6),
        (
            HEAD + "def kernel(a, b):\n    x = 1\n    return nl.psum_overflow()\n",
            "[NCC_IBIR228] tile needs 20480 bytes",
            7,
        ),
        ("def kernel(a, b):\n    return a\n", "left no NEFF", None),
        ("import sys\nsys.exit(0)\n", "SystemExit", 2),
        ("import os\nos._exit(3)\n", "the compiling process died (exit status 3)", None),
        ("import os\nos.kill(os.getpid(), 9)\n", "the compiling process died (signal 9)", None),
        ("def f():\n    f()\nf()\n", "RecursionError", 2),
        (
            HEAD + "def kernel(a, b):\n    return nl.add(a, b)\n"
            "import numpy as np\nfirst = kernel(np.zeros(2), np.zeros(2))\nopen('other.neff', 'w').write('x')\n"
            "import os; os.remove(os.environ['NKI_ARTIFACTS_DIR'] + '/kernel.neff'); kernel = print\n",
            "different NEFFs",
            None,
        ),
        (
            "open('x.neff', 'wb').write(b'not a neff')\nimport nki\nkernel = lambda a, b: a\n",
            "does not fit the call: 10 bytes are too short",
            None,
        ),
        ("import os\nos.symlink('/etc/passwd', 'x.neff')\nkernel = lambda a, b: a\n", "left no NEFF", None),
        ("import os, json\nopen('said.json', 'w').write('[' * 5000)\nos._exit(0)\n", "process died", None),
        ("import os\nos.mkfifo('said.json')\nos._exit(0)\n", "process died", None),
        (
            "import os\nos.remove('said.json') if 0 else os.symlink('/dev/zero', 'said.json')\nos._exit(0)\n",
            "process died",
            None,
        ),
        (
            "import os, json\njson.dump({'phase': 'toolchain', 'message': 'broken SDK', 'line': None, 'outputs': None,"
            " 'parameters': []}, open('said.json', 'w'))\nos._exit(1)\n",
            "broken SDK",
            None,
        ),
        ("raise ValueError('x' * 10000)\n", "ValueError: xxx", 1),
        ("x = bytearray(1 << 48)\n", "MiB", None),
    ],
)
def test_a_candidate_that_cannot_be_compiled_is_told_why(toolchain, source, says, line) -> None:
    with pytest.raises(CompileError) as error:
        toolchain.compile(source, [A, A], 60)
    assert says in error.value.message
    assert error.value.line == line
    assert "\n" not in error.value.message and len(error.value.message) < 2500


def test_the_compiling_process_sees_no_secret(toolchain: NeuronToolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    with pytest.raises(CompileError) as error:
        toolchain.compile("import os\nraise ValueError(sorted(os.environ), os.environ['HOME'])\n", [A], 60)
    assert "NKI_ARTIFACTS_DIR" in error.value.message
    for hidden in ("ANTHROPIC", "SSH_AUTH", os.environ.get("HOME", "/root") + "'"):
        assert hidden not in error.value.message


def test_a_timeout_ends_every_process_of_the_candidate(toolchain: NeuronToolchain) -> None:
    with pytest.raises(StepTimeout) as error:
        toolchain.compile("import subprocess\nsubprocess.run(['/bin/sleep', '601.3579'])\n", [A], 3)
    assert (error.value.step, error.value.limit_s) == ("compile", 3)
    assert eventually(lambda: not running("/bin/sleep 601.3579"))


@pytest.mark.parametrize(
    "failure", ["NRT_EXEC_OOB (1006)", "NRT_EXEC_COMPLETED_WITH_NUM_ERR (1003)", "NRT_TIMEOUT (5)"]
)
def test_a_kernel_that_fails_on_the_device_is_a_fault_of_the_kernel(toolchain: NeuronToolchain, failure: str) -> None:
    neff = toolchain.compile(HEAD + f"def kernel(a, b):\n    return nl.device_fault(a, {failure!r})\n", [A, A], 60)
    with pytest.raises(RunError, match=failure.split()[0]):
        toolchain.run(neff, [LEFT, RIGHT], 60)


def test_a_kernel_that_hangs_on_the_device_is_stopped(toolchain: NeuronToolchain) -> None:
    neff = toolchain.compile(HEAD + "def kernel(a, b):\n    return nl.hang(a)\n", [A, A], 60)
    with pytest.raises(StepTimeout) as error:
        toolchain.run(neff, [LEFT, RIGHT], 1.5)
    assert error.value.step == "run"


def test_a_busy_core_is_a_fault_of_the_machine(sdk: PretendSdk, toolchain: NeuronToolchain) -> None:
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    sdk.behave(busy=True)
    with pytest.raises(ToolchainMissing, match=r"NeuronCore\(s\) not available"):
        toolchain.run(neff, [LEFT, RIGHT], 60)


@pytest.mark.parametrize("failure", ["NRT_HW_ERROR (6)", "NRT_EXEC_HW_ERR_HBM_UE (1201)", "NRT_EXEC_NC_BUSY (1005)"])
def test_a_hardware_error_is_a_fault_of_the_machine(toolchain: NeuronToolchain, failure: str) -> None:
    neff = toolchain.compile(HEAD + f"def kernel(a, b):\n    return nl.device_fault(a, {failure!r})\n", [A, A], 60)
    with pytest.raises(ToolchainMissing, match=failure.split()[0]):
        toolchain.run(neff, [LEFT, RIGHT], 60)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"summary": {"total_time": None}}, "no number named total_time"),
        ({"print": "Segmentation fault"}, "no summary"),
        ({"summary": {"total_time": 1e9}}, "not the seconds of an execution"),
    ],
)
def test_a_profile_without_a_latency_is_a_fault_of_the_machine_by_name(sdk, toolchain, state, says) -> None:
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    sdk.behave(**state)
    with pytest.raises(ToolchainMissing, match=says):
        toolchain.time(neff, [LEFT, RIGHT], 1, 2, 60)


def test_an_sdk_that_breaks_later_is_not_blamed_on_the_candidate(
    sdk, toolchain: NeuronToolchain, tmp_path: Path
) -> None:
    packages = next((tmp_path / "venv").rglob("site-packages"))
    broken = packages.parent / "broken"
    (broken / "nki").mkdir(parents=True)
    (broken / "nki/__init__.py").write_text("raise ImportError('libneuronxla.so: cannot open shared object file')\n")
    (packages / "fixture.pth").write_text(f"{broken}\n" + (packages / "fixture.pth").read_text())
    with pytest.raises(ToolchainMissing, match="libneuronxla.so"):
        toolchain.compile(SUBTRACT, [A, A], 60)


def test_nothing_is_left_behind(sdk: PretendSdk) -> None:
    toolchain = opened_on(sdk)
    folder = toolchain.compile(SUBTRACT, [A, A], 60).path.parent
    toolchain.close()
    assert not folder.exists()


RELEASES = [(2, 31), (2, 32), (2, 33), (2, 34)]


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_documented_flags_are_enough_on_every_release(tmp_path: Path, release: tuple[int, int]) -> None:
    sdk = PretendSdk(tmp_path, release=release, only_documented=True, site=(FIXTURES / "site", READS_TABLES))
    toolchain = opened_on(sdk)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert np.array_equal(toolchain.run(neff, [LEFT, RIGHT], 60)[0], LEFT - RIGHT)
    assert len(toolchain.time(neff, [LEFT, RIGHT], 1, 2, 60).samples_us) == 2
    facts = toolchain.facts(neff)
    assert [(hot.line, hot.engine) for hot in facts.hot_lines] == [(6, "tensor"), (7, "vector")]
    toolchain.close()


@pytest.mark.parametrize(
    "state",
    [
        {"split_tables": True},
        {"no_formats": ["summary-json"], "silent_about_formats": True},
        {"silent_about_formats": True},
    ],
)
def test_tables_are_read_from_parquet_where_json_is_gone(tmp_path: Path, state: dict[str, object]) -> None:
    sdk = PretendSdk(tmp_path, release=(2, 34), site=(FIXTURES / "site", READS_TABLES))
    sdk.behave(operands="src=bf16@0x0", **state)
    toolchain = opened_on(sdk)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert toolchain.time(neff, [LEFT, RIGHT], 1, 1, 60).samples_us == pytest.approx((100.0,))
    facts = toolchain.facts(neff)
    hot_lines = [(hot.line, hot.engine, hot.active_us) for hot in facts.hot_lines]
    assert hot_lines == [(6, "tensor", 50.0), (7, "vector", 25.0)]
    assert facts.low_precision == ("bfloat16",)
    assert not list(toolchain._last[neff.digest][1].parent.glob("*tables*")), "tables are not kept"
    toolchain.close()


@pytest.mark.parametrize(
    ("site", "state", "says"),
    [
        ((), {}, "tables are in Parquet only, and no Python here has pyarrow"),
        ((READS_TABLES,), {"no_instructions": True}, "no Instruction.parquet in what view left: Summary.parquet"),
    ],
)
def test_without_tables_there_is_a_latency_and_a_word_on_what_is_not(tmp_path, caplog, site, state, says) -> None:
    sdk = PretendSdk(tmp_path, release=(2, 34), site=(FIXTURES / "site", *site))
    sdk.behave(**state)
    toolchain = opened_on(sdk)
    neff = toolchain.compile(SUBTRACT, [A, A], 60)
    assert toolchain.time(neff, [LEFT, RIGHT], 1, 1, 60).samples_us == pytest.approx((100.0,))
    assert toolchain.facts(neff).hot_lines == ()
    assert says in caplog.text
    toolchain.close()


def test_a_profiler_of_which_not_even_a_latency_can_be_read_is_not_opened(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "neuron-explorer", frozenset(), frozenset(), frozenset({"parquet"}))
    with pytest.raises(ToolchainMissing, match="in Parquet only, and no Python here has pyarrow"):
        ProfileReader(profiler, None)


def test_what_the_reader_of_tables_does_is_what_the_real_pyarrow_takes(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"start_ts": [1, 2], "engine": ["tensor", None], "other": [0.5, 1.5]})
    parquet.write_table(table, tmp_path / "Instruction_0.parquet")
    parquet.write_table(table, tmp_path / "Instruction_1.parquet")
    parquet.write_table(table, tmp_path / "InstructionX.parquet")
    out = tmp_path / "rows.json"
    argv = [
        sys.executable,
        "-I",
        str(PARQUET_READER),
        str(tmp_path),
        "Instruction",
        str(out),
        *["start_ts", "engine", "no"],
    ]
    assert subprocess.run(argv).returncode == 0
    assert json.loads(out.read_text()) == {
        "rows": [{"start_ts": 1, "engine": "tensor"}, {"start_ts": 2, "engine": None}] * 2,
        "files": 2,
    }
