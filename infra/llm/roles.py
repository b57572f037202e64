"""The models of one run: one per role, each behind the ledger, the recording and the continuation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from accelopt_core.ports import LanguageModel, Message, ModelAllThought, ModelReply, ModelRequest, Role
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
            by_name[name] = ContinuingModel(ReplayModel(own, live=live) if own else live, say=settings.patience.on_wait)
        models[role] = by_name[name]
    return models


_LONGEST_OVERLAP = 2_000
_LEAST_OVERLAP = 20
"""Characters that must repeat before they count as said twice."""
_GO_ON = (
    "Your reply was cut off by its length limit. Go on exactly where it stopped, in the middle of the line if need be. "
    "Repeat nothing, open no new code block, and add no explanation."
)
_OPENING_FENCE = re.compile(r"\A\s*(?:`{3,}|~{3,})[A-Za-z0-9]*[ \t]*\n")


LONGER = 2
"""Times the length limit, for a reply that was all thought."""


class ContinuingModel:
    """Asks for the rest, at most `most` times, and joins the parts; outermost of all wrappers.

    A reply that is still cut off after that keeps `truncated`, and nothing is made up. One that was all thought is
    asked for once more, with more room.
    """

    def __init__(self, model: LanguageModel, most: int = 2, say: Callable[[str], None] = lambda line: None) -> None:
        self._model = model
        self._most = most
        self._say = say

    @property
    def name(self) -> str:
        return self._model.name

    def complete(self, request: ModelRequest) -> ModelReply:
        try:
            reply = self._model.complete(request)
        except ModelAllThought as error:
            request = replace(request, max_tokens=LONGER * request.max_tokens)
            self._say(f"{error}; asked once more, with {request.max_tokens:,} tokens")
            reply = self._model.complete(request)
        for _ in range(self._most):
            if not reply.truncated:
                break
            # Trailing blanks are not accepted at the end of an assistant's message by every provider.
            so_far = reply.text.rstrip()
            asked = replace(
                request, messages=(*request.messages, Message("assistant", so_far), Message("user", _GO_ON))
            )
            rest = self._model.complete(asked)
            reply = replace(
                rest, text=joined(reply.text, rest.text), usage=reply.usage + rest.usage, truncated=rest.truncated
            )
        return reply


def joined(begun: str, rest: str) -> str:
    """Two parts of one reply, without what the second repeats of the first."""
    solid = begun.rstrip()
    blanks = begun[len(solid) :]
    if blanks and rest[:1].isspace():
        # The model was shown no trailing blanks and brings its own.
        wants_newline = "\n" in blanks and not rest.lstrip(" \t").startswith("\n")
        begun = solid + ("\n" if wants_newline else "")
    if _inside_fence(begun):
        rest = _OPENING_FENCE.sub("", rest)
    for length in range(min(len(begun), len(rest), _LONGEST_OVERLAP), _LEAST_OVERLAP - 1, -1):
        if begun.endswith(rest[:length]):
            return begun + rest[length:]
    last_line = begun[begun.rfind("\n") + 1 :]
    if last_line.strip() and rest.lstrip().startswith(last_line.strip()):
        # The cut line was begun again from its start.
        return begun[: len(begun) - len(last_line)] + last_line[: _indent(last_line)] + rest.lstrip()
    return begun + rest


def _inside_fence(text: str) -> bool:
    return len(re.findall(r"^\s{0,3}(?:`{3,}|~{3,})", text, re.M)) % 2 == 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
