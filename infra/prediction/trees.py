"""A kernel's loop trees at all shapes of its task, in the process that prices: read, searched, written.

What the catalogue asks (`accelopt_core.catalogue.kernel_trees`) arrives as JSON and is answered as JSON.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import IO, Any, TypeVar

from accelopt_core.catalogue.search import Limits, PricedSite, Search, SimulatedPrices, State, prepared
from accelopt_core.dispatch import joining
from accelopt_core.dispatch.joining import Branch, Variant
from accelopt_core.dispatch.kernel_file import CannotJoin
from accelopt_core.judging.orphans import end_with_parent
from accelopt_core.rules.base import Site, applied
from accelopt_core.rules.registry import RULES
from accelopt_core.task import Surroundings
from accelopt_core.toolchain import ArgumentSpec, CandidateFault, ConstantArgument, DtypeArgument, TensorArgument
from nki_sim.dtypes import as_dtype
from nki_sim.encoding.canonical import digest
from nki_sim.lint import valid_in
from nki_sim.loop_ir.changes import Kernels, Refused
from nki_sim.loop_ir.expansion import expand
from nki_sim.loop_ir.reading import NotReadable, read
from nki_sim.loop_ir.sizes import NoForm
from nki_sim.loop_ir.source import KernelText
from nki_sim.loop_ir.spelling import NotWritable
from nki_sim.loop_ir.tree import DeviceLoop, Instruction, Loop, LoopKernel, Node, walk
from nki_sim.loop_ir.writing import written
from nki_sim.machine import Machine
from nki_sim.program.program import Program
from nki_sim.timing.ties import shipped

_MOST_KEPT = 8
"""Kernels whose trees are kept; a run asks for the same few again."""

Presets = Sequence[Sequence[ArgumentSpec]]
"""A kernel's arguments at each shape, the full shape last."""
Traced = Callable[[str, Presets], Sequence[Program]]
"""A source to its programs at those shapes. Raises CandidateFault."""


def text_of(source: str, function: str, presets: Presets, around: Surroundings) -> KernelText:
    given = [[_value(argument) for argument in arguments] for arguments in presets]
    kept = {name for _, text in around.neighbours for name in re.findall(r"\w+", text)}
    plain = KernelText(source, function, kept=frozenset(kept))
    return plain.with_scalars(given, lambda value: not isinstance(value, TensorArgument))


def _value(argument: ArgumentSpec) -> object:
    if isinstance(argument, ConstantArgument):
        return argument.value
    return as_dtype(argument.element_type) if isinstance(argument, DtypeArgument) else argument


@dataclass(frozen=True)
class _Read:
    text: KernelText
    version: str
    """The newest NKI that the source is valid in."""
    given: Kernels
    """Its trees as they were read."""
    start: State
    of: tuple[int, ...]
    """Numbers of the shapes that it is read at: those where the kernel has the form that it has at the full shape. At
    others, as where only some end in a part of a tile, what is written leaves it as it is."""


@dataclass
class _Searching:
    """A search in a thread of its own, asked for from time to time."""

    search: Search
    thread: threading.Thread
    stop: threading.Event
    found: list[State | Exception]


_Steps = Sequence[tuple[str, str]]
"""Rules with the keys of their sites."""


def elsewhere(presets: Presets) -> Iterator[Sequence[ArgumentSpec]]:
    """Arguments at shapes that lie beside the presets: each size that varies changed by itself, at the first preset."""
    given = [[each.shape if isinstance(each, TensorArgument) else () for each in arguments] for arguments in presets]
    sizes = {
        values
        for shapes in zip(*given)
        if len({len(shape) for shape in shapes}) == 1
        for values in zip(*shapes)
        if len(set(values)) > 1
    }
    for values in sorted(sizes):
        for value in sorted({values[0] + gcd(*values), values[-1]} - {values[0]}):
            yield [
                TensorArgument(
                    tuple(value if at == values else at[0] for at in zip(*(shapes[number] for shapes in given))),
                    argument.dtype,
                )
                if isinstance(argument, TensorArgument)
                else argument
                for number, argument in enumerate(presets[0])
            ]


def _is_writable(text: KernelText, version: str, kernels: Kernels) -> bool:
    try:
        written(kernels, text, version)
    except (NotWritable, NoForm):
        return False
    return True


class Trees:
    def __init__(self, traced: Traced, machine: Machine, presets: Presets, around: Surroundings) -> None:
        self._traced = traced
        self._presets = presets
        self._around = around
        self._prices = SimulatedPrices(machine)
        self._known: dict[str, _Read] = {}
        self._searching: _Searching | None = None
        self._rules = {rule.name: rule for rule in RULES}

    def answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """`no_tree` or `refused` in place of an answer says why there is none."""
        try:
            ask = {"single steps": self._single_steps, "way": self._way, "carry out": self._carried_out}[job["tree"]]
            return ask(job)
        except (NotReadable, CandidateFault) as error:
            return {"no_tree": str(error)}
        except (Refused, NotWritable, NoForm) as error:
            return {"refused": str(error)}
        except Exception as error:  # of our own, on a stranger's kernel: said in a line, and the run goes on without
            return {"no_tree": f"its loop tree fails ({type(error).__name__}: {error}): please report it"}

    def _read(self, source: str) -> _Read:
        """Raises NotReadable, of a tree that is another program than its rows too; and of one without a price."""
        if source not in self._known:
            programs = self._traced(source, self._presets)
            kernels = tuple(read(program) for program in programs)
            if any(digest(expand(kernel)) != digest(program) for kernel, program in zip(kernels, programs)):
                raise NotReadable("its loops were not read as they are: please report it")
            version = valid_in(source)[-1]
            of = self._of_one_form(source, kernels, programs[-1].kernel_name, version)
            given, text = tuple(kernels[each] for each in of), self._text_at(of, source, programs[-1].kernel_name)
            try:
                start = Search(RULES, self._prices, has_text=partial(_is_writable, text, version)).start(given)
            except Refused as error:
                raise NotReadable(str(error)) from None
            while len(self._known) >= _MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[source] = _Read(text, version, given, start, of)
        return self._known[source]

    def _text_at(self, numbers: Sequence[int], source: str, function: str) -> KernelText:
        return text_of(source, function, [self._presets[number] for number in numbers], self._around)

    def _of_one_form(self, source: str, kernels: Kernels, function: str, version: str) -> tuple[int, ...]:
        """Numbers of the shapes at which one text says the kernel, the full shape's among them.

        Raises NotReadable where no text says it, and where what is written for some shapes cannot be told apart.
        """
        last = len(kernels) - 1
        of: tuple[int, ...] = (last,)
        for number in reversed(range(len(kernels))):
            more = tuple(sorted({number, *of}))
            try:
                written([kernels[each] for each in more], self._text_at(more, source, function), version)
            except (NotWritable, NoForm) as error:
                if number == last:
                    raise NotReadable(str(error)) from None
            else:
                of = more
        if len(of) < len(kernels):
            try:
                joining.check(source, self._around.entry_points)
            except CannotJoin as error:
                raise NotReadable(f"its loops differ from shape to shape, and {error}") from None
        return of

    def _search(self, job: Mapping[str, Any], allowed: frozenset[str] | None, **more: Any) -> Search:
        return Search(RULES, self._prices, allowed=allowed, mapped=partial(mapped, job.get("processes", 1)), **more)

    def _has_text(self, source: str, kernels: Kernels, at_the_full_shape: bool = False) -> bool:
        """For all shapes that it is read at; or for the full shape alone, beside the kernel as it is at others."""
        try:
            self._joined_at_full(source, kernels) if at_the_full_shape else self._written(source, kernels)
        except Exception:  # NotWritable and NoForm, and a fault of our own: it costs those trees
            return False
        return True

    def _single_steps(self, job: Mapping[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + job["seconds"]
        start = self._read(job["source"]).start
        search = self._search(job, None, limits=Limits(most_priced=sys.maxsize))
        wanted = search.steps(start, RULES)
        steps: list[dict[str, Any]] = []
        known: set[str] = {start.price.digest}
        done = 0
        for site, tried, _ in search.tried(start, wanted if time.monotonic() < until else ()):
            done += 1
            price = tried.price
            if not tried.refusal and (price is None or price.digest not in known):
                known |= {price.digest} if price is not None else set()
                after_us = price.latency_us if price is not None else None
                steps.append(self._step(PricedSite(site, start.price.latency_us, after_us), start.kernels[-1]))
            if time.monotonic() >= until:
                break
        refusals = [
            (site.rule, site.what, _lines(start.kernels[-1], site), why) for site, why in search.refusals.items()
        ]
        return {
            "latency_us": start.price.latency_us,
            "steps": steps,
            "refusals": refusals,
            "not_priced": len(wanted) - done,
        }

    def _way(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Asked again until `priced` comes with a way; `stop`: after `seconds` the best so far is wanted."""
        if job.get("begin"):
            start = self._read(job["source"]).start
            stop, found = threading.Event(), list[State | Exception]()
            allowed = job["allowed"]
            search, at_full = (
                self._search(
                    job,
                    None if allowed is None else frozenset(allowed),
                    excluded=frozenset((rule, what) for rule, what in job["excluded"]),
                    ended=stop.is_set,
                    limits=Limits(most_priced=most, enough_us=job["enough_us"]),
                    has_text=partial(self._has_text, job["source"], at_the_full_shape=alone),
                )
                for alone, most in ((False, job["most_priced"]), (True, job["most_priced"] // 3))
            )
            thread = threading.Thread(target=_searched, args=(search, at_full, start, found), daemon=True)
            self._searching = _Searching(search, thread, stop, found)
            thread.start()
        now = self._searching
        assert now is not None, "a search is begun before it is asked for"
        now.thread.join(job["seconds"])
        if now.thread.is_alive():
            if not job.get("stop"):
                return {"priced": now.search.priced}
            now.stop.set()
            now.thread.join()
        self._searching = None
        (state,) = now.found
        if isinstance(state, Exception):
            raise state
        source = job["source"]
        path = state.path
        return {
            "priced": now.search.priced,
            "steps": [self._step(each, self._read(source).start.kernels[-1]) for each in path],
            "source": self._final(source, [(each.site.rule, each.site.key) for each in path], state.kernels),
            "before_us": path[0].before_us if path else state.price.latency_us,
            "after_us": state.price.latency_us,
            "withheld": now.search.withheld,
            "complete": not now.search.is_over,
        }

    def _carried_out(self, job: Mapping[str, Any]) -> dict[str, Any]:
        source, steps = job["source"], [(rule, key) for rule, key in job["steps"]]
        start = self._read(source).start.kernels
        try:
            kernels = self._after(start, steps)
        except Refused:  # as a way for the full shape alone is at another one
            kernels = self._after(start[-1:], steps)
        return {"source": self._final(source, steps, kernels)}

    def _after(self, kernels: Kernels, steps: _Steps) -> Kernels:
        """Raises Refused."""
        for name, key in steps:
            rule = self._rules.get(name)
            if rule is None:
                raise Refused(f"no rule is called {name!r}; there are: {', '.join(sorted(self._rules))}")
            site = next((each for each in rule.sites(kernels[-1]) if each.key == key), None)
            if site is None:
                raise Refused(f"{name} has no site {key!r} in this kernel")
            kernels = applied(rule, kernels, site)
        return kernels

    def _final(self, source: str, steps: _Steps, kernels: Kernels) -> str:
        """Written for every shape that its sizes can say, if it is what the steps lead to at other shapes too; else for
        the task's own alone. The sizes in which numbers are said are found by what they are at a few shapes."""
        if not steps:
            return source
        known = self._read(source)
        try:
            text = self._written(source, kernels) if len(kernels) == len(known.of) else ""
        except (NotWritable, NoForm):
            text = ""
        if not text:
            return self._joined_at_full(source, kernels)
        if len(known.of) < len(self._presets):
            return self._joined(source, self._written(source, kernels, only_these_shapes=True), known.of)
        for arguments in elsewhere(self._presets):
            try:
                (there,) = self._traced(text, [arguments])
            except CandidateFault:  # it refuses that shape
                continue
            if digest(there) != self._digest_after(source, steps, arguments):
                return self._written(source, kernels, only_these_shapes=True)
        return text

    def _joined_at_full(self, source: str, kernels: Kernels) -> str:
        """Raises NotWritable, and NoForm."""
        known, last = self._read(source), (len(self._presets) - 1,)
        text = self._text_at(last, source, known.start.kernels[-1].name)
        return self._joined(source, written(kernels[-1:], text, known.version, only_these_shapes=True), last)

    def _joined(self, source: str, text: str, of: Sequence[int]) -> str:
        """The text at those shapes, the source at others. Raises NotWritable."""
        branches = tuple(Branch(_named(self._presets[each]), tuple(self._presets[each])) for each in of)
        try:
            return joining.joined(source, [Variant(text, branches)], self._around.entry_points)
        except CannotJoin as error:
            raise NotWritable(str(error)) from None

    def _digest_after(self, source: str, steps: _Steps, arguments: Sequence[ArgumentSpec]) -> str:
        """Of what the steps lead to at another shape; empty where they, or the kernel itself, do not work there."""
        known = self._read(source)
        try:
            (program,) = self._traced(source, [arguments])
            begun = (read(program), *known.given)
            if known.start.kernels != known.given:
                begun = prepared(RULES, begun)
            return digest(expand(self._after(begun, steps)[0]))
        except (CandidateFault, NotReadable, Refused):
            return ""

    def _written(self, source: str, kernels: Kernels, only_these_shapes: bool = False) -> str:
        known = self._read(source)
        return written(kernels, known.text, known.version, only_these_shapes)

    def _step(self, step: PricedSite, kernel: LoopKernel) -> dict[str, Any]:
        site = step.site
        why = inspect.getdoc(self._rules[site.rule]) or ""
        return {
            "name": (site.rule, site.key),
            "what": site.what,
            "why": why.partition("\n\n")[0].replace("\n", " "),
            "lines": _lines(kernel, site),
            "before_us": step.before_us,
            "after_us": step.after_us,
        }


def _named(arguments: Sequence[ArgumentSpec]) -> str:
    """`128x512 512`."""
    return " ".join("x".join(map(str, each.shape)) for each in arguments if isinstance(each, TensorArgument))


def _lines(kernel: LoopKernel, site: Site) -> list[int]:
    """Source lines of the instructions that a site is about; those of the kernel that was read."""
    body: tuple[Node, ...] = kernel.body
    node: Node | None = None
    for at in site.path:
        if at >= len(body):
            break
        node = body[at]
        body = node.body if isinstance(node, (Loop, DeviceLoop)) else ()
    inside = (node,) if node is not None else ()
    lines = {each.line for each, _ in walk(inside) if isinstance(each, Instruction)}
    lines |= {each.site for each, _ in walk(inside) if isinstance(each, Loop)} | {site.line}
    return sorted(line for line in lines if line > 0)


def _searched(search: Search, at_full: Search, start: State, found: list[State | Exception]) -> None:
    """What has a text for all shapes; what has one for the full shape alone, where that gains more than a tie."""
    try:
        best = search.best_from(start)
        if search.passed_by and not search.ended():
            other = at_full.best_from(State(lambda: start.kernels[-1:], start.price))
            best = other if other.price.latency_us < (1 - shipped().within) * best.price.latency_us else best
        found.append(best)
    except Exception as error:  # raised where the answer is waited for
        found.append(error)


Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(processes: int, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Item n is for process n modulo their number; this one is the first. What a process that is lost would have
    found is found here. Whoever asks for no more closes the iterator."""
    if sys.platform != "linux":
        processes = 1
    helpers = [_Helper(function, items[first::processes]) for first in range(1, min(processes, len(items)))]
    try:
        for number, item in enumerate(items):
            place = number % processes
            yield helpers[place - 1].next(function, item) if place else function(item)
    finally:
        for helper in helpers:
            helper.end()


class _Helper:
    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        ours, theirs = os.pipe()
        me = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(ours)
            _carry_out(function, items, theirs, me)
        os.close(theirs)
        self._found: IO[bytes] = os.fdopen(ours, "rb")

    def next(self, function: Callable[[Item], Result], item: Item) -> Result:
        try:
            return pickle.load(self._found)
        except (EOFError, pickle.UnpicklingError):
            return function(item)

    def end(self) -> None:
        self._found.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _carry_out(function: Callable[[Any], Any], items: Sequence[Any], pipe: int, parent: int) -> None:
    """And end this process, which has nothing else of the one that it was forked from to see to."""
    try:
        end_with_parent(parent)
        gc.disable()  # going through what both share would copy it
        with os.fdopen(pipe, "wb") as found:
            for item in items:
                pickle.dump(function(item), found)
                found.flush()
    finally:
        os._exit(0)
