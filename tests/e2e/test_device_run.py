"""A run of the catalogue on a device: the three best by simulation go there, and the device decides between them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import config
from accelopt_core.evaluation import Evaluation, Measured
from accelopt_core.loop.screening import BEST_BY_SIMULATION
from accelopt_core.ports import EvaluationRequest, Progress
from infra import assembly
from infra.judging.simulator_toolchain import traced_on_simulator
from infra.neuron.leases import FOLDER_VARIABLE
from infra.neuron.toolchain import open_neuron_toolchain
from tests.infra.test_kernel_wrapper import PretendDevice
from tests.toolchains.pretend_sdk import SIMULATED, PretendSdk

SLOW_LANE, SLOWER_BY = "r001a", 3.0


class OneCore(PretendDevice):
    """One candidate at a time, as a pool of hosts lets them in; the best by simulation is no good on it."""

    def __init__(self, folder: Path) -> None:
        sdk = PretendSdk(folder, site=SIMULATED)
        super().__init__(open_neuron_toolchain(traced_on_simulator, installation=sdk.installation))
        self._free = threading.Lock()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        with self._free:
            found = super().evaluate(request, progress)
        if not isinstance(found, Measured) or not request.candidate.id.startswith(SLOW_LANE):
            return found
        slow = {name: SLOWER_BY * getattr(found, name) for name in ("latency_us", "min_us", "max_us")}
        return replace(found, **slow)


def carried_out(folder: Path, patch: pytest.MonkeyPatch, *flags: str) -> assembly.FinishedRun:
    patch.setenv(FOLDER_VARIABLE, str(folder / "leases"))
    device = OneCore(folder / "sdk")
    patch.setattr(assembly, "target_of", lambda settings: device)
    words = (
        "--provider", "catalogue", "--task", "rope_single_freq_apply", "--preset", "small", "--rounds", "1",
        "--checkpoints", str(folder / "runs"), "--memory", str(folder / "memory.json"), "--view", "quiet",
        "--iterations", "1", "--remeasure", "0", *flags,
    )  # fmt: skip
    return assembly.carry_out(config.read(words, {}, folder))


@pytest.mark.slow
def test_the_three_best_by_simulation_go_to_the_device_and_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = carried_out(tmp_path, monkeypatch)
    assert done.settings.run.width == BEST_BY_SIMULATION == 3
    tried = {attempt.lane: attempt for attempt in done.result.attempts}
    assert sorted(tried) == ["a", "b", "c"] and len({attempt.content_hash for attempt in tried.values()}) == 3
    times = {lane: attempt.latency_us for lane, attempt in tried.items() if attempt.latency_us is not None}
    assert len(times) == 3 and times["a"] > max(times["b"], times["c"])
    promised = [attempt.plan.expected_gain_us for attempt in tried.values() if attempt.plan is not None]
    assert promised[0] >= 0.9 * max(promised), "the first is the best by simulation, or ties with it"
    assert done.result.best.id == f"r001{min(times, key=times.__getitem__)}t1" != f"{SLOW_LANE}t1"


@pytest.mark.slow  # 50 s, nearly all of it a pretended SDK's processes; the next test says whose word counts
def test_who_wants_one_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = carried_out(tmp_path, monkeypatch, "--width", "1")
    assert [attempt.lane for attempt in done.result.attempts] == [""]


@pytest.mark.parametrize(
    ("wanted", "provider", "simulated", "at_once", "width"),
    [
        (None, "catalogue", False, 1, BEST_BY_SIMULATION),
        (1, "catalogue", False, 1, 1),
        (2, "catalogue", True, 1, 2),
        (None, "catalogue", True, 1, 1),
        (None, "openai", False, 1, 1),
        (None, "openai", False, 4, 4),
        (1, "openai", False, 4, 1),
        (None, "catalogue", False, 1000, assembly.MOST_AT_ONCE),
    ],
)
def test_a_round_is_as_wide_as_its_user_wants_or_its_target_deserves(
    wanted: int | None, provider: str, simulated: bool, at_once: int, width: int
) -> None:
    assert assembly._width(wanted, at_once, simulated, provider) == width
