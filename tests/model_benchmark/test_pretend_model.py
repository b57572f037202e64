"""The pretend model with suite winners in it: the same answers, and the time that the projection says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import orchestrator
from infra.model_benchmark.placing import placed
from tests.house.structure import ROOT
from tests.infra.test_documents import checked
from tests.model_benchmark.checkout import ATTENTION, MATMUL, PROMPTS, WINNERS, lay_out, winner

TOLERANCE = 2e-5
"""Relative L2 over the whole output, as a kernel by itself is held to."""

TOKENS = 512
"""Of a step of qwen.py."""

STEP = """
import json, sys
import numpy as np
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import nki_sim
nki_sim.install()
import qwen
step = qwen.Step()
results = [step.run(prompt) for prompt in sys.argv[4:]]
once = len(step.calls) // len(results)
assert step.calls[:once] == step.calls[once:]
del step.calls[once:]
np.savez(sys.argv[3], *results, *(step.expected(prompt) for prompt in sys.argv[4:]))
print(json.dumps([step.step_us, step.calls]))
"""


@dataclass(frozen=True)
class Ran:
    """One model: its answers, the right ones in float64, the time of a step and what each kernel call took, in µs."""

    results: list[np.ndarray]
    expected: list[np.ndarray]
    step_us: float
    calls: list[tuple[str, tuple[str, ...], float]]


def ran(checkout: Path, kept: Path) -> Ran:
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(ROOT), str(checkout), str(kept), *PROMPTS], capture_output=True, text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    step_us, calls = json.loads(done.stdout)
    arrays = list(np.load(kept).values())
    count = len(PROMPTS)
    return Ran(arrays[:count], arrays[count:], step_us, [(name, tuple(shapes), us) for name, shapes, us, _ in calls])


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As it is, and with the winners in it."""
    folder = tmp_path_factory.mktemp("models")
    before, after = lay_out(folder / "before"), lay_out(folder / "after")
    for place in WINNERS:
        made = placed(winner(place), place, (after / place.file).read_bytes(), in_package=False)
        for name, data in made.files.items():
            (after / name).write_bytes(data)
    return before, after


@pytest.fixture(scope="module")
def models(checkouts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran]:
    kept = tmp_path_factory.mktemp("kept")
    before, after = checkouts
    return ran(before, kept / "before.npz"), ran(after, kept / "after.npz")


def off(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def test_winners_change_no_answer_and_the_step_is_faster(models: tuple[Ran, Ran]) -> None:
    before, after = models
    for model in models:
        assert max(map(off, model.results, model.expected)) < TOLERANCE
    assert max(map(off, after.results, before.results)) < TOLERANCE
    assert [call[:2] for call in before.calls] == [call[:2] for call in after.calls]
    assert Counter(name for name, _, _ in before.calls) == {"matmul": 12, "attention": 2}
    assert after.step_us < 0.9 * before.step_us, (before.step_us, after.step_us)


def test_the_numbers_flow_through_the_kernels(tmp_path: Path) -> None:
    """A winner that is wrong makes the model wrong."""
    wrong = lay_out(tmp_path / "wrong")
    text = (wrong / MATMUL.file).read_text()
    changed = text.replace("nisa.tensor_copy(dst=out, src=acc)", "nisa.memset(dst=out, value=0.5)")
    assert changed != text
    (wrong / MATMUL.file).write_text(changed)
    model = ran(wrong, tmp_path / "wrong.npz")
    assert min(map(off, model.results, model.expected)) > 0.1


@pytest.fixture
def table(checkouts: tuple[Path, Path], models: tuple[Ran, Ran], tmp_path: Path) -> Path:
    """Of the model as it is: each kernel at each of its shapes."""
    before, _ = models
    kinds = Counter((name, shapes, us) for name, shapes, us in before.calls)
    files = {"matmul": MATMUL, "attention": ATTENTION}
    lines = ["[model]", 'name = "pretend"', f"step_us = {before.step_us!r}", f"tokens_per_step = {TOKENS}"]
    for (name, shapes, us), calls in kinds.items():
        place = files[name]
        lines += [
            "[[kernel]]", f'name = "{name}"', f'before = "{checkouts[0] / place.file}"',
            f'after = "{WINNERS[place]}"', f"shapes = {list(shapes)}",
            f"calls = {calls}", f"share = {calls * us / before.step_us!r}",
        ]  # fmt: skip
    path = tmp_path / "pretend.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_projected_gain_is_that_of_the_summed_simulated_times(models, table, capsys) -> None:
    before, after = models
    assert orchestrator.main(["model", "--kernel-table", str(table), "--json"]) == 0
    captured = capsys.readouterr()
    said = checked(captured.out)
    assert said["simulated"] is True and len(said["kernels"]) == 4
    assert said["speedup"] == pytest.approx(before.step_us / after.step_us, rel=0.01)
    assert said["projected_step_us"] == pytest.approx(after.step_us, rel=0.01)
    assert said["projected_tokens_per_s"] == pytest.approx(1e6 * TOKENS / after.step_us, rel=0.01)
    assert "tokens/s become" in captured.err
    covered = sum(us for *_, us in before.calls) / before.step_us
    assert said["covered"] == pytest.approx(covered) and 0.5 < covered < 1
    assert "projected, on simulated trn2" in captured.err and "512x1024 1024x512" in captured.err
    assert "…" not in captured.err, "whole at 80 columns"
