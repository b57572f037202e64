"""What isolates a candidate here, in words: told by its worker before the candidate is read."""

from __future__ import annotations


def describe(no_namespaces: str, no_filter: str, *, programs: bool = False) -> str:
    """What stands around a candidate, for people; the arguments say why one of the two does not, or are empty."""
    refused = "no tracing, no mounts, no other namespaces" if programs else "no new processes, sockets or signals"
    first = f"{_LACKS_NAMESPACES} ({no_namespaces})" if no_namespaces else "namespaces of its own"
    return f"{first}, " + (f"{_LACKS_FILTER} ({no_filter})" if no_filter else refused)


def is_lacking(described: str) -> bool:
    """Whether one of the two is missing in what `describe` said."""
    return described.startswith(_LACKS_NAMESPACES) or _LACKS_FILTER in described


_LACKS_NAMESPACES, _LACKS_FILTER = "no namespaces", "no filter of system calls"
