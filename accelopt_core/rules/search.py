"""Search over sequences of rules: loop trees are the states, simulated latencies order them.

A way down from a state takes, sweep by sweep, all the steps that gain together. Work is moved between engines, or ahead
of other work, last: what else is done decides which engines are busy, and when. A step that gains nothing by itself
opens a way of its own: what it leads to may pay. States are told apart by the canonical digest of their programs, and
bounded by their number, never by the clock: what is found is the same on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from accelopt_core.rules.base import Balance, Last, Preparing, Rule, Site, applied
from nki_sim.canonical import digest
from nki_sim.capacity import check_capacity
from nki_sim.contested import contested
from nki_sim.errors import NkiError
from nki_sim.loop_ir.changes import Kernels, Refused
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
    busy_us: Mapping[str, float] = field(default_factory=dict)
    """By engine."""
    rows: int = 0
    """Instructions of its program."""


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
                self._known[key] = Price(
                    timeline.latency_us, key, contested((timeline,)), timeline.resource_us, len(program)
                )
            except NkiError:
                self._known[key] = None
        return self._known[key]


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    most_priced: int = 600
    most_rows: int = 16_000_000
    """Instructions of the programs that are priced, together."""
    patience: int = 12
    """Ways down that gain nothing, one after the other, after which it ends."""
    longest: int = 40
    """Steps, at most."""
    least_gain: float = 0.002
    """Of the latency: less is no gain."""
    enough_us: float = 0.0
    """A latency that is not searched below: the machine allows hardly less."""


@dataclass(frozen=True)
class PricedSite:
    site: Site
    before_us: float
    after_us: float | None
    """None: an engine or the memory does not allow it."""


@dataclass(frozen=True)
class State:
    kernels: Kernels
    """At each shape; the last one is priced."""
    price: Price
    path: tuple[PricedSite, ...] = ()


def _rule_of(state: State) -> str:
    return state.path[-1].site.rule


def _gain_of_last_step(state: State) -> float:
    """Least for the greatest."""
    return state.price.latency_us / state.path[-1].before_us


@dataclass
class Search:
    """Refusals are kept for whoever explains what stands in the way."""

    rules: Sequence[Rule]
    price: Pricer
    limits: Limits = Limits()
    allowed: frozenset[str] | None = frozenset()
    """Contested facts that a state may rest on; None: any."""
    excluded: frozenset[tuple[str, str]] = frozenset()
    """Steps that are not taken, by their rule and what they do."""
    ended: Callable[[], bool] = lambda: False
    """Asked before each state: is it to be the last?"""
    has_text: Callable[[Kernels], bool] = lambda kernels: True
    """Can the trees be written as one kernel for all shapes? What cannot is not gone on from."""

    def __post_init__(self) -> None:
        self.priced = self.rows = 0
        self.refusals: dict[Site, str] = {}
        self._swept: set[str] = set()
        """Programs of which all steps were tried."""
        self.withheld = False
        """Did a state rest on a contested fact that is not allowed?"""

    @property
    def is_over(self) -> bool:
        return self.priced >= self.limits.most_priced or self.rows >= self.limits.most_rows or self.ended()

    def best(self, kernels: Sequence[LoopKernel]) -> State:
        """The fastest state found, the start where none is faster, without steps that gain nothing.

        Raises Refused as `start` does.
        """
        start = self.start(kernels)
        best, doors, others = self._down(start)
        opened: Counter[str] = Counter()
        without_gain = 0
        while (doors or others) and without_gain < self.limits.patience and not self.is_over:
            if best.price.latency_us <= self.limits.enough_us:
                break
            if not doors:
                doors, others = others, []
            door = min(doors, key=lambda each: (opened[_rule_of(each)], _gain_of_last_step(each)))
            doors.remove(door)
            opened[_rule_of(door)] += 1
            end, more, rest = self._down(door)
            without_gain += 1
            if self._gains(end, best):
                best, without_gain = end, 0
                doors, others = doors + more, others + rest
        return self._without_idle_steps(start, best)

    def start(self, kernels: Sequence[LoopKernel]) -> State:
        """Before any step, prepared. Raises Refused where the simulated machine cannot run the kernel."""
        price = self.price(kernels[-1])
        if price is None:
            raise Refused("the simulated machine cannot run this kernel")
        state = State(tuple(kernels), price)
        begun = self.price((ready := prepared(self.rules, state.kernels))[-1])
        return state if begun is None or self._gains(state, State(ready, begun)) else State(ready, begun)

    def _gains(self, state: State, over: State) -> bool:
        return state.price.latency_us < (1 - self.limits.least_gain) * over.price.latency_us

    def _down(self, state: State) -> tuple[State, list[State], list[State]]:
        """Where the steps that gain lead from there; states beside that way that are worth going on from; the others.

        Ends where it comes to a state that another way came by.
        """
        last: list[Rule] = [rule for rule in self.rules if isinstance(rule, Last) and rule.comes_last]
        others = [rule for rule in self.rules if rule not in last]
        beside: list[list[State]] = []
        rules: Sequence[Rule] = others
        settled = 0
        while settled < 2 and len(state.path) < self.limits.longest and not self.is_over:
            if state.price.latency_us <= self.limits.enough_us:
                break
            if rules is others:
                if settled == 0 and state.price.digest in self._swept:
                    break
                self._swept.add(state.price.digest)
            children = list(self._children(state, rules))
            lower = self._together(state, children)
            if rules is others:
                beside.append(children)
            if lower is None:
                rules, settled = (last if rules is others else others), settled + 1
            else:
                state, settled = lower, 0
        taken = {(step.site.rule, step.site.what) for step in state.path}
        doors = [door for children in beside for door in self._of_each_rule(children, taken)]
        chosen = {id(door) for door in doors}
        return state, doors, [child for children in beside for child in children if id(child) not in chosen]

    def _together(self, state: State, children: Sequence[State]) -> State | None:
        """After all the steps that gain, the greatest gain first; of several at one place the best."""
        best: State | None = None
        taken: set[tuple[str, tuple[int, ...]]] = set()
        for child in sorted(children, key=lambda each: each.price.latency_us):
            if not self._gains(child, state):
                break
            site = child.path[-1].site
            if (site.rule, site.path) in taken or self.is_over:
                continue
            taken.add((site.rule, site.path))
            further = child if best is None else self._further(best, site)
            if further is None or not (best is None or self._gains(further, best)):
                continue
            if self.has_text(further.kernels):
                best = further
            else:
                self.refusals[site] = NO_TEXT
        return best

    def _of_each_rule(self, children: Sequence[State], taken: Set[tuple[str, str]]) -> list[State]:
        """The fastest of each rule after a step that is not taken already; of those that tie, the one that goes
        furthest, which rules name last."""
        chosen: dict[str, State] = {}
        for child in children:
            site = child.path[-1].site
            if (site.rule, site.what) in taken:
                continue
            before = chosen.get(site.rule)
            better = before is None or not self._gains(before, child)
            if better and self.has_text(child.kernels):
                chosen[site.rule] = child
        return list(chosen.values())

    def _children(self, state: State, rules: Sequence[Rule]) -> Iterator[State]:
        seen = {state.price.digest}
        for rule in rules:
            for site in self.sites(rule, state.kernels[-1]):
                if self.is_over:
                    return
                if (site.rule, site.what) in self.excluded:
                    continue
                if isinstance(rule, Balance) and not self._relieves(rule, state, site):
                    continue
                child = self.after(state, rule, site)
                if child is not None and child.price.digest not in seen:
                    seen.add(child.price.digest)
                    yield child

    def _relieves(self, rule: Balance, state: State, site: Site) -> bool:
        """Does it go from an engine to a less busy one?"""
        busy = state.price.busy_us
        first, second = rule.moves(state.kernels[-1], site)
        return busy.get(first, 0.0) > busy.get(second, 0.0)

    def sites(self, rule: Rule, kernel: LoopKernel) -> Iterator[Site]:
        """None where the rule fails: whatever a stranger's kernel brings out of one costs that rule, and is told."""
        try:
            yield from rule.sites(kernel)
        except Exception as error:
            self.refusals[Site(rule.name, (), (), "look for its sites")] = _fault(error)

    def _applied(self, rule: Rule, kernels: Kernels, site: Site) -> Kernels | None:
        """None where the rule refuses at some shape, or fails; why is kept."""
        try:
            return applied(rule, kernels, site)
        except Refused as refused:
            self.refusals[site] = str(refused)
        except Exception as error:
            self.refusals[site] = _fault(error)
        return None

    def after(self, state: State, rule: Rule, site: Site) -> State | None:
        """None where the rule refuses at some shape, or an engine or the memory does."""
        kernels = self._applied(rule, state.kernels, site)
        if kernels is None:
            return None
        self.priced += 1
        price = self.price(kernels[-1])
        if price is None:
            return None
        self.rows += price.rows
        if self.allowed is not None and not self.allowed.issuperset(price.contested):
            self.withheld = True
            return None
        return State(kernels, price, (*state.path, PricedSite(site, state.price.latency_us, price.latency_us)))

    def _further(self, state: State, site: Site) -> State | None:
        """After that step, wherever its place is now; None where it has none."""
        found = self._place_of(site, state.kernels)
        return None if found is None else self.after(state, *found)

    def _place_of(self, site: Site, kernels: Kernels) -> tuple[Rule, Site] | None:
        """The step of that name; where there are several, as of a line that is reached from several places, the one
        that stands nearest."""
        (rule,) = (each for each in self.rules if each.name == site.rule)
        same = [each for each in self.sites(rule, kernels[-1]) if each.what == site.what]
        return (rule, min(same, key=lambda each: _apart(each, site))) if same else None

    def _without_idle_steps(self, start: State, end: State) -> State:
        """Of states that tie the one of fewer steps."""
        at_most = (1 + self.limits.least_gain) * end.price.latency_us
        sites = [step.site for step in end.path]
        for site in reversed(list(sites)):
            fewer = [each for each in sites if each is not site]
            kernels = self._along(start.kernels, fewer)
            price = None if kernels is None else self.price(kernels[-1])
            if price is not None and price.latency_us <= at_most:
                sites = fewer
        state: State | None = start
        for site in sites:
            state = None if state is None else self._further(state, site)
        return end if state is None else state

    def _along(self, kernels: Kernels, sites: Sequence[Site]) -> Kernels | None:
        """After those steps; None where one of them has no place, or is refused."""
        for site in sites:
            found = self._place_of(site, kernels)
            after = None if found is None else self._applied(found[0], kernels, found[1])
            if after is None:
                return None
            kernels = after
        return kernels


def _apart(one: Site, other: Site) -> tuple[object, ...]:
    """The least for the same place and arguments."""
    places = [abs(a - b) for a, b in zip_longest(one.path, other.path, fillvalue=0)]
    return places, one.arguments != other.arguments, one.arguments > other.arguments


def prepared(rules: Sequence[Rule], kernels: Kernels) -> Kernels:
    """After what costs nothing by itself and others need."""
    for rule in rules:
        if isinstance(rule, Preparing):
            try:
                kernels = applied(rule, kernels, rule.preparation(kernels[-1]))
            except Refused:
                continue
    return kernels


FAULT = "the rule itself fails here"
NO_TEXT = "what it leads to differs from shape to shape in a number that no size of a parameter says"


def _fault(error: Exception) -> str:
    return f"{FAULT} ({type(error).__name__}: {error}): please report it"
