"""The HTTP library's own exceptions, which the SDKs let through once a reply has begun to stream.

Older SDKs are built on `httpx`, newer ones on `httpx2`; whichever is installed counts.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache


@cache
def transport_errors() -> tuple[type[Exception], ...]:
    """Imports the library: call it when an SDK, which imports it too, is already loaded."""
    found: list[type[Exception]] = []
    for library in ("httpx", "httpx2"):
        if importlib.util.find_spec(library) is not None:
            module = importlib.import_module(library)
            found += [module.TransportError, module.StreamError, module.DecodingError]
    return tuple(found)
