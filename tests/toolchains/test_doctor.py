"""The doctor says what works, proves it, and tells what to do about the rest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from infra import doctor
from infra.doctor import examine, from_printed, render, to_json
from infra.neuron.commands import Installation
from tests.toolchains.pretend_sdk import FIXTURES, READS_TABLES, PretendSdk

REAL_KERNELS = True


@pytest.fixture
def laptop(tmp_path: Path) -> Installation:
    (tmp_path / "dev").mkdir()
    return Installation((tmp_path,), (Path(sys.executable),), tmp_path / "dev", tmp_path / "sys")


def test_a_laptop_simulates_and_has_no_problem(laptop: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    report = examine("trn2", laptop)
    assert report.simulates and not report.evaluates_on_neuron and not report.expects_neuron and not report.problems
    assert [(proof.simulated, proof.right) for proof in report.proofs] == [(True, True)]
    assert doctor.show(report) == doctor.USABLE
    assert "evaluated on simulated trn2 (nki_sim 0.1.0) only" in capsys.readouterr().out
    assert doctor.show(examine("trn2", laptop, prove=False), neuron_wanted=True) == doctor.UNUSABLE
    assert "aws-neuronx-dkms" in capsys.readouterr().out, "it is told what it lacks"


def test_an_instance_is_proved_by_a_known_kernel_and_its_predicted_latency(sdk: PretendSdk) -> None:
    report = examine("trn2", sdk.installation)
    assert report.evaluates_on_neuron and report.toolchain == "trn2 (NKI 0.6.1+simulated, neuron-explorer 2.32.38.0)"
    simulated, measured = report.proofs
    assert simulated.latency_us is not None and measured.right
    assert measured.latency_us == pytest.approx(1.1 * simulated.latency_us, rel=3e-3)
    assert (report.instance_type, report.sdk) == ("trn2.3xlarge", "2.32")
    assert [len(device.core_ids) for device in report.devices] == [4]
    packages = dict(report.packages)
    assert (packages["driver"], packages["aws-neuronx-runtime-lib"]) == ("2.28.4.0", "2.32.31.0")
    assert report.problems == (
        "device 0 is used by another process (113985 python train.py): cores may be taken and latencies disturbed",
    )


@pytest.mark.slow
def test_a_latency_far_from_the_predicted_one_is_a_problem(sdk: PretendSdk) -> None:
    sdk.behave(summary={"total_time": 1e-3, "neuroncore_cycle_count": 1_400_000})
    report = examine("trn2", sdk.installation)
    assert report.evaluates_on_neuron, "slow, but right"
    assert any("times the predicted" in problem for problem in report.problems)


@pytest.mark.slow
def test_a_toolchain_that_fails_the_known_kernel_is_not_called_working(sdk: PretendSdk) -> None:
    sdk.behave(print="no profile data found")
    report = examine("trn2", sdk.installation)
    assert not report.evaluates_on_neuron
    assert any("fails on a kernel that is known to be right" in problem for problem in report.problems)
    assert "FAILED on trn2" in render(report)


def test_a_profiler_that_keeps_no_timed_outputs_is_a_problem_that_names_what_goes_unchecked(tmp_path: Path) -> None:
    older = examine("trn2", PretendSdk(tmp_path / "older", profiler="neuron-profile").installation, prove=False)
    newer = examine("trn2", PretendSdk(tmp_path / "newer").installation, prove=False)
    assert any("neuron-profile keeps no outputs of timed executions" in problem for problem in older.problems)
    assert not any("timed executions" in problem for problem in newer.problems)


@pytest.mark.parametrize("printed", ["", "[]", "{}", '[{"neuron_device": 0}]', "neuron-ls: no devices"])
def test_a_neuron_ls_of_another_kind_is_a_finding_and_no_crash(sdk: PretendSdk, printed: str) -> None:
    tool = sdk.tools / "neuron-ls"
    tool.write_text(f"#!/bin/sh\ncat <<'X'\n{printed}\ninstance-type: trn2.3xlarge\nX\n")
    report = examine("trn2", sdk.installation, prove=False)
    assert report.devices == ()
    assert any("neuron-ls" in line for line in report.missing)


def test_a_report_survives_the_way_from_the_instance_to_the_laptop(sdk: PretendSdk) -> None:
    report = examine("trn2", sdk.installation, prove=False)
    assert from_printed(to_json(report)) == report
    assert "+1.5 s against this machine" in render(report, clock_skew_s=1.5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "version": 99}),
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "routes"}),
        lambda text: json.dumps({**json.loads(text), "surprise": 1}),
        lambda text: json.dumps({**json.loads(text), "devices": 7}),
    ],
)
def test_what_is_not_a_report_is_refused(laptop: Installation, damage: object) -> None:
    with pytest.raises(ValueError, match="not a doctor's report"):
        from_printed(damage(to_json(examine("trn2", laptop, prove=False))))


def _examined(
    folder: Path, release: tuple[int, int], *site: Path, only_documented: bool = False, **state: object
) -> str:
    sdk = PretendSdk(folder, release=release, only_documented=only_documented, site=(FIXTURES / "site", *site))
    sdk.behave(**state)
    report = examine("trn2", sdk.installation, prove=False)
    assert from_printed(to_json(report)) == report
    return " ".join(render(report).split())


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ((2, 32), ("`view --output-format json`", "schema 7.4.0, told by neuron-explorer --show-profile-schema")),
        ((2, 33), ("`view --output-format json`", "schema 12.0.1, told by neuron-explorer view --show-profile-schema")),
        ((2, 34), ("Parquet, `view --output-format json` is gone: pyarrow 21.0.0 of", "devices are under 'devices'")),
    ],
)
def test_it_says_how_profiles_are_read_on_each_release(tmp_path, release, says) -> None:
    told = _examined(tmp_path, release, READS_TABLES)
    assert "1 with 4 NeuronCores" in told
    assert "route taken standalone: the only one that works here (Python 3." in told
    for line in says:
        assert line in told
    assert "problem device 0 is used" in told and told.count(" problem ") == 1


@pytest.mark.parametrize("only_documented", [False, True])
def test_undocumented_flags_are_named_with_whether_they_are_there(tmp_path: Path, only_documented: bool) -> None:
    told = _examined(tmp_path, (2, 33), only_documented=only_documented)
    there = "its --help does not list it, so it is not used" if only_documented else "its --help lists it"
    for flag in ("--disable-profile", "--save-nth-output"):
        assert f"undocumented neuron-explorer capture {flag} (" in told
    assert told.count(there) == 2


@pytest.mark.parametrize(
    ("release", "state", "says"),
    [
        (
            (2, 34),
            {},
            "problem no time per source line, and narrow dtypes by the summary only: no Python here has pyarrow",
        ),
        ((2, 33), {"schema": "14.0.0"}, "problem profile schema 14.0.0 is not one of 7 to 12, which were read"),
        ((2, 33), {"schema_without": "nki_source_location"}, "12.0.1 has no nki_source_location in table Instruction"),
        ((2, 33), {"silent_about_formats": True}, "`view --help` names no formats: json is tried, then Parquet"),
    ],
)
def test_what_cannot_be_read_of_a_profile_is_said_before_a_run(tmp_path, release, state, says) -> None:
    assert says in _examined(tmp_path, release, **state)
