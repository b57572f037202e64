"""Keeping what was asked and answered: every exchange of a run as one JSON document, without secrets."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from accelopt_core.ports import LanguageModel, Message, ModelError, ModelReply, ModelRequest, Role, Usage
from infra.llm.retry import redacted


class BadRecording(Exception):
    """A recorded exchange cannot be read; the line says why."""


@dataclass(frozen=True)
class Exchange:
    """One request and what came of it: a reply, or an error's one line."""

    request: ModelRequest
    model: str
    elapsed_s: float
    reply: ModelReply | None = None
    error: str | None = None
    lost: Usage = Usage()
    """Tokens that a call without a reply is known to have cost."""
    proposer: str = ""
    """For whom it was asked, where several take turns."""


class RecordingModel:
    """Hands every exchange, failed ones included, to `record` before the caller sees its outcome."""

    def __init__(
        self,
        model: LanguageModel,
        record: Callable[[Exchange], None],
        *,
        proposer: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._proposer = proposer
        self._record = record
        self._clock = clock

    @property
    def name(self) -> str:
        return self._model.name

    def complete(self, request: ModelRequest) -> ModelReply:
        begin = self._clock()
        try:
            reply = self._model.complete(request)
        except ModelError as error:
            took_s, said = self._clock() - begin, str(error)
            self._record(Exchange(request, self.name, took_s, None, said, error.usage, self._proposer))
            raise
        self._record(Exchange(request, self.name, self._clock() - begin, reply, proposer=self._proposer))
        return reply


def request_key(request: ModelRequest) -> str:
    """The same for the same question to the same role, whichever model answers it."""
    asked = {name: value for name, value in asdict(request).items() if value is not None or name != "effort"}
    asked["messages"] = [_asked(message) for message in request.messages]
    text = json.dumps(asked, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _asked(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def exchange_to_json(exchange: Exchange, secrets: Iterable[str] = ()) -> str:
    """One JSON document; any of `secrets` that slipped into a text is replaced."""
    document: dict[str, Any] = {
        "key": request_key(exchange.request),
        "role": exchange.request.role.value,
        "model": exchange.model,
        "elapsed_s": round(exchange.elapsed_s, 3),
        "request": {
            "system": exchange.request.system,
            "messages": [_asked(message) for message in exchange.request.messages],
            "max_tokens": exchange.request.max_tokens,
            "temperature": exchange.request.temperature,
            "effort": exchange.request.effort,
        },
        "reply": asdict(exchange.reply) if exchange.reply is not None else None,
        "error": exchange.error,
        "lost": asdict(exchange.lost),
        "proposer": exchange.proposer,
    }
    return json.dumps(_cleaned(document, [secret for secret in secrets if secret]), ensure_ascii=False, indent=1)


def exchange_from_json(text: str) -> tuple[str, Exchange]:
    """The request's key as recorded, and the exchange. Raises BadRecording."""
    try:
        document = json.loads(text)
        request = document["request"]
        reply = document["reply"]
        return str(document["key"]), Exchange(
            ModelRequest(
                Role(document["role"]),
                request["system"],
                tuple(Message(message["role"], message["content"]) for message in request["messages"]),
                request["max_tokens"],
                request["temperature"],
                request.get("effort"),
            ),
            document["model"],
            float(document["elapsed_s"]),
            ModelReply(reply["text"], reply["model"], Usage(**reply["usage"]), reply["truncated"]) if reply else None,
            document["error"],
            Usage(**document.get("lost", {})),
            str(document.get("proposer", "")),
        )
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadRecording(f"not a recorded exchange ({type(error).__name__}: {error}): record it again") from error


def _cleaned(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, list):
        return [_cleaned(item, secrets) for item in value]
    if isinstance(value, dict):
        return {key: _cleaned(item, secrets) for key, item in value.items()}
    return value
