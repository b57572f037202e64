"""What a model adds to the catalogue, and what it costs: the model alone, the catalogue alone, and both in turns.

    python benchmarks/model_in_loop.py run --folder DIR --arm model|catalogue|both [--rounds N] [-- FLAGS...]
    python benchmarks/model_in_loop.py table --folder DIR [--write docs/search.md]

`run` takes the tasks one after the other, at their smallest shape: those of NKIBench by name, others as
NAME=KERNEL.py:REFERENCE.py. The model is a mailbox, DIR/ARM/mail: who or what answers there. FLAGS go to the
orchestrator as they stand; another provider is named so. Said again, it goes on where it was. Memory begins empty and
is kept from task to task.

`table` counts, from the recorded exchanges, the tokens of each request (four characters one) and how many of them the
call before had at its beginning, in rounds 2 and later: what a cache by prefix may serve. Dollars are of PRICE.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from accelopt_core.ports import Usage
from benchmarks import search
from infra.llm.prices import load_prices
from infra.runs.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- model: begin -->", "<!-- model: end -->"
ARMS = ("catalogue", "model", "both")
TASKS = "gqa_full,mamba,bmm_softmax,lora"
ROUNDS = 4
CHARACTERS_PER_TOKEN = 4
PRICE = "claude-opus-5-5"


def run(folder: Path, arm: str, tasks: Sequence[str], rounds: int, flags: Sequence[str]) -> int:
    """The exit code of the first run that failed, or 0. A run that ended is not begun again."""
    own = folder.resolve() / arm
    mailbox = ("--mailbox", str(own / "mail"))
    proposer: Mapping[str, Sequence[str]] = {
        "catalogue": ("--provider", "catalogue"),
        "model": ("--provider", "mailbox", *mailbox),
        "both": ("--proposers", f"catalogue,mailbox:{own / 'mail'}"),
    }
    for task in tasks:
        name, _, files = task.partition("=")
        kernel, _, reference = files.partition(":")
        begin: tuple[str, ...] = (
            ("--kernel", kernel, "--problem", reference) if files else ("--task", name, "--preset", "small")
        )
        begin = (*begin, "--run-id", name, "--rounds", str(rounds), "--patience", str(rounds))
        if (own / "runs" / name / "manifest.json").exists():
            begin = ("--resume", name)
        command = [sys.executable, str(ROOT / "orchestrator.py"), *begin, "--checkpoints", str(own / "runs"),
                   "--memory", str(own / "memory.json"), "--view", "plain", *proposer[arm], *flags]  # fmt: skip
        if code := subprocess.run(command, cwd=ROOT).returncode:
            return code
    return 0


@dataclass(frozen=True)
class Asked:
    """What one run asked of its model; tokens by CHARACTERS_PER_TOKEN."""

    rounds: int
    calls: int
    repairs: int
    """Kernels that were written again after a failure, and answers that were asked for again."""
    given: int
    """Tokens of all requests."""
    written: int
    """Of all replies."""
    late: int
    """Tokens of the requests of rounds 2 and later ..."""
    kept: int
    """... and of them, those at the beginning of the call before."""
    before: int
    """Tokens of all requests that the call before had."""


def asked_in(run_folder: Path) -> Asked:
    rounds = calls = repairs = given = written = late = kept = before = 0
    previous, role_before = "", ""
    exchanges = RunFolder(run_folder).exchanges() if any((run_folder / "exchanges").glob("*.json")) else []
    for _, exchange in exchanges:
        if exchange.reply is None:
            continue
        request = exchange.request
        text = request.system + "".join(message.content for message in request.messages)
        common = len(os.path.commonprefix([text, previous]))
        role = request.role.value
        again = len(request.messages) > 1 or role == role_before == "executor"
        rounds += role == "planner" and not again
        calls, repairs = calls + 1, repairs + again
        given, written, before = given + len(text), written + len(exchange.reply.text), before + common
        if rounds > 1:
            late, kept = late + len(text), kept + common
        previous, role_before = text + exchange.reply.text, role
    tokens = (count // CHARACTERS_PER_TOKEN for count in (given, written, late, kept, before))
    return Asked(rounds, calls, repairs, *tokens)


def figures(run_folder: Path) -> tuple[float, float, float]:
    """µs of the input kernel and of the best, and the best's % of bound."""
    command = [sys.executable, str(ROOT / "orchestrator.py"), "show", run_folder.name, "--json", "--checkpoints",
               str(run_folder.parent)]  # fmt: skip
    shown = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    best = shown["best"]
    return shown["baseline"]["latency_us"], best["latency_us"], best["percent_of_peak"]


def report(folder: Path) -> list[str]:
    """Lines of Markdown. Raises SystemExit for a folder without runs."""
    prices = load_prices()
    lines = [
        "| kernel | proposes | µs before | µs after | % of bound | rounds | repairs | tokens a round | of them cached "
        "| $ a round |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    gains: dict[str, list[float]] = {arm: [] for arm in ARMS}
    totals: dict[str, list[Asked]] = {arm: [] for arm in ARMS}
    names = dict.fromkeys(each.parent.name for each in sorted(folder.glob("*/runs/*/manifest.json")))
    if not names:
        raise SystemExit(f"model_in_loop: no run in {folder}: begin one with `run`")
    for name in names:
        for arm in ARMS:
            run_folder = folder / arm / "runs" / name
            if not (run_folder / "manifest.json").exists():
                continue
            before, after, percent = figures(run_folder)
            asked = asked_in(run_folder)
            gains[arm].append(before / after)
            totals[arm].append(asked)
            cells = [name, arm, f"{before:,.1f}", f"{after:,.1f}", f"{percent:.0f}"]
            if asked.rounds:
                usage = Usage(asked.given - asked.before, asked.written, asked.before)
                usd = prices.cost_usd(PRICE, usage) or 0.0
                cells += [f"{asked.rounds}", f"{asked.repairs}", f"{(asked.given + asked.written) // asked.rounds:,}",
                          f"{100 * asked.kept / max(1, asked.late):.0f} %", f"{usd / asked.rounds:.3f}"]  # fmt: skip
            lines.append(f"| {' | '.join(cells + ['–'] * (10 - len(cells)))} |")
    for arm in ARMS:
        if gains[arm]:
            mean, asked_all = statistics.geometric_mean(gains[arm]), totals[arm]
            rounds = sum(each.rounds for each in asked_all)
            said = f"{arm}: {mean:.2f}x over {len(gains[arm])} kernels"
            if rounds:
                tokens = sum(each.given + each.written for each in asked_all) // rounds
                share = sum(each.kept for each in asked_all) / max(1, sum(each.late for each in asked_all))
                said += f", {tokens:,} tokens a round, {100 * share:.0f} % of rounds 2 and later in the call before"
            lines += ["", said]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--arm", choices=ARMS)
    parser.add_argument("--tasks", default=TASKS, metavar="TASK,...")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table there")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    if options.command == "run":
        if options.arm is None:
            parser.error("run: name an --arm")
        return run(options.folder, options.arm, options.tasks.split(","), options.rounds, given[cut + 1 :])
    lines = report(options.folder)
    print("\n".join(lines))
    if options.write is not None:
        search.write(options.write, lines, BEGIN, END)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
