"""What this engine room says beside the errors of every toolchain."""

from __future__ import annotations


class NoDevice(Exception):
    """The kernel is right as far as it could be checked here, or could not be checked at all: the message says what
    needs an NVIDIA GPU."""
