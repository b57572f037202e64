"""When to ask a model again, how long to wait, and which error to raise when waiting no longer helps.

A provider makes one attempt at a time and tells the two kinds of failure apart: `Transient` (worth
another attempt) and any `ModelError` (not). Everything about waiting is here and nowhere else.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import queue
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import cache
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from accelopt_core.loop.events import Ending
from accelopt_core.loop.steps import Stop
from accelopt_core.ports import (
    ModelAllThought,
    ModelBusy,
    ModelContextOverflow,
    ModelEmptyReply,
    ModelError,
    ModelRefused,
    ModelRejectedCredentials,
    ModelReply,
    ModelUnreachable,
    ModelUnusable,
    Usage,
)

T = TypeVar("T")

POLL_S = 0.1


class Stopping:
    """Whether the run is to end, set by a signal's handler and looked at by whoever waits."""

    def __init__(self) -> None:
        self.asked = False  # no lock and no event: a handler may run while this very thread holds one

    def check(self) -> None:
        """Raises Stop once the run is to end."""
        if self.asked:
            raise Stop(Ending.INTERRUPTED, "interrupted")

    def sleep(self, seconds: float) -> None:
        """Raises Stop."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))
            self.check()

    def answered(self, ask: Callable[[], T]) -> T:
        """What it returns or raises; it runs in a thread of its own, which is left behind where Stop is raised.

        For calls that nothing can end from outside, as a library's that waits for a socket.
        """
        said: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def listen() -> None:
            try:
                said.put((ask(), None))
            except BaseException as error:  # not this thread's to handle: whoever waits raises it again
                said.put((None, error))

        self.check()
        threading.Thread(target=listen, name="model call", daemon=True).start()
        while True:
            try:
                reply, error = said.get(timeout=POLL_S)
            except queue.Empty:
                self.check()
                continue
            if error is not None:
                raise error
            return reply  # type: ignore[return-value]  # of `ask`, which did not raise


@cache
def transport_errors() -> tuple[type[Exception], ...]:
    """Imports the library: call it when an SDK, which imports it too, is already loaded."""
    found: list[type[Exception]] = []
    for library in ("httpx", "httpx2"):
        if importlib.util.find_spec(library) is not None:
            module = importlib.import_module(library)
            found += [module.TransportError, module.StreamError, module.DecodingError]
    return tuple(found)


NOTHING = Usage()
LONGEST_MESSAGE = 400
"""Characters of a server's own words that an error line repeats."""


class Trouble(str, Enum):
    """Why an attempt that is worth repeating came to nothing."""

    BUSY = "busy"
    """Rate limit or overload: the server wants less, later."""
    UNREACHABLE = "unreachable"
    """No connection, a cut one, or a server that failed."""
    TIMEOUT = "timeout"
    """No answer in time; each one costs the whole limit, so patience with them is shorter."""
    EMPTY = "empty"
    """An answer without text."""


_RAISED = {
    Trouble.BUSY: ModelBusy,
    Trouble.UNREACHABLE: ModelUnreachable,
    Trouble.TIMEOUT: ModelUnreachable,
    Trouble.EMPTY: ModelEmptyReply,
}
_ADVICE = {
    Trouble.BUSY: "wait, raise the account's limits, or choose another --model",
    Trouble.UNREACHABLE: "check the network and the base URL",
    Trouble.TIMEOUT: "raise the reply timeout, or choose a faster --model",
    Trouble.EMPTY: "lower --effort, or choose another --model",
}


class Transient(Exception):
    """One attempt failed in a way that another attempt may not. Never leaves this package."""

    def __init__(
        self, trouble: Trouble, message: str, *, retry_after_s: float | None = None, usage: Usage = NOTHING
    ) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.retry_after_s = retry_after_s
        self.usage = usage
        """Tokens that the failed attempt is known to have cost."""


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter on its upper half, and limits on attempts and patience."""

    attempts: int = 10
    """In all, the first one included; with the waits below, about five minutes of outage."""
    empty_attempts: int = 3
    """Of those, how many may end in an empty reply ..."""
    timeout_attempts: int = 3
    """... and how many in no reply at all."""
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    longest_retry_after_s: float = 600.0
    """A server that asks for a longer pause than this is reported at once."""

    def __post_init__(self) -> None:
        if min(self.attempts, self.empty_attempts, self.timeout_attempts) < 1:
            raise ValueError(f"a retry policy needs at least one attempt: {self}")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ValueError(f"retry waits must satisfy 0 < first <= longest: {self}")

    def wait_s(self, failures: int, retry_after_s: float | None, fraction: float) -> float:
        """Seconds to wait after that many failures; `fraction` in [0, 1) is the dice."""
        backoff = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1))
        jittered = backoff * (0.5 + 0.5 * fraction)
        return max(jittered, retry_after_s) if retry_after_s is not None else jittered


@dataclass(frozen=True)
class Patience:
    """A policy with the clock and the dice it uses; tests hand in their own."""

    policy: RetryPolicy = RetryPolicy()
    sleep: Callable[[float], None] = time.sleep
    dice: Callable[[], float] = random.random
    on_wait: Callable[[str], None] = lambda line: None
    """Told one line before each wait, so that nobody wonders why nothing happens."""
    stopping: Stopping = field(default_factory=Stopping)
    """Ends every wait, and the waiting for an answer."""


DEFAULT_PATIENCE = Patience()


def with_retries(attempt: Callable[[], ModelReply], *, where: str, patience: Patience) -> ModelReply:
    """The first reply; its usage includes what failed attempts cost.

    Raises ModelBusy, ModelUnreachable or ModelEmptyReply when the policy is exhausted, and passes
    every other ModelError through at once. `where` names provider and model in the error line.
    """
    policy = patience.policy
    spent = Usage()
    limits = {Trouble.EMPTY: policy.empty_attempts, Trouble.TIMEOUT: policy.timeout_attempts}
    seen: Counter[Trouble] = Counter()
    for failures in range(1, policy.attempts + 1):
        try:
            reply = attempt()
        except Transient as fault:
            spent = spent + fault.usage
            seen[fault.trouble] += 1
            is_enough = failures == policy.attempts or seen[fault.trouble] == limits.get(fault.trouble)
            waits_too_long = fault.retry_after_s is not None and fault.retry_after_s > policy.longest_retry_after_s
            if is_enough or waits_too_long:
                raise _given_up(fault, where, failures, spent) from fault.__cause__
            wait_s = policy.wait_s(failures, fault.retry_after_s, patience.dice())
            patience.on_wait(f"{where}: {fault}; attempt {failures + 1} of {policy.attempts} in {wait_s:.1f} s")
            patience.sleep(wait_s)
        except ModelError as error:
            error.usage = spent + error.usage
            raise
        else:
            return replace(reply, usage=spent + reply.usage)
    raise AssertionError("unreachable: the last attempt either returns or raises")


def all_thought(where: str, usage: Usage) -> ModelAllThought:
    error = ModelAllThought(f"{where}: no reply within its length limit, all of it thought: {_ADVICE[Trouble.EMPTY]}")
    error.usage = usage
    return error


def _given_up(fault: Transient, where: str, attempts: int, spent: Usage) -> ModelError:
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    asked = f", server asks to wait {fault.retry_after_s:.0f} s" if fault.retry_after_s is not None else ""
    error = _RAISED[fault.trouble](f"{where}: {fault} ({tries}{asked}): {_ADVICE[fault.trouble]}")
    error.usage = spent
    return error


# --- what a server's answer means -------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """Which one is asked, and what a person sets to ask another."""

    url: str
    provider: str

    @property
    def shown(self) -> str:
        """Its address, without a name and password that may stand in it."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    @property
    def key_variable(self) -> str:
        return f"{self._prefix}_API_KEY"

    @property
    def model_variable(self) -> str:
        return f"{self._prefix}_MODEL"

    @property
    def url_variable(self) -> str:
        return f"{self._prefix}_BASE_URL"

    @property
    def _prefix(self) -> str:
        return self.provider.upper().replace("-", "_")


def no_model_there(where: str, server: Server, page: str) -> ModelUnusable:
    """For a web page in place of a reply, under whatever status."""
    ending = " (most servers want it to end in /v1)" if server.provider == "openai" else ""
    return ModelUnusable(
        f"{where}: {server.shown} answers with a web page ({plain_words(page)}) and not as a model: correct "
        f"{server.url_variable} or --base-url{ending}"
    )


_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.I | re.S)
_NO_TEXT = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.I | re.S)
_PAGE = re.compile(r"\s*(?:<!doctype\s+html|<html)", re.I)
LONGEST_PAGE = 80
"""Characters of a web page that an error line repeats."""


def is_page(text: str) -> bool:
    return _PAGE.match(text) is not None


def plain_words(text: str) -> str:
    """Of a web page its title, or what it says; any other text as it is."""
    if not is_page(text):
        return text
    title = _TITLE.search(text)
    words = title[1] if title and title[1].strip() else _NO_TEXT.sub(" ", text)
    return one_line(html.unescape(words), LONGEST_PAGE) or "an empty one"


_OVERFLOW = re.compile(
    r"prompt is too long|context[ _](?:length|window|size)|maximum context|too many (?:input )?tokens"
    r"|exceed\w* (?:the )?(?:available |model'?s )?context|input is too long|request(?:_| )too(?:_| )large",
    re.I,
)
_NO_CREDIT = re.compile(
    r"insufficient_quota|exceeded your current quota|credit balance"
    r"|billing_error|billing_not_active|billing hard limit",
    re.I,
)
_LARGER_THAN_ITS_QUOTA = re.compile(r"request too large", re.I)
"""Said with a 429 when one request alone exceeds the quota per minute: waiting cannot help, a shorter one can."""

_POLICY = re.compile(r"content[_ ](?:policy|filter)|safety system|flagged", re.I)
_BUSY_TYPES = frozenset({"rate_limit_error", "overloaded_error", "rate_limit_exceeded"})
_SERVER_TYPES = frozenset({"api_error", "server_error", "timeout_error", "internal_error"})
_KEY_TYPES = frozenset({"authentication_error", "permission_error", "invalid_api_key"})


def fault_from_status(
    status: int, kind: str, message: str, headers: Mapping[str, str], *, where: str, server: Server,
    usage: Usage = NOTHING,
) -> Exception:  # fmt: skip
    """The exception to raise for an error answer: a `Transient` or a final `ModelError`.

    `kind` is the error's own type or code; it decides before the HTTP status does, because an error
    inside a stream arrives under status 200.
    """
    text = one_line(plain_words(message)) or f"HTTP {status}"
    said = f"{kind}: {text}" if kind and kind not in text else text
    if _NO_CREDIT.search(f"{kind} {message}"):
        return ModelRejectedCredentials(
            f"{where}: {server.shown}: {said}: the account has no credit; add some, or set {server.key_variable} to "
            "another key"
        )
    too_long = status == 413 or (status == 429 and _LARGER_THAN_ITS_QUOTA.search(message))
    if too_long or (status in (200, 400, 422) and _OVERFLOW.search(f"{kind} {message}")):
        return ModelContextOverflow(f"{where}: {said}: shorten the prompt or choose a model with a longer context")
    if kind in _BUSY_TYPES or status in (429, 503, 529):
        return Transient(Trouble.BUSY, said, retry_after_s=retry_after_s(headers), usage=usage)
    if kind in _KEY_TYPES or status in (401, 403):
        return ModelRejectedCredentials(
            f"{where}: {server.shown} refuses the key (HTTP {status}, {said}): set {server.key_variable} to one that "
            f"is valid and has access to this model, or {server.url_variable} to the server that it is for"
        )
    if kind in _SERVER_TYPES or status >= 500 or status in (408, 409):
        return Transient(
            Trouble.UNREACHABLE, f"HTTP {status} {said}", retry_after_s=retry_after_s(headers), usage=usage
        )
    if status == 404:
        return ModelRejectedCredentials(
            f"{where}: {server.shown} has no such model or path (HTTP 404, {said}), or the key may not see it: correct "
            f"--model ({server.model_variable}), or the address ({server.url_variable})"
        )
    if status == 400 and _POLICY.search(f"{kind} {message}"):
        return ModelRefused(f"{where}: {said}: the provider declined this request; choose another --model")
    return ModelError(f"{where}: HTTP {status} {said}: the provider rejects this request; check --model")


def retry_after_s(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, else `retry-after` as seconds or as a date."""
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return max(0.0, millis / 1000.0)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return max(0.0, seconds)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now())
        except (TypeError, ValueError):
            return None
    return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and value == value and abs(value) != float("inf") else None


def one_line(text: str, limit: int = LONGEST_MESSAGE) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced, whole or as the tail some servers echo back."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[key]")
    return _ECHOED_KEY.sub("[key]", text)


_ECHOED_KEY = re.compile(r"\bsk-[A-Za-z0-9_\-*]{8,}")
"""Servers quote a wrong key, often with its middle starred out."""
