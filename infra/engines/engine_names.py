"""What `--engine` may say. Knows no engine, so that settings are read without one."""

from __future__ import annotations

import os

CLIENT_PORT = 10001
"""Of Ray Client, which is not spoken here: docs/scale.md says why."""


def address_of(name: str) -> str | None:
    """What Ray is given for an engine's name: `auto` for `ray`, HOST:PORT for `ray://HOST:PORT`; None for `local`.

    Raises ValueError with one line for anything else.
    """
    kind, mark, address = name.partition("://")
    if name == "local":
        return None
    if name == "ray":
        return os.environ.get("RAY_ADDRESS") or "auto"
    host, colon, port = address.rpartition(":")
    if kind != "ray" or not mark or not host or not port.isdigit():
        raise ValueError(f"{name!r} is neither local, nor ray, nor ray://HOST:PORT of a cluster's head")
    if int(port) == CLIENT_PORT:
        raise ValueError(
            f"{name!r}: that is the port of Ray Client; give the head's own (6379, unless started with another), "
            "on a machine that is a node of the cluster: `ray start --address=HOST:6379 --num-cpus=0`"
        )
    return address
