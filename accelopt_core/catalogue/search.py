"""Search over sequences of rules: loop trees are the states, simulated latencies order them.

A way down from a state takes, sweep by sweep, all the steps that gain together. Work is moved between engines, or ahead
of other work, last: what else is done decides which engines are busy, and when. A step that gains nothing by itself
opens a way of its own: what it leads to may pay. States are told apart by the canonical digest of their programs, and
bounded by their number, never by the clock: what is found is the same on any machine.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from typing import Protocol, TypeVar

from accelopt_core.rules.base import Balance, Last, Preparing, Rule, Site, TakesPasses, applied
from nki_sim.encoding.canonical import digest
from nki_sim.errors import NkiError
from nki_sim.loop_ir.changes import Kernels, Refused, check_template, loop_at
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.tree import Instruction, LoopKernel, walk
from nki_sim.machine import Machine
from nki_sim.machine_code import counted
from nki_sim.program.program import Engine
from nki_sim.timing.capacity import check_capacity
from nki_sim.timing.contested import contested
from nki_sim.timing.schedule import schedule
from nki_sim.timing.ties import shipped


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

    def learn(self, price: Price) -> None:
        """Of a program that another process priced."""
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
                    check_template(template)
                check_capacity(program)
                timeline = schedule(program, self._machine)
                self._known[key] = Price(
                    timeline.latency_us, key, contested((timeline,)), timeline.resource_us, len(program)
                )
            except NkiError:
                self._known[key] = None
        return self._known[key]

    def learn(self, price: Price) -> None:
        self._known[price.digest] = price


@dataclass(frozen=True)
class Limits:
    """How far a search goes."""

    most_priced: int = 1500
    rows_each: int = 12_000
    """Instructions of the programs that are priced, in the mean of as many as may be."""
    patience: int = 12
    """Ways down that gain nothing, one after the other, after which it ends."""
    longest: int = 40
    """Steps, at most."""
    least_gain: float = 0.002
    """Of the latency: less is no gain."""
    enough_us: float = 0.0
    """A latency that is not searched below: the machine allows hardly less."""


Item = TypeVar("Item")
Result = TypeVar("Result")


class Mapped(Protocol):
    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
        """What comes of each, in their order."""
        ...


@dataclass(frozen=True)
class PricedSite:
    site: Site
    before_us: float
    after_us: float | None
    """None: an engine or the memory does not allow it."""


@dataclass(frozen=True)
class State:
    make: Callable[[], Kernels]
    price: Price
    path: tuple[PricedSite, ...] = ()

    @cached_property
    def kernels(self) -> Kernels:
        """At each shape; the last one is priced."""
        return self.make()


@dataclass(frozen=True)
class Tried:
    """What became of a step."""

    price: Price | None
    """None where the rule refuses, or an engine or the memory does."""
    refusal: str = ""
    """The rule's."""
    gains_alone: bool = False
    """Would it gain at the largest shape, where it is refused at another one?"""
    kernels: Kernels | None = None
    """None of what another process tried: they are made again where they are wanted."""

    def __reduce__(self) -> tuple[type[Tried], tuple[Price | None, str, bool]]:
        return Tried, (self.price, self.refusal, self.gains_alone)


Step = tuple[Rule, Site]
Door = list[State]
"""States that are worth going on from, after steps of one rule; the first that has a text is."""


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
    mapped: Mapped = map
    """How what is tried is tried: one after the other, or side by side."""

    def __post_init__(self) -> None:
        self.priced = self.rows = 0
        self.refusals: dict[Site, str] = {}
        self._swept: set[tuple[str, frozenset[str]]] = set()
        """Programs of which all steps were tried, and the loops that were kept apart then."""
        self._apart: frozenset[str] = frozenset()
        """Counters of loops of which no step takes several passes at once."""
        self.withheld = False
        """Did a state rest on a contested fact that is not allowed?"""
        self.passed_by = False
        """Was a step that gains left out, since it is refused at a smaller shape, or what it leads to has no text?"""

    @property
    def is_over(self) -> bool:
        limits = self.limits
        spent = self.priced >= limits.most_priced or self.rows >= limits.rows_each * limits.most_priced
        return spent or self.ended()

    def best(self, kernels: Sequence[LoopKernel]) -> State:
        """As `best_from` its start. Raises Refused as `start` does."""
        return self.best_from(self.start(kernels))

    def best_from(self, start: State) -> State:
        """The fastest state found, the start where none is faster, without steps that gain nothing."""
        apart = _around_tensor_loops(start.kernels[-1])
        best, doors = self._down(start, self.limits.most_priced // 2 if apart else sys.maxsize)
        if apart and not self.is_over:
            self._apart = apart
            other, more = self._down(start)
            best, doors = (other if self._gains(other.price, best.price) else best), [*doors, *more]
            self._apart = frozenset()
        others: list[Door] = []
        opened: Counter[str] = Counter()
        without_gain = 0
        while (doors or others) and without_gain < self.limits.patience and not self.is_over:
            if best.price.latency_us <= self.limits.enough_us:
                break
            if not doors:
                doors, others = others, []
            door = min(doors, key=lambda each: (opened[_rule_of(each[0])], _gain_of_last_step(each[0])))
            doors = [each for each in doors if each is not door]
            at = next((at for at, each in enumerate(door) if self.has_text(each.kernels)), len(door))
            others += [[each] for each in door[at + 1 :]]
            if at == len(door):
                continue
            opened[_rule_of(door[at])] += 1
            end, more = self._down(door[at])
            without_gain += 1
            if self._gains(end.price, best.price):
                best, without_gain = end, 0
                doors += more
        return self._without_idle_steps(start, best)

    def start(self, kernels: Sequence[LoopKernel]) -> State:
        """Before any step, prepared, where that costs no more than a tie. Raises Refused where the simulated machine
        cannot run the kernel."""
        price = self.price(kernels[-1])
        if price is None:
            raise Refused("the simulated machine cannot run this kernel")
        ready = prepared(self.rules, tuple(kernels))
        begun = self.price(ready[-1]) if self.has_text(ready) else None
        if begun is not None and begun.latency_us <= (1 + shipped().within) * price.latency_us:
            kernels, price = ready, begun
        given = tuple(kernels)
        return State(lambda: given, price)

    def _gains(self, price: Price, over: Price) -> bool:
        return price.latency_us < (1 - self.limits.least_gain) * over.latency_us

    def _down(self, state: State, most_priced: int = sys.maxsize) -> tuple[State, list[Door]]:
        """Where the steps that gain lead from there, and doors beside that way, of each sweep one for each rule.

        Ends where it comes to a state that another way came by.
        """
        last: list[Rule] = [rule for rule in self.rules if isinstance(rule, Last) and rule.comes_last]
        others = [rule for rule in self.rules if rule not in last]
        beside: list[list[State]] = []
        rules: Sequence[Rule] = others
        settled = 0
        poor: set[tuple[str, str]] = set()
        while settled < 2 and len(state.path) < self.limits.longest and not self.is_over and self.priced < most_priced:
            if state.price.latency_us <= self.limits.enough_us:
                break
            if rules is others:
                key = state.price.digest, self._apart
                if settled == 0 and key in self._swept:
                    break
                self._swept.add(key)
            children = list(self._children(state, rules, poor))
            lower = self._together(state, children)
            if rules is others:
                beside.append(children)
                poor = poor if lower is None else set()
            else:
                poor |= _poor(state, children)
            if lower is None:
                rules, settled = (last if rules is others else others), settled + 1
            else:
                state, settled = lower, 0
        taken = {(step.site.rule, step.site.what) for step in state.path}
        return state, [door for children in beside for door in self._of_each_rule(children, taken)]

    def _together(self, state: State, children: Sequence[State]) -> State | None:
        """After all the steps that gain, the greatest gain first; of several at one place the best."""
        best: State | None = None
        taken: set[tuple[str, tuple[int, ...]]] = set()
        for child in sorted(children, key=lambda each: each.price.latency_us):
            if not self._gains(child.price, state.price):
                break
            site = child.path[-1].site
            if (site.rule, site.path) in taken or self.is_over:
                continue
            taken.add((site.rule, site.path))
            further = child if best is None else self._further(best, site)
            if further is None or not (best is None or self._gains(further.price, best.price)):
                continue
            if self.has_text(further.kernels):
                best = further
            else:
                self.passed_by = True
                self.refusals[site] = NO_TEXT
        return best

    def _of_each_rule(self, children: Sequence[State], taken: Set[tuple[str, str]]) -> list[Door]:
        """After steps that are not taken already. Of those that tie for the fastest the one that goes furthest, which
        rules name last, comes first."""
        doors: dict[str, Door] = {}
        for child in children:
            site = child.path[-1].site
            if (site.rule, site.what) in taken:
                continue
            door = doors.setdefault(site.rule, [])
            is_first = not door or not self._gains(door[0].price, child.price)
            door.insert(0 if is_first else len(door), child)
        for door in doors.values():
            door[1:] = sorted(door[1:], key=lambda each: each.price.latency_us)
        return list(doors.values())

    def _children(self, state: State, rules: Sequence[Rule], without: Set[tuple[str, str]]) -> Iterator[State]:
        seen = {state.price.digest}
        steps = [
            (rule, site)
            for rule, site in self.steps(state, rules)
            if (site.rule, site.what) not in without and not self._is_left_out(state, rule, site)
        ]
        for _, _, child in self.tried(state, steps):
            if child is not None and child.price.digest not in seen:
                seen.add(child.price.digest)
                yield child

    def steps(self, state: State, rules: Sequence[Rule]) -> list[Step]:
        return [(rule, site) for rule in rules for site in self.sites(rule, state.kernels[-1])]

    def _is_left_out(self, state: State, rule: Rule, site: Site) -> bool:
        if (site.rule, site.what) in self.excluded:
            return True
        if self._apart and isinstance(rule, TakesPasses):
            return loop_at(state.kernels[-1], site.path).variable in self._apart
        return isinstance(rule, Balance) and not self._relieves(rule, state, site)

    def tried(self, state: State, steps: Sequence[Step]) -> Iterator[tuple[Site, Tried, State | None]]:
        """Until the search is over. With each what is there after it, as `after`."""
        if self.is_over:
            return
        counted(len(steps) * state.price.rows)  # other processes begin with the machine code that this one has
        for (rule, site), tried in zip(steps, self.mapped(partial(self._try, state), steps)):
            yield site, tried, self._counted(state, rule, site, tried)
            if self.is_over:
                return

    def _try(self, state: State, step: Step) -> Tried:
        rule, site = step
        try:
            try:
                kernels = applied(rule, state.kernels, site)
            except Refused as refused:
                return Tried(None, str(refused), self._gains_alone(state, rule, site))
            return Tried(self.price(kernels[-1]), "", kernels=kernels)
        except Exception as error:  # whatever a stranger's kernel brings out of a rule costs that step, and is told
            return Tried(None, _fault(error))

    def _gains_alone(self, state: State, rule: Rule, site: Site) -> bool:
        """Is it refused at smaller shapes alone, where it gains more than a tie? Asked until one is."""
        if self.passed_by or len(state.kernels) == 1:
            return False
        try:
            price = self.price(applied(rule, state.kernels[-1:], site)[-1])
        except Refused:
            return False
        return price is not None and price.latency_us < (1 - shipped().within) * state.price.latency_us

    def _counted(self, state: State, rule: Rule, site: Site, tried: Tried) -> State | None:
        if tried.refusal:
            self.refusals[site] = tried.refusal
            self.passed_by |= tried.gains_alone
            return None
        self.priced += 1
        price = tried.price
        if price is None:
            return None
        self.price.learn(price)
        self.rows += price.rows
        if self.allowed is not None and not self.allowed.issuperset(price.contested):
            self.withheld = True
            return None
        made = tried.kernels
        make = partial(applied, rule, state.kernels, site) if made is None else (lambda: made)
        return State(make, price, (*state.path, PricedSite(site, state.price.latency_us, price.latency_us)))

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

    def after(self, state: State, rule: Rule, site: Site) -> State | None:
        """None where the rule refuses at some shape, or an engine or the memory does; or for what is not allowed."""
        return self._counted(state, rule, site, self._try(state, (rule, site)))

    def _further(self, state: State, site: Site) -> State | None:
        """After that step, wherever its place is now; None where it has none."""
        found = self._place_of(site, state.kernels)
        return None if found is None else self.after(state, *found)

    def _place_of(self, site: Site, kernels: Kernels) -> tuple[Rule, Site] | None:
        """The step of that name; where there are several, as of a line that is reached from several places, the one
        that stands nearest."""
        (rule,) = (each for each in self.rules if each.name == site.rule)
        same = [each for each in self.sites(rule, kernels[-1]) if each.what == site.what]
        return (rule, min(same, key=lambda each: _distance(each, site))) if same else None

    def _without_idle_steps(self, start: State, end: State) -> State:
        """Of states that tie the one of fewer steps."""
        at_most = (1 + self.limits.least_gain) * end.price.latency_us
        sites = [step.site for step in end.path]
        ways = [[each for each in sites if each is not site] for site in sites]
        latencies = self.mapped(partial(self._latency_along, start.kernels[-1]), ways)
        idle = [site for site, latency in zip(sites, latencies) if latency <= at_most]
        for site in reversed(idle):
            fewer = [each for each in sites if each is not site]
            if len(idle) == 1 or self._latency_along(start.kernels[-1], fewer) <= at_most:
                sites = fewer
        state: State | None = start
        for site in sites:
            state = None if state is None else self._further(state, site)
        is_no_worse = state is not None and state.price.latency_us <= at_most and self.has_text(state.kernels)
        return state if state is not None and is_no_worse else end

    def _latency_along(self, kernel: LoopKernel, sites: Sequence[Site]) -> float:
        """In µs; infinite where the steps do not lead to a kernel that runs."""
        kernels = self._along((kernel,), sites)
        price = None if kernels is None else self.price(kernels[-1])
        return math.inf if price is None else price.latency_us

    def _along(self, kernels: Kernels, sites: Sequence[Site]) -> Kernels | None:
        """After those steps; None where one of them has no place, or is refused."""
        for site in sites:
            found = self._place_of(site, kernels)
            if found is None:
                return None
            try:
                kernels = applied(found[0], kernels, found[1])
            except Exception:  # refused, or a rule's fault: told where the step was tried
                return None
        return kernels


POOR = 0.005
"""Of the latency: steps of rules that come last which cost so much are not tried again a few such steps later."""


def _poor(state: State, children: Sequence[State]) -> set[tuple[str, str]]:
    """Steps, by their rule and what they do, of which none of the same name costs less."""
    best: dict[tuple[str, str], float] = {}
    for child in children:
        site = child.path[-1].site
        name = site.rule, site.what
        best[name] = min(best.get(name, math.inf), child.price.latency_us)
    return {name for name, latency_us in best.items() if latency_us > (1 + POOR) * state.price.latency_us}


def _around_tensor_loops(kernel: LoopKernel) -> frozenset[str]:
    """Counters of the loops that have a loop with the Tensor engine's work within them."""
    found: set[str] = set()
    for node, around in walk(kernel.body):
        if isinstance(node, Instruction) and node.engine is Engine.tensor:
            found.update(loop.variable for loop in around[:-1])
    return frozenset(found)


def _distance(one: Site, other: Site) -> tuple[object, ...]:
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
