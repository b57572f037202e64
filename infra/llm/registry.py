"""Every provider on one line: its name, what it needs, and how to build it.

The two official SDKs take seconds to import, so each is imported where it is chosen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelopt_core.ports import LanguageModel, ModelError, ModelRejectedCredentials, ModelUnreachable
from infra.llm.mailbox_model import MailboxModel
from infra.llm.program_model import ClaudeProgramModel, ProgramModel, split_command
from infra.llm.replay_model import ReplayModel, read_exchanges
from infra.llm.retry import DEFAULT_PATIENCE, Patience
from infra.toml_files import read_toml

SHIPPED_DEFAULTS = Path(__file__).with_name("defaults.toml")


class UnknownProvider(ModelError):
    """No provider of that name; the line lists those there are."""


@dataclass(frozen=True)
class ModelSettings:
    """What any provider may be told; each uses what it knows."""

    model: str | None = None
    """None: the provider's default (defaults.toml), or the one model a local server offers."""
    base_url: str | None = None
    api_key: str | None = None
    timeout_s: float = 600.0
    """For one whole reply."""
    patience: Patience = DEFAULT_PATIENCE
    command: str | None = None
    """For `command`: the program and its arguments, as in a shell."""
    folder: Path | None = None
    """For `mailbox`: where requests and replies go; for `replay`: a run's folder or one of exchanges."""
    thinking: Mapping[str, Any] | None = None
    """For `anthropic`: its thinking parameter as documented there; None: the model's default."""


def _anthropic(settings: ModelSettings) -> LanguageModel:
    if not settings.api_key:
        raise ModelRejectedCredentials("anthropic: no key: set ANTHROPIC_API_KEY")
    from infra.llm.anthropic_model import AnthropicModel

    return AnthropicModel(
        settings.model or default_model("anthropic"),
        settings.api_key,
        base_url=settings.base_url,
        timeout_s=settings.timeout_s,
        thinking=settings.thinking,
        patience=settings.patience,
    )


def _openai(settings: ModelSettings) -> LanguageModel:
    from infra.llm.openai_model import OPENAI_HOST, OpenAIModel, only_model_served

    own_server = settings.base_url is not None and OPENAI_HOST not in settings.base_url
    if not settings.api_key and not own_server:
        raise ModelRejectedCredentials("openai: no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a local server")
    model = settings.model or (
        only_model_served(settings.base_url, settings.api_key) if own_server else default_model("openai")
    )
    return OpenAIModel(
        model, settings.api_key, base_url=settings.base_url, timeout_s=settings.timeout_s, patience=settings.patience
    )


def _claude_cli(settings: ModelSettings) -> LanguageModel:
    return ClaudeProgramModel(settings.model, timeout_s=settings.timeout_s, patience=settings.patience)


def _command(settings: ModelSettings) -> LanguageModel:
    if not settings.command:
        raise ModelUnreachable("command: no program: give one that reads a prompt and writes a reply")
    return ProgramModel(split_command(settings.command), timeout_s=settings.timeout_s, patience=settings.patience)


def _mailbox(settings: ModelSettings) -> LanguageModel:
    if settings.folder is None:
        raise ModelUnreachable("mailbox: no folder: give one for requests and replies")
    return MailboxModel(settings.folder, on_wait=settings.patience.on_wait)


def _replay(settings: ModelSettings) -> LanguageModel:
    if settings.folder is None:
        raise ModelUnreachable("replay: no folder: give a run's folder or one of recorded exchanges")
    return ReplayModel(read_exchanges(settings.folder))


PROVIDERS: Mapping[str, Callable[[ModelSettings], LanguageModel]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "claude-cli": _claude_cli,
    "command": _command,
    "mailbox": _mailbox,
    "replay": _replay,
}


def build_model(provider: str, settings: ModelSettings = ModelSettings()) -> LanguageModel:
    """Raises UnknownProvider, or a ModelError when a key, a model or a server is missing."""
    build = PROVIDERS.get(provider)
    if build is None:
        raise UnknownProvider(f"no model provider {provider!r}: choose one of {', '.join(sorted(PROVIDERS))}")
    return build(settings)


def default_model(provider: str) -> str:
    return str(read_toml(SHIPPED_DEFAULTS)[provider]["model"])


def settings_from_environment(
    provider: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    timeout_s: float = 600.0,
    patience: Patience = DEFAULT_PATIENCE,
    command: str | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ModelSettings:
    """What is passed comes first, then the provider's usual variables: `<NAME>_API_KEY`, `_BASE_URL`, `_MODEL`."""
    prefix = provider.upper().replace("-", "_")
    return ModelSettings(
        model=model or environment.get(f"{prefix}_MODEL") or None,
        base_url=base_url or environment.get(f"{prefix}_BASE_URL") or None,
        api_key=environment.get(f"{prefix}_API_KEY") or None,
        timeout_s=timeout_s,
        patience=patience,
        command=command,
        folder=folder,
    )


def provider_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """The provider that the environment has a key or a server for; None: there is none."""
    if environment.get("ANTHROPIC_API_KEY"):
        return "anthropic"
    if environment.get("OPENAI_API_KEY") or environment.get("OPENAI_BASE_URL"):
        return "openai"
    return None
