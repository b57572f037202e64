"""The command line: read it, have it carried out, say how it ended.   python3 orchestrator.py --help"""

from __future__ import annotations

import bootstrap

if __name__ == "__main__":
    bootstrap.enter(__file__)

import contextlib
import logging
import os
import sys
import warnings

import config
from infra.command_line import JSON_FLAG, read
from infra.commands.answer import FINISHED, STOPPED, USAGE, Answer, end
from infra.llm.provider import UnknownProvider
from infra.settings_reader import SettingsError
from infra.terminal.command_help import BEGIN
from infra.terminal.started_as import started_as


def main(arguments: list[str]) -> int:
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries say is not for the screen
    for ours in ("infra", "nki_sim"):
        logging.getLogger(ours).addHandler(logging.StreamHandler())
    warnings.simplefilter("ignore")
    if JSON_FLAG not in arguments:
        return _carried_out(arguments, Answer(None))
    answer = Answer(sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):
        return _carried_out(arguments, answer)


def _carried_out(arguments: list[str], answer: Answer) -> int:
    """What a command needs is loaded once there is one: `--help` and a wrong flag are answered without."""
    try:
        invocation = read(arguments)
        if not arguments and not {"run.kernel", "run.suite", "run.resume"} & invocation.origins.keys():
            print(started_as(BEGIN), end="")
            return FINISHED
        from infra.commands import by_name

        command = _serve_an_agent if invocation.command == "mcp" else by_name.COMMANDS[invocation.command]
        return by_name.carried_out(command, invocation, answer)
    except (SettingsError, UnknownProvider) as error:
        return end(error, USAGE, answer)
    except KeyboardInterrupt:
        return end("interrupted", STOPPED, answer)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `| head` is no error of ours
        return STOPPED


def _serve_an_agent(invocation: config.Invocation, answer: Answer) -> int:
    """Until it closes our standard input."""
    from infra.agents.server import serve

    serve(invocation)
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
