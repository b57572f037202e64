"""The executor beside Triton's own interpreter, another reading of the same kernels: in float32, where that is right.

On bfloat16 it does not, which is why it is no gate here; a test keeps watch on that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nki_optimizer_triton.compiling.compiler import _checked_functions
from nki_optimizer_triton.program.launch_program import Fill
from nki_optimizer_triton.program.writing import encode
from nki_optimizer_triton.toolchain import TritonToolchain
from triton_tests.honest import CASES, specs, tensors

DRIVER = Path(__file__).with_name("interpreted.py")
COMPARED = [
    "vector_add",
    "layernorm",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("topk", "gelu", "dropout", "sorted_rows")),
]


@pytest.mark.parametrize("name", COMPARED)
def test_the_same_kernel_gives_the_same(name: str, on_cpu: TritonToolchain, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.file == name)
    arguments = case.arguments(np.random.default_rng(5))
    artifact = on_cpu.compile(case.source, specs(arguments), 120)
    ours = on_cpu.run(artifact, tensors(arguments), 120)
    program = artifact.program
    files, _ = _checked_functions(program, [case.source])
    job = {
        "text": files[0]["text"],
        "globals": files[0]["globals"],
        "buffers": [[buffer.dtype, buffer.elements] for buffer in program.buffers],
        "launches": [
            [step.function.name, step.grid, [encode(value) for _, value in step.arguments]]
            for step in program.steps
            if not isinstance(step, Fill)
        ],
    }
    np.savez(tmp_path / "inputs.npz", *tensors(arguments))
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(tmp_path)],
        capture_output=True,
        text=True,
        env={"TRITON_INTERPRET": "1", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "outputs.npz") as left:
        for output, got in zip(program.outputs, ours):
            theirs = left[f"arr_{output.buffer}"].reshape(output.shape)
            assert np.allclose(got, theirs, rtol=1e-5, atol=1e-6)


def test_tritons_interpreter_still_adds_bfloat16_as_if_its_bits_were_integers() -> None:
    """Once it does not, it may do as a second gate, and `ir/executing.py` says something that is no longer so."""
    said = subprocess.run(
        [sys.executable, str(DRIVER), "bfloat16"],
        capture_output=True,
        text=True,
        env={"TRITON_INTERPRET": "1", "PATH": ""},
    )
    assert said.returncode == 0, said.stderr[-2000:]
    assert float(said.stdout) != 2.0
