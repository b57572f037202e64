"""What a run's model calls cost, and the budget they must stay within."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from accelopt_core.ports import (
    BudgetExhausted,
    LanguageModel,
    ModelEmptyReply,
    ModelError,
    ModelRefused,
    ModelReply,
    ModelRequest,
    Role,
    Usage,
)  # fmt: skip
from infra.llm.prices import PriceList
from infra.llm.recording import Exchange, request_key

CHARACTERS_PER_TOKEN = 3.0
"""For the estimate before a call; code and JSON run at 3 to 4, so this errs on the dear side."""


@dataclass(frozen=True)
class LedgerEntry:
    """One call, whether it brought a reply or not."""

    role: Role
    model: str
    usage: Usage
    cost_usd: float | None
    """None: the price file does not know the model."""
    failed: bool = False
    key: str = ""
    """Of the request, by which its recorded exchange is found; empty in entries of an older version."""
    proposer: str = ""
    """For whom it was asked, where several take turns."""
    by_text: bool = False
    """The server reported no usage: tokens are counted from the texts (CHARACTERS_PER_TOKEN)."""


@dataclass(frozen=True)
class ModelBudget:
    """The most that the model calls of one run may cost, in US dollars and in tokens; None: no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    """Input, output and cached together."""

    def __post_init__(self) -> None:
        for limit in (self.max_cost_usd, self.max_tokens):
            if limit is not None and not limit > 0:
                raise ValueError(f"a budget must be positive: {self}")


@dataclass(frozen=True)
class Totals:
    calls: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    """Of the calls with a known price."""
    unpriced_calls: int = 0
    failed: int = 0
    """Calls that brought no reply."""
    by_text: int = 0
    """Calls whose tokens were counted from their texts."""

    def plus(self, entry: LedgerEntry) -> Totals:
        unpriced = entry.cost_usd is None and entry.usage.total_tokens > 0
        return Totals(
            self.calls + 1,
            self.usage + entry.usage,
            self.cost_usd + (entry.cost_usd or 0.0),
            self.unpriced_calls + unpriced,
            self.failed + entry.failed,
            self.by_text + entry.by_text,
        )

    def join(self, other: Totals) -> Totals:
        return Totals(
            self.calls + other.calls,
            self.usage + other.usage,
            self.cost_usd + other.cost_usd,
            self.unpriced_calls + other.unpriced_calls,
            self.failed + other.failed,
            self.by_text + other.by_text,
        )


class Ledger:
    """Every model call of a run passes through one ledger; safe to share between threads."""

    def __init__(
        self,
        prices: PriceList,
        budget: ModelBudget = ModelBudget(),
        *,
        entries: Iterable[LedgerEntry] = (),
        on_entry: Callable[[LedgerEntry], None] = lambda entry: None,
    ) -> None:
        """`entries`: what an interrupted run already spent; `on_entry`: told each new one, for the journal."""
        self._prices = prices
        self._budget = budget
        self._on_entry = on_entry
        self._entries = list(entries)
        self._in_flight: dict[int, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._entering = threading.Lock()

    def wrap(self, model: LanguageModel, proposer: str = "") -> LanguageModel:
        return _LedgeredModel(model, self, proposer)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        with self._lock:
            return tuple(self._entries)

    @property
    def total(self) -> Totals:
        return _sum(self.entries)

    def price_usd(self, model: LanguageModel, usage: Usage) -> float | None:
        """What so much would cost; None: nobody knows."""
        return self._prices.cost_usd(_model_id(model), usage)

    def unpriced(self, models: Iterable[LanguageModel]) -> tuple[str, ...]:
        """Those whose calls a cost budget could not be kept with; none where there is no such budget."""
        if self._budget.max_cost_usd is None:
            return ()
        return tuple(dict.fromkeys(each.name for each in models if self._prices.price_of(_model_id(each)) is None))

    def cost_usd(self, proposer: str) -> float:
        """What its calls cost so far; those without a known price count nothing."""
        return _sum(entry for entry in self.entries if entry.proposer == proposer).cost_usd

    def complete(self, model: LanguageModel, request: ModelRequest, proposer: str = "") -> ModelReply:
        """Asks the model, unless the budget could not bear it. Raises BudgetExhausted or a ModelError."""
        ticket = self._reserve(model, request)
        try:
            reply = model.complete(request)
        except ModelError as error:
            self._settle(ticket, request, _model_id(model), _lost(request, error), proposer)
            raise
        except BaseException:
            # An interrupt is no model's failure, but the reservation must not outlive the call.
            with self._lock:
                self._in_flight.pop(ticket, None)
            raise
        self._settle(ticket, request, reply.model, reply.usage, proposer, reply=reply.text, asked=_model_id(model))
        return reply

    def _reserve(self, model: LanguageModel, request: ModelRequest) -> int:
        tokens = estimated_tokens(request)
        price = self._prices.price_of(_model_id(model))
        cost = price.cost_usd(Usage(tokens - request.max_tokens, request.max_tokens)) if price else 0.0
        limit_usd, limit_tokens = self._budget.max_cost_usd, self._budget.max_tokens
        if limit_usd is not None and price is None:
            raise BudgetExhausted(
                f"{model.name}: its price is unknown, so a cost budget of ${limit_usd:g} cannot be "
                "kept: add the model to the price file or limit tokens instead"
            )
        with self._lock:
            spent = _sum(self._entries)
            pending_tokens = sum(pending for pending, _ in self._in_flight.values())
            pending_usd = sum(pending for _, pending in self._in_flight.values())
            if limit_usd is not None and spent.cost_usd + pending_usd + cost > limit_usd:
                raise BudgetExhausted(
                    f"{model.name}: ${spent.cost_usd:.2f} spent and this call may cost ${cost:.2f}, "
                    f"of ${limit_usd:g}: raise the cost budget to go on"
                )
            if limit_tokens is not None and spent.usage.total_tokens + pending_tokens + tokens > limit_tokens:
                raise BudgetExhausted(
                    f"{model.name}: {spent.usage.total_tokens:,} tokens used and this call may take "
                    f"{tokens:,}, of {limit_tokens:,}: raise the token budget to go on"
                )
            ticket = max(self._in_flight, default=0) + 1
            self._in_flight[ticket] = (tokens, cost)
        return ticket

    def catch_up(self, exchanges: Sequence[tuple[str, Exchange]]) -> None:
        """Enters calls that were recorded and not yet entered when a run was killed.

        `exchanges`: every one of the run with its request's key, oldest first; each is recorded first and entered
        next, but several may be under way at once.
        """
        entries = self.entries
        keyless = sum(1 for entry in entries if not entry.key)
        entered = Counter(entry.key for entry in entries if entry.key)
        for key, exchange in exchanges[keyless:]:
            if entered[key]:
                entered[key] -= 1
                continue
            asked = exchange.model.split(":", 1)[-1]
            role, reply, whose = exchange.request.role, exchange.reply, exchange.proposer
            if reply is not None:
                usage, by_text = _counted(exchange.request, reply.usage, reply.text)
                self._enter(self._priced(role, key, reply.model, usage, whose, asked=asked, by_text=by_text))
            else:
                self._enter(self._priced(role, key, asked, exchange.lost, whose, failed=True))

    def _settle(
        self, ticket: int, request: ModelRequest, model: str, usage: Usage, proposer: str, *, reply: str | None = None,
        asked: str = "",
    ) -> None:  # fmt: skip
        """`reply`: None where the call brought none."""
        usage, by_text = (usage, False) if reply is None else _counted(request, usage, reply)
        entry = self._priced(
            request.role, request_key(request), model, usage, proposer,
            failed=reply is None, asked=asked, by_text=by_text,
        )  # fmt: skip
        with self._lock:
            self._in_flight.pop(ticket, None)
        self._enter(entry)

    def _priced(
        self, role: Role, key: str, model: str, usage: Usage, proposer: str, *, failed: bool = False, asked: str = "",
        by_text: bool = False,
    ) -> LedgerEntry:  # fmt: skip
        cost = self._prices.cost_usd(model, usage)
        if cost is None and asked:
            cost = self._prices.cost_usd(asked, usage)
        return LedgerEntry(role, model, usage, cost, failed, key, proposer, by_text)

    def _enter(self, entry: LedgerEntry) -> None:
        with self._entering:  # the journal gets them in the order in which they are counted
            with self._lock:
                self._entries.append(entry)
            self._on_entry(entry)


class _LedgeredModel:
    def __init__(self, model: LanguageModel, ledger: Ledger, proposer: str) -> None:
        self._model = model
        self._ledger = ledger
        self._proposer = proposer

    @property
    def name(self) -> str:
        return self._model.name

    def complete(self, request: ModelRequest) -> ModelReply:
        return self._ledger.complete(self._model, request, self._proposer)


def totals_by(entries: Iterable[LedgerEntry]) -> dict[tuple[str, str], dict[Role, Totals]]:
    """By proposer and model, then by role; in the order in which they were first asked."""
    found: dict[tuple[str, str], dict[Role, Totals]] = {}
    for entry in entries:
        roles = found.setdefault((entry.proposer, entry.model), {})
        roles[entry.role] = roles.get(entry.role, Totals()).plus(entry)
    return found


def _counted(request: ModelRequest, usage: Usage, reply: str) -> tuple[Usage, bool]:
    """What a call took, and whether that had to be counted from its texts, as the server reported nothing."""
    if usage.total_tokens:
        return usage, False
    asked = estimated_tokens(request) - request.max_tokens
    return Usage(asked, math.ceil(len(reply) / CHARACTERS_PER_TOKEN)), True


def _lost(request: ModelRequest, error: ModelError) -> Usage:
    """What a failed call took: at most, where a server answered with nothing or a refusal and reported nothing."""
    if error.usage.total_tokens or not isinstance(error, (ModelEmptyReply, ModelRefused)):
        return error.usage
    return Usage(estimated_tokens(request) - request.max_tokens, request.max_tokens)


def estimated_tokens(request: ModelRequest) -> int:
    """Upper estimate of what one call takes, the longest allowed reply included."""
    characters = len(request.system) + sum(len(message.content) for message in request.messages)
    return int(characters / CHARACTERS_PER_TOKEN) + request.max_tokens


def _sum(entries: Iterable[LedgerEntry]) -> Totals:
    totals = Totals()
    for entry in entries:
        totals = totals.plus(entry)
    return totals


def _model_id(model: LanguageModel) -> str:
    """`anthropic:<model>` without the provider."""
    return model.name.split(":", 1)[-1]
