"""`python -m nki_sim`: what a user types and what comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_sim.__main__ import main
from nki_sim.encoding import program_file
from nki_sim.execution.executor import execute
from nki_sim.machine import MACHINES

KERNEL = """
import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
def scale(a, factor=2.0):
    assert a.shape[0] <= 128, "at most 128 rows"
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=tile)
    return out


def by(count, a):
    assert count > 0
    return scale.__wrapped__(a, float(count))
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "scale.py"
    path.write_text(KERNEL)
    return path


def test_run_reads_arrays_and_writes_outputs(kernel: Path, tmp_path: Path, capsys: Any) -> None:
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.save(tmp_path / "a.npy", a)
    arguments = ["run", str(kernel), "--inputs", str(tmp_path / "a.npy"), "--set", "factor=3.0"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out0.npy"), 3 * a)
    assert "[4, 8] float32" in capsys.readouterr().out


REFERENCE = """
import numpy as np

ROWS = 4


def get_inputs():
    return [np.random.normal(size=(ROWS, 8)).astype(np.float32)]


def forward(a):
    wanted = 2.0 * a
    wanted[3, 5] += 10
    return wanted


def transform_to_nki_inputs(inputs):
    return inputs


def transform_nki_outputs(result, reference):
    return [result]
"""


def test_run_shows_what_the_kernel_computes_beside_what_its_reference_says(kernel, tmp_path, capsys) -> None:
    problem = tmp_path / "scale_reference.py"
    problem.write_text(REFERENCE)
    assert main(["run", str(kernel), "--problem", str(problem)]) == 0
    out = capsys.readouterr().out
    np.random.seed(0)
    exact = 2.0 * float(np.random.normal(size=(4, 8)).astype(np.float32)[3, 5])
    assert f"furthest at [3, 5]: kernel {exact:.6g}, reference {exact + 10:.6g}" in out
    problem.write_text(REFERENCE.replace("wanted[3, 5] += 10", "wanted = wanted[:2]"))
    assert main(["run", str(kernel), "--problem", str(problem)]) == 0
    assert "output 0: the kernel's is [4, 8], the reference's [2, 8]" in capsys.readouterr().out
    problem.write_text("x = 1\n")
    assert main(["run", str(kernel), "--problem", str(problem)]) == 2
    assert "has no function get_inputs: it draws the arguments: return [np.random" in capsys.readouterr().err
    problem.write_text("def doubled(a):\n    return 2.0 * a\n")
    assert main(["run", str(kernel), "--problem", str(problem), "--shape", "4x8:bf16"]) == 0
    assert "output 0: relative L2 0 from the reference" in capsys.readouterr().out
    problem.write_text("def one(a):\n    return a\n\n\ndef other(a):\n    return a\n")
    assert main(["run", str(kernel), "--problem", str(problem), "--shape", "4x8"]) == 2
    assert "call that forward" in capsys.readouterr().err


def test_trace_prints_instructions_or_saves_a_program(kernel: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["trace", str(kernel), "--shape", "4x8:bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "tensor_scalar" in out and "3 instructions of 3 kinds" in out and "sbuf: 4 of 212,984" in out
    assert main(["trace", str(kernel), "--shape", "4x8", "--save", str(tmp_path / "p")]) == 0
    program = program_file.load(tmp_path / "p")
    np.testing.assert_array_equal(execute(program, [np.ones((4, 8), np.float32)])[0], np.full((4, 8), 2.0))


@pytest.mark.parametrize("name", ["trn1", "trn3"])
def test_a_latency_of_a_machine_that_is_not_calibrated_says_so(kernel: Path, capsys: Any, name: str) -> None:
    assert main(["profile", str(kernel), "--shape", "128x512", "--machine", name]) == 0
    latency, trust = capsys.readouterr().out.splitlines()[:2]
    assert f"us on simulated {name}" in latency and trust == MACHINES[name].calibration


SUMS = """
import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
def sums(a):
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    total = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    for half in (total[:, :64], total[:, 64:]):
        for k in range(a.shape[1] // 128):
            block = tile[:, k * 128 : k * 128 + 128]
            nisa.nc_matmul(dst=half, stationary=block, moving=block[:, :64], accumulate=k > 0)
    result = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out, src=result)
    return out
"""


def test_check_traces_sums_in_psum(tmp_path: Path, capsys: Any) -> None:
    """At the shapes given, or at those of the reference beside the kernel; with neither it says what is missing."""
    path = tmp_path / "sums.py"
    path.write_text(SUMS)
    assert main(["check", str(path)]) == 0
    assert "warning: [psum-groups]" in capsys.readouterr().out
    assert main(["check", str(path), "--shape", "128x256:float32"]) == 1
    assert f"{path}:16: error: [psum-groups]" in capsys.readouterr().out
    assert main(["check", str(path), "--shape", "128x128:float32"]) == 0, "one product for each sum"
    assert main(["check", f"{path}:sums", "--shape", "256x256:float32"]) == 1
    assert "error: [trace]" in capsys.readouterr().out
    reference = tmp_path / "sums_reference.py"
    reference.write_text(REFERENCE.replace("(ROWS, 8)", "(128, 256)"))
    assert main(["check", str(path)]) == 1
    assert "error: [psum-groups]" in capsys.readouterr().out
    written = reference.stat().st_mtime
    reference.write_text(REFERENCE.replace("(ROWS, 8)", "(256, 256)"))
    os.utime(reference, (written, written))  # an edit of equal length in the same second
    assert main(["check", str(path)]) == 0, "what does not fit the reference is no error of the kernel's"
    assert "warning: [trace]" in capsys.readouterr().out


MISTAKES = {
    "no such file": (["run", "nowhere.py", "--shape", "4x8"], 2, "no kernel file nowhere.py"),
    "no such function": (["run", "{kernel}:nothing", "--shape", "4x8"], 2, "no function nothing"),
    "bad shape": (["run", "{kernel}", "--shape", "4by8"], 2, "128x512:float32"),
    "bad constant": (["run", "{kernel}", "--shape", "4x8", "--set", "factor"], 2, "NAME=VALUE"),
    "no such input": (["run", "{kernel}", "--inputs", "none.npy"], 2, "none.npy"),
    "inputs and shapes": (["run", "{kernel}", "--inputs", "a.npy", "--shape", "4x8"], 2, "not both"),
    "no such dtype": (["trace", "{kernel}", "--shape", "4x8:float99"], 2, "nki_sim: --shape 4x8:float99: dtype"),
    "more than a device holds": (["profile", "{kernel}", "--shape", "1000000000x1000000000"], 2, "96 GiB of HBM"),
    "no value for a number": (["profile", "{kernel}:by", "--shape", "4x8"], 2, "missing a required argument: 'a'"),
    "an unknown name": (["run", "{kernel}", "--shape", "4x8", "--set", "faktor=2"], 2, "--set NAME=VALUE"),
    "an assertion without words": (["run", "{kernel}:by", "--shape", "4x8", "--set", "count=0"], 1, "assert count > 0"),
    "a rule broken": (["run", "{kernel}", "--shape", "4x8", "--set", "factor='x'"], 1, "scale.py:13:"),
    "the kernel's own assertion": (["trace", "{kernel}", "--shape", "200x8"], 1, "scale.py:9: AssertionError: at most"),
}


@pytest.mark.parametrize("arguments, status, message", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_and_an_exit_code(kernel, capsys, arguments, status, message) -> None:
    assert main([argument.replace("{kernel}", str(kernel)) for argument in arguments]) == status
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
