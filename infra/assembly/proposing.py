"""Who proposes a run's changes: the catalogue, a language model, or several that take turns."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import config
from accelopt_core.catalogue import sweep
from accelopt_core.catalogue.menu import CatalogueMenu
from accelopt_core.loop import events
from accelopt_core.loop.choosing import Contender, TakingTurns, pulls_of
from accelopt_core.loop.rounds import RunResult
from accelopt_core.model.proposer import proposer_from_model
from accelopt_core.ports import LanguageModel, Role, TargetInfo, Usage
from accelopt_core.proposer import Proposer
from infra.assembly.language_parts import LanguageParts
from infra.assembly.rounds import most_swept
from infra.llm.contenders import CATALOGUE, Named
from infra.llm.ledger import Ledger, LedgerEntry, ModelBudget
from infra.llm.prices import SHIPPED_PRICES, load_prices
from infra.llm.provider import ProviderSettings
from infra.llm.recording import Exchange, exchange_to_json
from infra.llm.registry import provider_from_environment, settings_from_environment
from infra.llm.retry import Patience, Stopping
from infra.llm.roles import models_for_roles
from infra.prediction.predictor import Predictor
from infra.prediction.step_book import StepBookFile
from infra.runs.event_log import Observers
from infra.runs.memory_file import kept_for
from infra.runs.proposer_memory import ProposerMemory
from infra.runs.run_folder import RunFolder
from infra.runs.spending import Spending
from infra.settings_reader import SettingsError
from infra.tracing.spans import RunSpans
from ka_extensions.bandit import CostAware, Spent
from nki_sim.timing import ties

SEVERAL = "several"
"""In place of a provider, where proposers take turns."""

TYPICAL_ROUND = Usage(60_000, 20_000)
"""Of the four calls that a round takes when nothing is repaired: what a model is taken to cost before it was asked."""
TYPICAL_ROUND_S = 180.0
CATALOGUE_ROUND = Spent(0.0, 60.0)


def provider_of(settings: config.Settings) -> str:
    if settings.model.proposers:
        return SEVERAL
    if settings.model.provider != "auto":
        return settings.model.provider
    return provider_from_environment() or CATALOGUE


@dataclass(frozen=True)
class Proposing:
    """What the proposer of one run is made from."""

    settings: config.Settings
    provider: str
    """As `provider_of` has it."""
    source: str
    """What the run begins with."""
    info: TargetInfo
    folder: RunFolder
    spending: Spending
    observer: Observers
    parts: LanguageParts
    predictor: Predictor | None
    """None for a language whose machine nobody simulates."""
    stopping: Stopping
    spans: RunSpans | None

    def proposer(self) -> Proposer:
        """Raises a ModelError where a model cannot be built, and SettingsError where its cost cannot be kept."""
        made, most = self._proposer(), self._most_swept()
        if most < 2 or self.predictor is None:
            return made
        swept = sweep.SweepingExecutor(made.executor, self.predictor, most, self._note)
        return replace(made, executor=swept)

    def remember(self, result: RunResult) -> None:
        """What those that took turns came to, for later runs."""
        if self.provider == SEVERAL:
            self._memory(self.settings.run.memory).record(pulls_of(result.attempts, result.baseline))

    def _proposer(self) -> Proposer:
        if self.provider == CATALOGUE:
            return self._catalogue()
        ledger, menu = self._ledger(), self._menu()
        if self.provider == SEVERAL:
            return self._taking_turns(ledger, menu)
        wanted = self.settings.model
        role_models = {Role(role): model for role, model in config.by_role("role-models", wanted.role_models).items()}
        named = Named(self.provider, self.provider)
        models = self._models(named, replace(self._told(), model=wanted.model), ledger, role_models=role_models)
        return self._of_models(models, menu)

    def _taking_turns(self, ledger: Ledger, menu: CatalogueMenu | None) -> Proposer:
        wanted = self.settings.model
        contenders = []
        for each in wanted.take_turns:
            if not each.is_model:
                predicted_us = menu.best_gain_us if menu is not None else None
                contenders.append(Contender(self._catalogue(), CATALOGUE_ROUND, predicted_us))
                continue
            told = each.settings(self._told())
            if each.provider != wanted.provider:  # a base URL is of the one provider that is named beside it
                told = replace(told, base_url=None)
            models = self._models(each, told, ledger, proposer=each.name)
            made = self._of_models(models, menu)
            usd = ledger.price_usd(models[Role.EXECUTOR], TYPICAL_ROUND)
            if usd is None:
                usd = 0.0
                self._note(f"{each.name}: its price is unknown, so it counts as free but for its time")
            contender = replace(made, name=each.name, spent_usd=ledger.cost_usd)
            contenders.append(Contender(contender, Spent(usd, TYPICAL_ROUND_S)))
        shared = self.settings.run.memory
        before = self._memory(kept_for(self.folder.path) or shared)
        turns = TakingTurns(
            contenders, CostAware(), self.folder, self.folder.run_id, before.tracks,
            self._memory(shared).record, self._warn, self.settings.run.patience,
        )  # fmt: skip
        return turns.together()

    def _catalogue(self) -> Proposer:
        return self.parts.catalogue(self.predictor)

    def _of_models(self, models: Mapping[Role, LanguageModel], menu: CatalogueMenu | None) -> Proposer:
        taught = self.parts.teaching(self.info, self.source, self._most_swept() >= 2)
        asked = self.settings.model
        effort = {Role(role): level for role, level in config.efforts(asked.effort).items()}
        told = replace(taught.settings, temperature=asked.temperature, effort=effort)
        return proposer_from_model(models, taught.api_reference, taught.instructions, told, datetime.date.today, menu)

    def _most_swept(self) -> int:
        """Settings of what a kernel declares tunable that are priced: none where nothing prices them."""
        return 0 if self.predictor is None else most_swept(self.settings, self.provider)

    def _models(
        self,
        named: Named,
        told: ProviderSettings,
        ledger: Ledger,
        *,
        role_models: Mapping[Role, str | None] | None = None,
        proposer: str = "",
    ) -> dict[Role, LanguageModel]:
        """`proposer`: for whom they are asked, where several take turns."""
        model_settings = settings_from_environment(named.provider, told)
        secrets = [model_settings.api_key] if model_settings.api_key else []

        def keep(exchange: Exchange) -> None:
            self.folder.keep_exchange(exchange.request.role.value, exchange_to_json(exchange, secrets))
            if self.spans is not None:
                self.spans.called(exchange, named.provider)

        models = models_for_roles(
            named.provider,
            model_settings,
            ledger,
            keep,
            role_models={role: name for role, name in (role_models or {}).items() if name},
            recorded=self.folder.exchanges(),
            proposer=proposer,
        )
        unpriced = ledger.unpriced(models.values())
        if unpriced:
            raise SettingsError(
                f"max-cost: no price is known of {', '.join(unpriced)}, so no cost can be kept: add a "
                '[models."NAME"] to a price file and name it with --prices, or limit --max-tokens instead'
            )
        return models

    def _told(self) -> ProviderSettings:
        """What every model is told, whosever it is."""
        wanted = self.settings.model
        return ProviderSettings(
            base_url=wanted.base_url,
            timeout_s=wanted.reply_timeout_s,
            patience=Patience(sleep=self.stopping.sleep, on_wait=self._note, stopping=self.stopping),
            model_command=wanted.model_command,
            mailbox=wanted.mailbox,
            replies=wanted.replies,
        )

    def _ledger(self) -> Ledger:
        def spent(entry: LedgerEntry) -> None:
            self.folder.spend(entry)
            self.spending.model_called(entry)

        ledger = Ledger(
            load_prices(self.settings.model.prices or SHIPPED_PRICES),
            ModelBudget(self.settings.budget.max_cost_usd, self.settings.budget.max_tokens),
            entries=self.folder.model_calls(),
            on_entry=spent,
        )
        self.spending.attach(ledger)
        return ledger

    def _menu(self) -> CatalogueMenu | None:
        wanted = self.settings.model
        if wanted.menu_s <= 0 or self.predictor is None:
            return None
        folders = [self.folder.path]  # where prices of it may be recorded; new ones go to the first
        if wanted.replies is not None and self.provider == "replay":
            folders += [wanted.replies, wanted.replies.parent]
        return CatalogueMenu(self.predictor, wanted.menu_s, StepBookFile(folders), tie=ties.shipped().within)

    def _memory(self, memory: Path) -> ProposerMemory:
        return ProposerMemory(memory, self.folder.run_id, self._warn)

    def _note(self, line: str) -> None:
        self.observer.tell(events.Notice(line))

    def _warn(self, line: str) -> None:
        self.observer.tell(events.Notice(line, "warning"))
