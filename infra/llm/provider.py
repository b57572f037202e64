"""What a provider of language models is, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accelopt_core.ports import LanguageModel, ModelError, ModelRequest
from infra.llm.retry import DEFAULT_PATIENCE, Patience
from infra.toml_files import read_toml

SHIPPED_DEFAULTS = Path(__file__).with_name("defaults.toml")


class UnknownProvider(ModelError):
    """No provider of that name; the line lists those there are."""


class NoDefaultModel(ModelError):
    """The provider has no model in defaults.toml: name one with --model."""


@dataclass(frozen=True)
class ProviderSettings:
    """What any provider may be told; each uses what it knows. A setting of `[model]` has its field's name here too."""

    model: str | None = None
    """None: the provider's default (defaults.toml), or the one model a local server offers."""
    base_url: str | None = None
    api_key: str | None = None
    timeout_s: float = 600.0
    """For one whole reply."""
    patience: Patience = DEFAULT_PATIENCE
    model_command: str | None = None
    """The program and its arguments, as in a shell."""
    mailbox: Path | None = None
    """The folder where requests and replies go."""
    replies: Path | None = None
    """A run's folder, or one of recorded exchanges."""


@dataclass(frozen=True)
class Provider:
    """One way to reach a model. Each is described by `PROVIDER` at the end of its own file."""

    name: str
    """As `--provider` takes it; `<NAME>_API_KEY`, `_BASE_URL` and `_MODEL` are its variables in the environment."""
    build: Callable[[ProviderSettings], LanguageModel]
    """Raises a ModelError for what is missing: `<name>: no <what>: <what to do>`. The place to import an SDK."""
    needs: tuple[str, ...] = ()
    """Fields of `[model]` settings without which it cannot work; none that the environment may give instead."""
    named_by: str = "model"
    """Which of them `PROVIDER:WORDS` gives, where several proposers take turns."""
    offered_by: tuple[str, ...] = ()
    """Environment variables; with any of them set, `--provider auto` may choose it."""


def default_model(provider: str) -> str:
    """Raises NoDefaultModel."""
    section = read_toml(SHIPPED_DEFAULTS).get(provider)
    if section is None:
        raise NoDefaultModel(f"{provider}: no default model: name one with --model")
    return str(section["model"])


_HEADINGS = {"user": "Request", "assistant": "Your earlier answer"}


def flat_prompt(request: ModelRequest, *, with_system: bool = True) -> str:
    """System text, then every message under a heading; complete in itself."""
    parts = [f"# Instructions\n\n{request.system.strip()}"] if with_system and request.system.strip() else []
    if len(request.messages) == 1 and not parts:
        return request.messages[0].content.strip() + "\n"
    parts += [f"# {_HEADINGS[message.role]}\n\n{message.content.strip()}" for message in request.messages]
    return "\n\n---\n\n".join(parts) + "\n"
