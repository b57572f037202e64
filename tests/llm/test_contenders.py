"""How those that take turns are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.llm.contenders import Named, all_named, named
from infra.llm.provider import ProviderSettings, UnknownProvider
from infra.llm.registry import PROVIDERS


@pytest.mark.parametrize(
    ("text", "provider", "meant"),
    [
        ("catalogue", "auto", Named("catalogue", "catalogue")),
        ("anthropic", "auto", Named("anthropic", "anthropic")),
        ("openai:gpt-5", "auto", Named("openai:gpt-5", "openai", "gpt-5")),
        ("gpt-5", "openai", Named("openai:gpt-5", "openai", "gpt-5")),
        ("llama3:8b", "openai", Named("openai:llama3:8b", "openai", "llama3:8b")),
        ("openai:llama3:8b", "anthropic", Named("openai:llama3:8b", "openai", "llama3:8b")),
        ("command:python3 a.py -x", "auto", Named("command:python3 a.py -x", "command", "python3 a.py -x")),
    ],
)
def test_a_name_means_the_same_however_it_is_written(text: str, provider: str, meant: Named) -> None:
    assert named(text, provider) == meant


@pytest.mark.parametrize(
    ("texts", "provider", "said"),
    [
        (["gpt-5"], "auto", "write PROVIDER:gpt-5, or name its provider with --provider"),
        (["llama3:8b"], "catalogue", "neither catalogue nor a provider"),
        (["openai:"], "auto", "write openai, or openai:MODEL"),
        (["openai:gpt-5", "gpt-5"], "openai", "'openai:gpt-5' is named twice"),
    ],
)
def test_what_names_nobody_or_one_twice_is_refused(texts: list[str], provider: str, said: str) -> None:
    with pytest.raises(UnknownProvider, match=said):
        all_named(texts, provider)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_what_stands_behind_the_colon_is_what_the_provider_needs(provider: str) -> None:
    one = named(f"{provider}:some words", "auto")
    told = one.settings(ProviderSettings(base_url="http://x"))
    given = getattr(told, PROVIDERS[provider].named_by)
    assert str(given).endswith("some words") and told.base_url == "http://x" and one.lacks == ()
    assert isinstance(given, Path) == (provider in ("mailbox", "replay"))
    bare = named(provider, "auto")
    assert bare.settings(ProviderSettings(model="m")) == ProviderSettings(model="m")
    assert bare.lacks == PROVIDERS[provider].needs
