"""From templates to a bounded prompt, and from a prompt to a validated answer.

What changes seldom comes first, so that providers can cache it: the system text is the same for every role and round
(`system.j2`), the problem stays for a run, the kernel and its profile for a round (`kernel.j2`), and each role adds
its own end. When the whole does not fit the limit, details go in a fixed order; the kernel, the plan and the numbers
always stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TypeVar

import jinja2

from accelopt_core.evaluation import Profile, busy_fields, microseconds, timed
from accelopt_core.languages.plugin import plugins
from accelopt_core.model.answers import MalformedAnswer
from accelopt_core.ports import LanguageModel, Message, ModelContextOverflow, ModelReply, ModelRequest, Role
from accelopt_core.proposer import RoundContext
from accelopt_core.task import PrecisionPolicy, Surroundings, Task
from ka_extensions.plain_text import fenced, inline

PROMPTS = Path(__file__).resolve().parents[2] / "prompts"
LONGEST_PROMPT = 240_000
"""Characters of system and user text together, about 70,000 tokens."""

MARK = "\0"
"""In a rendered template; one that a model's text brings along is dropped like the others."""

MOST_KEPT = 3
"""Parts of a message; Anthropic's cache takes four marks, the system text's among them."""

Answer = TypeVar("Answer")


class PromptsMissing(Exception):
    """The prompt templates are not where the program expects them: reinstall, or run from a checkout."""


@dataclass(frozen=True)
class Detail:
    """How much of everything that can be left out a prompt shows; counts, or characters."""

    reference: bool = True
    experiences: int = 5
    attempts: int = 12
    reflexions: int = 1
    lessons: int = 8
    hot_lines: int = 6
    idle: int = 3
    gaps: int = 5
    fields: int = 8
    changes: int = 12
    """Of the profile."""
    api_reference: int = 60_000
    neighbours: int = 60_000
    """Of all files that the kernel imports."""
    feedback: int = 4_000
    last_try: int = 60_000
    diff: int = 1_500
    words: int = 600
    """Of one summary, lesson or reason."""
    snippet: int = 600
    """Of each side of a remembered rewrite."""


LESS_AND_LESS: tuple[Detail, ...] = (
    Detail(),
    Detail(experiences=3, snippet=0, attempts=6, lessons=5, hot_lines=5, gaps=4, api_reference=15_000,
           neighbours=12_000, feedback=2_000, last_try=20_000, words=400),
    Detail(reference=False, experiences=0, snippet=0, attempts=3, lessons=3, hot_lines=5, idle=2, gaps=3,
           fields=0, changes=6, api_reference=6_000, neighbours=0, feedback=1_000, last_try=8_000, diff=1_000,
           words=300),
)  # fmt: skip
"""From everything to the least that still makes sense."""


@dataclass(frozen=True)
class PromptSettings:
    language: str
    """`Language.key`: whose fragments the prompts are made with."""
    machine: object
    """What those say of hardware: numbers of the machine that the target times on."""
    dialect: object = None
    """What a kernel may be written in: that the target compiles, or that the user's kernel is in. Of a type that the
    language's fragments know."""
    longest: int = LONGEST_PROMPT
    """Characters."""
    max_tokens: dict[Role, int] = field(
        default_factory=lambda: {
            Role.PLANNER: 16_000,
            Role.EXECUTOR: 32_000,
            Role.SUMMARIZER: 8_000,
            Role.REFLEXION: 8_000,
        }
    )
    """Longest reply per role, a reasoning model's thoughts included."""
    effort: Mapping[Role, str] = field(default_factory=dict)
    """How much a model is to think, as its provider names it; a role without one: the provider's default."""
    temperature: float | None = None
    """None: the provider's default; some models accept no other."""
    sweeps: bool = False
    """Whether what a kernel declares tunable is swept before it is tried."""


@dataclass(frozen=True)
class EngineTime:
    """One engine, or all DMA queues together, over one execution; None where the profile does not say."""

    name: str
    busy_us: float
    begin_us: float | None
    end_us: float | None
    waits: tuple[tuple[str, float], ...]
    """(for what, µs), longest first."""


def render(language: str, template: str, **values: object) -> str:
    """With the fragments of that language (`Language.key`).

    Raises jinja2.UndefinedError for a name the template wants and nobody gave.
    """
    return _environment(language).get_template(template).render(**values).strip() + "\n"


@cache
def prompts_version() -> str:
    """Changes whenever any text of the prompts changes; 16 hex digits."""
    digest = hashlib.sha256()
    for folder in (PROMPTS, *(plugin.prompts for plugin in plugins().values())):
        for path in sorted(_prompt_files(folder)):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def system_text(settings: PromptSettings, instructions: str) -> str:
    """The same for every role and round. `instructions`: the API by name."""
    return render(
        settings.language, "system.j2", machine=settings.machine, dialect=settings.dialect, instructions=instructions
    )


def role_prompt(context: RoundContext, template: str, detail: Detail, **values: object) -> str:
    """A round's problem and kernel as every role is shown them, then the template of one; MARK stands where a part
    ends that later calls begin with."""
    shared = {"context": context, "detail": detail, "mark": MARK}
    language, task = context.language.key, context.task
    shown = render(language, "kernel.j2", **shared, task=task, precision=precision_text(task))
    return f"{shown}\n{render(language, template, **shared, **values)}"


def ask(
    model: LanguageModel, role: Role, system: str, prompt: Callable[[Detail], str], settings: PromptSettings
) -> tuple[ModelReply, ModelRequest]:
    """The reply to the most detailed prompt that fits both the limit and the model.

    Raises ModelContextOverflow when even the least detailed one does not, and any other ModelError.
    """
    overflow: ModelContextOverflow | None = None
    for detail in LESS_AND_LESS:
        text = prompt(detail)
        if len(system) + len(text) > settings.longest:
            continue
        request = ModelRequest(
            role, system, (_marked(text),), settings.max_tokens[role], settings.temperature, settings.effort.get(role)
        )
        try:
            return model.complete(request), request
        except ModelContextOverflow as error:
            overflow = error
    if overflow is not None:
        raise overflow
    shortest = len(system) + len(prompt(LESS_AND_LESS[-1]))
    raise ModelContextOverflow(
        f"{model.name}: the shortest {role.value} prompt has {shortest:,} characters, more than {settings.longest:,}: "
        "raise the prompt limit or optimize a smaller kernel"
    )


def _marked(text: str) -> Message:
    parts = text.split(MARK)
    ends = accumulate(len(part) for part in parts[:-1])
    return Message("user", "".join(parts), tuple(ends)[:MOST_KEPT])


def ask_for_object(
    model: LanguageModel,
    role: Role,
    system: str,
    prompt: Callable[[Detail], str],
    read: Callable[[str], Answer],
    settings: PromptSettings,
) -> Answer:
    """What `read` makes of the reply; after a malformed one the model is told what is wrong and asked once more.

    Raises MalformedAnswer when the second is no better, and any ModelError.
    """
    reply, request = ask(model, role, system, prompt, settings)
    try:
        return read(reply.text)
    except MalformedAnswer as complaint:
        cut = " (your answer was cut off at its length limit; be brief)" if reply.truncated else ""
        said = (
            f"That answer cannot be used: {complaint}{cut}. Answer again with exactly one complete JSON object as "
            "described, and nothing after it."
        )
        asked_again = (*request.messages, Message("assistant", reply.text), Message("user", said))
        again = replace(request, messages=asked_again)
    return read(model.complete(again).text)


def profile_fields(language: str, profile: Profile, most: int) -> list[str]:
    """What prompts show of the profile, `name value` each, in the order of the language's `profile_fields.txt`."""
    return [f"{name} {_formatted(value, unit)}" for name, value, unit in _listed(language, profile) if value][:most]


def engine_times(profile: Profile) -> list[EngineTime]:
    """Every engine that works, the busiest first."""
    found = []
    fields = profile.fields
    for engine, busy in busy_fields(fields).items():
        if (busy_s := fields[busy]) > 0:
            begin, end = fields.get(f"{engine}_begin_time"), fields.get(f"{engine}_end_time")
            waits = [
                (match.group(1), 1e6 * value)
                for name, value in fields.items()
                if (match := re.fullmatch(rf"{engine}_wait_for_(\w+)_time", name)) and value > 0
            ]
            found.append(
                EngineTime(
                    engine,
                    1e6 * busy_s,
                    None if begin is None else 1e6 * begin,
                    None if end is None else 1e6 * end,
                    tuple(sorted(waits, key=lambda wait: -wait[1])),
                )
            )
    return sorted(found, key=lambda engine: -engine.busy_us)


@dataclass(frozen=True)
class ProfileChange:
    """One line of a profile that a change of the kernel moved; empty where it is not there."""

    what: str
    before: str
    after: str


LEAST_CHANGE = 0.01
"""Of the value before: what moved less is left out."""


def profile_changes(language: str, before: Profile, after: Profile) -> list[ProfileChange]:
    """What two profiles of one run do not have in common: engines, gaps, then the fields that prompts show."""
    values: dict[str, list[tuple[float, str] | None]] = {}
    for at, profile in enumerate((before, after)):
        engines = [(f"{e.name} busy", e.busy_us) for e in engine_times(profile)]
        gaps = [(f"gap: {gap.name}", gap.cost_us) for gap in profile.gaps]
        shown = [(what, us, microseconds(us)) for what, us in (*engines, *gaps)]
        shown += [(name, value, _formatted(value, unit)) for name, value, unit in _listed(language, profile)]
        for what, value, text in shown:
            values.setdefault(what, [None, None])[at] = value, text
    return [
        ProfileChange(what, one[1] if one else "", other[1] if other else "")
        for what, (one, other) in values.items()
        if one is None or other is None or abs(other[0] - one[0]) > LEAST_CHANGE * abs(one[0])
    ]


@dataclass(frozen=True)
class ShownFiles:
    """Of what a kernel imports, whole files as far as they fit, and the paths of the others."""

    whole: tuple[tuple[str, str], ...]
    others: tuple[str, ...]


def shown_files(around: Surroundings, source: str, longest: int) -> ShownFiles:
    """What the kernel itself imports comes first, then the shorter ones; files without code are left out."""
    named = {word for line in source.splitlines() if "import" in line for word in re.findall(r"\w+", line)}

    def order(file: tuple[str, str]) -> tuple[bool, int]:
        return PurePosixPath(file[0]).stem not in named, len(file[1])

    whole: list[tuple[str, str]] = []
    others: list[str] = []
    for path, text in sorted((file for file in around.neighbours if _has_code(file[1])), key=order):
        if sum(len(known) for _, known in whole) + len(text) <= longest:
            whole.append((path, text))
        else:
            others.append(path)
    return ShownFiles(tuple(whole), tuple(others))


def _has_code(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


PRECISION_TEXT = {
    PrecisionPolicy.FLOAT32_FAITHFUL: "float32-faithful: every product and sum in fp32; rounded results in between "
    "(bf16, fp16, fp8) count as wrong even where they pass; arguments and outputs of such types stay as they are",
    PrecisionPolicy.BF16_ALLOWED: "bf16-allowed: operands may be bf16 where the tolerance holds; accumulate in fp32",
    PrecisionPolicy.FP8_ALLOWED: "fp8-allowed: operands may be fp8 or bf16 where the tolerance holds; accumulate in "
    "fp32",
}


EXACT_TEXT = (
    "; bit-identical: every output has the input kernel's bits on every draw, so keep each rounding and the order of "
    "all sums and products"
)


def precision_text(task: Task) -> str:
    """What a model is told of the arithmetic that a task allows."""
    return PRECISION_TEXT[task.precision] + (EXACT_TEXT if task.exact else "")


# --- templates ------------------------------------------------------------------------------------------


@cache
def _environment(language: str) -> jinja2.Environment:
    _prompt_files(PROMPTS)
    # Prompts are plain text for a model: HTML escaping would corrupt the kernels in them.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_fragments(language), PROMPTS]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(engine_times=engine_times)
    environment.filters.update(
        us=microseconds,
        timed=timed,
        numbered=numbered,
        shortened=shortened,
        brief=brief,
        top=top,
        fenced=fenced,
        inline=inline,
        shown_files=shown_files,
    )
    return environment


def _fragments(language: str) -> Path:
    """The folder of what models are taught of that language alone."""
    plugin = plugins().get(language)
    return PROMPTS / language if plugin is None else plugin.prompts


@cache
def _prompt_files(folder: Path) -> tuple[Path, ...]:
    files = tuple(path for pattern in ("*.j2", "*.txt") for path in folder.rglob(pattern))
    if not files:
        raise PromptsMissing(f"no prompt templates in {folder}: run from a checkout or an editable install")
    return files


def numbered(source: str) -> str:
    """Every tenth line says which it is, as in `x = 1  #L10`: a number in each would be an eighth of a prompt. What a
    reply repeats of them is taken out again (`extraction.LINE_MARK`)."""
    lines = source.rstrip("\n").split("\n")
    return "\n".join(line if number % 10 else f"{line}  #L{number}" for number, line in enumerate(lines, 1))


def shortened(text: str, longest: int) -> str:
    """At most that many characters; what was left out of the middle is said."""
    if len(text) <= longest:
        return text
    head, tail = longest * 3 // 4, longest // 4
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:] if tail else ''}"


def brief(text: str, longest: int) -> str:
    """Prose of at most that many characters: whole sentences from the start, then an ellipsis."""
    if len(text) <= longest:
        return text
    kept = text[: longest - 2]
    end = max(kept.rfind(mark) for mark in (". ", "; ", ".\n"))
    return f"{kept[: end + 1] if end > longest // 3 else kept} …"


def top(text: str, longest: int) -> str:
    """Code of at most that many characters: whole lines from the start, and how many more there were."""
    if len(text) <= longest:
        return text
    kept = text[:longest].rpartition("\n")[0]
    missing = text.count("\n") - kept.count("\n")
    return f"{kept}\n... ({missing} more lines)"


def _listed(language: str, profile: Profile) -> Iterator[tuple[str, float, str]]:
    """(name, value, unit) of the listed fields that the profile has; `*.x` is every one that ends so."""
    for listed, unit in _field_list(language):
        names = [listed]
        if listed.startswith("*."):
            names = [name for name in profile.fields if name.endswith(listed[1:])]
        yield from ((name, profile.fields[name], unit) for name in names if name in profile.fields)


@cache
def _field_list(language: str) -> tuple[tuple[str, str], ...]:
    """The third column of the file is for its readers."""
    text = (_fragments(language) / "profile_fields.txt").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple((name.strip(), unit.strip()) for name, unit, _ in rows)


def _formatted(value: float, unit: str) -> str:
    if unit == "s":
        return microseconds(value * 1e6)
    if unit == "fraction":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return f"{value / 2**20:,.2f} MiB" if value >= 2**20 else f"{value:,.0f} B"
    if unit == "flops":
        return f"{value / 1e9:,.3f} GFLOP"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
