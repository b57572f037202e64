"""A scripted model server that misbehaves in every way it can, and keeps exact accounts of what it sent."""

from __future__ import annotations

import json
import random
import re
import threading
from typing import Any

from tests.e2e.kernels import SLOW
from tests.llm.wire_server import Answer, CutStream, Hang, HttpFault, QuietEnd, Says, StreamFault

BASELINE_US = 400.0
WINS_US = {7: 380.0, 41: 300.0, 99: 250.0, 150: 180.0, 188: 90.0}
"""By round: the only kernels that are faster."""
HOSTILE = {
    58: "import os\nos._exit(0)\n",
    108: "raise SystemExit\n",
    158: "import sys\nsys.setrecursionlimit(10**9)\n\n\ndef f():\n    return f()\n\n\nf()\n",
}
"""By round: what stands above the kernel and ends, or fells, the process that loads it."""

FAULTS: list[Answer] = [
    HttpFault(429, "rate_limit_error", "slow down", {"retry-after": "7"}), HttpFault(500, "api_error", "oops"),
    HttpFault(529, "overloaded_error", "Overloaded"), HttpFault(502, body="<html>Bad Gateway</html>"), CutStream(),
    QuietEnd(), StreamFault(), Says(""),
]  # fmt: skip
MOST_HANGS = 3


def worth(latency_us: float, extra: str = "") -> str:
    """A kernel that takes that long, on a target that reads it from the source."""
    return SLOW.replace("STEP = 256", f"STEP = 256\nWORTH = {latency_us!r}") + extra


def fenced(source: str) -> str:
    return f"Sure.\n\n```python\n{source}```\n"


class Misbehaving:
    """A script for `WireServer`: one request in four meets a fault, and a third of the answers are useless."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._faulted = 0
        self._hangs = 0
        self.answers: list[Answer] = []

    def __call__(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            answer = self._answer(body)
            self.answers.append(answer)
            return answer

    def _answer(self, body: dict[str, Any]) -> Answer:
        if self._faulted < 2 and self._dice.random() < 0.25:
            self._faulted += 1  # a third fault in a row would exhaust the client's patience, which is another test's
            if self._hangs < MOST_HANGS and self._dice.random() < 0.02:
                self._hangs += 1
                return Hang()
            return self._dice.choice(FAULTS)
        self._faulted = 0
        text, last = _content(body["messages"][0]), _content(body["messages"][-1])
        found = re.search(r"## The plan of round (\d+)", text) or re.search(r"[Rr]ound (\d+)", text)
        number = int(found.group(1))
        if last.startswith("Your reply was cut off"):
            return self._says("\n```\n")
        if "# You are the programmer" in text:
            latest = re.search(r"Try (\d+), the latest", text)
            beside = re.search(r"idea \d+ beside (\d)", text[text.find("## The plan of round") :])
            tries = int(latest.group(1)) if latest else 0
            return self._says(self._kernel(number, tries, int(beside.group(1)) if beside else 0))
        if "you are the planner" in text:
            if number % 13 == 0 and len(body["messages"]) == 1:
                return self._says("I would make it faster.")
            # Its favourite idea, until it is told that this one is not allowed.
            technique = "widen-rows" if len(body["messages"]) == 1 else f"fresh-{number}"
            planned = text[text.find("## Being tried in this round already") :].count("\n- idea")
            beside = f" beside {planned}" if "## Being tried in this round already" in text else ""
            return self._says(json.dumps({
                "title": f"idea {number}{beside}", "technique": technique, "bottleneck": "memory-bound",
                "expected_gain_us": 5.0, "rationale": "because", "details": "",
            }))  # fmt: skip
        review = {"diagnosis": "wrong", "lesson": f"lesson {number}", "avoid": [f"a{number}"]}
        return self._says(json.dumps(review | {"title": f"win {number}", "summary": "Longer rows cost less."}))

    def _says(self, text: str) -> Says:
        dice = self._dice.randrange
        return Says(
            text, input_tokens=dice(50, 5000), output_tokens=dice(10, 900), cached_tokens=dice(3000),
            cache_write_tokens=dice(50),
        )  # fmt: skip

    def _kernel(self, number: int, tries: int, beside: int) -> str:
        """`beside`: which of several plans of a round this is for; the first is the one that may win."""
        unique = number + tries / 10 + beside / 1000
        if number in WINS_US and not beside:
            return fenced(worth(WINS_US[number]))
        if number in HOSTILE and not beside:
            return fenced(HOSTILE[number] + worth(1.0 + unique / 1e6))
        kinds = [
            "The weather is fine today.", "```javascript\nfunction kernel() { return 1; }\n```",
            "```python\n" + "x = 1\n" * (70_000 if number % 40 == 10 else 10) + "```", fenced(worth(BASELINE_US)),
            fenced(worth(50.0 + unique / 1e6).replace("nl.add", "nl.subtract")),
            fenced(worth(50.0 + unique / 1e6).replace("nisa.tensor_tensor", "nisa.tensor_plus")),
            fenced(worth(2000.0 + unique)), fenced(worth(410.0 + unique)),
        ]  # fmt: skip
        return kinds[(number + tries + 3 * beside) % len(kinds)]

    # --- accounts ---

    @property
    def sent(self) -> tuple[int, int, int, int]:
        """Tokens in, out, read from and written to a cache, of all but cut connections."""
        says = [answer for answer in self.answers if isinstance(answer, Says)]
        begun = sum(isinstance(answer, (QuietEnd, StreamFault)) for answer in self.answers)
        return (
            sum(answer.input_tokens for answer in says) + 100 * begun,
            sum(answer.output_tokens for answer in says) + begun,
            sum(answer.cached_tokens for answer in says),
            sum(answer.cache_write_tokens for answer in says),
        )

    @property
    def cut(self) -> int:
        """Connections that were reset: whether the client still read their 100 + 1 tokens is the network's choice."""
        return sum(isinstance(answer, CutStream) for answer in self.answers)


def _content(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content)
