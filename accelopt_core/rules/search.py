"""Beam search over sequences of rules: loop trees are the states, simulated latencies order them.

A step that gains nothing by itself is gone on from too: what it opens may pay. States are told apart by the canonical
digest of their programs, and bounded by their number, never by the clock: what is found is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from accelopt_core.rules.base import Preparing, Rule, Site, applied
from nki_sim.canonical import digest
from nki_sim.capacity import check_capacity
from nki_sim.contested import contested
from nki_sim.errors import NkiError
from nki_sim.loop_ir.changes import Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.tree import LoopKernel
from nki_sim.machine import Machine
from nki_sim.opcodes import OPCODES
from nki_sim.operands import check_operands
from nki_sim.schedule import schedule


@dataclass(frozen=True)
class Price:
    """What a tree takes on the simulated machine."""

    latency_us: float
    digest: str
    contested: tuple[str, ...]
    """Contested facts that it rests on."""


class Pricer(Protocol):
    def __call__(self, kernel: LoopKernel) -> Price | None:
        """None for what an engine or the memory does not allow."""
        ...


class SimulatedPrices:
    """Prices by the machine model, in this process; each program once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[str, Price | None] = {}

    def __call__(self, kernel: LoopKernel) -> Price | None:
        program = expand(kernel)
        key = digest(program)
        if key not in self._known:
            try:
                for template in program.templates:
                    OPCODES[template.opcode].check(template)
                    check_operands(template, OPCODES[template.opcode].contract)
                check_capacity(program)
                timeline = schedule(program, self._machine)
                self._known[key] = Price(timeline.latency_us, key, contested((timeline,)))
            except NkiError:
                self._known[key] = None
        return self._known[key]


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    most_priced: int = 600
    width: int = 3
    """States that are gone on from, of those as many steps away."""
    patience: int = 3
    """Steps without a gain, after which it ends."""
    longest: int = 40
    """Steps, at most."""
    least_gain: float = 0.002
    """Of the latency: less is no gain."""


@dataclass(frozen=True)
class PricedSite:
    site: Site
    before_us: float
    after_us: float


@dataclass(frozen=True)
class State:
    kernels: tuple[LoopKernel, ...]
    """At each shape; the last one is priced."""
    price: Price
    path: tuple[PricedSite, ...] = ()


@dataclass
class Search:
    """Refusals are kept for whoever explains what stands in the way."""

    rules: Sequence[Rule]
    price: Pricer
    limits: Limits = Limits()
    allowed: frozenset[str] = frozenset()
    """Contested facts that a state may rest on."""

    def __post_init__(self) -> None:
        self.priced = 0
        self.refusals: dict[Site, str] = {}

    def best(self, kernels: Sequence[LoopKernel]) -> State:
        """The fastest state found, the start where none is faster, without steps that gain nothing.

        Raises Refused where the start itself has no price.
        """
        price = self.price(kernels[-1])
        if price is None:
            raise Refused("the simulated machine cannot run this kernel")
        start = best = State(tuple(kernels), price)
        seen = {price.digest}
        beam, without_gain = [self._prepared(start)], 0
        while beam and without_gain < self.limits.patience and len(beam[0].path) < self.limits.longest:
            children = [child for state in beam for child in self._children(state, seen)]
            beam = self._chosen(children)
            if beam and beam[0].price.latency_us < (1 - self.limits.least_gain) * best.price.latency_us:
                best, without_gain = beam[0], 0
            else:
                without_gain += 1
        return self._without_idle_steps(start, best)

    def _prepared(self, state: State) -> State:
        for rule in self.rules:
            if isinstance(rule, Preparing):
                state = self.after(state, rule, rule.preparation(state.kernels[-1])) or state
        return state

    def _children(self, state: State, seen: set[str]) -> Iterator[State]:
        for rule in self.rules:
            for site in rule.sites(state.kernels[-1]):
                if self.priced >= self.limits.most_priced:
                    return
                child = self.after(state, rule, site)
                if child is not None and child.price.digest not in seen:
                    seen.add(child.price.digest)
                    yield child

    def after(self, state: State, rule: Rule, site: Site) -> State | None:
        """None where the rule refuses at some shape, or an engine or the memory does."""
        try:
            kernels = applied(rule, state.kernels, site)
        except Refused as refused:
            self.refusals[site] = str(refused)
            return None
        self.priced += 1
        price = self.price(kernels[-1])
        if price is None or not self.allowed.issuperset(price.contested):
            return None
        return State(kernels, price, (*state.path, PricedSite(site, state.price.latency_us, price.latency_us)))

    def _chosen(self, children: Sequence[State]) -> list[State]:
        """The fastest of each rule first, then the fastest of all."""
        order = sorted(children, key=lambda state: state.price.latency_us)
        chosen: list[State] = []
        rules: set[str] = set()
        for state in order:
            name = state.path[-1].site.rule
            if name not in rules:
                rules.add(name)
                chosen.append(state)
        chosen = chosen[: self.limits.width]
        for state in order:
            if len(chosen) < self.limits.width and state not in chosen:
                chosen.append(state)
        return sorted(chosen, key=lambda state: state.price.latency_us)

    def _without_idle_steps(self, start: State, end: State) -> State:
        """Of states that tie the one of fewer steps."""
        at_most = (1 + self.limits.least_gain) * end.price.latency_us
        number = len(end.path) - 1
        while number >= 0:
            steps = [step.site for at, step in enumerate(end.path) if at != number]
            shorter = self._along(start, steps)
            if shorter is not None and shorter.price.latency_us <= at_most:
                end = shorter
            number -= 1
        return end

    def _along(self, start: State, sites: Sequence[Site]) -> State | None:
        """After those steps, wherever each one's place is now; None where one has none, or more than one."""
        by_name = {rule.name: rule for rule in self.rules}
        state = start
        for site in sites:
            rule = by_name[site.rule]
            same = [each for each in rule.sites(state.kernels[-1]) if each.what == site.what]
            there = [each for each in same if each.path == site.path] or same
            after = self.after(state, rule, there[0]) if len(there) == 1 else None
            if after is None:
                return None
            state = after
        return state
