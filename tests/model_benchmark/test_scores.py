"""Reports of the challenge's format, scored to the digit; what is cut off, missing or contradictory is named."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.model_benchmark import reports
from infra.model_benchmark.figures import Accuracy, Figures, PromptScore, gain
from infra.model_benchmark.harness import BadHarness
from infra.model_benchmark.harnesses import harness_of
from infra.model_benchmark.nki_moe import REPORT, NkiMoe
from infra.model_benchmark.reports import ReportInvalid
from infra.model_benchmark.verdict import Verdict, judged
from tests.interpreters import interpreters
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded"
"""In the challenge's formats; the figures are invented, and the scores computed from them as main.py does it."""
RECORDS = "nki-optimizer_qwen3-30b-a3b-trn3_score_records.csv"
FILES = {name: (RECORDED / name).read_bytes() for name in (RECORDS, REPORT)}
READ = {"main.py": b"", "prompts.txt": b"one\n\ntwo\n\nthree", "prompt_data_trn3.csv": b"head\n0\n1\n2\n"}
ALL = NkiMoe(("--mode", "evaluate_all", "--platform-target", "trn3"))
Change = Callable[[bytes], bytes]


def test_a_whole_report_is_scored_to_the_digit() -> None:
    figures = ALL.figures(FILES, READ)
    assert [prompt.score for prompt in figures.prompts] == [1.3150376747528663, 1.1680356016033926, 1.2445077319361797]
    assert figures.score == 3.7275810082924385
    assert figures.accuracy is Accuracy.PASSED
    assert (figures.latency_ms, figures.tokens_per_s) == pytest.approx((6958.172866666667, 42.3888), rel=1e-14)
    assert (figures.first_token_ms, figures.per_token_ms, figures.nki_flop_share) == (95.0525, 11.57375, 0.0625432)


SUMMED = """
import sys
sys.path.insert(0, sys.argv[1])
from accelopt_core.dispatch.weights import weighted_us
from infra.model_benchmark.figures import Accuracy, Figures, PromptScore
tenth = PromptScore(1.0, 1.0, 1.0, 10.0, 1.0, 0.0)
print(Figures(Accuracy.PASSED, None, None, prompts=10 * (tenth,)).score, end=" ")
print(weighted_us({str(n): 1.0 for n in range(10)}, {str(n): 0.1 for n in range(10)}))
"""
PYTHONS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if interpreters(version)]


@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_adds_to_the_same_digit(version: str) -> None:
    """From 3.12 on `sum` makes up for what is rounded off; the challenge adds one prompt after the other."""
    python = [str(interpreters(version)[0]), "-I", "-c", SUMMED, str(ROOT)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["0.9999999999999999", "1.0"], done.stderr


def test_the_challenges_own_example_comes_to_37_points() -> None:
    assert PromptScore(1000.0, 50.0, 1.0, 100.0, 100.0, 0.85).score == 37.0


def test_one_wrong_answer_fails_all_and_its_score_is_zero() -> None:
    row = b"True,5750.0625,50.3,0.0625432,1.0534031413612566,1.0435538744144086,1.1680356016033926"
    wrong = changed(FILES, RECORDS, lambda text: swapped(text, row, row.replace(b"True", b"False")[:-18] + b"0.0"))
    figures = ALL.figures(wrong, READ)
    assert figures.accuracy is Accuracy.FAILED
    assert figures.prompts[1].score == 0.0 and figures.score == 1.3150376747528663 + 0.0 + 1.2445077319361797
    verdict, why = judged(replace(figures, accuracy=Accuracy.PASSED, latency_ms=1e9), figures, "")
    assert verdict is Verdict.FAILED and "whatever the speed" in why


def test_on_trn2_the_harness_looks_at_no_answer_and_that_is_said() -> None:
    on_trn2 = NkiMoe(("--mode", "evaluate_all"))
    records = FILES[RECORDS].replace(b"True", b"1")
    files = {"nki-optimizer_qwen3-30b-a3b-trn2_score_records.csv": records, REPORT: FILES[REPORT]}
    figures = on_trn2.figures(files, {**READ, "prompt_data_trn2.csv": READ["prompt_data_trn3.csv"]})
    assert figures.accuracy is Accuracy.UNCHECKED and figures.score == 3.7275810082924385
    assert any("does not check accuracy on trn2" in note for note in figures.notes)


def test_submodels_that_a_report_lacks_are_left_out_and_named() -> None:
    def without(text: bytes) -> bytes:
        return json.dumps({"e2e_model": json.loads(text)["e2e_model"]}).encode()

    figures = ALL.figures(changed(FILES, REPORT, without), READ)
    assert (figures.first_token_ms, figures.per_token_ms, figures.score) == (None, None, 3.7275810082924385)
    assert "benchmark_report.json has no token_generation_model" in figures.notes


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (REPORT, lambda text: text[:300], "benchmark_report.json is no JSON.*ends too early"),
        (REPORT, lambda text: b"", "benchmark_report.json is no JSON"),
        (REPORT, lambda text: b"[1]", "is a JSON list, not an object"),
        (REPORT, lambda text: b'{"context_encoding_model": {}}', "has no e2e_model: context_encoding_model"),
        (REPORT, lambda text: text.replace(b"throughput", b"speed"), "e2e_model has no throughput"),
        (REPORT, lambda text: text.replace(b"41.6789", b'"41.6789"'), "throughput is '41.6789', not a number"),
        (REPORT, lambda text: text.replace(b"41.6789", b"NaN"), "throughput is nan, not a number"),
        (REPORT, lambda text: text.replace(b"41.6789", b"-41.6789"), "which nothing can take"),
        (REPORT, lambda text: text.replace(b"41.6789", b"1" + 400 * b"0"), r"throughput is 10+\.\.\., which nothing"),
        (REPORT, lambda text: text.replace(b"41.6789", b"5e-324"), "throughput is 5e-324, which nothing"),
        (REPORT, lambda text: text.replace(b"{", b'{"e2e_model": {}, ', 1), "'e2e_model' is there twice"),
        (REPORT, lambda text: 100_000 * b"[", "nested too deeply"),
        (REPORT, lambda text: b'{"\\ud800\\u001b[2J": {}}', r"has no e2e_model: \\ud800\\x1b\[2J$"),
        (REPORT, lambda text: text.replace(b"41.6789", b'"%s"' % (5000 * b"x")), "throughput is 'x{59}\\.\\.\\., not"),
        (REPORT, lambda text: text.replace(b"41.6789", b"41.6790"), "disagree: are they of one run"),
        (RECORDS, lambda text: text[:-9], "cut off in line 4"),
        (RECORDS, lambda text: text[:-60] + b"\r\n", "cut off in line 4"),
        (RECORDS, lambda text: text[: text.rindex(b"nki-optimizer")], "2 of 3 prompts are scored"),
        (RECORDS, lambda text: text[: text.index(b"\n") + 1], "0 of 3 prompts are scored"),
        (RECORDS, lambda text: b"", "is cut off in line 1"),
        (RECORDS, lambda text: text.replace(b"final_score", b"points"), "has no column final_score"),
        (RECORDS, lambda text: text.replace(b"50.3,", b"5e-324,"), "line 3: throughput is 5e-324, which nothing"),
        (RECORDS, lambda text: text.replace(b"0.0625432", b"1.0625432"), "line 2: nki_flop_ratio is 1.06"),
        (RECORDS, lambda text: text.replace(b"50.3,", 200_000 * b"5" + b","), "field larger than field limit"),
        (RECORDS, lambda text: text.replace(b"member_id", b"latency", 1), "has two columns latency"),
        (RECORDS, lambda text: text.replace(b"50.3,", b"fast,"), "line 3: throughput is 'fast'"),
        (RECORDS, lambda text: text.replace(b"8123.456", b"0"), "line 2: latency is 0, which nothing"),
        (RECORDS, lambda text: text.replace(b"True", b"maybe", 1), "line 2: accuracy is 'maybe'"),
        (RECORDS, lambda text: text.replace(b"1.3150376747528663", b"1.315037674752866"), "line 2: final_score is"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_report_is_refused_by_name(name: str, change: Change, said: str) -> None:
    with pytest.raises(ReportInvalid, match=said):
        ALL.figures(changed(FILES, name, change), READ)


def test_each_run_compiles_into_its_own_folder_and_leaves_its_files_there() -> None:
    command = harness_of("nki-moe", "--qwen qwen_with_nki --seq-len 64", "").command("/py", "/their/checkout", READ)
    words = " ".join(command.argv)
    assert words.startswith("/py -u /their/checkout/main.py --mode evaluate_single --platform-target trn2")
    assert "--compiled-model-path {{job-directory}}/traced_model" in words and words.endswith("--seq-len 64")
    assert command.collect == (
        "benchmark_report.json",
        "nki-optimizer_qwen3-30b-a3b-trn2_qwen_with_nki_score_records.csv",
        "nki-optimizer_qwen3-30b-a3b_qwen_with_nki_score_records.csv",
    )
    assert command.files == {"prompts.txt": READ["prompts.txt"]}


@pytest.mark.parametrize(
    ("flags", "read", "said"),
    [
        ("--mode validate", READ, "gives no score"),
        ("--skip-compile", READ, "leave --skip-compile away"),
        ("--compiled-model-path=/x", READ, "leave --compiled-model-path away"),
        ("--compiled-m /x", READ, "leave --compiled-m away"),
        ("", {"main.py": None}, "is it a checkout of aws-neuron/nki-moe"),
        ("--mode evaluate_all", {"main.py": b""}, "needs prompts.txt and prompt_data_trn2.csv"),
        ("--mode", READ, "expected one argument"),
        ("--prompt 'x", READ, "harness-args"),
    ],
)
def test_what_cannot_run_is_said_before_it_is_tried(flags: str, read: Any, said: str) -> None:
    with pytest.raises(BadHarness, match=said):
        harness_of("nki-moe", flags, "").command("/py", "/c", read)


@pytest.mark.parametrize(
    ("name", "command", "said"),
    [
        ("command", "", "give --harness-command"),
        ("command", "python bench.py", "write {report}"),
        ("command", "sh -c 'x {report}", "cannot be read"),
        ("nki-moe", "x {report}", "has a command of its own"),
    ],
)
def test_a_command_that_cannot_work_is_refused(name: str, command: str, said: str) -> None:
    with pytest.raises(BadHarness, match=said):
        harness_of(name, "", command).command("/py", "/c", {})


@pytest.mark.parametrize(
    ("reader", "report", "figures"),
    [
        (
            reports.own,
            {"accuracy": True, "latency_ms": 12, "per_token_ms": 0.5, "tokens_per_s": 80.0, "nki_flop_share": 0.0},
            Figures(Accuracy.PASSED, 12.0, 80.0, None, 0.5, 0.0),
        ),
        (reports.own, {"accuracy": None, "tokens_per_s": 80.0}, Figures(Accuracy.UNCHECKED, None, 80.0)),
        (reports.own, {"accuracy": False, "latency_ms": 1.0}, Figures(Accuracy.FAILED, 1.0, None)),
        (
            reports.vllm,
            {
                "completed": 8,
                "num_prompts": 8,
                "total_output_tokens": 1020,
                "output_throughput": 96.5,
                "mean_ttft_ms": 210.0,
                "mean_tpot_ms": 10.25,
                "mean_itl_ms": 1,
            },
            Figures(Accuracy.UNCHECKED, None, 96.5, 210.0, 10.25, answer_tokens=127.5),
        ),
        (reports.nxdi, json.loads(FILES[REPORT]), Figures(Accuracy.UNCHECKED, 7001.0001, 41.6789, 95.0525, 11.57375)),
    ],
)
def test_each_format_says_what_it_has_and_nothing_else(reader: reports.Reader, report: Any, figures: Figures) -> None:
    assert reader("report.json", json.dumps(report).encode()) == figures


@pytest.mark.parametrize(
    ("reader", "report", "said"),
    [
        (reports.own, {"latency_ms": 1.0}, "accuracy must be true, false or null"),
        (reports.own, {"accuracy": 1, "latency_ms": 1.0}, "write true, false or null"),
        (reports.own, {"accuracy": True}, "neither latency_ms nor per_token_ms nor tokens_per_s"),
        (reports.own, {"accuracy": True, "latency": 1.0}, "unknown: latency"),
        (reports.own, {"accuracy": True, "latency_ms": 1.0, "nki_flop_share": 7}, "fraction of 1"),
        (reports.vllm, {"completed": 0}, "no request was completed"),
        (reports.own, {"accuracy": "true", "latency_ms": 1.0}, "accuracy must be true, false or null"),
        (reports.own, {"accuracy": True, "latency_ms": "1.0"}, "latency_ms is '1.0', not a number"),
        (reports.own, {"accuracy": True, "latency_ms": float("nan")}, "latency_ms is nan, not a number"),
        (reports.own, {"accuracy": True, "latency_ms": -1.0}, "latency_ms is -1.0, which nothing can take"),
        (reports.vllm, {"completed": 3, "num_prompts": 200}, "3 of 200 requests were completed"),
        (reports.vllm, {"completed": 3, "mean_ttft_ms": 1.0, "mean_tpot_ms": 1.0}, "no output_throughput"),
    ],
)
def test_each_format_refuses_what_it_cannot_mean(reader: reports.Reader, report: Any, said: str) -> None:
    with pytest.raises(ReportInvalid, match=said):
        reader("report.json", json.dumps(report).encode())


BEFORE = Figures(Accuracy.UNCHECKED, 100.0, 50.0, per_token_ms=2.0, answer_tokens=128.0)


@pytest.mark.parametrize(
    ("after", "verdict", "why"),
    [
        (replace(BEFORE, latency_ms=80.0), Verdict.FASTER, "latency is better by a factor of 1.25"),
        (replace(BEFORE, latency_ms=100.0, tokens_per_s=99.0), Verdict.NOT_FASTER, "latency is no better"),
        (replace(BEFORE, latency_ms=None, per_token_ms=1.0), Verdict.FASTER, "time per token is better by a factor"),
        (Figures(Accuracy.PASSED, None, 40.0), Verdict.NOT_FASTER, "throughput is no better by a factor of 0.8"),
        (replace(BEFORE, accuracy=Accuracy.FAILED, latency_ms=1.0), Verdict.FAILED, "whatever the speed"),
        (Figures(Accuracy.PASSED, None, None, first_token_ms=1.0), Verdict.FAILED, "nothing in common"),
        (replace(BEFORE, latency_ms=1.0, answer_tokens=12.0), Verdict.NOT_FASTER, "token is no better .*12 tokens"),
        (replace(BEFORE, latency_ms=80.0, answer_tokens=127.9), Verdict.FASTER, "latency is better by a factor"),
        (None, Verdict.FAILED, "it crashed"),
    ],
)  # fmt: skip
def test_the_verdict_goes_by_what_both_runs_report(after: Figures | None, verdict: Verdict, why: str) -> None:
    found, said = judged(BEFORE, after, "it crashed")
    assert found is verdict and re.search(why, said)


def test_a_gain_is_above_one_where_the_kernels_help_and_nothing_where_a_run_is_silent() -> None:
    won = gain(BEFORE, replace(BEFORE, latency_ms=50.0, tokens_per_s=75.0, per_token_ms=None))
    assert (won.latency, won.throughput, won.per_token, won.score) == (2.0, 1.5, None, None)


def changed(files: dict[str, bytes], name: str, change: Change) -> dict[str, bytes]:
    after = change(files[name])
    assert after != files[name]
    return {**files, name: after}


def swapped(text: bytes, old: bytes, new: bytes) -> bytes:
    assert text.count(old) == 1
    return text.replace(old, new)
