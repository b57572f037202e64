"""What scripts read: every kind of document keeps to its schema, which is shipped and is what the types say."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import orchestrator
from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Likely, Measured
from infra import doctor
from infra.documents.kernel_document import DoctorDocument, ExaminedMachine
from infra.documents.run_document import RunDocument, run_document, suite_document
from infra.documents.writing import KINDS, as_json, schema_file, schema_name, schema_of
from infra.runs.run_folder import RunFolder
from infra.runs.suite import table_of_runs
from infra.terminal.report import summary_of
from nki_sim.__main__ import main as nki_sim
from tests.e2e.kernels import REFERENCE, SLOW
from tests.house.structure import ROOT
from tests.infra.reports.test_report import finished_run
from tests.infra.reports.test_suite import a_run
from tests.infra.samples import manifest, measured

SECRET = "sk-ant-1234567890"


def checked(text: str) -> dict[str, Any]:
    """The one document in `text`, against the shipped schema of what it says it is, with no field beside it."""

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=no_constant)
    (kind,) = [kind for kind in KINDS if schema_name(kind) == document["schema"]]
    schema = json.loads(schema_file(kind).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(strict(schema)).validate(document)
    return document


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Readers are told to let pass what they do not know; here there must be nothing of the kind."""
    made = copy.deepcopy(schema)
    for each in (made, *made.get("$defs", {}).values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return made


@pytest.mark.parametrize("kind", KINDS, ids=schema_name)
def test_the_shipped_schema_is_what_the_type_says(kind: type) -> None:
    """After a change of a type: `python -m infra.documents.writing`, and a new version where a reader would break."""
    shipped = json.loads(schema_file(kind).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(shipped)
    assert shipped == schema_of(kind)


@pytest.mark.parametrize("kind", KINDS, ids=schema_name)
def test_the_docs_name_every_document_and_where_its_schema_is(kind: type) -> None:
    page = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
    assert f"`{schema_name(kind)}` | `{schema_file(kind).relative_to(ROOT)}`" in page


def test_a_document_that_lacks_a_field_or_has_another_version_is_refused(tmp_path: Path) -> None:
    document = checked(as_json(run_document(summary_of(finished_run(tmp_path)))))
    schema = strict(schema_of(RunDocument))
    for wrong in (
        {key: value for key, value in document.items() if key != "speedup"},
        {**document, "schema": "nki-optimizer/run/2"},
        {**document, "status": "sleeping"},
        {**document, "best": {**document["best"], "latency_us": "fast"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def asked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Exit status, the document on standard output, and standard error."""
    status = orchestrator.main([str(each) for each in arguments])
    said = capsys.readouterr()
    return status, checked(said.out), said.err


def test_show_says_all_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished_run(tmp_path)
    status, document, errors = asked(capsys, "show", "--json", "--checkpoints", tmp_path)
    assert (status, errors) == (0, "")
    assert document["improved"] and document["speedup"] == 2.0 and document["rounds"] == 3
    assert document["baseline"]["latency_us"] == 500.0 and document["best"]["latency_us"] == 250.0
    assert [each["outcome"] for each in document["attempts"]][:2] == ["timed_out", "improved"]
    assert document["model_calls"]["cost_usd"] == 0.5 and document["folder"] == str(folder.path)
    assert document["diff"].startswith("--- ") and "+line_7 = 70\n" in document["diff"]


def test_a_run_that_measured_nothing_has_nulls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path, manifest("r1"), {})
    folder.end("failed", "the host is gone")
    folder.close()
    _, document, _ = asked(capsys, "show", "r1", "--json", "--checkpoints", tmp_path)
    assert document["best"] is None and document["speedup"] is None and document["reason"] == "the host is gone"


def test_runs_lists_the_newest_first_and_says_which_are_damaged(tmp_path, capsys) -> None:
    finished_run(tmp_path, "a")
    finished_run(tmp_path, "b")
    (tmp_path / "a" / "best.json").write_text("{")
    _, document, _ = asked(capsys, "runs", "--json", "--checkpoints", tmp_path)
    by_id = {each["run_id"]: each for each in document["runs"]}
    assert by_id["b"]["best_us"] == 250.0 and not by_id["b"]["damaged"]
    assert "best.json" in by_id["a"]["damaged"] and by_id["a"]["best_us"] is None


def test_numbers_that_are_none_are_null(tmp_path: Path) -> None:
    sample = measured(500.0)
    odd = {**sample.profile.fields, "strange": math.nan, "endless": math.inf}
    result: Measured = replace(sample, profile=replace(sample.profile, fields=odd))
    folder = RunFolder.create(tmp_path, manifest("r1"), {})
    folder.best(Candidate("input", "x = 1\n"), replace(result, likely=Likely(400.0, 600.0, 0.8, ("rows",))))
    folder.close()
    document = checked(as_json(run_document(summary_of(folder))))
    assert document["best"]["fields"]["strange"] is None and document["best"]["fields"]["endless"] is None
    assert document["best"]["likely"]["low_us"] == 400.0


def test_a_suite_is_its_table(tmp_path: Path) -> None:
    a_run(tmp_path, "silu", 20.0, 10.0)
    a_run(tmp_path, "mamba", None)
    document = checked(as_json(suite_document("s1", table_of_runs(tmp_path, "s1", ("silu", "mamba", "bmm")))))
    assert [row["task"] for row in document["rows"]] == ["silu"] and set(document["missing"]) == {"mamba", "bmm"}
    assert document["rows"][0]["after"]["latency_us"] == 10.0


def test_the_doctor_s_report_is_whole() -> None:
    found = ExaminedMachine("", True, "", doctor.examine("trn2", prove=False))
    unreachable = ExaminedMachine("ubuntu@10.0.0.1", False, "no connection", None)
    document = checked(as_json(DoctorDocument(False, (found, unreachable))))
    assert document["machines"][0]["report"]["routes"] and document["machines"][1]["report"] is None


def test_the_simulator_s_profile_and_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel, reference = tmp_path / "mine.py", tmp_path / "ref.py"
    kernel.write_text(f"print('importing')\n{SLOW}")
    reference.write_text(REFERENCE.replace("2048, 4", "512, 2"))
    timeline = tmp_path / "t.json"
    assert nki_sim(["profile", str(kernel), "--problem", str(reference), "--json", "--trace", str(timeline)]) == 0
    said = capsys.readouterr()
    document = checked(said.out)
    assert document["latency_us"] > 0 and document["lines"] and document["timeline"] == str(timeline)
    assert document["likely"]["low_us"] < document["latency_us"] < document["likely"]["high_us"]
    assert timeline.exists() and "importing" in said.err
    kernel = tmp_path / "mine.py"
    kernel.write_text(SLOW.replace("buffer=nl.shared_hbm", "buffer=nl.hbm").replace("nl.add", "np.add"))
    assert nki_sim(["check", str(kernel), "--json"]) == 1
    document = checked(capsys.readouterr().out)
    assert document["errors"] == len([each for each in document["findings"] if each["severity"] == "error"]) > 0
    kernel.write_text(SLOW)
    assert nki_sim(["check", str(kernel), "--json"]) == 0
    assert checked(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("show", "--json", "nothing"), 2, "no run in"),
        (("--json", "--rounds", "none"), 2, "--rounds"),
        (("diff", "--json"), 2, "`diff` has no document"),
        (("--json", f"--api-key={SECRET}"), 2, "--api-key is not a flag"),
        (("--json", "--kernel", "nowhere.py"), 2, "no such kernel file"),
    ],
)
def test_an_error_is_a_document_too(tmp_path, capsys, arguments, status, said) -> None:
    ended, document, errors = asked(capsys, *arguments, "--checkpoints", tmp_path)
    assert ended == document["exit_code"] == status and said in document["error"] and said in errors
    assert SECRET not in json.dumps(document) + errors
