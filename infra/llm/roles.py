"""The models of one run: one per role, each behind the ledger, the recording and the continuation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from accelopt_core.ports import LanguageModel, Role
from infra.llm.continuing import ContinuingModel
from infra.llm.ledger import Ledger
from infra.llm.provider import ProviderSettings
from infra.llm.recording import Exchange, RecordingModel
from infra.llm.registry import build_model
from infra.llm.replay_model import ReplayModel


def models_for_roles(
    provider: str,
    settings: ProviderSettings,
    ledger: Ledger,
    record: Callable[[Exchange], None],
    *,
    role_models: Mapping[Role, str] | None = None,
    recorded: Iterable[tuple[str, Exchange]] = (),
    proposer: str = "",
) -> dict[Role, LanguageModel]:
    """A model for each role; roles with the same model share one connection.

    `role_models`: another model's name for some roles. `recorded`: the exchanges of an interrupted run, which
    are answered from the record and not recorded again; one that the ledger lacks is entered now. `proposer`: for whom
    they are asked, where several take turns; what was recorded for another is no answer, though the question be the
    same.
    Raises a ModelError when a model cannot be built.
    """
    kept = list(recorded)
    ledger.catch_up(kept)
    own = [(key, exchange) for key, exchange in kept if exchange.proposer == proposer]
    by_name: dict[str | None, LanguageModel] = {}
    models: dict[Role, LanguageModel] = {}
    for role in Role:
        name = (role_models or {}).get(role) or settings.model
        if name not in by_name:
            live: LanguageModel = build_model(provider, replace(settings, model=name))
            # The record comes first: a reply that was paid for is on disk before anything else can go wrong.
            live = ledger.wrap(RecordingModel(live, record, proposer=proposer), proposer)
            by_name[name] = ContinuingModel(ReplayModel(own, live=live) if own else live)
        models[role] = by_name[name]
    return models
