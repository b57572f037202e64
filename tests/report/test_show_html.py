"""`show --html` as it is typed: which file, what beside it, and what stands in the way said in one line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import config
import orchestrator
from accelopt_core.candidate import Candidate
from infra.command_line import read
from infra.runs.run_folder import RunFolder
from infra.tasks.seed_index import load_seed
from tests.infra.reports.test_suite import a_run, measured
from tests.infra.samples import attempted, manifest
from tests.processes import PATIENCE_S
from tests.report.pages import FIELDS, Ran, Reader, made_run

ROOT = Path(__file__).parents[2]
SEED = load_seed("silu")


def real_run(checkpoints: Path) -> RunFolder:
    """Of a shipped task at its small shape, whose kernels the simulator can tell the timelines of."""
    invocation = read(["--task", "silu", "--preset", "small", "--checkpoints", str(checkpoints)], {}, ROOT)
    about = manifest("20261120-125418-silu-3f2a", task="silu", kernel=str(SEED.kernel_path))
    folder = RunFolder.create(checkpoints, about, config.to_document(invocation.settings))
    folder.best(Candidate("input", SEED.kernel_source), measured(40.0))
    wider = SEED.kernel_source.replace("TILE_N = 512", "TILE_N = 256")
    assert wider != SEED.kernel_source
    made = attempted(1, measured(30.0), 40.0, source=wider)
    folder.attempt(made)
    assert made.candidate is not None
    folder.best(made.candidate, measured(30.0))
    folder.end("finished", "no idea left")
    folder.close()
    return folder


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = orchestrator.main(["show", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_run_is_drawn_with_its_timelines_and_leads_to_them(tmp_path, capsys) -> None:
    folder = real_run(tmp_path / "checkpoints")
    page = tmp_path / "out" / "a page.html"
    page.parent.mkdir()
    status, out, errors = shown(capsys, "--html", page, "--checkpoints", tmp_path / "checkpoints")
    assert status == 0 and "a page.html, " in out and "simulating the timeline of best (r001t1)" in errors
    read = Reader(page.read_text(encoding="utf-8"))
    assert "Engines: first and best" in read.text and "µs simulated" in read.text
    assert "input: the simulator of today says" in read.text and "that of the run said 40.0 µs" in read.text
    name = folder.run_id
    assert read.outside == [f"../checkpoints/{name}/timelines/{kernel}.json.gz" for kernel in ("input", "best")]
    for address in read.outside:
        trace = json.loads(gzip.decompress((page.parent / address).read_bytes()))
        names = {event["name"] for event in trace["traceEvents"]}
        assert any("nisa.activation" in each for each in names), "instructions bear the text of their lines"


def test_without_a_name_it_lies_in_the_runs_folder_and_json_has_standard_output(tmp_path, capsys) -> None:
    folder = made_run(tmp_path)
    status, out, errors = shown(capsys, folder.run_id, "--html", "--json", "--checkpoints", tmp_path)
    assert status == 0 and json.loads(out)["run_id"] == folder.run_id and "report.html" in errors
    text = Reader((folder.path / "report.html").read_text(encoding="utf-8")).text
    assert "No timelines: " in text and "no timelines: " in errors, "of its task nothing is to be had here"


def test_a_suite_is_shown_by_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, "silu", 40.0, 20.0)
    assert "geometric mean" in shown(capsys, "s1", "--checkpoints", tmp_path)[1]
    document = json.loads(shown(capsys, "s1", "--json", "--checkpoints", tmp_path)[1])
    assert document["schema"] == "nki-optimizer/suite/1" and document["suite_id"] == "s1"
    status, out, _ = shown(capsys, "s1", "--html", "--checkpoints", tmp_path)
    assert status == 0 and "s1.html, " in out
    assert "Suite s1" in Reader((tmp_path / "s1.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize(
    ("words", "run_id", "html"),
    [
        ("show --html", "latest", None),
        ("show --html 20261120-1", "20261120-1", None),
        ("show 20261120-1 --html", "20261120-1", None),
        ("show --html out.html", "latest", "out.html"),
        ("show 20261120-1 --html=out.htm", "20261120-1", "out.htm"),
    ],
)
def test_a_page_s_name_is_told_from_a_run_s_id(words: str, run_id: str, html: str | None, tmp_path: Path) -> None:
    found = read(words.split(), {}, tmp_path)
    assert (found.command, found.as_html, found.run_id) == ("show", True, run_id)
    assert found.html == (tmp_path / html if html else None)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path)
    status, out, errors = shown(capsys, "--html", tmp_path / "no" / "p.html", "--checkpoints", tmp_path)
    assert status == 2 and out == "" and f"there is no folder {tmp_path / 'no'}" in errors


WITHOUT = """
import sys
sys.modules["matplotlib"] = None
import orchestrator
sys.exit(orchestrator.main(sys.argv[1:]))
"""


def test_where_matplotlib_is_missing_one_line_names_the_extra(tmp_path: Path) -> None:
    made_run(tmp_path, Ran((250.0,), fields=FIELDS))
    argv = [sys.executable, "-c", WITHOUT, "show", "--html", "--checkpoints", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert "pip install 'nki-optimizer[report]'" in done.stderr and not list(tmp_path.rglob("*.html"))
