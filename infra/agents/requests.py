"""The tools, and what each takes: every field typed and bounded, and none that is not known."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from infra.tasks.kernel_signature import SHAPE
from infra.tasks.user_files import LONGEST_NAME
from nki_sim.lint import LATEST, VERSIONS

INSTRUCTIONS = """\
Makes NKI kernels (AWS Trainium) faster, and proves them right. Files are named below one folder; nothing outside of it
is read or written. The loop: (init KERNEL, if it has no reference) -> evaluate KERNEL -> menu KERNEL -> try the best
changes, two calls at a time -> go on from the fastest that is right, whose menu came with it. Edit a kernel by hand
where the menu is `blocked`, then evaluate it with original=KERNEL. Stop when the menu has only ties, or three tries
running gained nothing. start_run does the loop by itself in the background. A latency with simulated=true was not
measured on a device: say so wherever you report it."""

GRACE_S = 20.0
"""For a run to finish its step and save, when it is to end; all else ends at once."""


PathName = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
_SHAPE = f"^{SHAPE.pattern}$"
Shape = Annotated[str, StringConstraints(max_length=120, pattern=_SHAPE)]
Constant = Union[
    bool, int, Annotated[float, Field(allow_inf_nan=False)], Annotated[str, StringConstraints(max_length=200)]
]

FLAGS = {"problem": "reference", "run": "run_id", "shape": "shapes", "max_hours": "hours", "o": "output"}
"""Of the command line that say the same."""

Kernel = Annotated[PathName, Field(description="The kernel's .py file.")]
Function = Annotated[Identifier | None, Field(description="Which of the file's functions, where it holds several.")]
Preset = Annotated[Name | None, Field(description="Which of the reference's shapes. Without it: the full one.")]
Shapes = Annotated[
    list[Shape], Field(max_length=16, description="Of its tensors in order, as 128x512:float32, without a reference.")
]
_SECONDS = "Most seconds for all of it."


class Request(BaseModel):
    """Strict: a text is no number, and what is not known is refused. Of each tool's the docstring is for agents."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def schema_for_agents(cls) -> dict[str, Any]:
        """What an agent has to know to call it; all else is said to who breaks it."""
        return _small({**cls.model_json_schema(), "description": None})


def _small(schema: Any) -> Any:
    """Without titles, limits of length, and the null that stands for a field left away."""
    if isinstance(schema, list):
        return [_small(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    either = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(either) == 1:
        schema = {**schema, **either[0], "anyOf": None}
    properties = {name: _small(each) for name, each in schema.get("properties", {}).items()}
    kept = {key: _small(each) for key, each in schema.items() if key not in _NOT_SHOWN and each not in (None, [])}
    return {**kept, "properties": properties} if properties else kept


_NOT_SHOWN = {"title", "minLength", "maxLength", "maxItems", "pattern", "additionalProperties", "properties"}


class Referenced(Request):
    """What a kernel is held against."""

    reference: PathName | None = Field(None, description="Without it: KERNEL_reference.py, or its original's.")
    task: Name | None = Field(None, description="Instead: a shipped task's reference (matmul, silu, ...).")
    function: Function = None

    @model_validator(mode="after")
    def _one_reference(self) -> Referenced:
        if self.reference is not None and self.task is not None:
            raise ValueError("reference and task: leave one of the two away")
        return self


class OfAKernel(Referenced):
    kernel: PathName | None = Field(None, description="The kernel's .py file. Without it: the task's.")
    preset: Preset = None

    @model_validator(mode="after")
    def _something_to_judge(self) -> OfAKernel:
        if self.kernel is None and self.task is None:
            raise ValueError("kernel: name a kernel's file, or a task")
        if self.kernel is None and (self.reference is not None or self.function is not None):
            raise ValueError("kernel: reference and function belong to a kernel's file: name it")
        return self


class Init(Request):
    """Writes the beginning of a kernel's NumPy reference, KERNEL_reference.py, and returns its text. Next: fill in each
    TODO in the file, then evaluate.
    """

    kernel: Kernel
    function: Function = None
    shapes: Shapes = []
    seconds: int = Field(120, ge=5, le=1200, description=_SECONDS)


class Evaluate(OfAKernel):
    """Compiles a kernel, verifies it against its NumPy reference with many seeds and input distributions, some of them
    secret, and times it. Only verdict `measured` is right and has a latency; `said` is the reason in one line.
    measured.gaps: where the time goes. Next: menu, or mend what `said` names.
    """

    original: PathName | None = Field(
        None,
        description="The kernel that it was made from: it is timed beside that, proved equal where it can be, and not "
        "held to what that one gets wrong. The kernel itself: judged as the first of a run.",
    )
    seconds: int = Field(600, ge=5, le=3600, description=_SECONDS)


class Profile(Referenced):
    """Simulated latency, hot lines, stalls, profiler fields; verifies nothing. While you edit. Next: evaluate."""

    kernel: Kernel
    preset: Preset = None
    seconds: int = Field(120, ge=5, le=1200, description=_SECONDS)


class Check(Request):
    """What the NKI compiler of a version rejects although Python runs it, by line; nothing is run. Next: mend each
    error, then evaluate.
    """

    kernel: Kernel
    # A list that grows by a version stands in one place; mypy reads no literals that are computed.
    nki: Literal[tuple(VERSIONS)] = Field(LATEST, description="NKI version.")  # type: ignore[valid-type]
    hints: bool = Field(False, description="Also what that version has a shorter way for.")


class Menu(OfAKernel):
    """The built-in catalogue's changes that apply to a kernel, best first, each with its predicted gain (`tie`: too
    little to tell), and what keeps it from closing the larger gaps. Next: try the first two or three.
    """

    pricing_seconds: int = Field(20, ge=1, le=300, description="Most seconds for pricing changes.")
    seconds: int = Field(600, ge=5, le=3600, description=_SECONDS)


class TryChange(Menu):
    """Applies one change of a kernel's menu, writes the new kernel to a new file (`written`), evaluates it beside the
    old one, and returns the evaluation with its speedup and, where it is not slower, the new kernel's menu. Next: try
    that menu's first; or another change of the old one.
    """

    tool: Name = Field(description="`tool` of a change of the menu.")
    site: str = Field(min_length=1, max_length=300, description="`site` of that change, copied.")
    output: PathName | None = Field(None, description="A new .py file. Without it: KERNEL_2.py and so on.")


class Facts(Request):
    """For writing a kernel by hand: the machine, the API (with `name`: one instruction in full), common mistakes,
    techniques, what earlier runs remember. Next: edit, then evaluate.
    """

    about: Literal["machine", "api", "mistakes", "techniques", "memory"]
    name: Identifier | None = Field(None, description="Of `api`: an instruction, as nc_matmul.")


class Migrate(Referenced):
    """Rewrites a kernel of NKI 0.1 to 0.6 for 0.7 and writes it to `output`; what needs a person is marked there and
    listed in `left`. Next: check, then evaluate `output`.
    """

    kernel: Kernel
    output: PathName = Field(description="The new kernel's .py file.")
    overwrite: bool = Field(False, description="Write it also where a file is there already.")
    shapes: Shapes = []
    constants: dict[Identifier, Constant] = Field(
        default={}, max_length=32, description="With shapes: what it takes besides, by name."
    )
    seconds: int = Field(300, ge=5, le=1800, description=_SECONDS)


class Doctor(Request):
    """What works where kernels are evaluated. Call it when evaluate says that nothing can be evaluated."""


class StartRun(OfAKernel):
    """Starts a whole optimization of one kernel in the background, which ends with this server. Minutes to hours. Next:
    follow_run with its run_id.
    """

    rounds: int = Field(10, ge=1, le=200, description="Most rounds.")
    patience: int = Field(5, ge=1, le=100, description="Stop after this many rounds without improvement.")
    hours: float = Field(1.0, gt=0, le=24, description="Most hours.")


class ResumeRun(Request):
    """Goes on with a run that was stopped or interrupted. Next: follow_run."""

    run_id: Name = Field(description="Of a run that was stopped or interrupted.")
    rounds: int | None = Field(None, ge=1, le=200, description="Most rounds, those before included.")


class FollowRun(Request):
    """How far a run is, or what it came to: attempts, best_kernel (a path), the difference. Next: wait_seconds=60 until
    under_way is false; then evaluate best_kernel.
    """

    run_id: Name | None = Field(None, description="Without it: the newest.")
    wait_seconds: int = Field(0, ge=0, le=60, description="Wait so long for its next round, or its end.")


class StopRun(Request):
    """Ends a run of this server after the step at hand, saved; resume_run goes on with it."""

    run_id: Name = Field(description="Of a run that this server started.")


TOOLS: dict[str, type[Request]] = {
    re.sub(r"\B([A-Z])", r"_\1", kind.__name__.removesuffix("Change")).lower(): kind
    for kind in (
        Init, Evaluate, Menu, TryChange, Profile, Check, Facts, Migrate, Doctor, StartRun, ResumeRun, FollowRun, StopRun
    )
}  # fmt: skip
WRITE = {"init", "try", "migrate", "start_run", "resume_run", "stop_run"}
COMMANDS = {"run": "start_run", "optimize": "start_run", "show": "follow_run", "apply": "try"}
"""Of the command line that do the same."""
LIMIT_S = 300.0
"""Of a call whose request has no `seconds`."""


def read(kind: type[Request], arguments: Any) -> Request:
    """Raises ValueError, one line that quotes nothing of what was given but the names of fields."""
    given = dict(arguments) if isinstance(arguments, dict) else arguments if arguments is not None else {}
    for name in [name for name in given if name not in kind.model_fields] if isinstance(given, dict) else ():
        own = str(name).lstrip("-").replace("-", "_")
        own = FLAGS.get(own, own)
        if own in kind.model_fields and own not in given:
            given[own] = given.pop(name)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part in kind.model_fields)
        if first["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields) or "nothing"
            raise ValueError(f"no field {str(first['loc'][-1])[:60]!r}: it takes {known}") from None
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "string_pattern_mismatch" and said.endswith(f"'{_SHAPE}'"):
            said = "a shape is written as 128x512:float32, with up to 8 dimensions and the dtype where it is another"
        raise ValueError(f"{place}: {said}" if place else said) from None
