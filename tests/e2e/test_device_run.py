"""A run of the catalogue on a device: what may be the best by simulation goes there, and the device decides."""

from __future__ import annotations

import io
import threading
import types
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import config
from accelopt_core.candidate import MOST_AT_ONCE
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.loop import events
from accelopt_core.loop.screening import BEST_BY_SIMULATION, Guide, may_be_best
from accelopt_core.ports import EvaluationRequest, Progress, TargetInfo
from accelopt_core.task import ShapePreset, Task
from infra import command_line
from infra.assembly import rounds, run
from infra.assembly.targets import residuals_of
from infra.devices.leases import FOLDER_VARIABLE
from infra.neuron.toolchain import open_neuron_toolchain
from infra.prediction.predictor import Predictor
from infra.runs.event_log import Observers
from infra.runs.run_folder import RunFolder
from infra.simulator.toolchain import traced_on_simulator
from infra.terminal import report
from ka_extensions.outcome import Outcome
from nki_sim.timing import ties
from tests.e2e.kernels import REFERENCE
from tests.infra.tasks.test_kernel_wrapper import PretendDevice
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

SLOWER_BY = 3.0


class OneCore(PretendDevice):
    """One candidate at a time, as a pool of hosts lets them in; the best by simulation is no good on it."""

    def __init__(self, folder: Path, runs: Path) -> None:
        """`runs`: where the run is, whose choice is on file before anything is sent."""
        self._runs = runs
        sdk = PretendSdk(folder, site=SIMULATED)
        super().__init__(open_neuron_toolchain(traced_on_simulator, installation=sdk.installation))
        self._free = threading.Lock()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        with self._free:
            found = super().evaluate(request, progress)
        if not isinstance(found, Measured) or request.candidate.content_hash != self._best_by_simulation():
            return found
        slow = {name: SLOWER_BY * getattr(found, name) for name in ("latency_us", "min_us", "max_us")}
        return replace(found, **slow)

    def _best_by_simulation(self) -> str | None:
        (run,) = self._runs.glob("*")
        choices = [each for each in RunFolder(run).chosen(1, 1) if each.predicted is not None and each.sent]
        return min(choices, key=lambda each: each.predicted.latency_us).kernel if choices else None  # type: ignore[union-attr]


def carried_out(folder: Path, patch: pytest.MonkeyPatch, *flags: str) -> run.FinishedRun:
    patch.setenv(FOLDER_VARIABLE, str(folder / "leases"))
    device = OneCore(folder / "sdk", folder / "runs")
    patch.setattr(run, "target_of", lambda settings: device)
    words = (
        "--provider", "catalogue", "--task", "rope_single_freq_apply", "--preset", "small", "--rounds", "1",
        "--checkpoints", str(folder / "runs"), "--memory", str(folder / "memory.json"), "--view", "quiet",
        "--iterations", "1", "--remeasure", "0", *flags,
    )  # fmt: skip
    return run.carry_out(command_line.read(words, {}, folder))


@pytest.mark.slow
def test_the_best_by_simulation_go_to_the_device_and_it_decides(tmp_path, monkeypatch) -> None:
    done = carried_out(tmp_path, monkeypatch)
    assert done.settings.run.width == rounds.CHOSEN_FROM == 6
    tried = {attempt.lane: attempt for attempt in done.result.attempts}
    assert sorted(tried) == list("abcdef") and len({attempt.content_hash for attempt in tried.values()}) == 6
    predicted = {lane: attempt.predicted.latency_us for lane, attempt in tried.items() if attempt.predicted}
    worth = dict(zip(predicted, may_be_best(list(predicted.values()), ties.shipped().within, BEST_BY_SIMULATION)))
    sent = [lane for lane in tried if worth[lane]]
    first = min(predicted, key=predicted.__getitem__)
    assert len(sent) >= BEST_BY_SIMULATION and first in sent
    assert {lane: attempt.outcome is Outcome.OUTRANKED for lane, attempt in tried.items()} == {
        lane: not worth[lane] for lane in tried
    }
    times = {lane: attempt.latency_us for lane, attempt in tried.items() if attempt.latency_us is not None}
    assert sorted(times) == sent and first == max(times, key=times.__getitem__)
    assert done.result.best.id == f"r001{min(times, key=times.__getitem__)}t1"
    told = io.StringIO()
    report.print_report(Console(file=told, width=160), report.summary_of(done.folder))
    assert f"over {len(sent)} kernels, its first choice is" in told.getvalue()
    seen = residuals_of(done.settings.run.memory, done.folder.manifest().target)
    assert len(seen.of_other_runs("the next one")) == len(sent) and seen.of_other_runs(done.folder.run_id) == ()


@pytest.mark.slow  # 50 s, nearly all of it a pretended SDK's processes; the next test says whose word counts
def test_who_wants_one_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = carried_out(tmp_path, monkeypatch, "--width", "1")
    assert [attempt.lane for attempt in done.result.attempts] == [""]


@pytest.mark.parametrize(
    ("wanted", "provider", "simulated", "at_once", "width"),
    [
        (None, "catalogue", False, 1, rounds.CHOSEN_FROM),
        (1, "catalogue", False, 1, 1),
        (2, "catalogue", True, 1, 2),
        (None, "catalogue", True, 1, 1),
        (None, "openai", False, 1, 1),
        (None, "openai", False, 4, 4),
        (1, "openai", False, 4, 1),
        (None, "catalogue", False, 1000, MOST_AT_ONCE),
    ],
)
def test_a_round_is_as_wide_as_its_user_wants_or_its_target_deserves(wanted, provider, simulated, at_once, width):
    settings = config.from_keywords({} if wanted is None else {"width": wanted}).settings
    target = types.SimpleNamespace(width=at_once)
    assert rounds.width_of(settings, target, simulated, provider) == width


class Heard:
    def __init__(self) -> None:
        self.notices: list[events.Notice] = []

    def tell(self, event: events.Event) -> None:
        assert isinstance(event, events.Notice)
        self.notices.append(event)


def guide_for(simulated: bool, lanes: int, at_once: int, reference: str = REFERENCE) -> tuple[Guide | None, Heard]:
    task = Task("add", reference, (ShapePreset("full", (("N", 2048), ("T", 4))),), seeds=(0,))
    info, heard = TargetInfo("there", "there-1", simulated, "trn2"), Heard()
    predictor = Predictor(task, "trn2")
    try:
        return rounds.guide_of(predictor, info, lanes, at_once, Observers(heard)), heard
    finally:
        predictor.close()


def test_a_device_is_sent_as_many_as_it_times_at_once_and_three_at_least() -> None:
    (one, said), (many, _) = guide_for(False, 6, 1), guide_for(False, 6, 5)
    assert one is not None and many is not None and (one.prices, one.least, many.least) == (True, 3, 5)
    assert one.tie == ties.shipped().within and said.notices == []
    beside, _ = guide_for(True, 2, 1)
    assert beside is not None and not beside.prices
    assert guide_for(True, 1, 1)[0] is None


def test_where_the_reference_cannot_be_read_here_every_kernel_goes_to_the_device_and_that_is_said() -> None:
    none, heard = guide_for(False, 1, 1, reference="import no_such_package\n")
    assert none is None
    (notice,) = heard.notices
    assert notice.level == "warning" and "every kernel goes to the device" in notice.message
    assert "no_such_package" in notice.message
