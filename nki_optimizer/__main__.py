"""python -m nki_optimizer: the same as the command `nki-optimizer`."""

from __future__ import annotations

import sys

from nki_optimizer.command_line import optimizer

if __name__ == "__main__":
    sys.exit(optimizer())
