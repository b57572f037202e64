"""What a run came to, made from its folder alone."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import Implausible, IncumbentTiming, Likely, Predicted, Step, TimedOut
from accelopt_core.ports import Role, Usage
from infra.commands.optimize import KernelChanged, write_back
from infra.documents.run_document import run_document
from infra.llm.ledger import LedgerEntry
from infra.runs.run_folder import RunFolder
from infra.settings_reader import SettingsError
from infra.terminal.report import (
    conclusion,
    diff_of,
    kernel_after,
    print_diff,
    print_end,
    print_report,
    print_round,
    print_runs,
    summary_of,
    write_diff,
)
from ka_extensions.outcome import Outcome
from nki_sim.timing import ties
from tests.infra.samples import attempted, manifest, measured

BEFORE = "import nki\n\n" + "".join(f"line_{n} = {n}\n" for n in range(200))
AFTER = BEFORE.replace("= 7\n", "= 70\n").replace("= 150\n", "= 151\n")


def finished_run(checkpoints: Path, run_id: str = "20261120-125418-matmul-3f2a", after: str = AFTER) -> RunFolder:
    folder = RunFolder.create(checkpoints, manifest(run_id), {"run": {"patience": 5}})
    folder.best(Candidate("input", BEFORE), measured(500.0))
    folder.attempt(attempted(1, TimedOut(Step.COMPILE, 300.0), 500.0, number=1))
    entry = attempted(1, measured(250.0), 500.0, source=after, number=2)
    folder.attempt(entry)
    assert entry.candidate is not None
    folder.best(entry.candidate, measured(250.0))
    folder.attempt(attempted(2, measured(600.0), 250.0))
    folder.attempt(attempted(3, Implausible("too good"), 250.0))
    folder.spend(LedgerEntry(Role.PLANNER, "m", Usage(1000, 50), 0.5))
    folder.end("finished", "5 rounds without improvement")
    folder.close()
    return folder


def text_of(work, width: int = 80, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]  # by name
    work(console)
    return console.file.getvalue()


def test_the_report_has_all_a_person_asks_for_and_its_end_last(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    text = text_of(lambda console: print_report(console, summary_of(folder)))
    for wanted in ("500.0 µs", "250.0 µs", "2.00x", "20.0 %", "40.0 %", "r001t2", "1 improved",
                   "$0.50", "400.0 to 550.0 µs, now 200.0 to 275.0 µs", "1,000 in"):  # fmt: skip
        assert wanted in text, wanted
    assert text.endswith(text_of(lambda console: print_end(console, summary_of(folder))))


ENDINGS = {
    "finished": ("all 10 rounds are done", "more rounds"), "interrupted": ("Ctrl-C", "to go on"),
    "budget": ("the 2 hours are used up", "--max-hours N"), "failed": ("host unreachable", "once that is mended"),
}  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24)])
@pytest.mark.parametrize("status", ENDINGS)
def test_however_a_run_ends_the_result_is_its_last_lines(tmp_path: Path, status: str, width: int, height: int) -> None:
    reason, first = ENDINGS[status]
    folder = finished_run(tmp_path)
    folder.end(status, reason)
    summary = summary_of(folder)
    summary = replace(summary, manifest=replace(summary.manifest, rounds=3))
    (folder.path / "config.json").write_text('{"run": {"kernel": "mine.py"}}')
    lines = text_of(lambda console: print_end(console, summary), width=width).splitlines()[-10:]
    assert sum(-(-len(line) // width) for line in lines) <= height // 2, "on the screen whole, and what was before"
    at = lines.index("500.0 -> 250.0 µs: 2.00x faster (simulated trn2; on a device likely 200.0 to 275.0 µs)")
    assert f"{status}: {reason}" in lines[at - 1]
    assert lines[at + 1] == "verified: tested" and lines[at + 2] == f"kernel: {folder.path}/best_kernel.py"
    assert len(lines) == at + 5 and first in lines[at + 3] and "explain" in lines[at + 4]
    assert list(run_document(summary).conclusion) == lines[at : at + 3]


def test_what_may_be_no_faster_on_a_device_says_so(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    folder.best(Candidate("r001t2", AFTER), replace(measured(480.0), likely=Likely(380.0, 530.0, 0.8, ())))
    (first, *_) = conclusion(summary_of(folder))
    assert first.endswith("on a device likely 380.0 to 530.0 µs, where it may be no faster)")


def test_a_run_whose_input_was_never_measured_ends_with_why(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {})
    folder.end("failed", "host unreachable")
    folder.close()
    lines = text_of(lambda console: print_end(console, summary_of(folder)), width=120).splitlines()
    assert len(lines) == 3 and "failed: host unreachable" in lines[-2] and "--resume run" in lines[-1]
    assert conclusion(summary_of(folder)) == ()


def test_a_round_is_looked_at_and_what_stood_after_it_taken(tmp_path: Path) -> None:
    summary = summary_of(finished_run(tmp_path))
    text = text_of(lambda console: print_round(console, summary, 1), width=120)
    assert "r001t1 from input" in text and "+line_7 = 70" in text and "r002" not in text
    assert kernel_after(summary, 1).source == kernel_after(summary, 2).source == AFTER
    with pytest.raises(SettingsError, match="rounds 1 to 3"):
        print_round(Console(), summary, 9)


def test_kernels_that_predictions_cannot_tell_from_the_best_are_named(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    near = 250.0 * (1 + ties.shipped().within / 2)
    folder.attempt(attempted(4, measured(near), 250.0))
    summary = summary_of(folder)
    text = text_of(lambda console: print_report(console, summary), width=120)
    assert summary.tied == ("r004t1",) == run_document(summary).tied
    assert "ties     r004t1 with the best: predictions that differ by less than" in text
    folder.best(Candidate("r005t1", AFTER), measured(480.0))
    assert summary_of(folder).tied == ("input",), "a best that is no better for sure"


def test_what_a_device_took_is_no_tie(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {})
    folder.best(Candidate("input", BEFORE), measured(500.0, simulated=False))
    folder.best(Candidate("r001t1", AFTER), measured(499.0, simulated=False))
    assert summary_of(folder).tied == ()


FACT = "4-byte dma_transpose"


@pytest.mark.parametrize(("facts", "name"), [((FACT,), "fastest"), ((), "other")])
def test_what_stands_beside_the_best_has_a_line_and_a_file(tmp_path: Path, facts: tuple[str, ...], name: str) -> None:
    folder = finished_run(tmp_path)
    folder.counterpart((Candidate("r004t1", AFTER), replace(measured(200.0), contested=facts)))
    summary = summary_of(folder)
    (*_, last) = conclusion(summary)
    assert last.startswith(f"{name}:") and "2.50x" in last and last.endswith(f"{folder.path}/counterpart.py")
    assert (FACT in last) is bool(facts)
    document = run_document(summary)
    assert (document.counterpart.id, document.counterpart.contested) == ("r004t1", facts)
    assert document.best.id == "r001t2" and document.speedup == 2.0, "the headline is the best's"
    folder.counterpart(None)
    assert summary_of(folder).counterpart is None and "counterpart.py" not in {
        each.name for each in folder.path.iterdir()
    }


def test_when_nothing_was_faster_it_says_so_and_shows_no_diff(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {"verification": {"exact": True}})
    folder.best(Candidate("input", BEFORE), measured(500.0))
    text = text_of(lambda console: print_report(console, summary_of(folder)), width=120)
    assert "nothing faster is bit-identical" in text and "@@" not in text
    assert write_diff(summary_of(folder)) is None


def test_a_run_whose_process_is_gone_is_not_called_running(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {})
    assert summary_of(folder).status == "running"
    folder.close()
    assert "its process is gone" in summary_of(RunFolder(folder.path)).status


def test_a_diff_is_whole_on_screen_and_in_the_folder(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, after=BEFORE.replace("= ", "= 1"))
    summary = summary_of(folder)
    shown = text_of(lambda console: print_diff(console, summary)).splitlines()
    path = write_diff(summary)
    assert path == folder.path / "best.diff" and len(shown) > 400
    assert path.read_text().splitlines() == diff_of(summary) == shown


def test_a_kernel_s_text_steers_no_terminal(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, after=BEFORE + "s = '\x1b[2J \x9b31m [bold]x[/bold]'\n")
    text = text_of(lambda console: print_diff(console, summary_of(folder)))
    assert "\x1b" not in text and "\x9b" not in text
    assert "\\x1b[2J" in text and "[bold]x[/bold]" in text


def test_all_runs_newest_first_and_a_damaged_one_does_not_hide_the_others(tmp_path: Path) -> None:
    finished_run(tmp_path, "20261120-1-a")
    broken = finished_run(tmp_path, "20261120-2-b")
    finished_run(tmp_path, "20261120-3-a-long-name-that-a-person-wants-to-copy")
    (broken.path / "best.json").write_text("{")
    lines = text_of(lambda console: print_runs(console, tmp_path)).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [
        "20261120-3-a-long-name-that-a-person-wants-to-copy", "20261120-2-b", "20261120-1-a",
    ]  # fmt: skip
    assert "finished" in lines[1] and "2.00x" in lines[1] and "250.0 µs" in lines[1]
    assert "damaged" in lines[2] and "best.json" in lines[4]
    assert "no run in" in text_of(lambda console: print_runs(console, tmp_path / "none"))


def test_the_winner_takes_the_kernel_s_place_after_a_copy(tmp_path: Path) -> None:
    kernel = tmp_path / "mine.py"
    kernel.write_text(BEFORE)
    kernel.chmod(0o755)
    assert write_back(kernel, BEFORE, AFTER) == tmp_path / "mine.py.bak"
    assert kernel.read_text() == AFTER and kernel.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "mine.py.bak").read_text() == BEFORE


def test_an_earlier_copy_is_never_overwritten(tmp_path: Path) -> None:
    kernel = tmp_path / "mine.py"
    for number, source in enumerate(("a = 1\n", "a = 2\n", "a = 3\n")):
        kernel.write_text(source)
        write_back(kernel, source, f"a = {number + 2}\n")
    assert [path.read_text() for path in sorted(tmp_path.glob("*.bak*"))] == ["a = 1\n", "a = 2\n", "a = 3\n"]


@pytest.mark.parametrize("edited", [BEFORE + "more\n", ""])
def test_a_kernel_that_was_edited_meanwhile_is_left_alone(tmp_path: Path, edited: str) -> None:
    kernel = tmp_path / "mine.py"
    kernel.write_text(edited)
    with pytest.raises(KernelChanged, match="left alone"):
        write_back(kernel, BEFORE, AFTER)
    assert kernel.read_text() == edited and [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_what_a_model_failed_of_is_said_whole_and_once(tmp_path: Path) -> None:
    said = "no plan: openai:m: http://10.0.0.1:8000/v1: connection refused (10 attempts): check the network and the URL"
    failed = replace(attempted(1, TimedOut(Step.COMPILE, 1.0), 500.0), plan=None, outcome=Outcome.MODEL_FAILED)
    entries = [replace(failed, summary=said, decision=None), replace(failed, round=2, summary=said, decision=None)]
    summary = replace(summary_of(finished_run(tmp_path)), attempts=tuple(entries))
    text = text_of(lambda console: print_end(console, summary), width=80)
    assert text.count(f"model failed: {said}\n") == 1


def test_the_speed_up_is_over_the_input_as_it_was_timed_beside_the_winner(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    winner = folder.winner()
    timed = IncumbentTiming(Candidate("input", BEFORE).content_hash, 525.0, 0.01)
    folder.best(winner.candidate, replace(winner.result, incumbent=timed))
    report = text_of(lambda console: print_report(console, summary_of(folder)), width=120)
    assert "2.10x" in report and "beside the input at 525.0 µs" in report
    assert "2.10x" in text_of(lambda console: print_runs(console, tmp_path), width=120)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([(50.0, 70.0), (60.0, 65.0)], None),
        ([(50.0, 65.0), (60.0, 70.0), (70.0, 90.0)], "tau 1.00 over 3 kernels, its first choice is the best measured"),
        (
            [(50.0, 71.5), (60.0, 65.0), (70.0, 90.0), (80.0, 95.0)],
            "tau 0.67 over 4 kernels, its first choice is 10.0 % slower than the best measured",
        ),
        ([(50.0, 65.0)] * 3, "no order to compare over 3 kernels, its first choice is the best measured"),
    ],
)
def test_a_run_on_a_device_says_how_good_a_guide_the_simulator_was(tmp_path, times, said) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {})
    folder.best(Candidate("input", BEFORE), measured(100.0, simulated=False))
    for number, (predicted_us, us) in enumerate(times, 1):
        entry = attempted(number, measured(us, simulated=False), 100.0)
        folder.attempt(replace(entry, predicted=Predicted(predicted_us, "dma")))
    folder.attempt(attempted(9, measured(64.0, simulated=False), 100.0))  # no price: not compared
    folder.attempt(replace(attempted(10, Implausible("too good"), 100.0), predicted=Predicted(1.0, "dma")))
    text = text_of(lambda console: print_report(console, summary_of(folder)), width=120)
    assert (f"the simulator on this device: {said}\n" in text) if said else ("the simulator on" not in text)
