"""What is relied on of Triton's internals: each a test of its own, so that the one that changed is named.

Only here, and in the process that compiles, is Triton imported.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from accelopt_core.toolchain import TensorArgument
from infra.judging.shipment import TREE
from nki_optimizer_triton.compiling import worker
from nki_optimizer_triton.execution.on_device import launching
from nki_optimizer_triton.program.elements import BY_LANGUAGE, BY_NAME
from nki_optimizer_triton.program.modules import LIBDEVICE, why_not
from nki_optimizer_triton.source.whitelist import VALUE_ATTRIBUTES
from nki_optimizer_triton.toolchain import TritonToolchain, triton_version


def test_the_installed_version_is_one_that_is_known() -> None:
    """Newer than 3.9: run these tests, look at what fails, and raise the number."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", triton.__version__)[:2])
    assert worker.OLDEST <= numbers <= (3, 9)
    assert triton_version() == triton.__version__


def test_a_driver_of_ours_can_be_put_in_place_and_is_asked_three_things() -> None:
    assert callable(triton.runtime.driver.set_active)
    asked = inspect.getsource(triton.runtime.jit)
    for question in ("get_current_device", "get_current_stream", "get_current_target"):
        assert f"driver.active.{question}" in asked
    others = set(re.findall(r"driver\.active\.(\w+)", asked)) - {
        "get_current_device",
        "get_current_stream",
        "get_current_target",
    }
    assert not others & {"launcher_cls", "utils", "get_device_interface"}


def test_warming_up_compiles_and_runs_nothing() -> None:
    assert list(inspect.signature(triton.runtime.jit.KernelInterface.warmup).parameters) == [
        "self",
        "args",
        "grid",
        "kwargs",
    ]
    assert "warmup=True" in inspect.getsource(triton.runtime.jit.KernelInterface.warmup)


def test_errors_of_compilation_carry_their_place() -> None:
    error = triton.compiler.errors.CompilationError("def k():\n  pass", __import__("ast").parse("pass").body[0], "said")
    assert (error.src, error.node.lineno, error.error_message) == ("def k():\n  pass", 1, "said")


@pytest.mark.parametrize("element", BY_NAME.values(), ids=lambda element: element.name)
def test_element_types_are_called_as_triton_calls_them(element: Any) -> None:
    assert hasattr(tl, element.language) and element.language in BY_LANGUAGE
    known = triton._utils.type_canonicalisation_dict if hasattr(triton, "_utils") else {}
    known = known or triton.runtime.jit.type_canonicalisation_dict
    assert known[str(worker._Dtype(element.name)).split(".")[-1]] == element.triton


def test_the_places_that_kernels_may_name_are_there() -> None:
    import importlib

    for dotted in LIBDEVICE:
        importlib.import_module(dotted)
    missing = [name for name in tl.__all__ if why_not("triton.language", name) is not None]
    assert set(missing) <= {
        "device_print", "static_print", "inline_asm_elementwise", "math", "extra", "core", "target_info", "dispatch",
        "extern_elementwise", "ir", "semantic", "str_to_ty", "TRITON_MAX_TENSOR_NUMEL", "atomic_poll",
    }, f"{missing} of triton.language are refused: decide, and say why in program/modules.py"  # fmt: skip


def test_methods_of_tensors_are_on_the_list() -> None:
    public = {name for name, value in vars(tl.core.tensor).items() if not name.startswith("_") and callable(value)}
    assert public - VALUE_ATTRIBUTES <= {"atomic_poll"}, public - VALUE_ATTRIBUTES


def test_the_numbers_of_types_that_tensor_maps_are_told_are_tritons() -> None:
    text = (Path(triton.__file__).parent / "backends/nvidia/driver.py").read_text()
    found = dict((int(a), int(b)) for a, b in re.findall(r"TMA_DTYPE_DEVICE_TO_HOST\[(\d+)\] = (\d+)", text))
    assert found == launching._HOST_TYPES


def test_scratch_pointers_are_the_last_parameters() -> None:
    text = (Path(triton.__file__).parent / "backends/nvidia/driver.c").read_text()
    text += (Path(triton.__file__).parent / "backends/nvidia/driver.py").read_text()
    assert "global_scratch" in text and text.count("profile_scratch") >= 0
    assert "gridX * num_ctas" in text or "gridDimX = gridX * num_ctas" in text or "clusterDimX" in text


# --- what Triton specializes on ------------------------------------------------------------------------

SPECIALIZED = """import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["free"])
def k(p, q, one, sixteen, odd, big, real, flag, none, free, pair, CONST: tl.constexpr, typed: tl.int64, plain: int):
    tl.store(p, tl.load(q))


def run(x):
    y = torch.empty_like(x)
    k[(1,)](y, x[1:], 1, 32, 7, 1 << 40, 1.5, True, None, 16, (3, x, (16, None)), 64, 5, 6)
    return y
"""


def test_arguments_are_specialized_by_triton_and_reach_the_kernel_in_order(on_cpu: TritonToolchain) -> None:
    artifact = on_cpu.compile(SPECIALIZED, (TensorArgument((64,), "float32"),), 60)
    (kernel,) = artifact.kernels
    signature = dict(zip([name for name, _ in artifact.program.launches[0].arguments], kernel.signature))
    assert signature == {
        "p": "*fp32", "q": "*fp32", "one": "constexpr", "sixteen": "i32", "odd": "i32", "big": "i64", "real": "fp32",
        "flag": signature["flag"], "none": "constexpr", "free": "i32", "pair": ["i32", "*fp32", ["i32", "constexpr"]],
        "CONST": "constexpr", "typed": "i64", "plain": signature["plain"],
    }  # fmt: skip
    assert signature["flag"] in ("i1", "u1") and signature["plain"] in ("i32", "constexpr")
    arguments = artifact.plan["steps"][0]["arguments"]
    numbers = [a["value"] for a in arguments if a["kind"] == "int"]
    assert numbers[:6] == [32, 7, 1 << 40, 1, 16, 3] and numbers[-2:] == [5, 6]
    assert [a["kind"] for a in arguments][:2] == ["pointer", "pointer"] and arguments[1]["offset"] == 4
    aligned = re.findall(r"%([\w.]+): !tt\.ptr<f32>( \{tt\.divisibility = 16 : i32\})?", kernel.ttir)
    assert [bool(divisible) for _, divisible in aligned][:3] == [True, False, True]


def test_the_process_that_compiles_says_what_is_missing(tmp_path: Path) -> None:
    """An interpreter without Triton: the record says so, and nothing else is left."""
    job = {
        "tree": str(TREE), "work": str(tmp_path), "files": [], "kernels": [],
        "namespaces": False, "parent": __import__("os").getpid(),
        "limits": {"deadline_s": 60, "memory_bytes": 1 << 34}, "result_fd": 1, "report_fd": 2,
    }  # fmt: skip
    blocked = "import sys; sys.modules['triton'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", blocked, worker.__file__], input=json.dumps(job).encode(), capture_output=True
    )
    assert b'"missing"' in done.stdout and b"version" not in done.stdout
