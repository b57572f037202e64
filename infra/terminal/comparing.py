"""What a run's several proposers and models came to beside each other, and what it owes to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from accelopt_core.learning.usage import Use
from accelopt_core.ports import Role
from infra.llm.ledger import Totals
from infra.terminal.wording import cost, duration, one_line, tokens
from ka_extensions.bandit import Pull, track_of

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
