"""What passes between a judge and the process that carries out launch programs: JSON with bytes behind it.

A message is 8 bytes of length, that much JSON, and the blobs whose lengths it lists. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

MOST_HEADER_BYTES = 64 << 20
_LENGTH = 8


class MessageLost(Exception):
    """The other end closed the pipe, or said what is no message."""


def send(pipe: IO[bytes], header: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> None:
    text = json.dumps({**header, "blobs": [_size(blob) for blob in blobs]}).encode()
    pipe.write(len(text).to_bytes(_LENGTH, "little"))
    pipe.write(text)
    for blob in blobs:
        pipe.write(blob)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], list[bytearray]]:
    """Raises MessageLost."""
    size = int.from_bytes(_exactly(pipe, _LENGTH), "little")
    if size > MOST_HEADER_BYTES:
        raise MessageLost(f"a header of {size:,} bytes")
    try:
        header = json.loads(bytes(_exactly(pipe, size)))
        lengths = [int(length) for length in header.pop("blobs")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageLost(f"no message: {type(error).__name__}") from None
    return header, [_exactly(pipe, length) for length in lengths]


def _size(blob: bytes | memoryview) -> int:
    return blob.nbytes if isinstance(blob, memoryview) else len(blob)


def _exactly(pipe: IO[bytes], size: int) -> bytearray:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        count = pipe.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            raise MessageLost("the other end is gone")
        at += count
    return found
