"""Slow-to-fast experiences with provenance, and which of them matter for the kernel at hand."""

from __future__ import annotations

import datetime
import hashlib
import heapq
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

CLEAR_WIN, CLEAR_LOSS = 1.04, 1.15
"""Times faster, and times slower: what changed less is a lesson for its own kernel alone."""
MOST_EXPERIENCES = 2000
LEFT_WHEN_FULL = 0.95
"""Of that many, so that not every new one drops another."""
MOST_EVIDENCE = 64
"""Programs and shapes that an experience names; of more the newest."""
OLDEST_DAYS = 365
"""Since it was last measured: compilers change faster."""


@dataclass(frozen=True)
class Experience:
    """One rewrite that was measured: a win (speedup > 1) or a rejection (speedup <= 1)."""

    title: str
    summary: str
    technique: str = ""
    bottleneck: str = ""
    """What limited the slow kernel; a `Bottleneck` value, or empty for an old entry."""
    operators: tuple[str, ...] = ()
    """What the kernel computes with, e.g. `nc_matmul`, `activation:rsqrt`."""
    slow: str = ""
    fast: str = ""
    """The lines that differ, before and after."""
    speedup: float | None = None
    """Latency before / latency after, measured. None only for an old entry that did not say."""
    kernel: str = ""
    machine: str = ""
    toolchain: str = ""
    confirmed: int = 1
    refuted: int = 0
    date: str = ""
    """ISO date of the last measurement."""
    rejected: bool = False
    """Measured and not kept, even where it was faster by less than the noise."""
    used: int = 0
    """Plans that followed it, whatever became of them ..."""
    helped: int = 0
    """... and of these, those that came to what it says: to a new best after a win, to none after a rejection."""
    run: str = ""
    """That measured it last; empty for an entry of an earlier release."""
    evidence: tuple[str, ...] = ()
    """Program and shape of each measurement for it, or behind a `-` against it: the same again is no news."""

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError("an experience needs a title")
        if self.speedup is not None and not self.speedup > 0:
            raise ValueError(f"experience {self.title!r}: speed-up {self.speedup} is not positive")

    @property
    def key(self) -> str:
        """Same technique on the same kernel and machine is the same experience, confirmed again."""
        text = "\n".join(
            (
                self.technique or self.title,
                self.bottleneck,
                self.kernel,
                self.machine,
                "win" if self.is_win else "rejection",
            )
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_win(self) -> bool:
        return not self.rejected and (self.speedup is None or self.speedup > 1)

    @property
    def is_clear(self) -> bool:
        """Worth telling of another kernel. A rejection that was faster was wrong, or no faster after all."""
        return self.speedup is None or self.speedup >= CLEAR_WIN or self.speedup <= 1 / CLEAR_LOSS

    def weighed(self, other: Experience, agrees: bool) -> Experience:
        """With what another program, or the same at another shape, came to; both where nothing is known of them."""
        new = tuple(each if agrees else f"-{each}" for each in other.evidence)
        if new and set(new) <= set(self.evidence):
            return self
        return replace(
            self,
            evidence=tuple(dict.fromkeys((*self.evidence, *new)))[-MOST_EVIDENCE:],
            confirmed=self.confirmed + (other.confirmed if agrees else 0),
            refuted=self.refuted + (other.refuted if agrees else 1),
        )

    @property
    def usefulness(self) -> float:
        """1 as long as nobody followed it; towards 0 where it misled, towards 2 where it helped."""
        return 2 * (self.helped + 1) / (self.used + 2)


class OptimizationMemory:
    """All experiences, held in memory; reading and writing the file is `infra.runs.memory_file`'s."""

    def __init__(self, experiences: Iterable[Experience] = ()) -> None:
        self._by_key: dict[str, Experience] = {}
        for experience in experiences:
            self._merge(experience)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def experiences(self) -> tuple[Experience, ...]:
        return tuple(self._by_key.values())

    def add(self, experience: Experience, shown: Iterable[Experience] = ()) -> Experience:
        """Files it, merged with an earlier one of the same key; returns what is now on file.

        `shown`: what whoever planned this was shown. Of those, the ones with the same technique were followed: the
        outcome confirms or refutes them.
        """
        for other in shown:
            known = self._by_key.get(other.key)
            if known is None or known.key == experience.key or not known.technique:
                continue
            if known.technique == experience.technique:
                self._by_key[known.key] = known.weighed(experience, known.is_win == experience.is_win)
        return self._merge(experience)

    def _merge(self, new: Experience) -> Experience:
        key = new.key
        old = self._by_key.get(key)
        if old is not None:
            both = old.weighed(new, True)
            new = replace(
                new,
                confirmed=both.confirmed,
                refuted=both.refuted,
                evidence=both.evidence,
                used=old.used + new.used,
                helped=old.helped + new.helped,
            )
        self._by_key[key] = new
        return new

    def credit(self, keys: Iterable[str], improved: bool, instead: bool = False) -> None:
        """A plan followed the experiences of these keys, and came to a new best or did not. `instead`: the opposite was
        said of it before."""
        for key in keys:
            known = self._by_key.get(key)
            if known is not None:
                agreed = improved == known.is_win
                taken_back = instead and not agreed
                self._by_key[key] = replace(
                    known, used=known.used + (not instead), helped=max(0, known.helped + agreed - taken_back)
                )

    def expire(
        self, today: datetime.date, *, most: int = MOST_EXPERIENCES, days: int = OLDEST_DAYS, keep: str = ""
    ) -> tuple[int, int]:
        """Drops what is older than `days`, then, of more than `most`, the least useful; how many of each.

        `keep`: the key of one that stays in any case. What has no date is not known to be old.
        """
        before = len(self._by_key)
        oldest = (today - datetime.timedelta(days=days)).isoformat()
        self._by_key = {
            key: each for key, each in self._by_key.items() if not each.date or each.date >= oldest or key == keep
        }
        left = len(self._by_key)
        if left > most:
            stay = math.ceil(LEFT_WHEN_FULL * most)
            best = heapq.nlargest(stay, self._by_key.items(), key=lambda item: (item[0] == keep, *_lasting(item[1])))
            kept = {key for key, _ in best}
            self._by_key = {key: each for key, each in self._by_key.items() if key in kept}
        return before - left, left - len(self._by_key)

    def retrieve(
        self, *, bottleneck: str, operators: Iterable[str], limit: int, toolchain: str = "", machine: str = "",
        kernel: str = "",
    ) -> tuple[Experience, ...]:  # fmt: skip
        """The most relevant first; at most half are rejections while there are wins to show.

        Relevant is: the same bottleneck, shared operators, a large effect, often confirmed, measured with this
        toolchain, on this machine; useful where it was followed. What is not clear is told of its own `kernel` alone.
        """
        wanted = frozenset(operators)
        wins: list[tuple[float, Experience]] = []
        rejections: list[tuple[float, Experience]] = []
        for experience in self._by_key.values():
            if not (experience.is_clear or (kernel and experience.kernel == kernel)):
                continue
            worth = _score(experience, bottleneck, wanted, toolchain) * _kinship(experience.machine, machine)
            scored = (worth, experience)
            (wins if experience.is_win else rejections).append(scored)
        best = heapq.nlargest(limit, wins, key=_first)
        warnings = heapq.nlargest(limit, rejections, key=_first)
        places = max(limit - len(best), limit // 2)
        chosen = [*best[: limit - min(places, len(warnings))], *warnings[:places]]
        return tuple(experience for _, experience in sorted(chosen, key=_first, reverse=True))


def _first(pair: tuple[float, Experience]) -> float:
    return pair[0]


def _score(experience: Experience, bottleneck: str, wanted: frozenset[str], toolchain: str) -> float:
    shared = len(wanted.intersection(experience.operators)) / (len(wanted) or 1)
    fit = 0.1 + (experience.bottleneck == bottleneck) + shared
    return fit * _weight(experience) * _freshness(experience.toolchain, toolchain)


def _weight(experience: Experience) -> float:
    """Wherever it is told."""
    trust = experience.confirmed / (experience.confirmed + 2 * experience.refuted + 1)
    speedup = experience.speedup or 1.0
    effect = min(1.0, speedup - 1.0 if speedup > 1 else 1.0 - speedup)
    return (0.25 + trust * (0.5 + effect)) * experience.usefulness


def _lasting(experience: Experience) -> tuple[bool, float, str]:
    """By which experiences stay where there are too many; of equals the newest."""
    return experience.is_clear, _weight(experience), experience.date


def _freshness(measured_with: str, now_with: str) -> float:
    """What a new version of a compiler or simulator leaves of an old measurement's worth."""
    if not now_with or measured_with == now_with:
        return 1.0
    same_tool = measured_with.split(" ")[0] == now_with.split(" ")[0]
    return 0.7 if same_tool else 0.5


def _kinship(measured_on: str, now_on: str) -> float:
    """What another generation of the machine leaves of it; simulated or not is the toolchain's matter."""
    there, here = (_GENERATION.search(text) for text in (measured_on, now_on))
    return 0.5 if there and here and there.group() != here.group() else 1.0


_GENERATION = re.compile(r"trn\d")
