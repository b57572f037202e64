"""Recorded replies as the model: the same question gets the same answer, and nothing else gets one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

from accelopt_core.ports import LanguageModel, ModelError, ModelReply, ModelRequest, ModelUnreachable
from infra.llm.provider import Provider, ProviderSettings
from infra.llm.recording import BadRecording, Exchange, exchange_from_json, request_key


class NotRecorded(ModelError):
    """The recording holds no reply to this request: prompts, kernel or settings differ from those recorded."""


class ReplayModel:
    """Replies by request, in the order recorded; with `live`, questions that were never asked go there.

    A recorded failure is not repeated: it is skipped, as it would be tried again.
    """

    def __init__(self, exchanges: Iterable[tuple[str, Exchange]], *, live: LanguageModel | None = None) -> None:
        """`exchanges`: pairs of request key and exchange, oldest first."""
        self._live = live
        self._replies: dict[str, deque[ModelReply]] = defaultdict(deque)
        for key, exchange in exchanges:
            if exchange.reply is not None:
                self._replies[key].append(exchange.reply)

    @property
    def name(self) -> str:
        return self._live.name if self._live is not None else "replay"

    def complete(self, request: ModelRequest) -> ModelReply:
        """Raises NotRecorded, or what the live model raises."""
        replies = self._replies.get(request_key(request))
        if replies:
            return replies.popleft()
        if self._live is not None:
            return self._live.complete(request)
        left = sum(len(queue) for queue in self._replies.values())
        raise NotRecorded(
            f"replay: no recorded reply to this {request.role.value} request ({left} others left): replay with the "
            "settings of the recorded run, or use a live model"
        )


def read_exchanges(folder: Path) -> list[tuple[str, Exchange]]:
    """Every exchange of a folder or of a run's `exchanges` folder, in order of their names.

    Raises BadRecording for a damaged file, NotRecorded when there is none at all.
    """
    place = folder / "exchanges" if (folder / "exchanges").is_dir() else folder
    found: list[tuple[str, Exchange]] = []
    for path in sorted(place.glob("*.json")):
        try:
            found.append(exchange_from_json(path.read_text(encoding="utf-8")))
        except (BadRecording, UnicodeDecodeError) as error:
            raise BadRecording(f"{path}: {error}") from error
    if not found:
        raise NotRecorded(f"replay: no recorded exchanges in {place}: give the folder of a run that used a model")
    return found


def _build(settings: ProviderSettings) -> LanguageModel:
    if settings.replies is None:
        raise ModelUnreachable("replay: no folder: give a run's folder or one of recorded exchanges")
    return ReplayModel(read_exchanges(settings.replies))


PROVIDER = Provider("replay", _build, needs=("replies",), named_by="replies")
