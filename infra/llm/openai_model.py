"""Any server that speaks OpenAI's chat completions: OpenAI itself, vLLM, Ollama, llama.cpp, gateways."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from accelopt_core.ports import (
    LanguageModel,
    ModelError,
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
    is_page,
    no_model_there,
    one_line,
    redacted,
    transport_errors,
    with_retries,
)

if TYPE_CHECKING:
    import openai

OPENAI_HOST = "api.openai.com"
NO_KEY = "no-key"
"""Sent to servers that ask for none; the SDK insists on some text."""


class OpenAIModel:
    """`timeout_s` bounds the wait for a reply, which arrives in one piece.

    The name of the length limit differs: OpenAI's own models want `max_completion_tokens`, most local
    servers know only `max_tokens`. The likely one is tried first; a server that rejects it by name gets
    the other from then on.
    """

    def __init__(
        self,
        model: str,
        api_key: str | None,
        *,
        base_url: str | None = None,
        timeout_s: float = 600.0,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        import openai

        self._model = model
        self._key = api_key or NO_KEY
        self._timeout_s = timeout_s
        self._patience = patience
        self._client = openai.OpenAI(api_key=self._key, base_url=base_url, timeout=timeout_s, max_retries=0)
        self._server = Server(str(self._client.base_url), "openai")
        is_openai = OPENAI_HOST in str(self._client.base_url)
        self._limit_name = "max_completion_tokens" if is_openai else "max_tokens"

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    def complete(self, request: ModelRequest) -> ModelReply:
        answered = self._patience.stopping.answered
        return with_retries(lambda: answered(lambda: self._attempt(request)), where=self.name, patience=self._patience)

    def _attempt(self, request: ModelRequest) -> ModelReply:
        try:
            return self._ask(request)
        except _OtherLimitName:
            self._limit_name = "max_tokens" if self._limit_name == "max_completion_tokens" else "max_completion_tokens"
        try:
            return self._ask(request)
        except _OtherLimitName as error:
            raise ModelError(
                f"{self.name}: the server accepts neither max_tokens nor max_completion_tokens "
                f"({error}): use another server"
            ) from None

    def _ask(self, request: ModelRequest) -> ModelReply:
        import openai

        options: dict[str, Any] = {self._limit_name: request.max_tokens}
        if request.temperature is not None:
            options["temperature"] = request.temperature
        if request.effort is not None:
            options["reasoning_effort"] = request.effort
        messages: list[Any] = [{"role": "system", "content": request.system}] if request.system else []
        messages += [{"role": message.role, "content": message.content} for message in request.messages]
        try:
            completion = self._client.chat.completions.create(model=self._model, messages=messages, **options)
        except openai.APIStatusError as error:
            kind, message = _error_of(error)
            if error.status_code in (400, 422) and self._limit_name in message and _is_about_the_name(kind, message):
                raise _OtherLimitName(one_line(message)) from None
            said, headers = redacted(message, [self._key]), error.response.headers
            raise fault_from_status(
                error.status_code, kind, said, headers, where=self.name, server=self._server
            ) from None
        except openai.APITimeoutError:
            raise Transient(Trouble.TIMEOUT, f"no answer within {self._timeout_s:g} s") from None
        except _cut() as error:
            reason = one_line(str(error.__cause__ or error)) or type(error).__name__
            raise Transient(Trouble.UNREACHABLE, f"connection failed or was cut ({reason})") from None
        except (json.JSONDecodeError, openai.APIResponseValidationError):
            raise Transient(Trouble.UNREACHABLE, "the server's answer is not a chat completion") from None
        if isinstance(completion, str) and is_page(completion):
            raise no_model_there(self.name, self._server, completion)
        return self._reply(completion)

    def _reply(self, completion: Any) -> ModelReply:
        usage = _usage(getattr(completion, "usage", None))
        choices = getattr(completion, "choices", None)
        if not choices:
            raise Transient(
                Trouble.UNREACHABLE,
                "the server's answer holds no choices; is the base URL right (most servers want it to end in /v1)?",
                usage=usage,
            )
        choice = choices[0]
        text = choice.message.content or ""
        refusal = getattr(choice.message, "refusal", None)
        if refusal or choice.finish_reason == "content_filter":
            why = f" ({one_line(refusal)})" if refusal else ""
            error = ModelRefused(f"{self.name}: the model declined to answer{why}: choose another --model")
            error.usage = usage
            raise error
        if not text.strip():
            if choice.finish_reason == "length":
                raise all_thought(self.name, usage)
            raise Transient(Trouble.EMPTY, f"an empty reply (finish reason {choice.finish_reason})", usage=usage)
        return ModelReply(
            text=text, model=completion.model or self._model, usage=usage, truncated=choice.finish_reason == "length"
        )


class _OtherLimitName(Exception):
    pass


def _is_about_the_name(kind: str, message: str) -> bool:
    """`max_tokens is too large` is a complaint about the number, not about the name."""
    text = f"{kind} {message}".lower()
    return any(words in text for words in _NO_SUCH_NAME)


_NO_SUCH_NAME = (
    "unsupported", "not supported", "unrecognized", "unknown", "extra inputs", "extra_forbidden", "unexpected",
    "not permitted",
)  # fmt: skip


def only_model_served(base_url: str | None, api_key: str | None, *, timeout_s: float = 30.0) -> str:
    """The name of the one model that a server offers.

    Raises ModelError when it offers none or several, naming them: then the user must choose.
    """
    import openai

    client = openai.OpenAI(api_key=api_key or NO_KEY, base_url=base_url, timeout=timeout_s, max_retries=1)
    server = Server(str(client.base_url), "openai")
    try:
        raw = client.models.with_raw_response.list()
        if "html" in raw.headers.get("content-type", ""):
            raise no_model_there("openai", server, raw.text)
        names = [model.id for model in raw.parse()]
    except _no_list() as error:
        reason = one_line(redacted(str(error.__cause__ or error), [api_key or NO_KEY]))
        raise ModelError(
            f"openai: cannot ask {server.shown} which models it serves ({reason}): correct {server.url_variable} or "
            "--base-url, or name a model with --model"
        ) from None
    finally:
        client.close()
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "") if names else "none"
    raise ModelError(f"openai: {client.base_url} serves {len(names)} models ({listed}): choose one with --model")


def _cut() -> tuple[type[Exception], ...]:
    """What is raised when there is no connection, or no longer."""
    import openai

    return (openai.APIConnectionError, *transport_errors())


def _no_list() -> tuple[type[Exception], ...]:
    """What is raised when a server does not say which models it has."""
    import openai

    return (openai.OpenAIError, json.JSONDecodeError, *transport_errors())


def _usage(usage: Any) -> Usage:
    """Prompt tokens here include those read from the cache; ours do not. Local servers may report nothing."""
    if usage is None:
        return Usage()
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    written = getattr(details, "cache_write_tokens", None) or 0
    prompt = usage.prompt_tokens or 0
    return Usage(
        input_tokens=max(0, prompt - cached - written),
        output_tokens=usage.completion_tokens or 0,
        cached_input_tokens=cached,
        cache_write_tokens=written,
    )


def _error_of(error: openai.APIStatusError) -> tuple[str, str]:
    """The error's code (or type) and message; some servers nest them under `error`, some do not."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            return str(inner.get("code") or inner.get("type") or ""), str(inner.get("message") or error)
        if isinstance(inner, str):
            return "", inner
    return "", str(error)


def _build(settings: ProviderSettings) -> LanguageModel:
    own_server = settings.base_url is not None and OPENAI_HOST not in settings.base_url
    if not settings.api_key and not own_server:
        raise ModelRejectedCredentials("openai: no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for a local server")
    model = settings.model or (
        only_model_served(settings.base_url, settings.api_key) if own_server else default_model("openai")
    )
    return OpenAIModel(
        model, settings.api_key, base_url=settings.base_url, timeout_s=settings.timeout_s, patience=settings.patience
    )


PROVIDER = Provider("openai", _build, offered_by=("OPENAI_API_KEY", "OPENAI_BASE_URL"))
