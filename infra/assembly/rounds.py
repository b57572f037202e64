"""How the rounds of a run go: what the loop is told, how many candidates a round tries, which of them are sent on."""

from __future__ import annotations

import config
from accelopt_core.candidate import MOST_AT_ONCE
from accelopt_core.catalogue import sweep
from accelopt_core.loop import events
from accelopt_core.loop.rounds import LoopSettings
from accelopt_core.loop.screening import BEST_BY_SIMULATION, Guide
from accelopt_core.ports import EvaluationLimits, Target, TargetError, TargetInfo, TaskFault
from infra.llm.contenders import CATALOGUE
from infra.prediction.predictor import Predictor
from infra.runs.event_log import Observers
from infra.targets.on_engine import EngineTarget
from ka_extensions.divergence_guard import DivergenceGuard
from nki_sim.timing import ties

EXPLORATION_STEPS = 2
"""With a language model, unless the user says otherwise: one over a slower kernel, one that pays."""


def loop_settings(settings: config.Settings, provider: str) -> LoopSettings:
    """`provider`: as `infra.assembly.proposing.provider_of` has it."""
    guard = settings.guard
    exploration = guard.max_exploration
    if exploration is None:
        exploration = 0 if provider == CATALOGUE else EXPLORATION_STEPS
    return LoopSettings(
        rounds=settings.run.rounds,
        patience=settings.run.patience,
        max_repairs=guard.max_repairs,
        width=settings.run.width or 1,
        beam=settings.run.beam,
        plans=settings.run.plans,
        samples=settings.run.samples,
        tie=ties.shipped().within,
        guard=DivergenceGuard(guard.revert_above, guard.noise, exploration),
        model_failures=LoopSettings.model_failures * max(1, len(settings.model.proposers)),
        secret_seeds=settings.verification.extra_seeds,
        limits=limits_of(settings),
    )


def limits_of(settings: config.Settings) -> EvaluationLimits:
    """Of every evaluation."""
    target, verification = settings.target, settings.verification
    return EvaluationLimits(
        target.compile_timeout_s, target.run_timeout_s, int(target.memory_gib * (1 << 30)),
        iterations=verification.iterations, remeasure=verification.remeasure,
    )  # fmt: skip


CHOSEN_FROM = 2 * BEST_BY_SIMULATION
"""Ideas of the catalogue that a round on a device has to choose from: they cost no device time, and what it showed so
far may put another one first."""


def width_of(settings: config.Settings, target: Target, simulated: bool, provider: str) -> int:
    """Of a round: what the user wants, or enough for a device to choose from. With a language model each candidate
    costs calls, so none is added. A search with an archive tries the same candidates however many are at work at once,
    so an engine is used whole."""
    if settings.run.width:
        return settings.run.width
    if isinstance(target, EngineTarget) and loop_settings(settings, provider).by_archive:
        return min(target.places, MOST_AT_ONCE)
    chosen = CHOSEN_FROM if provider == CATALOGUE and not simulated else 1
    return min(max(target.width, chosen), MOST_AT_ONCE)


def most_swept(settings: config.Settings, provider: str) -> int:
    """Settings of a written kernel's TUNABLES that are priced; fewer than two are none."""
    if settings.run.sweep is not None:
        return settings.run.sweep
    return sweep.MOST if loop_settings(settings, provider).by_archive else 0


def guide_of(predictor: Predictor, info: TargetInfo, lanes: int, at_once: int, observer: Observers) -> Guide | None:
    """None where there is nothing to tell apart or to choose, or nobody here who could: the user is told then."""
    if info.simulated and lanes == 1:
        return None
    try:
        predictor.arguments()
    except (TargetError, TaskFault) as error:
        every = "every kernel is evaluated" if info.simulated else "every kernel goes to the device"
        observer.tell(
            events.Notice(f"the simulator cannot be asked about this task here, so {every}: {error}", "warning")
        )
        return None
    within = ties.shipped().within
    return Guide(predictor, within, prices=not info.simulated, least=max(BEST_BY_SIMULATION, at_once))
