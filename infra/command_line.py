"""A command line, and the settings file and the variables beside it, understood: `read`. And what `--help` says.

Flags beat NKI_OPT_* variables, which beat the file; `infra.settings_reader` reads each of them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config import COMMANDS, GROUPS, LATEST, PROJECT, VERSION, Command, Invocation, from_given, without_absent
from infra.runs.default_folders import DATA_FOLDER, DATA_VARIABLE, is_installed
from infra.settings_reader import (
    Given,
    Parser,
    SettingsError,
    add_flags,
    closest,
    gone_now,
    read_document,
    read_environment,
    read_flags,
    unknown_flag,
)
from infra.terminal.command_help import COMMAND_HELP, DEMO, DEMO_PRESET, DEMO_TASK
from infra.terminal.started_as import program, started_as
from infra.toml_files import BadToml, read_toml

CONFIG_FILE = "nki-optimizer.toml"
CONFIG_VARIABLE = "NKI_OPT_CONFIG"
JSON_FLAG = "--json"
HTML_FLAG, HTML_SUFFIXES = "--html", (".html", ".htm")
WITH_JSON: tuple[Command, ...] = ("run", "doctor", "runs", "show", "explain", "evaluate", "menu", "apply", "model")
"""Commands that have a document for scripts (docs/scripts.md)."""
OF_A_KERNEL: tuple[Command, ...] = ("run", "explain", "init", "evaluate", "menu", "apply")
"""Commands behind which a kernel's file may stand."""
ON_HOSTS: tuple[Command, ...] = ("run", "doctor", "calibrate", "clean", "mcp", "model")
"""Commands behind which hosts may stand."""

_YES: Mapping[str, Any] = {"action": "store_true"}
OWN_FLAGS: Mapping[str, tuple[tuple[Command, ...], Mapping[str, Any], str]] = {
    HTML_FLAG: (("show",), {"nargs": "?", "const": "", "metavar": "FILE.html"},
                "write one page that opens offline [report.html in the run's folder]"),
    "--round": (("show", "apply"), {"type": int, "metavar": "N"},
                "that round, with what was planned and changed; of apply --from: the best kernel after it"),
    "--all": (("explain",), _YES, "every gap, and what every rule says of it, after the three sentences"),
    "--original": (("evaluate",), {"metavar": "FILE"},
                   "the kernel that this one was made from, which it is proved equal to where that can be"),
    "--tool": (("apply",), {"metavar": "NAME", "default": ""}, "which change, as the menu names it"),
    "--site": (("apply",), {"metavar": "KEY", "default": ""}, "where, as the menu names it"),
    "--from": (("apply",), {"metavar": "RUN-ID", "default": "", "dest": "from_run"},
               "the best kernel of a run in place of a change of the menu, with --round as it stood after that"),
    "--step": (("apply",), {"type": int, "metavar": "N"},
               "with --from: what the first N steps of a round make, as `show --round` lists them"),
    "--output": (("apply",), {"metavar": "NEW.py"}, "the file for the new kernel"),
    "--overwrite": (("apply",), _YES, "also where that file is there already"),
    "--dry-run": (("clean",), _YES, "say what would be removed, and remove nothing"),
}  # fmt: skip
"""Of one command or two and no settings: which those are, how argparse takes them, what they are for."""

_OFFERED = ["--config", JSON_FLAG, *(OWN_FLAGS.keys() - {"--round"}), "--version", "--help", "--help-all"]
"""For a flag that is none; `--rounds` is meant more often than `--round`."""

_WHERE_IT_KEEPS = f"""
Results are kept in `checkpoints` in the current folder; what was learned and calibrations, for all folders, in
${DATA_VARIABLE}/{DATA_FOLDER}, or without that variable in ~/.local/share/{DATA_FOLDER}.
Shell completion: `eval "$(nki-optimizer --print-completion bash)"` in ~/.bashrc; zsh and others likewise.
"""

_HOST = re.compile(r"(?:[^@\s/]+@)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::\d{1,5})?")


class _Parser(Parser):
    def format_help(self) -> str:
        return started_as(super().format_help())


def parser(prog: str = program()) -> argparse.ArgumentParser:
    made = _Parser(
        prog=prog,
        usage="%(prog)s [COMMAND] [KERNEL.py] [USER@HOST ...] [flags]",
        description=f"""\
Every flag. Each can stand in {CONFIG_FILE} too, as `rounds = 50` under `[run]`, or in the environment, as
NKI_OPT_ROUNDS=50. A flag beats the environment, which beats the file. `COMMAND --help` has those that matter.""",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100),
        allow_abbrev=False,
    )
    made.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    made.add_argument(JSON_FLAG, action="store_true", help=f"{_JSON_HELP}: of {', '.join(WITH_JSON)}")
    for flag, (commands, how, text) in OWN_FLAGS.items():
        made.add_argument(flag, help=f"of {' and '.join(commands)}: {text}", **how)
    made.add_argument("--help-all", action="help", help="this list")
    made.add_argument("--version", action="version", version=f"nki-optimizer {VERSION}")
    add_flags(made, GROUPS)
    return made


_JSON_HELP = "one JSON document on standard output, for scripts (docs/scripts.md)"
_CONFIG_HELP = f"settings file [{CONFIG_FILE} in the current folder]"


def command_help(command: str, prog: str = program()) -> str:
    """Every flag is legal there; those that matter are listed."""
    told = COMMAND_HELP[command]
    epilog = told.epilog + (_WHERE_IT_KEEPS if command == "run" and is_installed(PROJECT) else "")
    made = _Parser(
        prog=prog,
        usage=" ".join(filter(None, ("%(prog)s", "" if command == "run" else command, told.words, "[flags]"))),
        description=told.description,
        epilog=epilog,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=100),
    )
    made.add_argument("--help-all", action="store_true", help="every flag, those that are rarely given too")
    made.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    if command in WITH_JSON:
        made.add_argument(JSON_FLAG, action="store_true", help=_JSON_HELP)
    for flag, (commands, how, text) in OWN_FLAGS.items():
        if command in commands:
            made.add_argument(flag, help=text, **how)
    add_flags(made, {name: GROUPS[name] for name in told.groups}, told.settings)
    return made.format_help()


def read(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Invocation:
    """Understands a command line given in `folder` (the current one). Raises SettingsError, one line.

    Leaves by SystemExit(0) after printing, for --help and --version.
    """
    folder = folder or Path.cwd()
    if {"-h", "--help"} & set(arguments):
        print(command_help(next((word for word in arguments if word in COMMAND_HELP), "run")).rstrip())
        raise SystemExit(0)
    parsed, rest = parser().parse_known_args(list(arguments))
    for word in rest:
        if word.startswith("-"):
            raise unknown_flag(word, GROUPS, _OFFERED)
    is_demo, (command, words) = rest[:1] == [DEMO], _command(rest)
    given: dict[tuple[str, str], Given] = {}
    # A file in the folder that an agent works in is the agent's word as well, and this one is for the server's user.
    file = _settings_file(parsed.config, environment, folder, usual=command != "mcp")
    if file is not None:
        try:
            said = read_toml(file)
            given |= read_document(GROUPS, without_absent(said), file.name, file.parent)
            for key in [key for table in said.values() if isinstance(table, Mapping) for key in table]:
                if gone := gone_now(key):
                    print(f"{file.name}: {gone}", file=sys.stderr)
        except BadToml as error:
            raise SettingsError(str(error)) from None
    given |= read_environment(GROUPS, environment, folder, reserved=(CONFIG_VARIABLE,))
    flags = read_flags(GROUPS, parsed, folder)
    if parsed.json and command not in WITH_JSON:
        raise SettingsError(f"{JSON_FLAG}: `{command}` has no document; {', '.join(WITH_JSON)} have one")
    as_html = parsed.html is not None
    for flag, (commands, how, _) in OWN_FLAGS.items():
        is_given = getattr(parsed, how.get("dest", flag[2:].replace("-", "_"))) not in (None, "", [], False)
        if (is_given or flag == HTML_FLAG and as_html) and command not in commands:
            meant = ": did you mean --rounds?" if flag == "--round" and command == "run" else ""
            raise SettingsError(f"{flag}: only `{' and '.join(commands)}` has it, not `{command}`{meant}")
    if parsed.round is not None and command == "apply" and not parsed.from_run:
        raise SettingsError("--round: of a run: `apply --from RUN-ID --round N`")
    if parsed.step is not None and not parsed.from_run:
        raise SettingsError("--step: of a run: `apply --from RUN-ID --step N`")
    html = _page(parsed.html, words, folder) if parsed.html else None
    for name, value in (("task", DEMO_TASK), ("preset", DEMO_PRESET)) if is_demo else ():
        if flags.setdefault(("run", name), Given(value, DEMO)).value != value:
            raise SettingsError(f"{DEMO}: it has its own {name}: leave `{DEMO}` or --{name} away")
    run_id = words.pop(0) if words and command in ("show", "diff") else LATEST
    for kernel in [word for word in words if _is_a_kernel(word)] if command in OF_A_KERNEL else []:
        if ("run", "kernel") in flags:
            raise SettingsError(f"{kernel!r}: a kernel is named already: leave one of the two away")
        flags["run", "kernel"] = Given(folder / Path(kernel).expanduser(), "--kernel")
        words.remove(kernel)
    if words and command == "explain":
        run_id = words.pop(0)
        if ("run", "kernel") in flags:
            raise SettingsError(f"explain: {run_id!r} and a kernel: leave one of the two away")
    if words and command in ON_HOSTS:
        hosts = tuple(_host(_without_scheme(part)) for word in words for part in word.split(",") if part)
        flags.setdefault(("target", "host"), Given(hosts, "--host"))
    elif words:
        raise SettingsError(f"{words[0]!r} is one word too many for `{command}`: see `{command} --help`")
    given |= flags
    if (host := given.get(("target", "host"))) is not None:
        given["target", "host"] = replace(host, value=tuple(map(_without_scheme, host.value)))
    origins = {f"{g}.{n}": v.origin for (g, n), v in given.items()}
    original, output = (folder / Path(path).expanduser() if path else None for path in (parsed.original, parsed.output))
    return Invocation(
        command, from_given(given), run_id, parsed.json, parsed.dry_run, original, parsed.tool,
        parsed.site, output, parsed.overwrite, parsed.all, parsed.round, parsed.from_run, parsed.step, as_html, html,
        origins,
    )  # fmt: skip


def _settings_file(flag: str | None, environment: Mapping[str, str], folder: Path, usual: bool) -> Path | None:
    """`usual`: the one in the folder is read where none is named."""
    named = flag or environment.get(CONFIG_VARIABLE)
    if named:
        return folder / Path(named).expanduser()
    there = folder / CONFIG_FILE
    return there if usual and there.exists() else None


def _is_a_kernel(word: str) -> bool:
    return word.endswith(".py") and not word.startswith("ssh://")


def _command(words: list[str]) -> tuple[Command, list[str]]:
    if words and words[0] == DEMO:
        return "run", words[1:]
    if words and words[0] in COMMANDS:
        return next(command for command in COMMANDS if command == words[0]), words[1:]
    return "run", words


def _page(word: str, words: list[str], folder: Path) -> Path | None:
    """Where `show --html WORD` writes; a run's id in that place is one, since a page's name ends in .html."""
    if word.endswith(HTML_SUFFIXES):
        return folder / Path(word).expanduser()
    if words:
        raise SettingsError(f"{HTML_FLAG} {word}: a page's name ends in {HTML_SUFFIXES[0]}")
    words.append(word)
    return None


def _without_scheme(host: str) -> str:
    """`ssh://USER@HOST:PORT` is USER@HOST:PORT."""
    if not host.startswith("ssh://"):
        return host
    plain = host.removeprefix("ssh://").removesuffix("/")
    if "/" in plain:
        raise SettingsError(f"{host!r} is not a host: an ssh:// address ends after its port")
    return plain


_MEANT_AS_RUN = ("optimize", "optimise", "start")
_MEANT = {"help": "--help", "list": "runs", "ls": "runs", "test": "evaluate", "verify": "evaluate", "check": "evaluate"}


def _host(word: str) -> str:
    if word.endswith((".py", ".toml")) or "/" in word:
        flag = "--config" if word.endswith(".toml") else "--kernel"
        raise SettingsError(f"{word!r} is neither a host nor a kernel's file (NAME.py): for a file write {flag} {word}")
    if re.match(r"\d+x\d+", word):
        raise SettingsError(f"{word!r} is a tensor's shape: --shape names those of the kernel, in their order")
    if not _HOST.fullmatch(word):
        raise SettingsError(f"{word!r} is neither a host (USER@HOST) nor a command: see --help")
    if word in _MEANT_AS_RUN:
        raise SettingsError(f"{word!r} is no command: a kernel's file alone is enough (a host: --host {word})")
    nearest = _MEANT.get(word) or closest(word, (*COMMANDS, DEMO))
    if nearest and "." not in word and "@" not in word:
        raise SettingsError(f"{word!r}: did you mean {nearest}? (a host of that name: --host {word})")
    return word
