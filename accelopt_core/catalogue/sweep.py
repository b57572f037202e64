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
from accelopt_core.languages.tunables import declared_tunables, with_value
from accelopt_core.ports import Predict
from accelopt_core.proposer import Executor, Feedback, RoundContext
from nki_sim.timing.ties import LEAST_GAIN

MOST = 24
"""Settings of one kernel that are priced, where a search keeps an archive and nobody says otherwise."""


@dataclass(frozen=True)
class Setting:
    """A kernel with the values of its tunables."""

    values: tuple[tuple[str, int], ...]
    """Those that differ from what was written; none for the kernel as it was written."""
    source: str

    def describe(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.values) or "as written"


def settings_of(source: str, most: int) -> tuple[Setting, ...]:
    """The kernel as it was written, then its other settings: first one value changed, then all combinations, `most` in
    all. What cannot be read or declares nothing has the one setting."""
    choices = {
        each.name: [value for value in each.legal if value != each.value] for each in declared_tunables(source).tunables
    }
    found = [Setting((), source)]
    for changes in islice(_combinations(choices), most - 1):
        found.append(Setting(tuple(changes.items()), _changed(source, changes)))
    return tuple(found)


def _combinations(choices: Mapping[str, list[int]]) -> Iterator[dict[str, int]]:
    """Fewest changes first; among those in the order of the declaration."""
    for count in range(1, len(choices) + 1):
        for names in combinations(choices, count):
            for values in product(*(choices[name] for name in names)):
                yield dict(zip(names, values))


def _changed(source: str, changes: Mapping[str, int]) -> str:
    for name, value in changes.items():
        (tunable,) = (each for each in declared_tunables(source).tunables if each.name == name)
        source = with_value(source, tunable, value)
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
        written, *others = settings_of(source, self._most)
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
