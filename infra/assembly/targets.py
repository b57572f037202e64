"""Where candidates are evaluated, and priced: this machine, hosts or a cluster."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import config
from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import NEEDS_A_DEVICE, CompilersOwn
from accelopt_core.languages.registry import language_named
from accelopt_core.ports import EvaluationRequest, Target, TargetError, TargetInfo, TargetMisconfigured
from accelopt_core.task import DEFAULT_LANGUAGE, Task
from infra.assembly.rounds import limits_of
from infra.calibration.file import Calibrations
from infra.engines.engine_names import address_of
from infra.engines.ray_engine import RayEngine
from infra.languages.registry import supported
from infra.prediction.predictor import WORKERS, Predictor
from infra.runs.residual_file import ResidualFile
from infra.settings_reader import SettingsError
from infra.simulator.toolchain import simulator_fingerprint
from infra.targets.local import LocalTarget
from infra.targets.on_engine import EngineTarget
from infra.targets.pool import TargetPool
from nki_sim.machine import DEFAULT_MACHINE

if TYPE_CHECKING:
    from infra.ssh.config import SshSettings
    from infra.ssh.runner import SshRunner
    from infra.targets.over_ssh import SshTarget


def language_of(settings: config.Settings) -> str:
    """Its key; of a run, what its kernel is written in."""
    return settings.run.language or DEFAULT_LANGUAGE


def machine_of(settings: config.Settings) -> str:
    """That is simulated, or compiled for, where no device says what it is. Raises SettingsError."""
    language, wanted = language_named(language_of(settings)), settings.target.machine
    if wanted in language.machines:
        return wanted
    if wanted == DEFAULT_MACHINE:
        return language.machines[0]
    raise SettingsError(
        f"machine: {language.name} kernels are compiled for {', '.join(language.machines)}, not {wanted}"
    )


def target_of(settings: config.Settings) -> Target:
    wanted = settings.target
    address = address_of(wanted.engine)
    if address is not None:
        return _cluster_target(settings, RayEngine(address))
    if not wanted.host:
        language, machine = language_of(settings), machine_of(settings)
        calibration = calibrations_of(settings).for_simulator(machine) if language == DEFAULT_LANGUAGE else None
        here = supported(language).here
        if wanted.cores and here == "simulator":
            raise SettingsError("cores: of which host? give --host USER@HOST; without one the machine is simulated")
        return LocalTarget(
            here, machine, calibration, language=language, processes=wanted.processes,
            cores=wanted.cores, core_wait_s=wanted.core_wait_s,
        )  # fmt: skip
    return TargetPool([host_target(settings, host) for host in wanted.host])


def _cluster_target(settings: config.Settings, engine: RayEngine) -> EngineTarget:
    wanted, calibrations = settings.target, calibrations_of(settings)
    if language_of(settings) != DEFAULT_LANGUAGE:
        engine.close()
        raise SettingsError("engine: a Ray cluster evaluates NKI kernels; name hosts for others")
    if not wanted.neuron_cores:
        return EngineTarget(engine, "simulator", wanted.machine, calibrations.for_simulator(wanted.machine))
    try:
        there = engine.neuron_cores
        if there < wanted.neuron_cores:
            raise TargetMisconfigured(
                f"{engine.name} has {there} neuron_cores, and --neuron-cores {wanted.neuron_cores} asks for more: "
                "start its nodes on Trainium instances, where Ray finds them by itself"
            )
    except TargetError:
        engine.close()
        raise
    return EngineTarget(
        engine, "auto", wanted.machine, calibration_of=calibrations.for_device, neuron_cores=wanted.neuron_cores,
        groups=there // wanted.neuron_cores, core_wait_s=wanted.core_wait_s,
    )  # fmt: skip


def host_target(settings: config.Settings, host: str) -> SshTarget:
    wanted = settings.target
    from infra.targets.over_ssh import SshTarget  # with paramiko, which a run without hosts need not wait for

    calibrations, is_nki = calibrations_of(settings), language_of(settings) == DEFAULT_LANGUAGE
    return SshTarget(
        host,
        machine=machine_of(settings),
        language=language_of(settings),
        remote_simulator=wanted.remote_simulator,
        remote_python=wanted.remote_python,
        settings=_ssh_settings(wanted),
        root=wanted.remote_dir,
        cores=wanted.cores,
        core_wait_s=wanted.core_wait_s,
        calibration=calibrations.for_simulator(wanted.machine) if wanted.remote_simulator and is_nki else None,
        calibration_of=calibrations.for_device if is_nki else lambda machine, installed: None,
    )


def host_runner(settings: config.Settings, host: str) -> SshRunner:
    """Files and jobs there, of whatever kind."""
    from infra.ssh.runner import SshRunner

    return SshRunner(host, _ssh_settings(settings.target), root=settings.target.remote_dir)


def _ssh_settings(wanted: config.TargetSettings) -> SshSettings:
    from infra.ssh.config import SshSettings

    return SshSettings(
        config_file=wanted.ssh_config,
        accept_new_host_key=wanted.accept_new_host_key,
        reconnect_for_s=wanted.reconnect_s,
    )


def compilers_own_of(settings: config.Settings, info: TargetInfo, task: Task) -> CompilersOwn:
    """What the compiler makes of the reference by itself, where kernels are timed. What stands in its way, it says."""
    if info.simulated:
        return NEEDS_A_DEVICE
    if not settings.target.host:
        return CompilersOwn(None, "not asked for: on a cluster nothing but kernels is timed; name a host")
    request = EvaluationRequest(task, Candidate("reference", ""), limits_of(settings))
    with closing(host_target(settings, settings.target.host[0])) as target:
        try:
            return target.compilers_own(request)
        except TargetError as error:
            return CompilersOwn(None, str(error))


def calibrations_of(settings: config.Settings) -> Calibrations:
    wanted = settings.calibration
    return Calibrations(wanted.calibrations, wanted.calibration, wanted.shipped_model)


MOST_PRICED_ON_A_CLUSTER = 64
"""Kernels at a time; a planner has seldom more to price, and each worker's first takes it a second longer."""


def predictor_of(settings: config.Settings, task: Task, info: TargetInfo, target: Target | None = None) -> Predictor:
    """target: kernels are priced on its engine, where it has one; else on this machine."""
    engine = target.engine if isinstance(target, EngineTarget) else None
    on_cluster = address_of(settings.target.engine) is not None
    workers = MOST_PRICED_ON_A_CLUSTER if on_cluster else min(WORKERS, settings.target.processes or WORKERS)
    return Predictor(task, info.machine, settings.target.compile_timeout_s, workers, info.calibration, engine)


def residuals_of(memory: Path, info: TargetInfo) -> ResidualFile:
    """What that device took for what is predicted here; `memory` is the file that it lies beside."""
    return ResidualFile(memory, info.fingerprint, simulator_fingerprint(info.machine, info.calibration))
