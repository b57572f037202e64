"""What a kernel declares tunable is not proposed but swept: its values are priced, and the best are the candidate.

Whoever writes the kernel, a model or a person, decides its structure and says in TUNABLES which values its sizes may
take. No model is asked for numbers, and nothing is evaluated for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, product

from accelopt_core.candidate import Plan, source_hash
from accelopt_core.evaluation import microseconds
from accelopt_core.ports import Predict
from accelopt_core.proposer import Executor, Feedback, RoundContext
from accelopt_core.task import Surroundings
from accelopt_core.transforms.base import AnalysisContext, NotAKernel, TransformError, parse_kernel
from accelopt_core.transforms.printing import text_of_module
from accelopt_core.transforms.retile import Retile
from nki_sim.ties import LEAST_GAIN

MOST = 24
"""Settings of one kernel that are priced, where a search keeps an archive and nobody says otherwise."""

_RETILE = Retile()


@dataclass(frozen=True)
class Setting:
    """A kernel with the values of its tunables."""

    values: tuple[tuple[str, int], ...]
    """Those that differ from what was written; none for the kernel as it was written."""
    source: str

    def describe(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.values) or "as written"


def settings_of(source: str, around: Surroundings, most: int) -> tuple[Setting, ...]:
    """The kernel as it was written, then its other settings: first one value changed, then all combinations, `most` in
    all. What cannot be read or declares nothing has the one setting."""
    written = Setting((), source)
    choices: dict[str, list[int]] = {}
    try:
        for site in _RETILE.analyze(parse_kernel(source, around.entry_points, around), AnalysisContext()):
            name, _, value = site.key.partition("=")
            choices.setdefault(name, []).append(int(value))
    except NotAKernel:
        return (written,)
    found = [written]
    for changes in islice(_combinations(choices), most - 1):
        try:
            found.append(Setting(tuple(changes.items()), _changed(source, around, changes)))
        except TransformError:  # declared legal, and gone with another value
            continue
    return tuple(found)


def _combinations(choices: Mapping[str, list[int]]) -> Iterator[dict[str, int]]:
    """Fewest changes first; among those in the order of the declaration."""
    for count in range(1, len(choices) + 1):
        for names in combinations(choices, count):
            for values in product(*(choices[name] for name in names)):
                yield dict(zip(names, values))


def _changed(source: str, around: Surroundings, changes: Mapping[str, int]) -> str:
    for name, value in changes.items():
        source = text_of_module(_RETILE.apply(parse_kernel(source, around.entry_points, around), f"{name}={value}"))
    return source


class SweepingExecutor:
    """Any executor, whose kernels come with the best values of their tunables."""

    def __init__(self, executor: Executor, predict: Predict, most: int, told: Callable[[str], None]) -> None:
        """`most`: settings of one kernel that are priced. `told` hears in a line of each sweep that changed a value."""
        self._executor = executor
        self._predict = predict
        self._most = most
        self._told = told
        self._turn = threading.Lock()
        """Lanes write their kernels at once."""

    def execute(self, context: RoundContext, plan: Plan, feedback: tuple[Feedback, ...]) -> str:
        """Raises what the executor and the predictor do."""
        source = self._executor.execute(context, plan, feedback)
        with self._turn:
            return self._swept(source, context, plan, {source_hash(entry.source) for entry in feedback})

    def _swept(self, source: str, context: RoundContext, plan: Plan, failed: set[str]) -> str:
        evaluated = {attempt.content_hash for attempt in context.history if not attempt.is_open}
        tried = failed | evaluated | {context.parent.content_hash}
        written, *others = settings_of(source, context.task.around, self._most)
        fresh = [each for each in others if source_hash(each.source) not in tried]
        if not fresh:
            return source
        prices = self._predict([each.source for each in (written, *fresh)])
        priced = [(us, each) for each in (written, *fresh) if (us := prices[each.source]) is not None]
        if not priced:
            return source  # the judge says why
        least = min(us for us, _ in priced)
        # Of those that a round could not tell apart the one with the fewest changes, then the fastest.
        us, best = min(
            (each for each in priced if each[0] <= (1 + LEAST_GAIN) * least),
            key=lambda each: (len(each[1].values), each[0]),
        )
        if best is not written:
            before = prices[source]
            instead = f"instead of {microseconds(before)}" if before is not None else "where it compiles"
            self._told(
                f"{plan.title}: swept {len(priced)} settings; {best.describe()} is predicted to take "
                f"{microseconds(us)} {instead}"
            )
        return best.source
