"""What a planner that is a model may take off a menu instead of describing a change of its own.

`accelopt_core.catalogue.menu` is the menu of the built-in rules; nothing here knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from accelopt_core.candidate import Plan
from accelopt_core.proposer import RoundContext


@dataclass(frozen=True)
class Offer:
    """One change that needs no model to write it."""

    tool: str
    site: str
    """Where in the kernel; with `tool` it names the change."""
    change: str
    """In one line."""
    why_faster: str
    gain_us: float
    """Predicted, over the kernel that the menu was made for."""
    tie: bool = False
    """Too little for the prediction to say that it gains at all."""


@dataclass(frozen=True)
class Blocked:
    """A gap of the kernel, and what keeps the tools from closing it."""

    gap: str
    """With its price and its lines."""
    reasons: tuple[str, ...]
    """One line each, the most telling first."""


@dataclass(frozen=True)
class Offers:
    """What the planner is shown for one kernel."""

    offers: tuple[Offer, ...] = ()
    """Best first; of gains that differ by less than `tie_us`, the simpler kernel's."""
    tools: Mapping[str, str] | None = None
    """What each tool of `offers` does, in a sentence."""
    not_priced: int = 0
    """Legal sites that the time did not suffice for."""
    note: str = ""
    """Why there is no menu, if so."""
    tie_us: float = 0.0
    """Predicted gains closer than this are not known to be in the right order."""
    blocked: tuple[Blocked, ...] = ()
    """The larger gaps, the most valuable first."""
    left_out: int = 0
    """Priced changes that are not among `offers`."""


class Menu(Protocol):
    def offers(self, context: RoundContext) -> Offers:
        """The best untried, unbanned changes to the parent."""
        ...

    def tool_plan(self, answer: Mapping[str, Any], context: RoundContext, plan_id: str) -> Plan:
        """The plan of an answer that names a tool. Raises MalformedAnswer with the complaint for the model."""
        ...

    def carried_out(self, context: RoundContext, plan: Plan) -> str | None:
        """The parent after a plan of this menu; None for any other plan. Raises ToolFailed."""
        ...


class ToolFailed(Exception):
    """The change of a menu's plan cannot be made to this kernel; the message says why."""
