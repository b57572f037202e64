"""Scripts by which a shell completes flags, values and files: `nki-optimizer --print-completion bash`.

They are made from the parsers and hold everything, so that no Python starts while somebody presses the tab key.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab

import config
from infra import command_line
from infra.tasks.seed_index import every_seed
from infra.terminal.command_help import DEMO
from nki_sim import __main__ as nki_sim_command

USAGE = 2
_FOLDERS = ("DIR",)
_FILES = ("FILE", "FILE.csv", "FILE.html", "PATH", "REF.py", "NEW.py", "A.npy")


def optimizer() -> argparse.ArgumentParser:
    """As it is parsed, with the commands and the hosts or files that may follow as positional arguments."""
    parser = command_line.parser("nki-optimizer")
    parser.add_argument(
        "command", nargs="?", choices=(DEMO, *config.COMMANDS[1:]), help="without it: optimize a kernel"
    )
    parser.add_argument("rest", nargs="*", metavar="FILE", help="hosts, or the kernel to explain")
    for action in parser._actions:
        if "--task" in action.option_strings:
            action.choices = [seed.name for seed in every_seed()]
    return _told(parser)


def simulator() -> argparse.ArgumentParser:
    return _told(nki_sim_command.parser("nki-sim"))


def print_script(parser: argparse.ArgumentParser, shell: str) -> int:
    """Prints the script for that shell. The exit status: 0, or 2 where no such shell is known."""
    if shell not in shtab.SUPPORTED_SHELLS:
        known = " or ".join(shtab.SUPPORTED_SHELLS)
        print(f"{parser.prog}: completion for {shell or 'which shell'}? there is {known}", file=sys.stderr)
        return USAGE
    print(shtab.complete(parser, shell))
    return 0


def _told(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for action in _actions(parser):
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if metavar.startswith("{"):  # values stay text until they are read, so the parser itself has no choices
            action.choices = metavar.strip("{}").split(",")
        elif metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif metavar in _FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action
