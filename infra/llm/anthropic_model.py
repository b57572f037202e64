"""Claude through the official SDK: streamed, with what later requests begin with marked for the prompt cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from accelopt_core.ports import (
    LanguageModel,
    Message,
    ModelContextOverflow,
    ModelRefused,
    ModelRejectedCredentials,
    ModelReply,
    ModelRequest,
    Usage,
)
from infra.llm.provider import Provider, ProviderSettings, default_model
from infra.llm.retry import (
    DEFAULT_PATIENCE,
    Patience,
    Server,
    Transient,
    Trouble,
    all_thought,
    fault_from_status,
    no_model_there,
    one_line,
    redacted,
    transport_errors,
    with_retries,
)

if TYPE_CHECKING:
    import anthropic


class AnthropicModel:
    """`timeout_s` bounds one whole reply; the time between two of its pieces is bounded by it too."""

    def __init__(
        self,
        model: str,
        api_key: str,
        *,
        base_url: str | None = None,
        timeout_s: float = 600.0,
        patience: Patience = DEFAULT_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import anthropic

        self._model = model
        self._key = api_key
        self._timeout_s = timeout_s
        self._patience = patience
        self._clock = clock
        # The SDK retries on its own by default; two layers of retries would multiply.
        self._client = anthropic.Anthropic(api_key=api_key, base_url=base_url, timeout=timeout_s, max_retries=0)
        self._server = Server(str(self._client.base_url), "anthropic")

    @property
    def name(self) -> str:
        return f"anthropic:{self._model}"

    def complete(self, request: ModelRequest) -> ModelReply:
        answered = self._patience.stopping.answered
        return with_retries(lambda: answered(lambda: self._attempt(request)), where=self.name, patience=self._patience)

    def _attempt(self, request: ModelRequest) -> ModelReply:
        import anthropic

        deadline = self._clock() + self._timeout_s
        # These go through the body: SDK versions disagree on which of them are arguments.
        extra: dict[str, Any] = {} if request.temperature is None else {"temperature": request.temperature}
        if request.effort is not None:
            extra |= {"thinking": {"type": "adaptive"}, "output_config": {"effort": request.effort}}
        usage = Usage()
        try:
            messages: list[Any] = [{"role": message.role, "content": _blocks(message)} for message in request.messages]
            with self._client.messages.stream(
                model=self._model,
                max_tokens=request.max_tokens,
                system=[_block(request.system, kept=True)],
                messages=messages,
                extra_body=extra or None,
            ) as stream:
                if "html" in stream.response.headers.get("content-type", ""):
                    raise no_model_there(self.name, self._server, _page(stream.response))
                for event in stream:
                    if event.type == "message_start":
                        usage = _usage(event.message.usage)
                    if self._clock() > deadline:
                        raise Transient(Trouble.TIMEOUT, f"no complete reply within {self._timeout_s:g} s", usage=usage)
                final = stream.get_final_message()
        except anthropic.APIStatusError as error:
            kind, message = _error_of(error)
            raise fault_from_status(
                error.status_code,
                kind,
                redacted(message, [self._key]),
                error.response.headers,
                where=self.name,
                server=self._server,
                usage=usage,
            ) from None
        except anthropic.APITimeoutError:
            raise Transient(Trouble.TIMEOUT, f"no answer within {self._timeout_s:g} s", usage=usage) from None
        except _cut() as error:
            raise Transient(
                Trouble.UNREACHABLE, f"connection failed or was cut ({_cause(error)})", usage=usage
            ) from None
        except (json.JSONDecodeError, anthropic.APIResponseValidationError):
            raise Transient(Trouble.UNREACHABLE, "the server's stream is not valid", usage=usage) from None
        except AssertionError:
            # The SDK asserts that a stream began; an empty one never did.
            raise Transient(Trouble.UNREACHABLE, "the stream ended before it began", usage=usage) from None
        except (anthropic.AnthropicError, UnicodeEncodeError) as error:
            raise ModelRejectedCredentials(
                f"{self.name}: {one_line(redacted(str(error), [self._key]))}: set ANTHROPIC_API_KEY"
            ) from None
        return self._reply(final)

    def _reply(self, message: Any) -> ModelReply:
        usage = _usage(message.usage)
        text = "".join(block.text for block in message.content if block.type == "text")
        stop = message.stop_reason
        if stop is None:
            raise Transient(Trouble.UNREACHABLE, "the stream was cut before the reply was complete", usage=usage)
        if stop == "refusal":
            error = ModelRefused(f"{self.name}: the model declined to answer: choose another --model")
            error.usage = usage
            raise error
        if not text.strip():
            if stop == "model_context_window_exceeded":
                overflow = ModelContextOverflow(
                    f"{self.name}: the prompt leaves no room for an answer: shorten it "
                    "or choose a model with a longer context"
                )
                overflow.usage = usage
                raise overflow
            if stop == "max_tokens":
                raise all_thought(self.name, usage)
            raise Transient(Trouble.EMPTY, f"an empty reply (stop reason {stop})", usage=usage)
        return ModelReply(
            text=text,
            model=message.model or self._model,
            usage=usage,
            truncated=stop in ("max_tokens", "model_context_window_exceeded"),
        )


def _blocks(message: Message) -> Any:
    """The text; or the parts that later requests begin with, each marked for the cache, and the rest."""
    if not message.kept:
        return message.content
    cuts = [0, *message.kept, len(message.content)]
    parts = [message.content[begin:end] for begin, end in pairwise(cuts)]
    return [_block(part, kept=number < len(message.kept)) for number, part in enumerate(parts) if part]


def _block(text: str, *, kept: bool) -> Any:
    return {"type": "text", "text": text} | ({"cache_control": {"type": "ephemeral"}} if kept else {})


LONGEST_PAGE_BYTES = 65536


def _page(response: Any) -> str:
    """The beginning of what was sent in place of a stream."""
    begun = b""
    for chunk in response.iter_bytes():
        begun += chunk
        if len(begun) >= LONGEST_PAGE_BYTES:
            break
    return begun.decode("utf-8", "replace")


def _cut() -> tuple[type[Exception], ...]:
    """What is raised when there is no connection, or no longer."""
    import anthropic

    return (anthropic.APIConnectionError, *transport_errors())


def _usage(usage: Any) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        cached_input_tokens=getattr(usage, "cache_read_input_tokens", None) or 0,
        cache_write_tokens=getattr(usage, "cache_creation_input_tokens", None) or 0,
    )


def _error_of(error: anthropic.APIStatusError) -> tuple[str, str]:
    """The error's own type and message, from `{"type": "error", "error": {"type": …, "message": …}}`."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            return str(inner.get("type") or ""), str(inner.get("message") or "")
    return "", str(error)


def _cause(error: Exception) -> str:
    return one_line(str(error.__cause__ or error)) or type(error).__name__


def _build(settings: ProviderSettings) -> LanguageModel:
    if not settings.api_key:
        raise ModelRejectedCredentials("anthropic: no key: set ANTHROPIC_API_KEY")
    return AnthropicModel(
        settings.model or default_model("anthropic"),
        settings.api_key,
        base_url=settings.base_url,
        timeout_s=settings.timeout_s,
        patience=settings.patience,
    )


PROVIDER = Provider("anthropic", _build, offered_by=("ANTHROPIC_API_KEY",))
