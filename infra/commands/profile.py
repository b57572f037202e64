"""One kernel's simulated latency and where it goes, at its reference's shapes: nothing is verified.

As `nki-sim profile`, and the kernel is traced as a candidate is: in a process of its own, without files or network.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import config
from accelopt_core.task import Surroundings
from accelopt_core.toolchain import (
    ArgumentSpec,
    CandidateFault,
    CompileError,
    StepTimeout,
    TensorArgument,
    ToolchainMissing,
)
from infra.assembly.problem import nki_problem_of
from infra.assembly.targets import calibrations_of
from infra.prediction.predictor import kernel_arguments
from infra.settings_reader import SettingsError
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.kernel_signature import SHAPE
from infra.tasks.plain_reference import dtype_named
from infra.tasks.reference_reader import TaskInvalid
from nki_sim.commands.documents import ProfileDocument, profile_document
from nki_sim.profile.profile import Measurement


def profile(settings: config.Settings, kernel: str) -> ProfileDocument:
    """`kernel`: as it was named; its arguments are the reference's.

    Raises SettingsError, TaskInvalid, TaskNotFound and TaskFault for what is wrong with the call, the reference or the
    kernel.
    """
    problem, machine = nki_problem_of(settings, "profile"), settings.target.machine
    arguments, timeout_s = kernel_arguments(problem.task)[-1], settings.target.compile_timeout_s
    calibration = calibrations_of(settings).for_simulator(machine)
    with closing(SimulatorToolchain(machine, calibration=calibration)) as simulator:
        measured = timed(simulator, kernel, problem.source, arguments, problem.task.around, timeout_s)
    return profile_document(kernel, measured, None)


def timed(
    simulator: SimulatorToolchain,
    kernel: str,
    source: str,
    arguments: Sequence[ArgumentSpec],
    around: Surroundings,
    timeout_s: float,
) -> Measurement:
    """`kernel`: as it was named, for what is wrong with it. Raises SettingsError and TaskInvalid."""
    try:
        program = simulator.compile(source, arguments, timeout_s, around)
        if program.counts:
            raise SettingsError(
                f"profile: how often the device loops of {kernel} run is decided by its inputs: evaluate it"
            )
        return program.measurement
    except CompileError as error:
        at = f"{kernel}:{error.line}" if error.line is not None else kernel
        raise TaskInvalid(f"{at}: does not compile: {error.message}") from None
    except StepTimeout as error:
        raise TaskInvalid(f"{kernel}: it took longer than {error.limit_s:g} s to {error.step.value}") from None
    except CandidateFault as error:
        raise TaskInvalid(f"{kernel}: {error}") from None
    except ToolchainMissing as error:
        raise SettingsError(f"profile: {error}") from None


def tensor(command: str, text: str) -> TensorArgument:
    """Of `128x512:float32`. Raises SettingsError, and TaskInvalid for an unknown dtype."""
    matched = SHAPE.fullmatch(text)
    if matched is None:
        raise SettingsError(f"{command}: {text!r} is no shape: write it as 128x512:float32")
    return TensorArgument(tuple(map(int, matched[1].split("x"))), dtype_named(command, matched[2] or "float32").name)
