"""A loopback server that speaks the wire formats of the Anthropic and OpenAI APIs, with scripted answers.

The real client libraries talk to it, so that a test exercises everything but the model. A script is a
list of answers, taken in order, or a function from the request's JSON to an answer; an answer is a
`Says`, one of the faults below, or plain text. When a list runs out the server says so with a 400.

    with WireServer(["first reply", HttpFault(529, "overloaded_error"), "second reply"]) as server:
        model = build_model("anthropic", ProviderSettings(base_url=server.url, api_key="test"))
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Union

from tests.processes import PATIENCE_S


@dataclass(frozen=True)
class Says:
    """A reply; `stop` in Anthropic's words, translated for OpenAI."""

    text: str
    stop: str = "end_turn"
    input_tokens: int = 100
    output_tokens: int = 20
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    thinking: str = ""
    model: str | None = None
    """None: the model that was asked for."""


@dataclass(frozen=True)
class HttpFault:
    status: int
    kind: str = "error"
    message: str = "scripted fault"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent instead of the API's JSON error, e.g. a proxy's HTML page."""


@dataclass(frozen=True)
class CutStream:
    """The connection is reset after this much of the reply."""

    text: str = "the beginning of"


@dataclass(frozen=True)
class QuietEnd:
    """The stream ends properly as HTTP, but before the reply is complete."""

    text: str = "the beginning of"


@dataclass(frozen=True)
class StreamFault:
    """An error event inside a stream that began well (Anthropic only)."""

    kind: str = "overloaded_error"
    message: str = "Overloaded"


@dataclass(frozen=True)
class Hang:
    """No answer until the server closes."""


MOST_PIECES = 50
"""The SDK builds an object for each: hundreds of them take seconds of a busy machine, longer than a test waits."""
Answer = Union[str, Says, HttpFault, CutStream, QuietEnd, StreamFault, Hang]
Script = Union[Sequence[Answer], Callable[[dict[str, Any]], Answer]]


@dataclass(frozen=True)
class SeenRequest:
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]

    @property
    def system(self) -> str:
        """The system text in either format."""
        if "system" in self.body:
            blocks = self.body["system"]
            return blocks if isinstance(blocks, str) else "".join(block["text"] for block in blocks)
        return "".join(m["content"] for m in self.body["messages"] if m["role"] == "system")

    @property
    def last_user_message(self) -> str:
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(block["text"] for block in content)


class WireServer:
    def __init__(self, script: Script, *, models: Sequence[str] = ("local-model",), page: str = "") -> None:
        """`page`: what is sent, as HTML, in place of the list of models."""
        self._script = script
        self._models = list(models)
        self._page = page
        self._taken = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.requests: list[SeenRequest] = []
        outer = self

        class Handler(_Handler):
            wire = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Base URL for the Anthropic client; OpenAI's wants `openai_url`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def __enter__(self) -> WireServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer_to(self, seen: SeenRequest) -> Answer:
        with self._lock:
            self.requests.append(seen)
            if callable(self._script):
                return self._script(seen.body)
            if self._taken == len(self._script):
                return HttpFault(400, "invalid_request_error", f"the script holds only {self._taken} answers")
            self._taken += 1
            return self._script[self._taken - 1]

    def wait_until_closing(self) -> None:
        self._closing.wait(PATIENCE_S)


class _Handler(BaseHTTPRequestHandler):
    wire: WireServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Small chunks go out at once; waiting for the client's acknowledgement would cost 40 ms each."""

    def do_GET(self) -> None:
        if self.wire._page:
            self._send_bytes(200, self.wire._page.encode(), {"content-type": "text/html"})
        elif self.path.rstrip("/").endswith("/models"):
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in self.wire._models]
            self._send_json(200, {"object": "list", "data": models})
        else:
            self._send_json(404, {"error": {"type": "not_found_error", "message": self.path}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen = SeenRequest(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        answer = self.wire.answer_to(seen)
        says = Says(answer) if isinstance(answer, str) else answer
        if isinstance(says, Hang):
            self.wire.wait_until_closing()
            self.close_connection = True
        elif isinstance(says, HttpFault):
            self._fault(says)
        elif self.path.split("?")[0].endswith("/v1/messages"):
            self._anthropic(body, says)
        elif self.path.endswith("/chat/completions"):
            self._openai(body, says)
        else:
            self._send_json(404, {"error": {"type": "not_found_error", "message": f"no such path {self.path}"}})

    # --- Anthropic messages, streamed ---------------------------------------------------------------

    def _anthropic(self, body: dict[str, Any], says: Says | CutStream | QuietEnd | StreamFault) -> None:
        assert body.get("stream") is True, "this server only streams, as the product does"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        full = says if isinstance(says, Says) else Says(getattr(says, "text", "the beginning of"))
        usage = {
            "input_tokens": full.input_tokens,
            "output_tokens": 1,
            "cache_read_input_tokens": full.cached_tokens,
            "cache_creation_input_tokens": full.cache_write_tokens,
        }
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": full.model or body["model"],
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        self._event("message_start", {"message": message})
        self._event("ping", {})
        index = 0
        if full.thinking:
            self._block(
                index,
                {"type": "thinking", "thinking": "", "signature": ""},
                [
                    {"type": "thinking_delta", "thinking": full.thinking},
                    {"type": "signature_delta", "signature": "c2ln"},
                ],
            )
            index += 1
        if isinstance(says, StreamFault):
            self._event("error", {"error": {"type": says.kind, "message": says.message}})
            self._end_of_chunks()
            return
        if full.text:
            length = max(1000, len(full.text) // MOST_PIECES)
            pieces = [full.text[at : at + length] for at in range(0, len(full.text), length)]
            self._block(
                index,
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": piece} for piece in pieces],
                closed=isinstance(says, Says),
            )
        if isinstance(says, CutStream):
            self._reset()
            return
        if isinstance(says, QuietEnd):
            self._end_of_chunks()
            return
        self._event(
            "message_delta",
            {
                "delta": {"stop_reason": full.stop, "stop_sequence": None},
                "usage": {"output_tokens": full.output_tokens},
            },
        )
        self._event("message_stop", {})
        self._end_of_chunks()

    def _block(self, index: int, start: dict[str, Any], deltas: list[dict[str, Any]], closed: bool = True) -> None:
        self._event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            self._event("content_block_delta", {"index": index, "delta": delta})
        if closed:
            self._event("content_block_stop", {"index": index})

    def _event(self, kind: str, data: dict[str, Any]) -> None:
        self._chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode())

    # --- OpenAI chat completions --------------------------------------------------------------------

    def _openai(self, body: dict[str, Any], says: Says | CutStream | QuietEnd | StreamFault) -> None:
        assert not body.get("stream"), "the product asks for whole completions"
        full = says if isinstance(says, Says) else Says("the beginning of")
        finish = {"end_turn": "stop", "max_tokens": "length", "refusal": "stop"}.get(full.stop, full.stop)
        prompt_tokens = full.input_tokens + full.cached_tokens + full.cache_write_tokens
        refused = full.stop == "refusal"
        completion = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": full.model or body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "logprobs": None,
                    "message": {
                        "role": "assistant",
                        "content": None if refused else full.text,
                        "refusal": full.text or "no" if refused else None,
                    },
                }
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": full.output_tokens,
                "total_tokens": prompt_tokens + full.output_tokens,
                "prompt_tokens_details": {
                    "cached_tokens": full.cached_tokens,
                    "cache_write_tokens": full.cache_write_tokens,
                },
            },
        }
        payload = json.dumps(completion).encode()
        if isinstance(says, Says):
            self._send_bytes(200, payload, {})
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload[: len(payload) // 2])
        self.wfile.flush()
        self._reset()

    # --- bytes --------------------------------------------------------------------------------------

    def _fault(self, fault: HttpFault) -> None:
        if fault.body is not None:
            self._send_bytes(fault.status, fault.body.encode(), {"content-type": "text/html", **fault.headers})
            return
        error = {"type": fault.kind, "code": fault.kind, "message": fault.message}
        self._send_bytes(fault.status, json.dumps({"type": "error", "error": error}).encode(), dict(fault.headers))

    def _send_json(self, status: int, document: dict[str, Any]) -> None:
        self._send_bytes(status, json.dumps(document).encode(), {})

    def _send_bytes(self, status: int, payload: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _chunk(self, payload: bytes) -> None:
        self.wfile.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self.wfile.flush()

    def _end_of_chunks(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _reset(self) -> None:
        # Zero linger turns the close into a reset, which is what a dying server or proxy sends.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            pass  # the connection was reset on purpose

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the tests look at `requests`."""
