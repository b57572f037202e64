"""Reading the JSON object that a model was asked for, out of whatever it wrote around it."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from accelopt_core.model.extraction import fenced_blocks, strip_thought

Answer = dict[str, Any]
"""A JSON object as a model wrote it."""

_LONGEST_OBJECT = 100_000
_MOST_UNCLOSED = 20
_OPENING = re.compile(r"\{|\[\s*\{")
_BRACKET_OR_QUOTE = re.compile(r'\\.|["{}\[\]]', re.S)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_LINE_COMMENT = re.compile(r"(?m)(^|[\s,{\[])//[^\n]*$")
_NUMBER = re.compile(
    r"^[~≈<>≤≥\s]*([+-]?[\d,_]*\.?\d+(?:[eE][+-]?\d+)?)\s*(µs|μs|us|usec|microseconds?|ms|milliseconds?)?\.?$"
)


class MalformedAnswer(Exception):
    """The answer cannot be used; the text is the complaint that goes back to the model."""


def read_object(reply: str, *, required: str) -> Answer:
    """The last JSON object of the reply that holds the field `required`. Raises MalformedAnswer."""
    return read_objects(reply, required=required, most=1)[-1]


def read_objects(reply: str, *, required: str, most: int) -> list[Answer]:
    """The JSON objects of the reply that hold the field `required`, the last `most` of them, in one list or by
    themselves; where one is asked for, a list of several is none.

    Forgives prose, fences, comments, trailing commas, single quotes and raw newlines in strings.
    Raises MalformedAnswer.
    """
    text = strip_thought(reply)
    if not text.strip():
        raise MalformedAnswer("the answer is empty; answer with one JSON object")
    found: list[Answer] = []
    other: Any = None
    for piece in _pieces(text):
        value = _parse(piece)
        values = value if isinstance(value, list) and (most > 1 or len(value) == 1) else [value]
        usable = [each for each in values if isinstance(each, dict) and required in each]
        found += usable
        if not usable and value is not None:
            other = value
        if found and piece.lstrip().startswith("["):
            break
    if found:
        return found[-most:]
    if isinstance(other, list) and len([item for item in other if isinstance(item, dict)]) > 1:
        raise MalformedAnswer(f"the answer is a list of {len(other)} objects; answer with exactly one JSON object")
    if isinstance(other, dict):
        raise MalformedAnswer(f"the JSON object has no field {required!r}; it has {sorted(map(str, other))[:12]}")
    if "{" not in text:
        raise MalformedAnswer("the answer holds no JSON object; end with exactly one, in a ```json block")
    raise MalformedAnswer(f"the JSON object cannot be parsed ({_parse_complaint(text)}); answer with valid JSON")


def text_field(answer: Mapping[str, Any], name: str, *, longest: int, required: bool = True) -> str:
    """A string field on stripped lines. Raises MalformedAnswer when it is required and not there."""
    value = answer.get(name)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise MalformedAnswer(f"the field {name!r} is {_kind(value)}; it must be text")
    text = value.strip()
    if required and not text:
        raise MalformedAnswer(f"the field {name!r} is empty")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def list_field(answer: Mapping[str, Any], name: str, *, most: int, longest: int) -> tuple[str, ...]:
    """A list of short texts; one text counts as a list of one, and none as an empty list."""
    value = answer.get(name)
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise MalformedAnswer(f"the field {name!r} is {_kind(value)}; it must be a list of texts")
    kept = [" ".join(item.split())[:longest] for item in items]
    return tuple(dict.fromkeys(item for item in kept if item and item.lower() not in ("none", "n/a")))[:most]


def word_field(answer: Mapping[str, Any], name: str, words: tuple[str, ...]) -> str:
    """One of these words, lower case."""
    value = answer.get(name)
    if isinstance(value, str) and value.strip().lower() in words:
        return value.strip().lower()
    raise MalformedAnswer(f"the field {name!r} is {_kind(value)}; it must be one of {', '.join(words)}")


def microseconds_field(answer: Mapping[str, Any], name: str) -> float:
    """A number of microseconds >= 0; `"~120 µs"` and `"0.12 ms"` are understood, percentages and ranges are not."""
    value = answer.get(name)
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and (match := _NUMBER.match(value.strip())):
        number = float(match.group(1).replace(",", "").replace("_", ""))
        if (match.group(2) or "").startswith("m") and not (match.group(2) or "").startswith("mic"):
            number *= 1000.0
    if number is None or not math.isfinite(number):
        raise MalformedAnswer(f"the field {name!r} is {_kind(value)}; it must be one plain number of microseconds")
    if number < 0:
        raise MalformedAnswer(f"the field {name!r} is {number:g}; it must not be negative")
    return number


# --- finding and mending JSON ---------------------------------------------------------------------------


def _pieces(text: str) -> Iterator[str]:
    """Parts of the text that may be the JSON: those in prose first, then those in fences, each in order."""
    blocks = [code.strip() for language, code in fenced_blocks(text) if language in ("", "json", "json5", "jsonc")]
    outside = text
    for block in blocks:
        outside = outside.replace(block, "")
    yield from _balanced(outside)
    yield from (block for block in blocks if block[:1] in ("{", "["))


def _balanced(text: str) -> Iterator[str]:
    """Every outermost `{…}` or `[{…}]`, by counting brackets outside strings."""
    at, unclosed = 0, 0
    while unclosed < _MOST_UNCLOSED and (match := _OPENING.search(text, at)) is not None:
        end = _closing(text, match.start())
        if end is None:
            unclosed += 1
            at = match.start() + 1
        else:
            yield text[match.start() : end]
            at = end


def _closing(text: str, begin: int) -> int | None:
    """The end of the object or list that begins there."""
    depth = 0
    quoted = False
    for match in _BRACKET_OR_QUOTE.finditer(text, begin, begin + _LONGEST_OBJECT):
        character = match.group()
        if character == '"':
            quoted = not quoted
        elif not quoted and character in "{[":
            depth += 1
        elif not quoted and character in "}]":
            depth -= 1
            if depth == 0:
                return match.end()
    return None


def _parse(piece: str) -> Any:
    mended = _TRAILING_COMMA.sub(r"\1", _LINE_COMMENT.sub(r"\1", piece))
    for attempt in (piece, mended):
        try:
            return json.loads(attempt, strict=False)
        except (json.JSONDecodeError, RecursionError):
            continue
    try:
        # Single quotes and True/None: a Python literal rather than JSON.
        return ast.literal_eval(mended)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _parse_complaint(text: str) -> str:
    pieces = list(_pieces(text))
    try:
        json.loads(pieces[-1] if pieces else text[text.index("{") :], strict=False)
    except json.JSONDecodeError as error:
        return f"{error.msg} at line {error.lineno}, column {error.colno} of the object"
    except RecursionError:
        return "nested too deeply"
    return "it is not an object"


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"
