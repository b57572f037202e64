"""What each tool takes: every field typed and bounded, and none that is not known."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from infra.tasks.kernel_signature import SHAPE
from infra.tasks.user_files import LONGEST_NAME
from nki_sim.lint import LATEST, VERSIONS

PathName = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
_SHAPE = f"^{SHAPE.pattern}$"
Shape = Annotated[str, StringConstraints(max_length=120, pattern=_SHAPE)]
Constant = Union[
    bool, int, Annotated[float, Field(allow_inf_nan=False)], Annotated[str, StringConstraints(max_length=200)]
]

OTHER_NAMES = {
    "problem": "reference", "ref": "reference", "run": "run_id", "shape": "shapes", "max_hours": "hours", "o": "output",
    "from": "original", "baseline": "original",
}  # fmt: skip
"""Of fields: what the command line, and whoever guesses, calls them."""

_NAMED = re.compile(r"[A-Za-z_]\w*=[^=]")
"""A constant as a command line has it."""

_KERNEL = "The kernel's .py file."
_OUTPUT = "The new kernel's .py file."
_SECONDS = "Most seconds for all of it."
_SHAPES = "Instead of a reference: shapes of its tensors in order, as 128x512:float32."
_PRESET = "Which of the reference's shapes. Without it: the full one."


class Request(BaseModel):
    """Strict: a text is no number, and what is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def schema_for_agents(cls) -> dict[str, Any]:
        """What an agent has to know to call it; all else is said to who breaks it."""
        return _small(cls.model_json_schema())


def _small(schema: Any) -> Any:
    """Without titles, limits of length, and the null that stands for a field left away."""
    if isinstance(schema, list):
        return [_small(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    either = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(either) == 1:
        schema = {**either[0], **{key: each for key, each in schema.items() if key != "anyOf"}}
    properties = {name: _small(each) for name, each in schema.get("properties", {}).items()}
    kept = {key: _small(each) for key, each in schema.items() if key not in _NOT_SHOWN and each not in (None, [])}
    return {**kept, "properties": properties} if properties else kept


_NOT_SHOWN = {
    "title", "minLength", "maxLength", "maxItems", "pattern", "propertyNames", "additionalProperties", "properties",
}  # fmt: skip


class Referenced(Request):
    """What a kernel is held against."""

    reference: PathName | None = Field(
        None,
        description="Its NumPy reference. Without it: KERNEL_reference.py, or that of the kernel it was made from.",
    )
    task: Name | None = Field(None, description="Instead: a shipped task's reference (matmul, silu, ...).")
    function: Identifier | None = Field(None, description="Which of the file's functions, where it holds several.")

    @model_validator(mode="after")
    def _one_reference(self) -> Referenced:
        if self.reference is not None and self.task is not None:
            raise ValueError("reference and task: leave one of the two away")
        return self


class OfAKernel(Referenced):
    kernel: PathName | None = Field(None, description=f"{_KERNEL} Without it: the task's.")
    preset: Name | None = Field(None, description=_PRESET)

    @model_validator(mode="after")
    def _something_to_judge(self) -> OfAKernel:
        if self.kernel is None and self.task is None:
            raise ValueError("kernel: name a kernel's file, or a task")
        if self.kernel is None and (self.reference is not None or self.function is not None):
            raise ValueError("kernel: reference and function belong to a kernel's file: name it")
        return self


class Init(Request):
    kernel: PathName = Field(description=_KERNEL)
    function: Identifier | None = Field(None, description="Which of the file's functions, where it holds several.")
    shapes: list[Shape] = Field(default=[], max_length=16, description="Of its tensors in order, as 128x512:float32.")
    seconds: int = Field(120, ge=5, le=1200, description=_SECONDS)


class Evaluate(OfAKernel):
    original: PathName | None = Field(
        None,
        description="The kernel that it was made from: it is timed beside that, proved equal where it can be, and not "
        "held to what that one gets wrong. The kernel itself: judged as the first of a run.",
    )
    seconds: int = Field(600, ge=5, le=3600, description=_SECONDS)


class Profile(Referenced):
    kernel: PathName = Field(description=_KERNEL)
    preset: Name | None = Field(None, description=_PRESET)
    shapes: list[Shape] = Field(default=[], max_length=16, description=_SHAPES)
    constants: list[Constant] = Field(
        default=[], max_length=32, description="With shapes: what it takes besides, in the order of its parameters."
    )
    seconds: int = Field(120, ge=5, le=1200, description=_SECONDS)

    @field_validator("constants")
    @classmethod
    def _without_names(cls, given: list[Constant]) -> list[Constant]:
        named = next((each for each in given if isinstance(each, str) and _NAMED.match(each)), None)
        if named is not None:
            raise ValueError(f"values without names, in the order of the parameters: not {named!r}")
        return given


class Check(Request):
    kernel: PathName = Field(description=_KERNEL)
    # A list that grows by a version stands in one place; mypy reads no literals that are computed.
    nki: Literal[tuple(VERSIONS)] = Field(LATEST, description="NKI version.")  # type: ignore[valid-type]
    hints: bool = Field(False, description="Also what that version has a shorter way for.")


class Menu(OfAKernel):
    pricing_seconds: int = Field(20, ge=1, le=300, description="Most seconds for pricing changes.")
    seconds: int = Field(600, ge=5, le=3600, description=_SECONDS)


class Try(Menu):
    tool: Name = Field(description="`tool` of a change of the menu.")
    site: Annotated[str, StringConstraints(min_length=1, max_length=300)] = Field(
        description="`site` of that change, copied."
    )
    output: PathName | None = Field(None, description="A new .py file. Without it: KERNEL_2.py and so on.")


class Facts(Request):
    about: Literal["machine", "api", "mistakes", "techniques", "memory"]
    name: Identifier | None = Field(None, description="Of `api`: an instruction, as nc_matmul.")


class Migrate(Referenced):
    kernel: PathName = Field(description=_KERNEL)
    output: PathName = Field(description=_OUTPUT)
    overwrite: bool = Field(False, description="Write it also where a file is there already.")
    shapes: list[Shape] = Field(default=[], max_length=16, description=f"{_SHAPES} NKI 0.1 needs one of the two.")
    constants: dict[Identifier, Constant] = Field(
        default={}, max_length=32, description="With shapes: what it takes besides, by name."
    )
    seconds: int = Field(300, ge=5, le=1800, description=_SECONDS)


class Doctor(Request):
    """Takes nothing."""


class StartRun(OfAKernel):
    rounds: int = Field(10, ge=1, le=200, description="Most rounds.")
    patience: int = Field(5, ge=1, le=100, description="Stop after this many rounds without improvement.")
    hours: float = Field(1.0, gt=0, le=24, description="Most hours.")


class ResumeRun(Request):
    run_id: Name = Field(description="Of a run that was stopped or interrupted.")
    rounds: int | None = Field(None, ge=1, le=200, description="Most rounds, those before included.")


class FollowRun(Request):
    run_id: Name | None = Field(None, description="Without it: the newest.")
    wait_seconds: int = Field(0, ge=0, le=60, description="Wait so long for its next round, or its end.")


class StopRun(Request):
    run_id: Name = Field(description="Of a run that this server started.")


def read(kind: type[Request], arguments: Any) -> Request:
    """Raises ValueError, one line that quotes nothing of what was given but the names of fields."""
    given = arguments if arguments is not None else {}
    if isinstance(given, dict):
        named = {name: str(name).strip("-").replace("-", "_") for name in given}
        own = {name: name if name in kind.model_fields else OTHER_NAMES.get(each, each) for name, each in named.items()}
        if len({*own.values()}) == len(own):
            given = {own[name] if own[name] in kind.model_fields else name: each for name, each in given.items()}
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
