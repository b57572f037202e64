"""What a run came to: the closing table, the difference to the input, the list of all runs.

All of it is made from the run's folder, so that `show` says the same a month later as the run did when it ended.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelopt_core.candidate import Attempt, Candidate
from accelopt_core.evaluation import NEEDS_A_DEVICE, CompilersOwn, Measured, between, faulty_inputs, timed
from accelopt_core.explanation import Explanation
from accelopt_core.learning.experiences import Use, uses_of
from accelopt_core.loop.choosing import pulls_of
from accelopt_core.optimization_memory import Experience
from accelopt_core.ports import Role
from infra.journal import JournalError
from infra.llm.ledger import Totals, totals_by
from infra.runs.lineage import Lineage
from infra.runs.mended_links import MendedLink, in_words
from infra.runs.run_folder import Manifest, MeasuredKernel, RunFolder, run_ids
from infra.settings_reader import SettingsError
from infra.terminal import wording
from infra.terminal.family_tree import tree_lines
from infra.terminal.next_steps import Ended, next_steps, print_next
from infra.terminal.started_as import started_as
from infra.terminal.tables import print_what_is_left
from infra.terminal.wording import LatencyRow, cost, duration, latency_table, one_line, tokens
from ka_extensions.attempt_history import last_of_rounds
from ka_extensions.bandit import Pull, track_of
from ka_extensions.outcome import Outcome
from ka_extensions.residuals import kendall_tau_b, regret_percent
from nki_sim.timing import ties


@dataclass(frozen=True)
class RunSummary:
    manifest: Manifest
    folder: RunFolder
    baseline: MeasuredKernel | None
    """None: the run ended before its input kernel was measured."""
    best: MeasuredKernel | None
    counterpart: MeasuredKernel | None
    """What stands beside the best (`SearchState.counterpart`); None where nothing does."""
    attempts: tuple[Attempt, ...]
    model_calls: Totals
    under_way: bool
    """Some process is at work on it now."""
    seconds_used: float = 0.0
    explanation: Explanation | None = None
    """Why the gaps of the best kernel are still there; None where the run did not come to that."""
    calls: Calls = field(default_factory=dict)
    """Of models."""
    proposers: tuple[str, ...] = ()
    """Those that took turns."""
    shown: tuple[Experience, ...] = ()
    """What any round was shown of memory."""
    links: tuple[MendedLink, ...] = ()
    """To hosts, that dropped and came back."""
    compilers_own: CompilersOwn | None = None
    """What the compiler makes of the reference by itself; None where nobody asked it."""

    @property
    def improved(self) -> bool:
        return self.best is not None and self.baseline is not None and self.best.candidate.id != (
            self.baseline.candidate.id
        )  # fmt: skip

    @property
    def tied(self) -> tuple[str, ...]:
        """Kernels that are right and that simulated latencies cannot tell from the best: those that differ from it by
        less than a tie (`nki_sim.timing.ties`), the fastest first. None where a device took the latencies."""
        if self.best is None or self.baseline is None or not self.best.result.simulated:
            return ()
        best_us, known = self.best.result.latency_us, {self.baseline.candidate.id: self.baseline.result.latency_us}
        known |= {
            each.id: each.latency_us
            for each in self.attempts
            if each.latency_us is not None and each.last_check is None
        }
        alike = [name for name, us in known.items() if abs(us - best_us) < ties.shipped().within * max(us, best_us)]
        return tuple(sorted((name for name in alike if name != self.best.candidate.id), key=lambda name: known[name]))

    @property
    def speedup_basis_us(self) -> float:
        """The input kernel's latency: as it was timed beside the best in one process, or else as it was at first."""
        assert self.baseline is not None and self.best is not None
        incumbent = self.best.result.incumbent
        if incumbent is not None and incumbent.content_hash == self.baseline.candidate.content_hash:
            return incumbent.latency_us
        return self.baseline.result.latency_us

    @property
    def lineage(self) -> Lineage | None:
        """Empty where the input kernel was never measured."""
        if self.baseline is None or self.best is None:
            return None
        dropped = [attempt.id for attempt in self.attempts if attempt.last_check is not None]
        return Lineage(self.baseline.result.latency_us, self.attempts, self.best.candidate.id, dropped)

    @property
    def nothing_faster(self) -> str:
        """What is said of a run that found no faster kernel."""
        if self.counterpart is not None:
            return "nothing faster that is not contested"
        exact = self.folder.config().get("verification", {}).get("exact", False)
        return "nothing faster is bit-identical" if exact else "nothing faster was found"

    @property
    def status(self) -> str:
        if self.manifest.status == "running" and not self.under_way:
            return "interrupted: its process is gone"
        status, reason = self.manifest.status, self.manifest.reason
        return status if reason in ("", status) else f"{status}: {reason}"

    @property
    def seconds(self) -> float:
        """At work, all its sessions together; of a run of an older version, from its creation to its last word."""
        if self.seconds_used:
            return self.seconds_used
        begin, end = (datetime.fromisoformat(text) for text in (self.manifest.created, self.manifest.updated))
        return (end - begin).total_seconds()


def summary_of(folder: RunFolder) -> RunSummary:
    """Raises JournalError when a file of the run is missing or damaged."""
    totals, entries = Totals(), folder.model_calls()
    for entry in entries:
        totals = totals.plus(entry)
    manifest = folder.manifest()
    took_turns = dict.fromkeys(draw.proposer for turn in folder.turns() for draw in turn.draws)
    return RunSummary(
        manifest, folder, folder.baseline(), folder.winner(), folder.best_counterpart(), folder.attempts(), totals,
        folder.is_held, folder.seconds_used(), folder.explanation(), totals_by(entries), tuple(sorted(took_turns)),
        folder.all_shown(), folder.mended_links(),
        NEEDS_A_DEVICE if manifest.target.simulated else folder.compilers_own(),
    )  # fmt: skip


# --- one run --------------------------------------------------------------------------------------


def print_report(console: Console, summary: RunSummary) -> None:
    """All that `show` says of a run: what it reached beside the bound, what it tried, what is left; its end last."""
    manifest = summary.manifest
    if summary.baseline is not None and summary.best is not None:
        console.print()
        remark = summary.best.candidate.id if summary.improved else summary.nothing_faster
        if summary.speedup_basis_us != summary.baseline.result.latency_us:
            remark += f", beside the input at {wording.latency(summary.speedup_basis_us)}"
        style = "bold green" if summary.improved else "bold"
        rows = [
            LatencyRow("input", summary.baseline.result),
            LatencyRow("best", summary.best.result, remark, style, summary.speedup_basis_us),
        ]
        baseline = summary.baseline.result
        if (other := summary.counterpart) is not None:
            rows.append(wording.counterpart_row(other.result, other.candidate.id, baseline))
        console.print(latency_table(rows, baseline, console.width, ascii_only=console.options.ascii_only))
        on_a_device = manifest.target.calibration if baseline.simulated else None
        notes = wording.explained(baseline, summary.best.result)
        guide = simulator_line(summary.attempts)
        for note in [*notes, *([on_a_device.line] if on_a_device is not None else []), *([guide] if guide else [])]:
            console.print(Text(note, style="dim"), soft_wrap=True)
    console.print()
    for name, text in _facts(summary):
        # Paths are copied from here: they are never broken over two lines.
        console.print(Text.assemble((f"{name:9}", "dim"), one_line(text)), soft_wrap=True)
    if summary.proposers and summary.baseline is not None:
        console.print()
        pulls = pulls_of(summary.attempts, summary.baseline.result)
        _print_whole(console, proposers_table(summary.proposers, pulls, summary.calls))
    if len(summary.calls) > 1:
        console.print()
        _print_whole(console, models_table(summary.calls))
    if summary.attempts:
        console.print()
        print_rounds(console, summary.attempts)
        _print_chart(console, summary)
        lineage = summary.lineage
        if lineage is not None and len(lineage.tree()) > 1:
            console.print()
            for line in tree_lines(lineage, ascii_only=console.options.ascii_only):
                console.print(line, soft_wrap=True)
    explanation = summary.explanation
    if explanation is not None and summary.best is not None and explanation.kernel == summary.best.candidate.id:
        console.print()
        print_what_is_left(console, explanation, f"python3 orchestrator.py explain {manifest.run_id} --all")
    print_end(console, summary)


def print_end(console: Console, summary: RunSummary) -> None:
    """The end of a run: how it ended, what must be said of its numbers, its result in three lines, what to do next."""
    manifest, lines = summary.manifest, conclusion(summary)
    console.print()
    console.print(
        Text.assemble((manifest.task, "bold"), f" {manifest.shape} on {manifest.target.name}: {summary.status}"),
        soft_wrap=True,  # addresses in it are copied
    )
    for line in _model_failures(summary.attempts):
        console.print(Text(one_line(line), style="red"), soft_wrap=True)
    if summary.baseline is not None and summary.best is not None:
        for note in wording.warnings(summary.baseline.result, summary.best.result):
            console.print(Text(note, style="dim"), soft_wrap=True)
    for number, line in enumerate(lines):
        style = ("bold green" if summary.improved else "bold") if number == 0 else ""
        console.print(Text(one_line(line), style=style), soft_wrap=True)
    steps = () if summary.under_way else next_steps(_ended(summary))
    print_next(console, steps)


def conclusion(summary: RunSummary) -> tuple[str, ...]:
    """What the run came to, in three lines: how much faster, how it is known to be right, where the kernel lies; in
    one more the kernel that stands beside it, if there is one. None where the input kernel was never measured."""
    if summary.baseline is None or summary.best is None:
        return ()
    best, before_us = summary.best.result, summary.speedup_basis_us
    on = f"{best.label}{summary.manifest.target.machine}"
    if best.likely is not None:
        on += f"; on a device likely {between(best.likely)} µs"
        before = summary.baseline.result.likely
        if summary.improved and before is not None and best.likely.high_us >= before.low_us:
            on += ", where it may be no faster"
    came_to = f"{best.latency_us:,.1f} µs: {summary.nothing_faster}"
    if summary.improved:
        faster = wording.speedup(before_us, best.latency_us)
        came_to = f"{before_us:,.1f} -> {best.latency_us:,.1f} µs: {faster} faster"
    drawn = re.search(r": (\d+ seeds?[^;]*), worst", best.checks[-1]) if best.checks else None
    tested = f" on {drawn[1]}" if drawn is not None and best.rests_on.endswith("tested") else ""
    if best.shared_faults:
        wrong = ", ".join(faulty_inputs(best.shared_faults)) or "some"
        tested += f"; NOT right on inputs {wrong}, where the input kernel is wrong too"
    kernel = shown_path(summary.folder.best_kernel)
    if "written for these shapes" in summary.best.candidate.source:
        kernel += " (for these shapes alone; --shapes FILE.toml: for several)"
    lines = [f"{came_to} ({on})", f"verified: {best.rests_on}{tested}", f"kernel: {kernel}"]
    if (other := summary.counterpart) is not None:
        row = wording.counterpart_row(other.result, other.candidate.id, summary.baseline.result)
        faster = wording.speedup(before_us, other.result.latency_us)
        path = shown_path(summary.folder.counterpart_kernel)
        lines.append(f"{row.name}: {timed(other.result)}, {faster}: {row.remark}: {path}")
    return tuple(lines)


def _print_chart(console: Console, summary: RunSummary) -> None:
    if summary.baseline is None:
        return
    baseline = summary.baseline.result
    width, ascii_only = min(console.width, 100), console.options.ascii_only
    lines = chart_lines(baseline.latency_us, summary.attempts, width, ascii_only=ascii_only)
    if lines:
        console.print()
        console.print(Text(f"{baseline.label}latency over rounds, and the fastest so far", style="dim"), soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


def _ended(summary: RunSummary) -> Ended:
    done = max((attempt.round for attempt in summary.attempts), default=0)
    folder, measured = summary.folder, summary.baseline is not None
    return Ended(_as_it_stands(summary), folder.config(), folder.path.parent, done, measured)


def _as_it_stands(summary: RunSummary) -> Manifest:
    gone = summary.manifest.status == "running"
    return replace(summary.manifest, status="interrupted") if gone else summary.manifest


def print_line(console: Console, summary: RunSummary) -> None:
    """One run in one line, among others."""
    text = f"{summary.manifest.task:24}{summary.status}"
    if summary.baseline is not None and summary.best is not None:
        before, now = summary.baseline.result, summary.best.result
        label = before.label if before.caveat else ""
        text = (
            f"{summary.manifest.task:24}{label}{wording.latency(before.latency_us)} -> {timed(now)}, "
            f"{before.percent_of_peak:.1f} -> {now.percent_of_peak:.1f} % of peak in "
            f"{len({attempt.round for attempt in summary.attempts})} rounds, {wording.duration(summary.seconds)}; "
            f"{summary.status}"
        )
    console.print(Text(wording.printable(text)), soft_wrap=True)


LEAST_TIMED = 3
"""Kernels that were predicted and timed, to say anything of how they were ordered."""


def simulator_line(attempts: Sequence[Attempt]) -> str | None:
    """How good a guide the simulator was on the device that timed these; None where too few were timed on both."""
    timed_on_both = [
        (attempt.predicted.latency_us, attempt.measured.latency_us)
        for attempt in attempts
        if attempt.predicted is not None and attempt.measured is not None
    ]
    if len(timed_on_both) < LEAST_TIMED:
        return None
    tau = kendall_tau_b(timed_on_both)
    order = f"tau {tau:.2f}" if tau is not None else "no order to compare"
    regret = regret_percent(timed_on_both, 1)
    cost = f"{regret:.1f} % slower than the best measured" if regret > 0 else "the best measured"
    return f"the simulator on this device: {order} over {len(timed_on_both)} kernels, its first choice is {cost}"


def _facts(summary: RunSummary) -> list[tuple[str, str]]:
    rounds = len({attempt.round for attempt in summary.attempts})
    calls = summary.model_calls
    money = f"none: no model calls ({summary.manifest.proposer})"
    if calls.calls:
        money = f"{wording.cost(calls.cost_usd, calls.unpriced_calls)}; tokens: {wording.tokens(calls.usage)}"
        if calls.by_text:
            money += f"; {calls.by_text} of {calls.calls} calls reported no usage and are counted by their texts"
    facts = [
        ("rounds", f"{rounds}: {wording.tally(summary.attempts)}"),
        ("cost", money),
        ("time", wording.duration(summary.seconds)),
    ]
    if summary.baseline is not None and summary.best is not None:
        facts.insert(0, ("beside", _baselines(summary.baseline.result, summary.best.result, summary.compilers_own)))
    if summary.tied:
        least = f"predictions that differ by less than {100 * ties.shipped().within:.1f} %"
        facts.append(("ties", f"{', '.join(summary.tied)} with the best: {least} are not told apart"))
    uses, others = uses_of(summary.attempts, summary.shown)
    if uses:
        facts.append(("memory", memory_line(uses, others)))
    facts += [("link", line) for line in in_words(summary.links)]
    return [*facts, ("run", shown_path(summary.folder.path))]


def _baselines(before: Measured, best: Measured, own: CompilersOwn | None) -> str:
    """The three that a kernel is held beside, in one line: the input kernel, the bound, the compiler's own."""
    if own is None or own.latency_us is None:
        by_itself = own.said if own is not None else "not asked"
    else:
        faster = wording.speedup(own.latency_us, best.latency_us)
        by_itself = f"{wording.latency(own.latency_us)} ({faster}; {own.said})"
    bound = wording.latency(wording.bounds_of([before, best]).peak_us)
    return f"input {wording.latency(before.latency_us)}, bound {bound}, compiler's own: {by_itself}"


def shown_path(path: Path) -> str:
    """Relative where it lies below the current folder: shorter, and still right to copy."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def print_rounds(console: Console, attempts: Sequence[Attempt]) -> None:
    """One line per round, or per lane of it: its last attempt, and the kernel it changed."""
    last = {(attempt.round, attempt.lane): attempt for attempt in attempts}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("latency", justify="right", no_wrap=True)
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True, style="dim")
    table.add_column("change", no_wrap=True)
    ascii_only = console.options.ascii_only
    columns = max(20, min(console.width, 120) - 55)
    for (number, lane), attempt in sorted(last.items()):
        words = wording.outcome_words(attempt.outcome)
        mark = words.plain_mark if ascii_only else words.mark
        change = attempt.title or attempt.summary
        table.add_row(
            f"{number}{lane}", Text(f"{mark} {words.label}", style=words.style),
            wording.latency(attempt.latency_us),
            str(attempt.number), attempt.parent_id, Text(one_line(change, columns, ascii_only=ascii_only)),
        )  # fmt: skip
    console.print(table)


def _model_failures(attempts: Sequence[Attempt]) -> list[str]:
    """Whole, and each once."""
    said = [attempt.summary for attempt in attempts if attempt.outcome is Outcome.MODEL_FAILED]
    return [f"model failed: {line}" for line in dict.fromkeys(said)]


def kernel_after(summary: RunSummary, round: int | None) -> Candidate:
    """The best kernel as it stood after a round, at the end without one; the input's where nothing was faster by then.

    Raises SettingsError where no kernel was measured.
    """
    if summary.baseline is None or summary.best is None:
        raise SettingsError(f"run {summary.manifest.run_id} ended before its input kernel was measured")
    if round is None:
        return summary.best.candidate
    _check_round(summary, round, first=0)
    stood = summary.baseline.candidate
    for each in summary.attempts:
        improved = each.outcome is Outcome.IMPROVED and each.last_check is None
        if each.round <= round and improved and each.candidate is not None:
            stood = each.candidate
    return stood


def kernel_of(summary: RunSummary, candidate: str) -> str:
    """The text of an attempt's kernel by its id, or else of the input's."""
    sources = {each.id: each.candidate.source for each in summary.attempts if each.candidate is not None}
    assert summary.baseline is not None
    return sources.get(candidate, summary.baseline.candidate.source)


def _check_round(summary: RunSummary, number: int, first: int = 1) -> None:
    done = max((each.round for each in summary.attempts), default=0)
    if not first <= number <= done:
        input_kernel = "" if first else ", and its input is that of round 0"
        raise SettingsError(f"round {number}: run {summary.manifest.run_id} has rounds 1 to {done}{input_kernel}")


def print_round(console: Console, summary: RunSummary, number: int) -> None:
    """What one round tried, each with its plan, what became of it, and its change. Raises SettingsError."""
    _check_round(summary, number)
    tried = [each for each in summary.attempts if each.round == number]
    sources = {each.id: each.candidate.source for each in summary.attempts if each.candidate is not None}
    if summary.baseline is not None:
        sources[summary.baseline.candidate.id] = summary.baseline.candidate.source
    for each in tried:
        words = wording.outcome_words(each.outcome)
        head = Text.assemble((each.id, "bold"), f" from {each.parent_id}: ", (words.label, words.style))
        console.print(head.append(f"  {wording.latency(each.latency_us)}"), soft_wrap=True)
        for line in filter(None, (each.title, each.plan.rationale if each.plan is not None else "", each.summary)):
            console.print(Text(f"  {one_line(line)}"), soft_wrap=True)
        before, after = sources.get(each.parent_id, "").splitlines(), sources.get(each.id, "").splitlines()
        for line in difflib.unified_diff(before, after, each.parent_id, each.id, lineterm="") if after else ():
            console.print(Text(wording.printable(line), style=_diff_style(line)), soft_wrap=True)


# --- the difference -------------------------------------------------------------------------------


def diff_of(summary: RunSummary) -> list[str]:
    """Unified, from the input to the best kernel; empty when they are the same or there is none."""
    if summary.baseline is None or summary.best is None:
        return []
    before, after = summary.baseline.candidate.source, summary.best.candidate.source
    names = (shown_path(Path(summary.manifest.kernel)), shown_path(summary.folder.best_kernel))
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))


def print_diff(console: Console, summary: RunSummary) -> None:
    """Coloured on a terminal; where there is none, why."""
    lines = diff_of(summary)
    if not lines:
        why = "its input kernel was never measured" if summary.baseline is None else summary.nothing_faster
        console.print(Text(f"run {summary.manifest.run_id}: no difference: {why}", style="dim"), soft_wrap=True)
    for line in lines:
        console.print(Text(wording.printable(line), style=_diff_style(line)), soft_wrap=True)


def write_diff(summary: RunSummary) -> Path | None:
    """best.diff in the run's folder; None when there is no difference. Raises JournalError."""
    lines = diff_of(summary)
    return summary.folder.keep("best.diff", "\n".join(lines) + "\n") if lines else None


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


# --- all runs -------------------------------------------------------------------------------------


def print_runs(console: Console, checkpoints: Path) -> None:
    """Newest first. A run whose files are damaged is listed with what is wrong. Raises JournalError."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("run", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("rounds", "best", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("on", no_wrap=True)
    known = run_ids(checkpoints)
    damage, refused = [], 0
    for run_id in reversed(known):
        try:
            summary = summary_of(RunFolder(checkpoints / run_id))
        except JournalError as error:
            table.add_row(run_id, Text("damaged", style="red"), "-", "-", "-", "see below")
            damage.append(str(error))
            continue
        if summary.folder.is_failed_start:
            refused += 1
            continue
        table.add_row(*_run_row(run_id, summary))
    if not known:
        console.print(f"no run in {checkpoints} yet: {started_as('./run.sh')} starts one")
        return
    _print_whole(console, table)
    if refused:
        console.print(f"{refused} more failed before {'its' if refused == 1 else 'their'} input kernel was measured")
    for line in damage:
        console.print(Text(one_line(line), style="red"), soft_wrap=True)


def _print_whole(console: Console, table: Table) -> None:
    """Wider than a narrow window or a pipe, rather than names that cannot be copied."""
    table.width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.print(table, crop=False)


def _run_row(run_id: str, summary: RunSummary) -> list[str]:
    best = summary.best.result if summary.best else None
    basis = summary.speedup_basis_us if summary.baseline and summary.best else None
    return [
        run_id,
        "under way" if summary.under_way else summary.status.split(":")[0],
        str(len({attempt.round for attempt in summary.attempts})),
        timed(best) if best is not None else "-",
        wording.speedup(basis, best.latency_us) if basis is not None and best is not None else "-",
        summary.manifest.target.name,
    ]


MOST_NAMED = 5
"""Experiences that are named; of the others only how many."""

Calls = Mapping[tuple[str, str], Mapping[Role, Totals]]
"""By proposer and model, then by role."""


def proposers_table(names: Sequence[str], pulls: Sequence[Pull], calls: Calls) -> Table:
    """One line for each proposer, in the order in which they were named: its tries, its wins, what it cost."""
    table = _table("proposer", "tries", "wins", "speed-up", "ln per try", "cost", "time")
    for name in names:
        own = [pull for pull in pulls if pull.proposer == name]
        track = track_of(own)
        paid = [each for (whose, _), roles in calls.items() if whose == name for each in roles.values()]
        usd, unpriced = sum(each.cost_usd for each in paid), sum(each.unpriced_calls for each in paid)
        table.add_row(
            one_line(name, 48), str(len(own)), f"{track.wins:.0f}", f"{track.speedup:.2f}x" if own else "-",
            f"{track.log_speedup / len(own):.3f}" if own else "-", cost(usd, unpriced) if paid else "-",
            duration(track.seconds) if own else "-",
        )  # fmt: skip
    return table


def models_table(calls: Calls) -> Table:
    """One line for each model: its calls and what they cost, in all and by role."""
    table = _table("model", "calls", "failed", "tokens", "cost", *(role.value for role in Role))
    for (whose, model), roles in calls.items():
        total = Totals()
        for each in roles.values():
            total = total.join(each)
        name = f"{model} ({whose})" if whose and model not in whose else model
        table.add_row(
            one_line(name, 48), str(total.calls), str(total.failed), tokens(total.usage),
            cost(total.cost_usd, total.unpriced_calls),
            *(_by_role(roles[role]) if role in roles else "-" for role in Role),
        )  # fmt: skip
    return table


def memory_line(uses: Sequence[Use], others: int) -> str:
    """`"Widen DMA rows" helped 2 of 3; 4 more were shown`."""
    said = [f'"{one_line(use.experience.title, 60)}" helped {use.helped} of {use.used}' for use in uses[:MOST_NAMED]]
    if len(uses) > MOST_NAMED:
        rest = uses[MOST_NAMED:]
        helped, used = sum(use.helped for use in rest), sum(use.used for use in rest)
        said.append(f"{len(rest)} more helped {helped} of {used}")
    if others:
        said.append("1 more was shown" if others == 1 else f"{others} more were shown")
    return "; ".join(said)


def _by_role(total: Totals) -> str:
    return f"{total.calls}, {cost(total.cost_usd, total.unpriced_calls)}"


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, name in enumerate(names):
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    return table


HEIGHT = 7
"""Lines between the fastest and the slowest."""
LEAST_MEASURED = 2
"""Tries with a latency, to be worth a picture."""
COLUMN = 3
"""Characters for each round, where there is room."""
_EDGE = 14
"""Characters before the first column."""


def chart_lines(
    baseline_us: float, attempts: Sequence[Attempt], width: int, *, ascii_only: bool = False
) -> tuple[Text, ...]:
    """At most `width` characters wide: of more rounds the newest. None where too little was measured.

    Round 0 is the input kernel. Of several lanes the fastest is drawn; what has no latency stands on the axis.
    """
    rounds = [(0, baseline_us, None), *(_fastest(lanes) for lanes in last_of_rounds(attempts))]
    if sum(us is not None for _, us, _ in rounds) <= LEAST_MEASURED:
        return ()
    best = _best_so_far([us for _, us, _ in rounds], [outcome for _, _, outcome in rounds])
    columns = max(1, width - _EDGE)
    column = next((each for each in (COLUMN, 2) if len(rounds) * each <= columns), 1)
    shown = slice(max(0, len(rounds) - columns // column), None)
    rounds, best = rounds[shown], best[shown]
    known = [us for _, us, _ in rounds if us is not None] + best
    low, high = min(known), max(known)
    if high <= low:
        return ()

    def row(us: float) -> int:
        return round((high - us) / (high - low) * (HEIGHT - 1))

    flat, upright, corner = ("-", "|", "+") if ascii_only else ("─", "│", "└")
    cells = [[(" ", "")] * (column * len(rounds)) for _ in range(HEIGHT)]
    axis = [(flat, "dim")] * (column * len(rounds))
    for number, ((_, us, outcome), best_us) in enumerate(zip(rounds, best)):
        at = number * column
        for place in range(at, at + column):
            cells[row(best_us)][place] = (flat, "green dim")
        words = wording.outcome_words(outcome) if outcome is not None else None
        mark = (words.plain_mark if ascii_only else words.mark) if words is not None else "o"
        spot = (mark, words.style if words is not None else "bold")
        if us is None:
            axis[at] = spot
        else:
            cells[row(us)][at] = spot
    lines = []
    for number, line in enumerate(cells):
        label = {0: wording.latency(high), HEIGHT - 1: wording.latency(low)}.get(number, "")
        lines.append(Text.assemble((f"{label:>{_EDGE - 2}} {upright}", "dim"), *line))
    lines.append(Text.assemble((f"{'':{_EDGE - 2}} {corner}", "dim"), *axis))
    first, last = str(rounds[0][0]), str(rounds[-1][0])
    under = f"{first}{last:>{max(0, column * (len(rounds) - 1) + 1 - len(first))}}  round"
    lines.append(Text(f"{'':{_EDGE}}{under}", style="dim"))
    return tuple(lines)


def _fastest(lanes: Sequence[Attempt]) -> tuple[int, float | None, Outcome | None]:
    """Of a round: its number, and latency and outcome of its fastest lane, or of its first where none has one."""
    timed = [attempt for attempt in lanes if attempt.latency_us is not None]
    chosen = min(timed, key=lambda attempt: attempt.latency_us or 0.0) if timed else lanes[0]
    return chosen.round, chosen.latency_us, chosen.outcome


def _best_so_far(latencies: Sequence[float | None], outcomes: Sequence[Outcome | None]) -> list[float]:
    best: list[float] = []
    for us, outcome in zip(latencies, outcomes):
        better = us is not None and (outcome is None or outcome is Outcome.IMPROVED)
        best.append(min([us, *best[-1:]]) if better and us is not None else best[-1])
    return best
