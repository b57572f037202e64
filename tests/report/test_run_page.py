"""The page of one run: all that it must say, whatever became of the run; what others wrote in it is text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from infra.prediction.timelines import EngineTimeline
from infra.report.page_file import Timelines, TraceLink
from infra.report.run_page import MOST_LINKS, MOST_TRIES, run_page
from infra.runs.run_folder import RunFolder
from infra.terminal.report import summary_of
from tests.infra.samples import manifest, measured
from tests.report.pages import EARLIER_RUNS, FIELDS, HOSTILE, SECTIONS, Ran, Reader, earlier_runs, made_run, page_of

LINE = EngineTimeline(500.0, 500.0, {"tensor": (0.0, 0.5, 1.0, 1.0), "dma.sync": (1.0, 0.2, 0.0, 0.0)}, 1, b"zipped")
DRAWN = Timelines((("input", LINE), ("best", LINE)), ("a note",), (TraceLink("input", "timelines/input.json.gz"),))


def test_the_page_has_all_that_a_person_asks_for(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    folder.counterpart((Candidate("r009t1", "faster"), replace(measured(150.0), contested=("4-byte dma_transpose",))))
    page = Reader(page_of(folder, DRAWN))
    for wanted in (
        "500.0 µs", "180.0 µs", "2.78x", "144.0 to 198.0 µs", "tensor, 80 % busy", "2 improved", "1 implausible",
        "HBM traffic beyond the minimum", "dma.sync", "float32, 19.7 TFLOPS", "Hoist the load of tile 5",
        "70.0 µs: 250.0 µs to 180.0 µs", "-TILE = 511", "return x[:TILE] < 507 > 0", "149 measured kernels",
        "$0.50", "1,000 in, 50 out", "/home/me/mine.py", "nki_sim-1", "fastest, r009t1", "150.0 µs",
    ):  # fmt: skip
        assert wanted in page.text, wanted
    assert tuple(name for name in page.ids if name in SECTIONS) == SECTIONS
    assert page.outside == ["timelines/input.json.gz"] and not page.running and "script" not in page.tags


def test_what_a_run_does_not_have_is_not_drawn(tmp_path: Path) -> None:
    slower = Reader(page_of(made_run(tmp_path / "a", Ran((600.0, None), fields=FIELDS))))
    assert "Gaps, before and after" not in slower.text and "All changes" not in slower.text
    device = Reader(page_of(made_run(tmp_path / "b", Ran(simulated=False, fields=FIELDS))))
    assert "no device took" not in device.text and "on a device likely" not in device.text
    bare = Reader(page_of(made_run(tmp_path / "c", Ran(fields={"hbm_read_bytes": 0.0}))))
    assert "Roofline None" in bare.text


def test_lineage_leads_from_each_kernel_to_those_made_from_it(tmp_path: Path) -> None:
    page = run_page(summary_of(made_run(tmp_path)))
    assert [(link.parent_id, link.id) for link in page.chain] == [("input", "r001t1"), ("r001t1", "r005t1")]
    assert [(each.id, each.on_path, each.label) for each in page.tries][:4] == [
        ("r001t1", True, "improved"), ("r002t1", False, "no improvement"), ("r003t1", False, "reverted"),
        ("r004t1", False, "timed out"),
    ]  # fmt: skip


def test_gaps_stand_beside_each_other_by_name_the_largest_first(tmp_path: Path) -> None:
    page = run_page(summary_of(made_run(tmp_path)))
    assert [(bar.name, bar.before_us, bar.after_us) for bar in page.gaps] == [
        ("HBM traffic beyond the minimum", 500 / 3, 60.0),
        ("the tensor engine waits for DMA", 125.0, 45.0),
        ("spills", 62.5, 22.5),
    ]


@pytest.mark.parametrize("run_id", EARLIER_RUNS)
def test_a_run_of_an_earlier_release_however_it_ended_has_a_true_page(tmp_path: Path, run_id: str) -> None:
    """A catalogue's, a model's with every outcome, two lanes, a winner that was dropped, one that was killed."""
    folder = RunFolder(earlier_runs(tmp_path) / run_id)
    summary = summary_of(folder)
    page = Reader(page_of(folder))
    assert tuple(name for name in page.ids if name in SECTIONS) == SECTIONS
    assert summary.status in page.text
    assert ("no device took these latencies" in page.text) is summary.manifest.target.simulated
    assert summary.baseline is not None and f"{summary.baseline.result.latency_us:,.1f} µs" in page.text
    assert ("Nothing faster than the input kernel was found" in page.text) is not summary.improved
    for attempt in summary.attempts:
        if attempt.last_check is not None:
            assert "dropped: failed its last check" in page.text and "failed its last check" in page.text


def test_a_run_that_has_just_begun_says_that_nothing_is_measured(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, manifest("run"), {})
    page = Reader(page_of(folder, Timelines(notes=("No kernel was measured.",))))
    assert "running" in page.text and "The input kernel was not measured" in page.text
    assert "No round has ended yet." in page.text and "Roofline None: no kernel was measured." in page.text
    assert "Simulated: no device took these latencies" in page.text and "svg" not in page.tags
    folder.end("failed", "the host is gone")
    folder.close()
    page = Reader(page_of(folder))
    assert "failed: the host is gone" in page.text and "No round has ended." in page.text


def test_nothing_that_others_wrote_is_markup(tmp_path: Path) -> None:
    """In every place that a model, a kernel or a file's name reaches; and no formula of a dollar sign."""
    html = page_of(made_run(tmp_path, Ran(texts=HOSTILE, fields=FIELDS)), DRAWN)
    page = Reader(html)
    assert "script" not in page.tags and "img" not in page.tags and not page.running
    assert page.outside == ["timelines/input.json.gz"]
    assert page.text.count("<script>alert(1)</script>") >= 10 and "$x_1$" in page.text and "{{ 7 * 7 }}" in page.text
    assert "\x00" not in html and "\x1b" not in html
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    assert policy is not None and "default-src 'none'" in policy[1] and "script-src" not in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_a_page_stays_small_whatever_a_run_wrote(tmp_path: Path) -> None:
    """Of hundreds of rounds many bring a new best, with a kernel of hundreds of lines that grow when escaped."""
    latencies = tuple(500.0 * 0.98**number for number in range(1, MOST_LINKS + 11)) + (None,) * (MOST_TRIES - 50)
    ran = Ran(latencies, texts="<&\"'>" * 400, fields=FIELDS, lines=300)
    folder = made_run(tmp_path, ran)
    html = page_of(folder, DRAWN)
    assert 500_000 < len(html.encode()) < 2_000_000
    assert all(link.diff.lines and link.diff.left_out for link in run_page(summary_of(folder)).chain)
    text = Reader(html).text
    assert "more lines are not shown" in text and "earlier tries are not shown" in text
    assert "The first 10 steps are not shown" in text
