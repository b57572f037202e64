"""NKI: the simulated Trainium, and the Neuron SDK of a real one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from accelopt_core.evaluation import NEEDS_A_DEVICE, CompilersOwn
from accelopt_core.languages.nki.calibration import from_json
from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.supported import HostNeeds, Supported
from accelopt_core.ports import EvaluationRequest
from accelopt_core.toolchain import Calibration, Toolchain, ToolchainMissing
from infra.simulator.toolchain import MOST_RUNS, SimulatorToolchain, prepare_for_a_job, traced_on_simulator


def _open(
    name: str,
    *,
    machine: str,
    calibration: Calibration | None,
    memory_bytes: int,
    processes: int | None,
    told: Callable[[str], object],
) -> Toolchain:
    """A real compiler takes the memory that it takes."""
    if name == "simulator":
        return SimulatorToolchain(
            machine, calibration=calibration, memory_bytes=memory_bytes, parallel_runs=processes or MOST_RUNS
        )
    if name == "auto":
        from infra.neuron.toolchain import open_neuron_toolchain  # only here: the simulator's judge starts faster

        trace = partial(traced_on_simulator, calibration=calibration)
        return open_neuron_toolchain(trace, calibration=calibration, told=told)
    raise ToolchainMissing(f"no toolchain is named {name!r}: simulator or auto")


def _compilers_own(toolchain: Toolchain, request: EvaluationRequest) -> CompilersOwn:
    if toolchain.simulated:
        return NEEDS_A_DEVICE
    from infra.neuron.compilation.compilers_own import compilers_own
    from infra.neuron.toolchain import NeuronToolchain

    assert isinstance(toolchain, NeuronToolchain), "what is not simulated is a Neuron device"
    return compilers_own(toolchain, request)


def _prepare(name: str) -> None:
    if name == "simulator":
        prepare_for_a_job()


SUPPORTED = Supported(
    NKI,
    __name__,
    _open,
    from_json,
    "simulator",
    HostNeeds(
        pythons=("/opt/aws_neuronx_venv_*/bin/python", "python3"),  # AWS Neuron documentation, DLAMI user guide
        modules=(("nki", "neuronxcc"),),
        tools="/opt/aws/neuron/bin",  # neuron-ls, neuron-profile, neuron-explorer
        name="Neuron SDK",
        remedy="install the SDK, name its Python with --remote-python, or simulate there: --remote-simulator",
    ),
    _compilers_own,
    _prepare,
)
