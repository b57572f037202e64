"""evaluate, menu, apply and explain as a user or a script types them: one document each, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.client import folder_of_a_kernel
from tests.e2e.kernels import SLOW
from tests.e2e.run import orchestrate
from tests.infra.test_documents import checked

CHANGE = ("--tool", "merge-iterations", "--site", "0:0")


def test_apply_writes_one_new_file_and_overwrites_none_unasked(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    menu = checked(orchestrate("menu", "mine.py", "--json", folder=work).output)
    change = ("--tool", menu["changes"][0]["tool"], "--site", menu["changes"][0]["site"])
    done = orchestrate("apply", "mine.py", *change, "--output", "second.py", "--json", folder=work)
    assert done.status == 0, done.errors
    document = checked(done.output)
    assert document["written"] == "second.py" and document["diff"].startswith("--- mine.py\n+++ second.py\n")
    made = (work / "second.py").read_text()
    assert made != (work / "mine.py").read_text()
    again = orchestrate(
        "apply", "second.py", "--problem", "mine_reference.py", *change, "--output", "second.py", folder=work
    )
    assert again.status == 2 and "second.py is there" in again.errors
    assert (work / "second.py").read_text() == made


def test_the_steps_of_a_round_can_be_taken_back(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    ran = orchestrate("mine.py", "--rounds", "1", folder=work)
    assert ran.status == 0, ran.errors
    texts = []
    for step in (1, 2):
        of_run = ("apply", "--from", "latest", "--step", str(step), "--output", f"{step}.py")
        done = orchestrate(*of_run, folder=work)
        assert done.status == 0, done.errors
        texts.append((work / f"{step}.py").read_text())
    assert len({(work / "mine.py").read_text(), *texts, (ran.folder / "best_kernel.py").read_text()}) == 4
    beyond = orchestrate("apply", "--from", "latest", "--step", "99", "--output", "n.py", folder=work)
    assert beyond.status == 2 and "--step 99: round 1 of run" in beyond.errors and "has steps 1 to " in beyond.errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("apply", "mine.py", *CHANGE), "--output is missing"),
        (("apply", *CHANGE, "--output", "n.py"), "which kernel?"),
        (("menu", "mine.py", "--tool", "x"), "only `apply` has it"),
    ],
)
def test_what_a_command_lacks_is_said_in_one_line(words, said, tmp_path, capsys, monkeypatch) -> None:
    import orchestrator

    monkeypatch.chdir(folder_of_a_kernel(tmp_path))
    assert orchestrator.main(list(words)) == 2
    errors = capsys.readouterr().err
    assert said in errors and len(errors.splitlines()) == 1


@pytest.mark.slow
def test_every_document_of_one_kernel_keeps_to_its_schema(tmp_path: Path) -> None:
    work = folder_of_a_kernel(tmp_path)
    (work / "wrong.py").write_text(SLOW.replace("op=nl.add", "op=nl.subtract"))
    wrong = orchestrate("evaluate", "wrong.py", "--problem", "mine_reference.py", "--json", folder=work)
    verdict = checked(wrong.output)
    assert wrong.status == 3 and verdict["verdict"] == "incorrect" and not verdict["right"]
    menu = orchestrate("menu", "mine.py", "--json", folder=work)
    assert menu.status == 0 and checked(menu.output)["changes"][0]["gain_us"] > 0
    refused = orchestrate("menu", "wrong.py", "--problem", "mine_reference.py", "--json", folder=work)
    assert refused.status == 3 and "is wrong" in checked(refused.output)["error"]
    explained = orchestrate("explain", "mine.py", "--json", "--view", "quiet", folder=work)
    assert explained.status == 0 and checked(explained.output)["explanation"]["gaps"]
