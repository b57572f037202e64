"""A kernel that imports its neighbours: judged, priced and compiled as Python itself would load it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.catalogue.kernel_trees import NoTree
from accelopt_core.evaluation import CompileFailed, Evaluation, Measured
from accelopt_core.languages.nki.static_checks import forbidden
from accelopt_core.ports import EvaluationRequest
from accelopt_core.task import ShapePreset, Surroundings, Task
from accelopt_core.toolchain import CompileError, ConstantArgument, DtypeArgument, TensorArgument
from infra.neuron.toolchain import open_neuron_toolchain
from infra.nki_kernel import NKIKernel
from infra.prediction.predictor import Predictor
from infra.simulator.toolchain import SimulatorToolchain, traced_on_simulator
from infra.targets.local import LocalTarget
from infra.tasks.reference_reader import TaskInvalid
from tests.e2e.kernels import IN_A_PACKAGE, REFERENCE, SLOW
from tests.slow import quick
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

KERNEL = IN_A_PACKAGE["pack/add.py"]
NEIGHBOURS = {path: text for path, text in IN_A_PACKAGE.items() if path != "pack/add.py"}
X, Y = TensorArgument((512, 2048), "float32"), TensorArgument((128, 2048), "float32")


def around(function: str = "add_rows", **changed: str) -> Surroundings:
    """`changed`: text of a file of the package, by its stem."""
    files = {**NEIGHBOURS, **{f"pack/{name}.py": text for name, text in changed.items()}}
    return Surroundings(function, "pack.add", tuple(sorted(files.items())))


def task(found: Surroundings) -> Task:
    presets = (ShapePreset("full", (("P", 128), ("N", 2048), ("T", 4))),)
    return Task("add", REFERENCE, presets, seeds=(0,), around=found)


def judged(target: LocalTarget, source: str, found: Surroundings, parent: str | None = None) -> Evaluation:
    return target.evaluate(EvaluationRequest(task(found), Candidate("c", source, parent)), lambda step, detail: None)


def test_it_is_measured_and_lines_of_its_neighbours_count_for_the_calls(target: LocalTarget) -> None:
    result = judged(target, KERNEL, around())
    assert isinstance(result, Measured)
    assert isinstance(alone := judged(target, SLOW, Surroundings()), Measured)
    assert result.latency_us == alone.latency_us, "the same instructions"
    calls = {number for number, line in enumerate(KERNEL.splitlines(), 1) if "load(" in line or "nisa." in line}
    assert {hot.line for hot in result.profile.hot_lines} <= calls
    assert all(hot.text.strip() in KERNEL for hot in result.profile.hot_lines)


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize(
    ("kernel", "changed", "said", "line"),
    [
        (KERNEL, {"moves": NEIGHBOURS["pack/moves.py"].replace("src=src)", "sauce=src)")},
         r"sauce.*\(pack/moves.py, line 8\)", 18),
        (KERNEL, {"moves": "def load(src, columns):\n    raise ValueError('not today')\n"},
         r"ValueError: not today \(pack/moves.py, line 2\)", 18),
        (KERNEL, {"moves": "import nowhere\n"}, r"No module named 'nowhere' \(pack/moves.py, line 1\); it lies nei", 6),
        (KERNEL, {"moves": "import neuronxcc.nki.isa\n"}, "moves.py, line 1.*NKI 0.1 that a kernel imports", 6),
        (KERNEL, {"moves": "open('table.json')\n"}, r"table.json.*put what it reads into a module", 6),
        (KERNEL, {"moves": "\n\ndef load(:\n"}, r"SyntaxError.*moves.py, line 3", 6),
        (KERNEL, {"moves": ""}, "cannot import name 'load'", 6),
        ("from .moves import load as add_rows\n", {}, "add_rows is imported from another file", None),
        (KERNEL.replace("def add_rows", "def add"), {}, "defines no kernel: name it add_rows", None),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_a_neighbour_is_said_with_its_place(kernel, changed, said, line, namespaces) -> None:
    toolchain = SimulatorToolchain("trn2", namespaces=namespaces)
    try:
        with pytest.raises(CompileError, match=said) as failed:
            toolchain.compile(kernel, [X, Y], 60, around(**changed))
        assert failed.value.line == line
    finally:
        toolchain.close()


WRAPPED = """
import contextlib
from dataclasses import dataclass
from queue import Queue


def wrapped(kernel):
    def around(x, y):
        load(y[0:128, 0:64], 64)
        return kernel(x, y)

    return around


@contextlib.contextmanager
def loaded(src, columns):
    yield load(src, columns)


@dataclass
class Tile:
    src: object
    columns: int

    def __post_init__(self):
        self.data = load(self.src, self.columns)
"""


def test_lines_are_those_of_the_kernels_own_file_whatever_lies_between(target: LocalTarget) -> None:
    """A decorator that is no kernel of this file, a generator that Python resumes, a method that it wrote."""
    source = KERNEL.replace("import load", "import Tile, load, loaded, wrapped").replace(
        "@nki.jit", "@nki.jit\n@wrapped"
    )
    load = "a = load(x[t * 128 : (t + 1) * 128, j * STEP : (j + 1) * STEP], STEP)"
    block = "\n            with loaded(y[0:128, 0:64], 64):\n                pass"
    source = source.replace(load, load.replace("load(", "Tile(") + ".data" + block)
    found = around(moves=NEIGHBOURS["pack/moves.py"] + WRAPPED, queue="raise ImportError('not this one')\n")
    program = SimulatorToolchain("trn2").compile(source, [X, Y], 60, found).program
    lines = {line.strip() for line in (source.splitlines()[t.line - 1] for t in program.templates)}
    assert any("Tile(" in line for line in lines) and any("with loaded" in line for line in lines)
    assert "def add_rows(x, y):" in lines, "what the decorator issues"


@pytest.mark.parametrize("package", quick("infra", of=("infra", "accelopt_core", "config")))
def test_a_package_may_be_called_as_one_of_ours(package: str) -> None:
    files = {path.replace("pack/", f"{package}/"): text for path, text in NEIGHBOURS.items()}
    kernel = KERNEL.replace("from .moves", f"from {package}.moves")
    for module in (f"{package}.add", "mine"):
        found = Surroundings("add_rows", module, tuple(sorted(files.items())))
        assert SimulatorToolchain("trn2").compile(kernel, [X, Y], 60, found).program.templates


@pytest.mark.slow
def test_lines_of_the_users_own_are_kept_however_unusual(target: LocalTarget) -> None:
    """`import fastlib` in a try is noted in the input kernel; a candidate that keeps the line is no worse."""
    unusual = KERNEL.replace(
        "STEP = 256\n", "try:\n    import fastlib\nexcept ImportError:\n    fastlib = None\nSTEP = 256\n"
    )
    wider = unusual.replace("STEP = 256\n", "STEP = 2048\n")

    def proposed(source: str) -> Evaluation:
        request = EvaluationRequest(task(around()), Candidate("c", source, "i"), original=Candidate("i", unusual))
        return target.evaluate(request, lambda step, detail: None)

    assert isinstance(proposed(wider), Measured)
    added = proposed(wider.replace("STEP = 2048\n", "STEP = 2048\nimport os\nos.getcwd\n"))
    assert isinstance(added, CompileFailed) and "module os" in added.message


def test_a_proposed_kernel_may_import_its_neighbours_and_nothing_else_of_the_users(target: LocalTarget) -> None:
    absolute = KERNEL.replace("from .moves", "from pack.moves")
    assert isinstance(judged(target, absolute, around(), "input"), Measured)
    assert isinstance(judged(target, KERNEL.replace("from .moves", "from moves"), around(), "input"), Measured)
    refused = judged(target, KERNEL.replace("from .moves", "from secrets_of_mine"), around(), "input")
    assert isinstance(refused, CompileFailed) and "secrets_of_mine" in refused.message
    assert [finding.rule for finding in forbidden(absolute)] == ["unusual-import"], "where it stands alone"


@pytest.mark.parametrize(
    ("imported", "used", "rule"),
    [
        ("from .moves import load, os", "", "behind-a-neighbour"),
        ("from pack.moves import load, os as q", "", "behind-a-neighbour"),
        ("from . import moves\nload = moves.load", "moves.os.getcwd()", "behind-a-neighbour"),
        ("from . import moves\nload = moves.load", "moves.nisa.dma_copy = None", "patched-module"),
        ("from .moves import load, nisa as other", "other.dma_copy = None", "patched-module"),
        ("from .moves import load, open", "open", None),
    ],
)
def test_what_a_neighbour_has_is_no_way_around_the_tripwire(imported: str, used: str, rule: str | None) -> None:
    source = KERNEL.replace("from .moves import load", imported).replace("STEP = 256\n", f"STEP = 256\n{used}\n")
    found = [finding.rule for finding in forbidden(source, around().importable)]
    assert found == ([] if rule is None else [rule])


def test_what_one_candidate_does_to_its_neighbours_the_next_does_not_see(target: LocalTarget) -> None:
    spoils = KERNEL.replace("STEP = 256\n", "from . import moves\n\nmoves.load = None\nSTEP = 256\n")
    assert isinstance(judged(target, spoils, around()), Measured), "it had its own name for it already"
    assert isinstance(judged(target, KERNEL, around()), Measured)


def test_the_same_kernel_with_other_neighbours_is_another_task() -> None:
    hashes = [task(found).content_hash for found in (Surroundings(), around(), around(moves="x = 1\n"), around("f"))]
    assert len(set(hashes)) == 4


def test_it_is_priced() -> None:
    predictor = Predictor(task(around()), "trn2", workers=1)
    wide = KERNEL.replace("STEP = 256\n", "STEP = 2048\n")
    try:
        prices = predictor([KERNEL, wide, SLOW])
    finally:
        predictor.close()
    slow_us, wide_us = prices[KERNEL], prices[wide]
    assert slow_us is not None and wide_us is not None and wide_us < slow_us
    assert prices[SLOW] is None, "it has no add_rows"


def test_the_catalogue_changes_the_function_that_is_meant(target: LocalTarget) -> None:
    other = KERNEL[KERNEL.index("@nki.jit") :].replace("add_rows", "kernel")
    predictor = Predictor(task(around()), "trn2", workers=1)
    try:
        fastest = max(predictor.single_steps(KERNEL + other).steps, key=lambda step: step.gain_us)
        made = predictor.carried_out(KERNEL + other, [fastest.name])
        with pytest.raises(NoTree, match="add_rows"):
            predictor.single_steps(KERNEL.replace("add_rows", "kernel"))
    finally:
        predictor.close()
    assert made.endswith(other) and KERNEL not in made
    result = judged(target, made, around())
    assert isinstance(result, Measured) and result.latency_us == pytest.approx(fastest.after_us)


def test_a_compiler_of_the_sdk_finds_them_as_files(tmp_path: Path) -> None:
    sdk = PretendSdk(tmp_path, site=SIMULATED)
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
    try:
        neff = toolchain.compile(KERNEL, [X, Y], 60, around())
        assert neff.inputs == ("x", "y") and neff.source_name == "pack/add.py"
        with pytest.raises(CompileError, match="not today"):
            toolchain.compile(KERNEL, [X, Y], 60, around(moves="raise ValueError('not today')\n"))
        second = toolchain.traced(KERNEL, [X, Y], 60, around())
        assert second is not None and second.matmul_flops == 0
        assert toolchain.compile(SLOW, [X, Y], 60).source_name == "candidate.py"
    finally:
        toolchain.close()


@pytest.mark.slow
def test_one_kernel_of_a_package_is_profiled_from_python(tmp_path: Path) -> None:
    second = KERNEL[KERNEL.index("@nki.jit") :].replace("add_rows", "other")
    for name, text in {**IN_A_PACKAGE, "pack/add.py": KERNEL + second, "ref.py": REFERENCE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = str(tmp_path / "pack/add.py"), str(tmp_path / "ref.py")
    assert NKIKernel(*files, function="other").profile([]).correct
    with pytest.raises(TaskInvalid, match="name one with --function"):
        NKIKernel(*files).profile([])


GIVEN = """
import nki
import nki.language as nl


@nki.jit
def kernel(x, padding, name, dtype):
    assert padding == ((1, 1), (0, 2)) and name == "silu" and dtype == nl.float32, (padding, name, dtype)
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    nki.isa.dma_copy(dst=out, src=x)
    return out
"""


def test_constants_and_dtypes_arrive_as_they_were_given(tmp_path: Path) -> None:
    arguments = [Y, ConstantArgument(((1, 1), (0, 2))), ConstantArgument("silu"), DtypeArgument("float32")]
    assert SimulatorToolchain("trn2").compile(GIVEN, arguments, 60).program.templates
    sdk = PretendSdk(tmp_path, site=SIMULATED)
    toolchain = open_neuron_toolchain(traced_on_simulator, installation=sdk.installation)
    try:
        assert toolchain.compile(GIVEN, arguments, 60).inputs[0] == "x"
    finally:
        toolchain.close()


def test_replaced_files_are_what_is_loaded(target: LocalTarget) -> None:
    doubled = NEIGHBOURS["pack/moves.py"].replace("return tile", "nisa.tensor_scalar(dst=tile, data=tile, "
                                                  "op0=nl.multiply, operand0=2.0)\n    return tile")  # fmt: skip
    result = judged(target, KERNEL, around(moves=doubled))
    assert result.kind == "incorrect"
    assert isinstance(judged(target, KERNEL, replace(around(), function="add_rows")), Measured)
