"""`--then model`: at the end of a run the model itself decides what its winner is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestrator
from tests.e2e.kernels import FAST, REFERENCE, SLOW
from tests.infra.test_documents import checked
from tests.model_benchmark.checkout import MATMUL
from tests.model_benchmark.test_e2e_benchmark import QUICK, Model, model  # noqa: F401  # a fixture


def a_run(
    model: Model,  # noqa: F811
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    *flags: str,
    kernel: str = SLOW,
):
    (folder / "add.py").write_text(kernel)
    (folder / "add_reference.py").write_text(REFERENCE)
    capsys.readouterr()
    status = orchestrator.main(
        [
            *model.host, *model.command, "--kernel", str(folder / "add.py"), "--remote-simulator", "--rounds", "1",
            "--provider", "catalogue", "--checkpoints", str(folder / "checkpoints"), "--memory",
            str(folder / "memory.json"), "--view", "quiet", "--json", *flags,
        ]
    )  # fmt: skip
    return status, checked(capsys.readouterr().out)


@pytest.mark.slow
def test_the_model_has_the_last_word_on_a_runs_winner(
    model: Model,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    then = ("--then", "model", "--put", str(MATMUL))
    status, said = a_run(model, tmp_path, capsys, *then, "--run-id", "one")
    assert (status, said["verdict"], said["run_id"], model.tally) == (0, "faster", "one", "bk")
    best = (tmp_path / "checkpoints" / "one" / "best_kernel.py").read_text()
    assert (model.checkout / MATMUL.module_file).read_text() == best != SLOW
    model.says(kernels={"report": {**QUICK, "accuracy": False}})
    status, said = a_run(model, tmp_path, capsys, "--resume", "one", "--rounds", "1")
    assert (status, said["verdict"], said["in_place"]) == (3, "failed", False), "the run remembers who decides"
    assert model.is_as_it_was


@pytest.mark.slow
def test_the_model_is_not_asked_about_a_run_without_a_faster_kernel(
    model: Model,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, said = a_run(model, tmp_path, capsys, "--then", "model", "--put", str(MATMUL), kernel=FAST)
    assert (status, said["schema"], model.tally) == (0, "nki-optimizer/run/1", "")
    assert model.is_as_it_was


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--then", "model"), "then: the model's --put is missing"),
        (("--then", "model", "--put", str(MATMUL), "--in-place"), "the model decides, after the run"),
    ],
)
def test_what_the_end_will_need_is_asked_for_at_the_beginning(
    model: Model,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    status, document = a_run(model, tmp_path, capsys, *flags)
    assert status == 2 and said in document["error"]
    assert not (tmp_path / "checkpoints").exists() and model.tally == ""
