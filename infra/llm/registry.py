"""Every provider on one line. No SDK is imported before a model of its provider is built: they take seconds."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import replace

from accelopt_core.ports import LanguageModel
from infra.llm.provider import Provider, ProviderSettings, UnknownProvider

FILES = ("anthropic_model", "openai_model", "claude_cli_model", "command_model", "mailbox_model", "replay_model")
"""In the order in which `--help` lists them and `--provider auto` chooses among them."""


def _described_in(file: str) -> Provider:
    # Imported by name, so that adding a provider takes one line here and not two.
    provider: Provider = importlib.import_module(f"infra.llm.{file}").PROVIDER
    return provider


PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in map(_described_in, FILES)}


def build_model(provider: str, settings: ProviderSettings) -> LanguageModel:
    """Raises UnknownProvider, or a ModelError when a key, a model or a server is missing."""
    if provider not in PROVIDERS:
        raise UnknownProvider(f"no model provider {provider!r}: choose one of {', '.join(sorted(PROVIDERS))}")
    return PROVIDERS[provider].build(settings)


def settings_from_environment(
    provider: str, told: ProviderSettings, environment: Mapping[str, str] = os.environ
) -> ProviderSettings:
    """What is told comes first, then the provider's own variables: `<NAME>_API_KEY`, `_BASE_URL`, `_MODEL`."""
    prefix = provider.upper().replace("-", "_")
    return replace(
        told,
        model=told.model or environment.get(f"{prefix}_MODEL") or None,
        base_url=told.base_url or environment.get(f"{prefix}_BASE_URL") or None,
        api_key=told.api_key or environment.get(f"{prefix}_API_KEY") or None,
    )


def provider_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """The first provider that the environment has a key or a server for; None: there is none."""
    for provider in PROVIDERS.values():
        if any(environment.get(variable) for variable in provider.offered_by):
            return provider.name
    return None
