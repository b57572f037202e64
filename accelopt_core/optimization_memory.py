"""Slow-to-fast experiences with provenance, and which of them matter for the kernel at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace


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
        return self.speedup is None or self.speedup > 1


class OptimizationMemory:
    """All experiences, held in memory; reading and writing the file is `infra.journal`'s."""

    def __init__(self, experiences: Iterable[Experience] = ()) -> None:
        self._by_key: dict[str, Experience] = {}
        for experience in experiences:
            self._merge(experience)

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def experiences(self) -> tuple[Experience, ...]:
        return tuple(self._by_key.values())

    def add(self, experience: Experience) -> Experience:
        """Files it, merged with an earlier one of the same key; returns what is now on file."""
        return self._merge(experience)

    def _merge(self, new: Experience) -> Experience:
        old = self._by_key.get(new.key)
        if old is not None:
            new = replace(new, confirmed=old.confirmed + new.confirmed, refuted=old.refuted + new.refuted)
        self._by_key[new.key] = new
        return new

    def retrieve(self, *, bottleneck: str, operators: Iterable[str], limit: int) -> tuple[Experience, ...]:
        """The most relevant first: same bottleneck, shared operators, then how well it worked."""
        wanted = set(operators)

        def relevance(experience: Experience) -> tuple[float, float]:
            shared = len(wanted & set(experience.operators))
            fit = 2.0 * (experience.bottleneck == bottleneck) + shared / (1 + len(wanted))
            trust = experience.confirmed / (experience.confirmed + experience.refuted + 1)
            gain = abs((experience.speedup or 1.0) - 1.0)
            return fit, trust * gain

        ranked = sorted(self._by_key.values(), key=relevance, reverse=True)
        return tuple(ranked[:limit])
