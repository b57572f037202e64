"""Pages of a run and of a suite of 14 tasks as headless Chromium shows them, at 1280 and at 400 pixels, light and dark.

A page that frames another one (from files alone, with nothing to load from anywhere) measures what is drawn: letters
that are too small or lie over others, parts beyond the edge.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.report.page_file import Timelines
from infra.runs.run_folder import RunFolder
from tests.infra.samples import manifest
from tests.processes import PATIENCE_S
from tests.report.pages import FIELDS, HOSTILE, Ran, made_run, page_of
from tests.report.test_run_page import DRAWN
from tests.report.test_show_html import real_run
from tests.report.test_suite_page import suite_of

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.program("chromium", "chromium-browser", "google-chrome")]
WIDTHS = (1280, 400)
SMALLEST_PX = 10.0
"""Height of the letters' box: below, nobody reads it."""

MEASURE = """
<!DOCTYPE html><meta charset="utf-8">
<iframe id="page" src="SOURCE" style="width:WIDTHpx;height:900px;border:0"></iframe>
<pre id="found"></pre>
<script>
addEventListener("load", () => {
  const page = document.getElementById("page").contentDocument, found = {texts: 0, small: [], over: [], beyond: []};
  for (const each of page.querySelectorAll("details")) each.open = true;
  found.overflow = page.documentElement.scrollWidth - page.documentElement.clientWidth;
  found.title = page.title;
  for (const svg of page.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    found.texts += texts.length;
    for (const [words, box] of texts) {
      if (Math.min(box.height, box.width + 99 * (words.length < 3)) < SMALLEST) found.small.push([words, box.height]);
      if (box.left < frame.left - 3 || box.right > frame.right + 3) found.beyond.push(words);
    }
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
      const a = texts[i][1], b = texts[j][1];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 4) found.over.push([texts[i][0], texts[j][0]]);
    }
  }
  const style = getComputedStyle(page.body);
  found.paper = style.backgroundColor; found.ink = style.color;
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>
"""


@dataclass(frozen=True)
class Seen:
    found: dict[str, Any]
    said: list[str]
    """On the console."""


def chromium(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    argv = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", *words,
    ]  # fmt: skip
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)


def console_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def seen(folder: Path, page: Path, width: int, *words: str) -> Seen:
    frame = folder / f"frame-{page.stem}-{width}.html"
    text = MEASURE.replace("SOURCE", page.as_uri()).replace("WIDTH", str(width)).replace("SMALLEST", str(SMALLEST_PX))
    frame.write_text(text, encoding="utf-8")
    done = chromium(folder, f"--window-size={width + 40},1000", *words, "--dump-dom", frame.as_uri())
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None and told[1], done.stderr[-2000:]
    return Seen(json.loads(html.unescape(told[1])), console_of(done))


def of_a_run(folder: Path) -> Path:
    """A shipped task's, with the timelines of its kernels, as a user has it made."""
    real_run(folder)
    argv = [sys.executable, "orchestrator.py", "show", "--html", str(folder / "run.html"), "--checkpoints", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return folder / "run.html"


def of_many_tries(folder: Path) -> Path:
    page = folder / "tries.html"
    latencies = (450.0, 460.0, None, 900.0, 400.0, None, 390.0, 385.0, 380.0, 500.0, 300.0, 301.0)
    page.write_text(page_of(made_run(folder, Ran(latencies, fields=FIELDS)), DRAWN), encoding="utf-8")
    return page


def of_a_hostile_run(folder: Path) -> Path:
    page = folder / "hostile.html"
    page.write_text(page_of(made_run(folder, Ran(texts=HOSTILE, fields=FIELDS)), DRAWN), encoding="utf-8")
    return page


def of_a_run_that_has_just_begun(folder: Path) -> Path:
    page = folder / "begun.html"
    page.write_text(page_of(RunFolder.create(folder, manifest("run"), {}), Timelines()), encoding="utf-8")
    return page


def of_a_suite(folder: Path) -> Path:
    page = folder / "suite.html"
    page.write_text(suite_of(folder), encoding="utf-8")
    return page


@pytest.mark.parametrize("made", [of_a_run, of_many_tries, of_a_hostile_run, of_a_run_that_has_just_begun, of_a_suite])
def test_a_page_can_be_read_on_a_desk_and_on_a_phone(made: Any, tmp_path: Path) -> None:
    page = made(tmp_path)
    assert page.stat().st_size < 2_000_000
    for width in WIDTHS:
        there = seen(tmp_path, page, width)
        assert there.said == [], "nothing on the console"
        found = there.found
        assert found["overflow"] <= 0, f"at {width} px the page is wider than the window"
        assert found["small"] == [] and found["over"] == [] and found["beyond"] == [], (width, found)
        assert found["texts"] > 20 or made is of_a_run_that_has_just_begun


def test_a_page_is_dark_where_one_likes_it_dark(tmp_path: Path) -> None:
    page = of_a_suite(tmp_path)
    light = seen(tmp_path, page, 1280).found
    dark = seen(tmp_path, page, 1280, "--blink-settings=preferredColorScheme=0").found
    assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)") and light["ink"] != dark["ink"]


def test_a_screenshot_shows_more_than_paper(tmp_path: Path) -> None:
    page = of_a_suite(tmp_path)
    for width in WIDTHS:
        shot = tmp_path / f"{width}.png"
        done = chromium(tmp_path, f"--window-size={width},1000", f"--screenshot={shot}", page.as_uri())
        assert shot.stat().st_size > 20_000 and console_of(done) == [], done.stderr[-2000:]


def test_a_page_with_faults_is_found_out(tmp_path: Path) -> None:
    """What the tests above look for, in a page made to have it: a stopped script, tiny words, words over others."""
    faulty = of_a_suite(tmp_path).read_text(encoding="utf-8")
    tiny = '<text x="9" y="9" style="font: 3px sans-serif">tiny</text>'
    tiny += '<text x="60" y="30">one word</text><text x="64" y="33">another word</text>'
    drawn = f'<svg width="300" height="40">{tiny}<text x="290" y="30">beyond the edge</text></svg>'
    faulty = faulty.replace("</main>", f'{drawn}<div style="width:3000px">wide</div><script>1</script></main>')
    (tmp_path / "faulty.html").write_text(faulty, encoding="utf-8")
    there = seen(tmp_path, tmp_path / "faulty.html", 400)
    assert any("Content Security Policy" in line for line in there.said), there.said
    assert there.found["overflow"] > 2000 and there.found["beyond"] == ["beyond the edge"]
    assert [words for words, _ in there.found["small"]] == ["tiny"] and ["another word", "one word"] in there.found[
        "over"
    ]
