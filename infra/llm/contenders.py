"""Who takes turns at proposing, as `--proposers` names them: the catalogue, a provider, or one of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.llm.provider import ProviderSettings, UnknownProvider
from infra.llm.registry import PROVIDERS

CATALOGUE = "catalogue"
FOLDERS = ("mailbox", "replies")
"""Fields of ProviderSettings that are one."""


@dataclass(frozen=True)
class Named:
    """`catalogue`, `PROVIDER`, `PROVIDER:MODEL`, or a MODEL of the provider that `--provider` names."""

    name: str
    """As it is called in this run's files: the same for the same proposer, however it was named."""
    provider: str
    """`catalogue`, or a key of PROVIDERS."""
    told: str | None = None
    """What stood behind the colon: a model, or of a provider that has none its command or folder."""

    @property
    def is_model(self) -> bool:
        return self.provider != CATALOGUE

    @property
    def lacks(self) -> tuple[str, ...]:
        """Fields of ProviderSettings that it needs to be told elsewhere."""
        if not self.is_model:
            return ()
        provider = PROVIDERS[self.provider]
        return tuple(need for need in provider.needs if need != provider.named_by or self.told is None)

    def settings(self, common: ProviderSettings) -> ProviderSettings:
        """`common`: what all are told."""
        if self.told is None:
            return common
        named_by = PROVIDERS[self.provider].named_by
        told: Any = Path(self.told).expanduser().absolute() if named_by in FOLDERS else self.told
        return replace(common, **{named_by: told})


def named(text: str, provider: str) -> Named:
    """`provider`: whose model a bare name is. Raises UnknownProvider where that is none."""
    first, colon, rest = text.partition(":")
    if text == CATALOGUE or text in PROVIDERS:
        return Named(text, text)
    if first in PROVIDERS and colon:
        if not rest:
            raise UnknownProvider(f"{text!r} names no model: write {first}, or {first}:MODEL")
        return Named(text, first, rest)
    if provider in PROVIDERS:
        return Named(f"{provider}:{text}", provider, text)
    raise UnknownProvider(
        f"{text!r} is neither {CATALOGUE} nor a provider ({', '.join(PROVIDERS)}): write PROVIDER:{text}, or name its "
        "provider with --provider"
    )


def all_named(texts: Sequence[str], provider: str) -> tuple[Named, ...]:
    """Raises UnknownProvider; also where one is named twice."""
    found: dict[str, Named] = {}
    for text in texts:
        one = named(text, provider)
        if one.name in found:
            raise UnknownProvider(f"{one.name!r} is named twice: it would only take turns with itself")
        found[one.name] = one
    return tuple(found.values())
