"""Runs to make pages of, and a reader of pages: what a browser would load, run, or be led to."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import Evaluation, Gap, Implausible, Measured, Step, TimedOut
from accelopt_core.ports import Role, TargetInfo, Usage
from infra.llm.ledger import LedgerEntry
from infra.report.page_file import Timelines, Written, run_html
from infra.report.run_page import run_page
from infra.runs.run_folder import RunFolder
from infra.terminal.report import summary_of
from ka_extensions.outcome import Outcome
from tests.infra.samples import PLAN, attempted, manifest, measured

EARLIER = Path(__file__).parents[1] / "resume" / "earlier_layout.tar.gz"
EARLIER_RUNS = ("catalogue-run", "dropped-run", "interrupted-run", "model-run", "wide-run")
_MARKUP = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE = f"{_MARKUP} $x_1$ {{{{ 7 * 7 }}}} \x1b[31m\x00 'q' \"Q\" &amp;"
"""As a model, a kernel or the name of a file may say."""
SECTIONS = ("result", "rounds", "gaps", "engines", "roofline", "chain", "sure", "cost", "environment")


class Reader(HTMLParser):
    """Tags, what elements refer to, attributes that would run something, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.running: list[str] = []
        self.ids: list[str] = []
        self._text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "action", "data", "srcset"):
                self.addresses.append(value or "")
            if name.startswith("on") or "javascript:" in (value or "").lower():
                self.running.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).split())

    @property
    def outside(self) -> list[str]:
        """Addresses beyond the page itself."""
        return [each for each in self.addresses if not each.startswith(("#", "data:,"))]


def earlier_runs(folder: Path) -> Path:
    """Five runs of an earlier release, each with another ending: their checkpoints."""
    with tarfile.open(EARLIER) as archive:
        archive.extractall(folder)
    return folder / "earlier_layout" / "checkpoints"


def page_of(folder: RunFolder, timelines: Timelines | None = None) -> str:
    return run_html(
        run_page(summary_of(folder)), timelines or Timelines(), Written("0.1.0", "2026-11-23T18:00:00+00:00")
    )


def kernel_text(tile: int) -> str:
    lines = "".join(f"    line_{number} = {number}\n" for number in range(60))
    return f"import nki\n\nTILE = {tile}\n\n\n@nki.jit\ndef kernel(x):\n{lines}    return x[:TILE] < {tile} > 0\n"


@dataclass(frozen=True)
class Ran:
    """What a made-up run is made of."""

    latencies: tuple[float | None, ...] = (250.0, 251.0, 600.0, None, 180.0)
    """Of its rounds; None: it timed out."""
    texts: str = ""
    """In all that others write, before what is usual there."""
    simulated: bool = True
    status: str = "finished"
    fields: dict[str, float] = field(default_factory=dict)
    """Of every profile."""
    lines: int = 0
    """Of each kernel, that are in no other and grow when they are escaped."""


FIELDS = {
    "model_flops": 4e9, "hbm_read_bytes": 3e7, "hbm_write_bytes": 1e7, "total_time": 5e-4,
    "tensor_engine_active_time": 4e-4,
}  # fmt: skip


def made_run(
    checkpoints: Path, ran: Ran = Ran(fields=FIELDS), run_id: str = "20261120-125418-matmul-3f2a"
) -> RunFolder:
    """With lineage, costs, gaps before and after, one try of each kind. Times are made up."""
    target = TargetInfo(f"{ran.texts}simulated trn2", "nki_sim-1", ran.simulated, "trn2")
    about = manifest(
        run_id, task=f"{ran.texts}matmul", kernel=f"/home/me/{ran.texts}mine.py", target=target,
        versions={f"{ran.texts}program": f"{ran.texts}0.1.0"}, updated="2026-11-20T13:00:00+00:00",
    )  # fmt: skip
    folder = RunFolder.create(checkpoints, about, {"run": {"patience": 5, "preset": "small"}})
    folder.best(Candidate("input", kernel_text(512)), _measured(500.0, ran))
    best, parent = 500.0, "input"
    for number, us in enumerate(ran.latencies, 1):
        evaluation: Evaluation = _measured(us, ran) if us is not None else TimedOut(Step.COMPILE, 300.0)
        made = _attempt(number, evaluation, best, parent, ran)
        folder.attempt(made)
        if us is not None and made.outcome is Outcome.IMPROVED:
            assert made.candidate is not None and isinstance(evaluation, Measured)
            folder.best(made.candidate, evaluation)
            best, parent = us, made.id
    folder.attempt(attempted(len(ran.latencies) + 1, Implausible(f"{ran.texts}too good"), best))
    folder.spend(LedgerEntry(Role.PLANNER, f"{ran.texts}m", Usage(1000, 50), 0.5))
    folder.end(ran.status, f"{ran.texts}5 rounds without improvement")  # type: ignore[arg-type]  # a literal
    folder.close()
    return folder


def _measured(us: float, ran: Ran) -> Measured:
    result = measured(us, simulated=ran.simulated)
    gaps = (*result.profile.gaps, Gap(f"{ran.texts}HBM traffic beyond the minimum", us / 3, f"{ran.texts}block", "e"))
    profile = replace(result.profile, gaps=gaps, fields={**result.profile.fields, **ran.fields})
    return replace(result, profile=profile, checks=(f"{ran.texts}5 seeds",))


def _attempt(number: int, evaluation: Evaluation, best_us: float, parent: str, ran: Ran) -> Attempt:
    source = kernel_text(512 - number) + f"# {ran.texts}\n" + f"# {number} {'<&' * 60}\n" * ran.lines
    plain = attempted(number, evaluation, best_us, source=source)
    plan = replace(PLAN, title=f"{ran.texts}Hoist the load of tile {number}", rationale=f"{ran.texts}it is invariant")
    assert plain.candidate is not None
    candidate = replace(plain.candidate, parent_id=parent)
    return replace(plain, plan=plan, candidate=candidate, parent_id=parent, summary=f"{ran.texts}{plain.summary}")
