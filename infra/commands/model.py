"""`model`: kernels inside a whole model, measured on its host, put back, or projected; `--then model` after a run."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import config
from accelopt_core.candidate import parsed
from accelopt_core.task import DEFAULT_LANGUAGE, Surroundings
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument
from infra.assembly.targets import calibrations_of, host_runner
from infra.commands.optimize import RunOutcome
from infra.commands.profile import tensor, timed
from infra.documents.model_document import (
    ModelDocument,
    ProjectionDocument,
    PutBackDocument,
    PutDocument,
    model_document,
    projection_document,
    put_back_document,
)
from infra.languages.registry import supported
from infra.model_benchmark.named import WINNER, places_of
from infra.model_benchmark.placing import Kernel
from infra.model_benchmark.projection import KernelFile, KernelUse, projection, read_table
from infra.runs.run_folder import RunFolder, find_run
from infra.settings_reader import SettingsError
from infra.simulator.toolchain import SimulatorToolchain
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid
from infra.toml_files import BadToml

_HARNESS_LIMIT_S = 6 * 3600.0
"""For one run of it, which compiles a whole model."""


def benchmark(settings: config.Settings, tell: Callable[[str], object], won: RunOutcome | None = None) -> ModelDocument:
    """`won`: the run whose winner is judged so at its end. `tell`: told each step, and each line of the harness.

    Raises SettingsError for what is wrong with the call, RunNotFound, TaskInvalid for a kernel that cannot be read,
    TargetError for the host, the harness and the checkout, and JournalError.
    """
    # With paramiko, which a projection need not wait for.
    from infra.e2e_benchmark import Benchmark, Host
    from infra.model_benchmark.harnesses import harness_of
    from infra.model_benchmark.kept_runs import KeptRuns

    wanted, there = settings.benchmark, supported(DEFAULT_LANGUAGE).host
    host, checkout = _where(settings)
    if not wanted.put:
        raise SettingsError("model: which kernel, in the place of what? --put KERNEL=FILE:FUNCTION")
    places = places_of(wanted.put)
    kernels = {word: _kernel(settings, word, won) for word in dict.fromkeys(word for word, _ in places)}
    harness = harness_of(wanted.harness, wanted.harness_args, wanted.harness_command)
    with closing(host_runner(settings, host)) as runner:
        runner.connect()
        named = settings.target.remote_python
        if named is not None:
            python = runner.find_python((named,), needs=[])
        else:
            needs = [[module] for module in harness.needs]
            python = runner.find_python(there.pythons if needs else ("python3",), needs=needs)
        found = Benchmark(
            Host(runner, python, (posixpath.dirname(python), there.tools), _HARNESS_LIMIT_S),
            checkout, harness, KeptRuns(wanted.model_benchmarks, runner.where, runner.root), tell,
        ).run([(kernels[word], place) for word, place in places], baseline_again=wanted.baseline_again)  # fmt: skip
    put = tuple(PutDocument(kernels[word].name, place.file, place.function) for word, place in places)
    return model_document(host, harness.name, put, found, won.run_id if won is not None else None)


def put_back(settings: config.Settings) -> PutBackDocument:
    """Raises SettingsError and TargetError."""
    from infra.model_benchmark.deployment import Deployment

    host, checkout = _where(settings)
    with closing(host_runner(settings, host)) as runner:
        runner.connect()
        return put_back_document(host, checkout, Deployment(runner, checkout).put_back())


def project(settings: config.Settings, tell: Callable[[str], object]) -> ProjectionDocument:
    """Raises SettingsError, also for a table that what is simulated contradicts, and TaskInvalid for a kernel that does
    not compile at its shapes."""
    path, machine = settings.benchmark.kernel_table, settings.target.machine
    assert path is not None, "asked for with a table only"
    try:
        table = read_table(path)
    except BadToml as error:
        raise SettingsError(f"kernel-table: {error}") from None
    calibration = calibrations_of(settings).for_simulator(machine)
    latencies = []
    with closing(SimulatorToolchain(machine, calibration=calibration)) as simulator:
        for use in table.kernels:
            tell(f"simulating {use.name} before and after")
            latencies.append(
                (_simulated(simulator, settings, use, use.before), _simulated(simulator, settings, use, use.after))
            )
        try:
            return projection_document(projection(table, latencies), simulator.name, simulator.caveat)
        except BadToml as error:
            raise SettingsError(f"kernel-table: {path}: {error}") from None


def check_then(settings: config.Settings) -> None:
    """Before a run: what its end will need. Raises SettingsError."""
    if settings.run.suite is not None:
        raise SettingsError("then: a suite has several winners: `model --put RUN-ID=FILE:FUNCTION,...` takes them all")
    if settings.run.shapes is not None and settings.run.preset is None:
        raise SettingsError("shapes: with --then model one run is measured: leave --then away, or name one --preset")
    if settings.run.in_place:
        raise SettingsError("in-place: with --then model the model decides, after the run: leave --in-place away")
    _where(settings)


def _where(settings: config.Settings) -> tuple[str, str]:
    if len(settings.target.host) != 1:
        raise SettingsError("model: on which one host? orchestrator.py model USER@HOST")
    if not settings.benchmark.checkout:
        raise SettingsError("model: which checkout there? --checkout DIR")
    return settings.target.host[0], settings.benchmark.checkout


# --- kernels ----------------------------------------------------------------------------------------


def _kernel(settings: config.Settings, word: str, won: RunOutcome | None) -> Kernel:
    """A file, a run's winner, or that of the run at hand."""
    if word == WINNER and won is None:
        raise SettingsError("put: which kernel? write KERNEL=FILE:FUNCTION")
    if word == WINNER and won is not None:
        return _of_run(won.summary.folder)
    if word.endswith(".py") or "/" in word:
        path = Path(word).expanduser()
        text = kernel_text(path)
        return _named(word, text, surroundings_of(path, text, None))
    return _of_run(find_run(settings.run.checkpoints, word))


def _of_run(folder: RunFolder) -> Kernel:
    winner, loaded = folder.winner(), folder.loaded()
    if winner is None:
        raise SettingsError(f"put: run {folder.run_id} has no kernel that is right")
    around = loaded.around if loaded is not None else Surroundings()
    return _named(f"run {folder.run_id}", winner.candidate.source, around)


def _named(name: str, text: str, around: Surroundings) -> Kernel:
    """Raises TaskInvalid for a text without a kernel."""
    try:
        defined = {getattr(node, "name", "") for node in parsed(text, name).body}
    except (SyntaxError, ValueError) as error:
        raise TaskInvalid(f"{name}: is not Python: {error}") from None
    for function in around.entry_points:
        if function in defined:
            return Kernel(name, text, function)
    raise TaskInvalid(f"{name}: defines no {' or '.join(around.entry_points)}")


def _simulated(simulator: SimulatorToolchain, settings: config.Settings, use: KernelUse, file: KernelFile) -> float:
    """In µs, of one call."""
    text = kernel_text(file.path)
    around = surroundings_of(file.path, text, file.function)
    tensors = [tensor("kernel-table", shape) for shape in use.shapes]
    arguments: list[ArgumentSpec] = [*tensors, *map(ConstantArgument, use.constants)]
    return timed(simulator, str(file.path), text, arguments, around, settings.target.compile_timeout_s).latency_us
