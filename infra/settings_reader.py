"""Settings from four places: defaults < TOML file < environment < flags, declared once as frozen dataclasses.

A group of settings is a frozen dataclass that inherits `Group`; each field is made by `setting(...)`. Flags, the
help text, environment variables and the keys of the file all follow from the field. Raises SettingsError only.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")

ENVIRONMENT_PREFIX = "NKI_OPT_"
_KEYS_ARE_NOT_SETTINGS = (
    "keys are read from the environment only (ANTHROPIC_API_KEY, OPENAI_API_KEY), never from a flag or a file"
)


_ROLES = ("planner", "executor", "summarizer", "reflexion")
RETIRED = {
    "ssh-port": "write HOST:PORT", "identity": "say IdentityFile in ~/.ssh/config",
    "known-hosts": "say UserKnownHostsFile in ~/.ssh/config", "connect-timeout": "it is 15 seconds",
    **{f"{role}-model": f"write --role-models {role}=NAME" for role in _ROLES},
    **{name: "its default served everybody" for name in (
        "usd-per-hour", "max-reply-tokens", "max-spread", "ban-after", "ban-rounds", "recurring-after",
        "reflexion-window", "replay", "warmup", "model-failures", "experiences", "stop-at-percent", "harness-hours",
    )},
}  # fmt: skip
"""Settings of earlier releases, and what to do in their place; stored ones are passed over."""


class SettingsError(Exception):
    """One line: which setting, where it was given, what is legal."""


# --- declaring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Legal:
    """What a value may be, beside its type."""

    choices: tuple[str, ...] = ()
    otherwise: str = ""
    """What to do for a choice that is not there; a clause."""
    at_least: float | None = None
    above: float | None = None
    below: float | None = None

    def complaint(self, value: object) -> str | None:
        if self.choices and value not in self.choices:
            return f"is not one of {', '.join(self.choices)}" + (f": {self.otherwise}" if self.otherwise else "")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                return "is not a finite number"
            if self.at_least is not None and value < self.at_least:
                return f"must be at least {self.at_least:g}"
            if self.above is not None and not value > self.above:
                return f"must be more than {self.above:g}"
            if self.below is not None and not value < self.below:
                return f"must be less than {self.below:g}"
        if value == "":
            return "is empty"
        return None


def setting(
    default: T, help: str, *, name: str = "", metavar: str = "", const: str | None = None, legal: Legal = Legal(),
    formerly: str = "", apart: bool = False,
) -> T:  # fmt: skip
    """A field of a Group. `name`: its public name where the field's own, with its unit, is too long for a flag.

    `const`: the value that the bare flag stands for. `formerly`: a public name of earlier releases, still read.
    `apart`: of several values behind the flag each is a word of its own.
    """
    metadata = {
        "help": help, "name": name, "metavar": metavar, "const": const, "legal": legal, "formerly": formerly,
        "apart": apart,
    }  # fmt: skip
    made: T = field(default=default, metadata=metadata)
    return made


class Group:
    """Settings that belong together; building one by hand is checked exactly as reading one is."""

    def __post_init__(self) -> None:
        kind: type = type(self)
        for spec in specs(kind):
            value = getattr(self, spec.field)
            for item in value if isinstance(value, tuple) else (value,):
                complaint = None if item is None else spec.legal.complaint(item)
                if complaint:
                    raise SettingsError(f"{spec.name}: {item!r} {complaint}")


@dataclass(frozen=True)
class Spec:
    """One setting, as every source sees it."""

    field: str
    name: str
    help: str
    kind: type
    optional: bool
    many: bool
    default: Any
    metavar: str
    const: str | None
    legal: Legal
    formerly: str
    apart: bool

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return _variable(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Under which files and the environment may give it."""
        return tuple(name for name in (self.name, self.formerly) if name)

    @property
    def example(self) -> str:
        if self.legal.choices:
            return self.legal.choices[0]
        if self.default not in (None, ()):
            return as_text(self.default)
        return {int: "10", float: "1.5", bool: "true"}.get(self.kind, self.metavar or "text")


@cache
def specs(group: type) -> tuple[Spec, ...]:
    hints = typing.get_type_hints(group)
    return tuple(_spec(item.name, hints[item.name], item.default, item.metadata) for item in fields(group))


def _spec(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> Spec:
    optional = many = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        optional = True
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
        many = True
    if hint not in (str, int, float, bool, Path):
        raise TypeError(f"setting {name}: no rule to read a {hint}")
    public = metadata["name"] or name.replace("_", "-")
    return Spec(
        name,
        public,
        metadata["help"],
        hint,
        optional,
        many,
        default,
        metadata["metavar"],
        metadata["const"],
        metadata["legal"],
        metadata["formerly"],
        metadata["apart"],
    )


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace("-", "_").upper()


def as_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(as_text(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A value, and for error messages and the run's manifest where it came from."""

    value: Any
    origin: str


def from_text(spec: Spec, text: str, where: str, folder: Path) -> Given:
    """What a flag or a variable says. `none` unsets an optional setting or a list, whose items commas separate."""
    if (spec.optional or spec.many) and text.strip().lower() == "none":
        return Given(() if spec.many else None, where)
    if spec.many:
        items = [part.strip() for part in text.split(",") if part.strip()]
        return Given(tuple(_item(spec, part, where, folder) for part in items), where)
    return Given(_item(spec, text, where, folder), where)


def _item(spec: Spec, text: str, where: str, folder: Path) -> Any:
    text = text.strip()
    value: Any = text
    if spec.kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise SettingsError(f"{where}: {text!r} is neither true nor false")
        value = text.lower() in _TRUE
    elif spec.kind in (int, float):
        try:
            value = spec.kind(text.replace("_", ""))
        except ValueError:
            noun = "a whole number" if spec.kind is int else "a number"
            raise SettingsError(f"{where}: {text!r} is not {noun}: give one, e.g. {spec.example}") from None
    return _legal(spec, value, where, folder)


def from_document(spec: Spec, value: Any, where: str, folder: Path) -> Given:
    """What a TOML or JSON document says; the types must fit, nothing is guessed."""
    if value is None and spec.optional:
        return Given(None, where)
    if spec.many:
        if value is None:
            return Given((), where)  # as earlier releases wrote a setting that was no list yet
        if isinstance(value, str) and spec.kind is str:
            value = [value]
        if not isinstance(value, list):
            raise SettingsError(f"{where}: need a list, e.g. [{spec.example}]")
        return Given(tuple(_typed(spec, item, where, folder) for item in value), where)
    return Given(_typed(spec, value, where, folder), where)


def _typed(spec: Spec, value: Any, where: str, folder: Path) -> Any:
    wanted = str if spec.kind is Path else spec.kind
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        noun = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}[wanted]
        raise SettingsError(f"{where}: need {noun}, not {type(value).__name__} {value!r}")
    return _legal(spec, value, where, folder)


def _legal(spec: Spec, value: Any, where: str, folder: Path) -> Any:
    complaint = spec.legal.complaint(value)
    if complaint:
        raise SettingsError(f"{where}: {value!r} {complaint}")
    if spec.kind is not Path:
        return value
    try:
        return folder / Path(value).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{where}: {value!r}: {error}") from None


def read_document(
    groups: Mapping[str, type], document: Mapping[str, Any], source: str, folder: Path
) -> dict[tuple[str, str], Given]:
    """Every `[group] key = value` of a file, keyed by group and field. Relative paths start at `folder`."""
    given = {}
    for group, table in document.items():
        if group not in groups:
            raise SettingsError(f"{source}: {_unknown_key(groups, '', group)}")
        if not isinstance(table, Mapping):
            raise SettingsError(f"{source}: {group} must be a table: write [{group}] on a line of its own")
        for key, value in table.items():
            spec = next((s for s in specs(groups[group]) if key.replace("_", "-") in _names(s)), None)
            if spec is None:
                raise SettingsError(f"{source}: {_unknown_key(groups, group, key)}")
            given[group, spec.field] = from_document(spec, value, f"{source}: [{group}] {key}", folder)
    return given


def read_keywords(groups: Mapping[str, type], values: Mapping[str, Any], folder: Path) -> dict[tuple[str, str], Given]:
    """Keyword arguments of a call, by the settings' names with `_` for `-`. Relative paths start at `folder`."""
    homes = {name: (group, spec) for group, kind in groups.items() for spec in specs(kind) for name in _names(spec)}
    given = {}
    for key, value in values.items():
        if key.replace("_", "-") not in homes:
            if gone := gone_now(key):
                raise SettingsError(gone)
            if _is_secret(key):
                raise SettingsError(f"{key} is not a setting: {_KEYS_ARE_NOT_SETTINGS}")
            nearest = closest(key, [spec.name.replace("-", "_") for _, spec in homes.values()])
            raise SettingsError(f"unknown setting {key}: " + (f"did you mean {nearest}?" if nearest else "see --help"))
        group, spec = homes[key.replace("_", "-")]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, tuple):
            value = list(value)
        given[group, spec.field] = from_document(spec, value, f"{ARGUMENT}{key}", folder)
    return given


ARGUMENT = "argument "
"""Before the name, where a setting was given by a call."""


def _names(spec: Spec) -> tuple[str, ...]:
    return *spec.names, spec.field.replace("_", "-")


def gone_now(key: str) -> str:
    """What to say of a setting of earlier releases; empty of any other."""
    name = key.replace("_", "-")
    return f"{name} is no setting any more: {RETIRED[name]}" if name in RETIRED else ""


def _unknown_key(groups: Mapping[str, type], group: str, key: str) -> str:
    if _is_secret(key):
        return f"{key} is not a setting: {_KEYS_ARE_NOT_SETTINGS}"
    plain = key.replace("_", "-")
    homes = {spec.name: home for home, kind in groups.items() for spec in specs(kind)}
    place = f"[{group}] {key}" if group else key
    if plain in homes:
        return f"{place} belongs in [{homes[plain]}]"
    local = [spec.name for spec in specs(groups[group])] if group in groups else list(groups)
    nearest = closest(plain, local) or closest(plain, homes)
    if nearest is None:
        legal = ", ".join(sorted(local))
        return f"unknown {'setting' if group else 'group'} {place}: legal here: {legal}"
    shown = f"[{nearest}]" if nearest in groups and not group else f"[{homes[nearest]}] {nearest}"
    return f"unknown {'setting' if group else 'group or setting'} {place}: did you mean {shown}?"


def read_environment(
    groups: Mapping[str, type], environment: Mapping[str, str], folder: Path, reserved: Iterable[str] = ()
) -> dict[tuple[str, str], Given]:
    """Every NKI_OPT_* variable. An empty one counts as not set."""
    by_variable = {
        _variable(name): (group, spec) for group, kind in groups.items() for spec in specs(kind) for name in spec.names
    }
    given = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in reserved or not text:
            continue
        if variable not in by_variable:
            if _is_secret(variable):
                raise SettingsError(f"environment: {variable} is not a setting: {_KEYS_ARE_NOT_SETTINGS}")
            if gone := gone_now(variable.removeprefix(ENVIRONMENT_PREFIX).lower()):
                raise SettingsError(f"environment: {variable}: {gone}")
            nearest = closest(variable, by_variable)
            hint = f"did you mean {nearest}?" if nearest else "`--help` lists every setting"
            raise SettingsError(f"environment: unknown setting {variable}: {hint}")
        group, spec = by_variable[variable]
        given[group, spec.field] = from_text(spec, text, f"environment: {variable}", folder)
    return given


# --- flags ----------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def add_flags(parser: argparse.ArgumentParser, groups: Mapping[str, type], only: Sequence[str] = ()) -> None:
    """One flag per setting, under its group's title; a yes-or-no setting has a --no- form as well.

    Values stay text; `read_flags` understands them. `only`: the settings to add, where not all of them; in one list,
    with the first sentence of what they say.
    """
    few = parser.add_argument_group("flags") if only else None
    for group, kind in groups.items():
        section = few or parser.add_argument_group(group, (kind.__doc__ or "").strip())
        for spec in specs(kind):
            if only and spec.name not in only:
                continue
            text = _help(spec, brief=few is not None)
            common: dict[str, Any] = {"dest": _dest(group, spec), "default": argparse.SUPPRESS, "help": text}
            if spec.kind is bool:
                section.add_argument(spec.flag, action="store_true", **common)
                section.add_argument(f"--no-{spec.name}", action="store_false", **common | {"help": argparse.SUPPRESS})
                continue
            choices = "{" + ",".join(spec.legal.choices) + "}" if spec.legal.choices else spec.metavar
            metavar = "NAME" if few is not None and len(choices) > _WIDEST else choices
            common["metavar"] = metavar or {int: "N", float: "X", Path: "PATH"}.get(spec.kind, "TEXT")
            if spec.const is not None:
                common |= {"nargs": "?", "const": spec.const}
            elif spec.apart:
                common |= {"nargs": "+"}
            section.add_argument(spec.flag, **common)
            if spec.formerly:
                section.add_argument(f"--{spec.formerly}", **common | {"help": argparse.SUPPRESS})


def read_flags(groups: Mapping[str, type], parsed: argparse.Namespace, folder: Path) -> dict[tuple[str, str], Given]:
    given = {}
    for group, kind in groups.items():
        for spec in specs(kind):
            value = getattr(parsed, _dest(group, spec), None)
            if isinstance(value, bool):
                given[group, spec.field] = Given(value, spec.flag)
            elif value is not None:
                text = ",".join(value) if spec.apart else value
                given[group, spec.field] = from_text(spec, text, spec.flag, folder)
    return given


_MEANT = {"--reference": "--problem", "--ref": "--problem", "--dtype": "--shape"}
"""Flags that people try, and the one that does it."""


def unknown_flag(text: str, groups: Mapping[str, type], others: Sequence[str]) -> SettingsError:
    """Names the flag without its value, which could be a secret."""
    flag = text.split("=", 1)[0]
    if gone := gone_now(flag.removeprefix("--")):
        return SettingsError(gone)
    if _is_secret(flag):
        return SettingsError(f"{flag} is not a flag: {_KEYS_ARE_NOT_SETTINGS}")
    nearest = _MEANT.get(flag) or closest(
        flag, [spec.flag for kind in groups.values() for spec in specs(kind)] + list(others)
    )
    return SettingsError(f"unknown flag {flag}: " + (f"did you mean {nearest}?" if nearest else "see --help"))


def closest(word: str, legal: Iterable[str]) -> str | None:
    """The legal word that was probably meant; what all of them begin with does not make two words alike."""
    by_stem = {_stem(candidate): candidate for candidate in legal}
    return next((by_stem[near] for near in difflib.get_close_matches(_stem(word), list(by_stem), n=1)), None)


def _stem(word: str) -> str:
    return word.removeprefix(ENVIRONMENT_PREFIX).lstrip("-").lower()


def _is_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(part in plain for part in ("api_key", "apikey", "secret", "password", "auth_token"))


def _dest(group: str, spec: Spec) -> str:
    return f"{group}.{spec.field}"


_WIDEST = 26
"""Characters of the choices of a flag in a brief list."""


def _help(spec: Spec, brief: bool) -> str:
    text = spec.help.partition(". ")[0].partition(";")[0] if brief else spec.help
    if spec.default not in (None, (), False):
        text += f" [{as_text(spec.default)}]"
    return text.replace("%", "%%")
