"""Every setting, once. Defaults < nki-optimizer.toml < NKI_OPT_* variables < flags; an unknown key is an error.

Flags, `--help`, the file's keys and the variables follow from the fields below; `infra/command_line.py` reads them.
API keys are no settings: the providers read them from the environment, and nothing here ever holds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from accelopt_core.candidate import MOST_AT_ONCE, MOST_LANES
from accelopt_core.languages.names import MACHINES
from accelopt_core.languages.plugin import how_to_add, plugins
from accelopt_core.task import DEFAULT_TOLERANCE, PrecisionPolicy
from infra.engines.engine_names import address_of
from infra.llm import contenders, registry
from infra.llm.provider import UnknownProvider
from infra.model_benchmark.named import HARNESSES, places_of
from infra.runs.default_folders import default_folders
from infra.settings_reader import (
    ARGUMENT,
    RETIRED,
    Given,
    Group,
    Legal,
    SettingsError,
    Spec,
    as_text,
    read_document,
    read_keywords,
    setting,
    specs,
)

PROJECT = Path(__file__).resolve().parent
FOLDERS = default_folders(PROJECT, os.environ, Path.cwd())
VERSION = "0.1.0"
LATEST = "latest"
"""The run id that stands for the newest run."""
LONGEST_RUN_ID = 100
"""Characters."""

PROVIDERS = ("auto", *registry.PROVIDERS, contenders.CATALOGUE)
SUITES = {"nkibench": "nki", **{key: key for key in plugins()}}
"""By name, the language of its tasks."""
ROLES = ("planner", "executor", "summarizer", "reflexion")
VIEWS = ("auto", "live", "plain", "quiet")

Command = Literal[
    "run", "init", "doctor", "calibrate", "explain", "evaluate", "menu", "apply", "runs", "show", "diff", "clean",
    "config", "mcp", "model",
]  # fmt: skip
COMMANDS: tuple[Command, ...] = get_args(Command)

_POSITIVE = Legal(above=0)
_COUNT = Legal(at_least=1)
_WHOLE = Legal(at_least=0)


@dataclass(frozen=True)
class RunSettings(Group):
    """what to optimize, for how long, and where results go"""

    kernel: Path | None = setting(
        None, "The kernel to optimize; never modified. Without it: a shipped task.", metavar="FILE"
    )
    problem: Path | None = setting(
        None, "The NumPy reference. Without it: found beside the kernel, or among the shipped tasks.", metavar="FILE"
    )
    shape: tuple[str, ...] = setting(
        (), "Shapes of its tensors, for init or a reference of one plain function.", metavar="512x1024:bf16", apart=True
    )
    function: str | None = setting(
        None, "Which of the kernel file's functions to optimize, where it holds several.", metavar="NAME"
    )
    language: str | None = setting(
        None,
        "What the kernel is written in. Without it: by what its file imports.",
        legal=Legal(choices=tuple(MACHINES), otherwise=how_to_add()),
    )
    migrate: bool = setting(
        False, "Rewrite a kernel of an older NKI for 0.7 first (python -m nki_sim migrate), and prove it equal."
    )
    task: str = setting("matmul", "Which of the shipped tasks to optimize when no kernel is given.", metavar="NAME")
    suite: str | None = setting(
        None,
        "Optimize every task of a suite; --run-id names it, --resume goes on with it.",
        metavar="NAME",
        legal=Legal(choices=tuple(SUITES), otherwise=how_to_add()),
    )
    tasks_at_once: int | None = setting(
        None,
        "Tasks of a suite that run side by side. Without it: one; with the catalogue on the simulator one for each "
        "CPU, if memory allows; with --engine ray as many as this machine's CPUs keep going.",
        legal=_COUNT,
    )
    shapes: Path | None = setting(
        None,
        "A table of shapes with their weights (docs/shapes.md): a run for each, and one kernel that chooses by shape "
        "among what they came to. With --preset NAME only the run of that shape.",
        metavar="FILE.toml",
    )
    preset: str | None = setting(
        None, "The shape preset that counts. Without it: the task's full shape.", metavar="NAME"
    )
    rounds: int = setting(10, "Most rounds to run.", legal=_COUNT)
    patience: int = setting(5, "Stop after this many rounds without improvement.", legal=_COUNT)
    width: int | None = setting(
        None,
        "Candidates that a round tries at once. Without it: as many as the target evaluates at once; with the "
        "catalogue on a device at least 6, of which those that may be the best by simulation are timed there.",
        legal=Legal(at_least=1, below=MOST_AT_ONCE + 1),
    )
    beam: int = setting(
        1,
        "Kernels that a round starts from, of an archive that keeps the fastest of each kind. With --beam, --plans and "
        "--samples all at 1 there is no archive: a round starts from one kernel.",
        legal=_COUNT,
    )
    plans: int = setting(1, "Plans for each kernel that a round starts from.", legal=_COUNT)
    samples: int = setting(1, "Kernels that a model writes from each plan, of which the fastest counts.", legal=_COUNT)
    sweep: int | None = setting(
        None,
        "Settings of a written kernel's TUNABLES that are priced; the fastest is the candidate. 0: the kernel as "
        "it was written. Without it: 24 in a search with --beam, --plans or --samples, else 0.",
        legal=_WHOLE,
    )
    compiler_baseline: bool = setting(
        True,
        "At the end, on a device: time what the compiler makes of the reference by itself (needs JAX there). "
        "--no-compiler-baseline leaves it out.",
    )
    in_place: bool = setting(False, "At the end write the winner over the kernel file, after a .bak copy of it.")
    run_id: str | None = setting(
        None, "Name of the run. Without it: time, task and four random digits.", metavar="NAME"
    )
    resume: str | None = setting(
        None, "Go on with an interrupted run: its id, or none for the latest.", metavar="RUN-ID", const=LATEST
    )
    checkpoints: Path = setting(FOLDERS.checkpoints, "Folder of all runs, one folder each.", metavar="DIR")
    memory: Path = setting(FOLDERS.memory, "What earlier runs learned; shared by all runs.", metavar="FILE")
    verdicts: Path | None = setting(
        None, "Where evaluate and menu keep what they judged, to judge no text twice. Default: nowhere.", metavar="DIR"
    )
    view: str = setting(
        "auto",
        "Live view, plain lines, or errors and the result only; auto: live on a terminal.",
        legal=Legal(choices=VIEWS),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks_at_once is not None and self.suite is None:
            raise SettingsError("tasks-at-once: of which suite? give --suite NAME too")
        if self.in_place and self.kernel is None and self.resume is None:
            raise SettingsError("in-place: there is no kernel file to write back to: give --kernel FILE")
        if self.problem is not None and self.kernel is None and self.resume is None:
            raise SettingsError("problem: a reference needs the kernel it belongs to: give --kernel FILE too")
        if self.shape and self.kernel is None and self.resume is None:
            raise SettingsError("shape: of which kernel's tensors? give --kernel FILE too")
        if (self.function is not None or self.migrate) and self.kernel is None and self.resume is None:
            which = "migrate" if self.migrate else "function"
            raise SettingsError(f"{which}: it is about a kernel file of yours: give --kernel FILE too")
        if self.beam * self.plans * self.samples > MOST_LANES:
            tried = self.beam * self.plans * self.samples
            raise SettingsError(f"beam: with plans and samples {tried} candidates a round, and at most {MOST_LANES}")
        if self.shapes is not None and self.suite is not None:
            raise SettingsError("shapes: a suite has its own: leave one of --shapes and --suite away")
        if self.suite is not None and (self.kernel is not None or self.in_place):
            raise SettingsError("suite: its tasks have their own kernels: leave --kernel and --in-place away")
        if self.run_id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.run_id):
            raise SettingsError(f"run-id: {self.run_id!r}: use letters, digits, dot, dash and underscore only")
        if self.run_id is not None and len(self.run_id) > LONGEST_RUN_ID:
            raise SettingsError(f"run-id: it has {len(self.run_id)} characters, and at most {LONGEST_RUN_ID}")


@dataclass(frozen=True)
class TargetSettings(Group):
    """where candidates are compiled, verified and timed; without a host, the simulated machine here"""

    host: tuple[str, ...] = setting(
        (),
        "Instances to use over SSH, by commas, also as the first words: ubuntu@10.0.0.1. Candidates spread over them.",
        metavar="USER@HOST",
    )
    cores: tuple[int, ...] = setting(
        (),
        "NeuronCores (or other devices) of each host to use, by commas, one candidate on each at a time. Without it: "
        "any one that is free. With --remote-simulator only their number counts.",
        metavar="N,N,...",
        legal=_WHOLE,
    )
    core_wait_s: float = setting(
        1800.0, "Seconds to wait for a core while others use it.", name="core-wait", metavar="S", legal=_WHOLE
    )
    remote_simulator: bool = setting(False, "Run the simulator on that host: it needs no Neuron SDK.")
    engine: str = setting(
        "local",
        "Where candidates are evaluated and priced: local, ray (the cluster that this machine is a node of) or "
        "ray://HOST:PORT (the same by its head). The tasks of a suite then run side by side.",
        metavar="local|ray[://HOST:PORT]",
    )
    neuron_cores: int = setting(
        0,
        "With --engine ray: NeuronCores for each candidate on the cluster's devices; 0: the simulator.",
        metavar="N",
        legal=_WHOLE,
    )
    machine: str = setting(
        MACHINES["nki"][0],
        "Machine to simulate, or to compile for; a device says itself what it is.",
        legal=Legal(choices=tuple(name for machines in MACHINES.values() for name in machines)),
    )
    accept_new_host_key: bool = setting(False, "Trust a host seen for the first time. A changed key is refused still.")
    ssh_config: Path = setting(Path("~/.ssh/config").expanduser(), "OpenSSH client configuration.", metavar="FILE")
    remote_python: str | None = setting(
        None, "Python on the host. Without it: the SDK's, where it is usually found.", metavar="PATH"
    )
    remote_dir: str = setting("~/.nki-optimizer", "Work folder on the host.", metavar="DIR")
    reconnect_s: float = setting(
        600.0, "Seconds to keep trying to get a dropped link back.", name="reconnect", metavar="S", legal=_WHOLE
    )
    processes: int | None = setting(
        None,
        "Processes of this machine that a run keeps busy at once. Without it: one for each CPU, and of a suite's tasks "
        "side by side each its share.",
        metavar="N",
        legal=_COUNT,
    )
    compile_timeout_s: float = setting(
        300.0, "Seconds a candidate may compile.", name="compile-timeout", metavar="S", legal=_POSITIVE
    )
    run_timeout_s: float = setting(
        600.0, "Seconds a candidate may run.", name="run-timeout", metavar="S", legal=_POSITIVE
    )
    memory_gib: float = setting(
        12.0, "GiB of memory a candidate may use.", name="candidate-memory", metavar="GIB", legal=_POSITIVE
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.remote_simulator and not self.host:
            raise SettingsError("remote-simulator: on which host? give --host USER@HOST, or leave the flag away")
        try:
            on_ray = address_of(self.engine) is not None
        except ValueError as error:
            raise SettingsError(f"engine: {error}") from None
        if on_ray and self.host:
            raise SettingsError("engine: a host is named as well, which is reached over SSH: leave one of the two away")
        if self.neuron_cores and not on_ray:
            raise SettingsError("neuron-cores: of which cluster? give --engine ray://HOST:PORT; for a host: --cores")
        for name, given in (("host", self.host), ("cores", self.cores)):
            twice = [item for number, item in enumerate(given) if item in given[:number]]
            if twice:
                raise SettingsError(f"{name}: {twice[0]!r} is named twice")


def by_role(setting: str, given: Sequence[str]) -> dict[str, str]:
    """What `role-models` or `effort` names for each role. Raises SettingsError."""
    found = dict(each.partition("=")[::2] for each in given)
    if unknown := [role for role, value in found.items() if role not in ROLES or not value]:
        raise SettingsError(f"{setting}: {unknown[0]!r}: write ROLE=NAME, of {', '.join(ROLES)}")
    return found


def efforts(given: Sequence[str]) -> dict[str, str]:
    """What `effort` says of each role. Raises SettingsError."""
    if len(given) == 1 and "=" not in given[0]:
        return dict.fromkeys(ROLES, given[0])
    return by_role("effort", given)


@dataclass(frozen=True)
class ModelSettings(Group):
    """who proposes changes; API keys come from the environment only"""

    provider: str = setting(
        "auto",
        f"auto: {' or '.join(provider.name for provider in registry.PROVIDERS.values() if provider.offered_by)} "
        "if the environment has a key or a base URL, else the built-in catalogue.",
        legal=Legal(choices=PROVIDERS),
    )
    model: str | None = setting(None, "Model to ask. Without it: the provider's default.", metavar="NAME")
    proposers: tuple[str, ...] = setting(
        (),
        "Two or more that take turns, by commas: catalogue, PROVIDER, PROVIDER:MODEL, or a MODEL of --provider. Each "
        "plan is asked of the one that should gain most for its cost. Without it: --provider alone.",
        metavar="NAME,NAME,...",
    )
    role_models: tuple[str, ...] = setting(
        (),
        "Other models by role, by commas: planner=NAME, executor=NAME, summarizer=NAME, reflexion=NAME.",
        metavar="ROLE=NAME,...",
    )
    base_url: str | None = setting(None, "Server that speaks the provider's protocol, e.g. a local one.", metavar="URL")
    effort: tuple[str, ...] = setting(
        (),
        "How much a model thinks, in its provider's words: high, or by role planner=high,executor=low. Without it: the "
        "provider's default.",
        metavar="[ROLE=]LEVEL,...",
    )
    temperature: float | None = setting(None, "Sampling temperature. Without it: the provider's default.", legal=_WHOLE)
    reply_timeout_s: float = setting(
        600.0, "Seconds to wait for one whole reply.", name="reply-timeout", metavar="S", legal=_POSITIVE
    )
    model_command: str | None = setting(
        None, "For provider command: a program, prompt on stdin, reply on stdout.", metavar="COMMAND"
    )
    mailbox: Path | None = setting(None, "For provider mailbox: the folder of requests and replies.", metavar="DIR")
    replies: Path | None = setting(
        None, "For provider replay: the run folder, or a folder of recorded exchanges.", metavar="DIR"
    )
    menu_s: float = setting(
        20.0,
        "Most seconds for pricing the catalogue's changes, which a model may then take by name; 0: it is offered none.",
        name="menu-seconds",
        metavar="S",
        legal=_WHOLE,
    )
    prices: Path | None = setting(None, "Price file to use instead of the shipped one.", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_url is not None:
            if re.search(r"//[^/]*@", self.base_url):
                raise SettingsError("base-url: it holds a password: leave it out, and put the key in the environment")
            if not re.match(r"https?://[^/]", self.base_url):
                raise SettingsError(f"base-url: {self.base_url!r} is not an http:// or https:// address")
        by_role("role-models", self.role_models)
        efforts(self.effort)
        for which in self.take_turns:
            self._check_needs("proposers", which.name, which.lacks)
        if not self.proposers and self.provider in registry.PROVIDERS:
            self._check_needs("provider", self.provider, registry.PROVIDERS[self.provider].needs)

    @property
    def take_turns(self) -> tuple[contenders.Named, ...]:
        """Those that `proposers` names; none where one proposes alone. Raises SettingsError."""
        if not self.proposers:
            return ()
        if len(self.proposers) == 1:
            raise SettingsError("proposers: one takes no turns: name two or more, or that one with --provider")
        beside = ("model", "role_models")
        for spec in specs(ModelSettings):
            if spec.field in beside and getattr(self, spec.field):
                raise SettingsError(f"proposers: each has its own model, for all roles: leave {spec.flag} away")
        try:
            return contenders.all_named(self.proposers, self.provider)
        except UnknownProvider as error:
            raise SettingsError(f"proposers: {error}") from None

    def _check_needs(self, setting: str, name: str, needs: Sequence[str]) -> None:
        for spec in specs(ModelSettings):
            if spec.field in needs and getattr(self, spec.field) is None:
                raise SettingsError(f"{setting}: {name} needs {spec.flag} as well")


@dataclass(frozen=True)
class BudgetSettings(Group):
    """what the run may use up; checked before each step that spends"""

    max_cost_usd: float | None = setting(
        None, "US dollars for model calls.", name="max-cost", metavar="USD", legal=_POSITIVE
    )
    max_tokens: int | None = setting(None, "Tokens, in and out together.", legal=_COUNT)
    max_hours: float | None = setting(
        None, "Hours from start to end, those of earlier sessions included.", metavar="H", legal=_POSITIVE
    )
    max_device_minutes: float | None = setting(
        None, "Minutes of evaluation on the target.", metavar="MIN", legal=_POSITIVE
    )


@dataclass(frozen=True)
class VerificationSettings(Group):
    """what counts as right, and how it is timed"""

    seeds: tuple[int, ...] = setting(
        (), "Seeds of the inputs, by commas. Without it: the task's.", metavar="N,N,...", legal=_WHOLE
    )
    extra_seeds: int = setting(2, "Fresh seeds per evaluation that no candidate can know.", legal=_WHOLE)
    tolerance: float | None = setting(
        None, f"Relative L2 error. Without it: the task's, else {DEFAULT_TOLERANCE:g}.", legal=Legal(above=0, below=1)
    )
    precision: str | None = setting(
        None,
        "Arithmetic a kernel may use. Without it: the task's.",
        legal=Legal(choices=tuple(policy.value for policy in PrecisionPolicy)),
    )
    exact: bool = setting(
        False,
        "Outputs equal the input kernel's in every bit, on every draw: no step of the arithmetic in another order.",
    )
    iterations: int = setting(10, "Timed executions.", legal=_COUNT)
    remeasure: int = setting(
        2, "Most times that a latency is taken again while its samples differ by more than 1 %.", legal=_WHOLE
    )


@dataclass(frozen=True)
class GuardSettings(Group):
    """what keeps the loop stable"""

    revert_above: float = setting(
        0.5, "Back to the best kernel when slower than it by more than this fraction.", legal=_POSITIVE
    )
    noise: float = setting(
        0.01, "A new best must be faster by more than this fraction.", legal=Legal(at_least=0, below=1)
    )
    max_exploration: int | None = setting(
        None,
        "Go on from kernels that are no improvement for so many steps, then back to the best; 0: never. Without it: "
        "2 with a language model, 0 with the catalogue, which chooses what to start from by itself.",
        legal=_WHOLE,
        formerly="max-detour",
    )
    max_repairs: int = setting(3, "Repairs of one kernel, with the error message fed back.", legal=_WHOLE)


@dataclass(frozen=True)
class CalibrationSettings(Group):
    """the constants that your own device showed: `calibrate --help`"""

    calibration: Path | None = setting(
        None,
        "Calibration file to use, also where the machine is simulated. Without it: a device's own, if it has one.",
        metavar="FILE",
    )
    shipped_model: bool = setting(False, "Use the shipped constants even on a device that is calibrated.")
    calibrations: Path = setting(
        FOLDERS.calibrations, "Folder of all calibrations, one file per machine, SDK and compiler.", metavar="DIR"
    )
    calibrate_minutes: float = setting(
        10.0, "Most minutes of device time for a calibration, all its calls together.", metavar="MIN", legal=_POSITIVE
    )
    calibrate_again: bool = setting(False, "Set aside what was measured before, and measure all anew.")
    export: Path | None = setting(
        None, "Write the measurements as a table that names no host, user or folder, to send back.", metavar="FILE.csv"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shipped_model and self.calibration is not None:
            raise SettingsError("shipped-model: a calibration is named as well: leave one of the two away")


@dataclass(frozen=True)
class BenchmarkSettings(Group):
    """kernels inside a whole model: `model --help`"""

    checkout: str | None = setting(None, "The model's folder on the host.", metavar="DIR")
    put: tuple[str, ...] = setting(
        (),
        "Kernels (a file, or a run's id for its winner) and the functions of the checkout that they stand in for, by "
        "commas; with --then model FILE:FUNCTION is enough.",
        metavar="KERNEL=FILE:FUNCTION,...",
    )
    harness: str = setting("nki-moe", "Program that runs the model and measures it.", legal=Legal(choices=HARNESSES))
    harness_args: str | None = setting(None, "Flags for the harness, in one string.", metavar="'FLAGS'")
    harness_command: str | None = setting(
        None,
        "For the harnesses command, nxdi and vllm: the command, with {python}, {checkout} and {report} filled in.",
        metavar="'COMMAND'",
    )
    baseline_again: bool = setting(False, "Measure the checkout as it is anew, even where that was done before.")
    undo: bool = setting(False, "Put the checkout back as it was, and do nothing else.")
    then: str | None = setting(
        None,
        "At the end of a run: the model itself decides whether its winner is of use.",
        legal=Legal(choices=("model",)),
    )
    kernel_table: Path | None = setting(
        None, "Project the gain of a model from a table of its kernels instead, simulated.", metavar="FILE.toml"
    )
    model_benchmarks: Path = setting(FOLDERS.model_benchmarks, "Folder of what harnesses brought back.", metavar="DIR")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            places_of(self.put)
        except ValueError as error:
            raise SettingsError(f"put: {error}") from None
        if self.then is not None:
            for name, given in (("checkout", self.checkout), ("put", self.put)):
                if not given:
                    raise SettingsError(f"then: the model's --{name} is missing: see `model --help`")


def _with_plugins() -> type[RunSettings]:
    """`RunSettings` with what plugins declare besides: their groups check themselves, and then the rest."""
    groups = tuple(plugin.settings for plugin in plugins().values() if plugin.settings is not None)
    if not groups:
        return RunSettings
    made = type("RunSettings", (*groups, RunSettings), {"__doc__": RunSettings.__doc__, "__module__": __name__})
    return dataclass(frozen=True)(made)


@dataclass(frozen=True)
class Settings:
    run: RunSettings = field(default_factory=lambda: GROUPS["run"]())
    target: TargetSettings = field(default_factory=TargetSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    verification: VerificationSettings = field(default_factory=VerificationSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)


GROUPS: Mapping[str, type] = {
    "run": _with_plugins(),
    "target": TargetSettings,
    "model": ModelSettings,
    "budget": BudgetSettings,
    "verification": VerificationSettings,
    "guard": GuardSettings,
    "calibration": CalibrationSettings,
    "benchmark": BenchmarkSettings,
}


@dataclass(frozen=True)
class Invocation:
    """A command line, understood."""

    command: Command
    settings: Settings
    run_id: str = LATEST
    """For `show`, `diff` and `explain`."""
    json: bool = False
    """The answer is a document for a script."""
    dry_run: bool = False
    """Of `clean`: list only."""
    original: Path | None = None
    """Of `evaluate`: the kernel that it was made from."""
    tool: str = ""
    """Of `apply`, with `site`: a change of the menu ..."""
    site: str = ""
    output: Path | None = None
    """... and the file for the new kernel."""
    overwrite: bool = False
    everything: bool = False
    """Of `explain`: every gap, with every answer."""
    round: int | None = None
    """Of `show`: that round alone; of `apply`, with `from_run`: the best kernel as it stood after it."""
    from_run: str = ""
    """Of `apply`: a run, in place of a kernel."""
    step: int | None = None
    """Of `apply`, with `from_run`: how many steps of the round are carried out."""
    as_html: bool = False
    """Of `show`: as a page."""
    html: Path | None = None
    """Where that goes; None: beside what it shows."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting that is not a default came from, e.g. `run.rounds` -> `--rounds`."""

    def over(self, stored: Settings) -> Settings:
        """Those of an interrupted run, with what this command line or call itself says on top: for --resume."""
        said: dict[str, dict[str, Any]] = {}
        for origin, where in self.origins.items():
            group, name = origin.split(".")
            if where.startswith(("--", ARGUMENT)):
                said.setdefault(group, {})[name] = getattr(getattr(self.settings, group), name)
        # A group's at once: what one of them needs of another holds before and after, and not in between.
        return replace(stored, **{group: replace(getattr(stored, group), **values) for group, values in said.items()})


def from_keywords(values: Mapping[str, Any], folder: Path | None = None) -> Invocation:
    """A run as a call names it, every setting by its name with `_` for `-`; no file and no variable is read.

    Raises SettingsError.
    """
    given = read_keywords(GROUPS, values, folder or Path.cwd())
    return Invocation("run", from_given(given), origins={f"{g}.{n}": v.origin for (g, n), v in given.items()})


def from_given(given: Mapping[tuple[str, str], Given]) -> Settings:
    """By group and field. Raises SettingsError, which says where a value that is wrong came from."""
    groups = {}
    for name, kind in GROUPS.items():
        values = {key: item.value for (group, key), item in given.items() if group == name}
        try:
            groups[name] = kind(**values)
        except SettingsError as error:
            culprit = next((spec for spec in specs(kind) if str(error).startswith(f"{spec.name}:")), None)
            origin = given.get((name, culprit.field)) if culprit else None
            if culprit is None or origin is None:
                raise
            raise SettingsError(f"{origin.origin}{str(error)[len(culprit.name) :]}") from None
    return Settings(**groups)


# --- writing --------------------------------------------------------------------------------------


def to_flags(invocation: Invocation, leave_out: Sequence[str] = ()) -> list[str]:
    """The flags of its command line again, but for the settings named there, e.g. `run.suite`."""
    flags = []
    for group, kind in GROUPS.items():
        for spec in specs(kind):
            name = f"{group}.{spec.field}"
            if name in leave_out or not invocation.origins.get(name, "").startswith("--"):
                continue
            value = getattr(getattr(invocation.settings, group), spec.field)
            if spec.kind is bool:
                flags.append(spec.flag if value else f"--no-{spec.name}")
            else:
                flags.append(f"{spec.flag}={'none' if value in (None, ()) else as_text(value)}")
    return flags


def to_document(settings: Settings) -> dict[str, dict[str, Any]]:
    """For a run's config.json; `from_document` reads it back."""
    return {
        group: {spec.name: _plain(getattr(getattr(settings, group), spec.field)) for spec in specs(kind)}
        for group, kind in GROUPS.items()
    }


def from_document(document: Mapping[str, Any], source: str) -> Settings:
    """Raises SettingsError where the document does not fit this version's settings."""
    return from_given(read_document(GROUPS, without_absent(document), source, Path("/")))


def without_absent(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without settings that earlier releases had, and without those of plugins that are not there now, where the
    document makes no use of them."""
    still: dict[str, Any] = {}
    for group, table in document.items():
        still[group] = table
        if isinstance(table, Mapping):
            old = {key.replace("_", "-"): value for key, value in table.items() if key.replace("_", "-") in RETIRED}
            still[group] = {key: value for key, value in table.items() if key.replace("_", "-") not in RETIRED}
            if roles := [f"{role}={old[f'{role}-model']}" for role in ROLES if old.get(f"{role}-model")]:
                still[group]["role-models"] = roles
    document = still
    known = {name.replace("-", "_") for spec in specs(GROUPS["run"]) for name in (*spec.names, spec.field)}
    run = document.get("run")
    if not isinstance(run, Mapping):
        return dict(document)
    kept = {key: value for key, value in run.items() if value not in (None, []) or key.replace("-", "_") in known}
    return {**document, "run": kept}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def to_toml(invocation: Invocation) -> str:
    """Every setting with its help and its value, as a file that can be read back."""
    lines = []
    for group, kind in GROUPS.items():
        lines += [f"[{group}]  # {(kind.__doc__ or '').strip()}"]
        for spec in specs(kind):
            value = getattr(getattr(invocation.settings, group), spec.field)
            origin = invocation.origins.get(f"{group}.{spec.field}")
            lines += [f"# {spec.help}" + (f" (from {origin})" if origin else "")]
            lines += [f"# {spec.name} =" if value is None else f"{spec.name} = {_toml(spec, value)}"]
        lines += [""]
    return "\n".join(lines)


def _toml(spec: Spec, value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(spec, item) for item in value) + "]"
    if isinstance(value, (str, Path)):
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float):
        return repr(value)
    return as_text(value)


assert {item.name for item in fields(Settings)} == set(GROUPS)
