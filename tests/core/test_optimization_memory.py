"""Which experiences a round is shown, and what becomes of those it follows."""

from __future__ import annotations

import pytest

from accelopt_core.optimization_memory import Experience, OptimizationMemory


def known(title: str, speedup: float | None = 1.5, **more: object) -> Experience:
    values: dict[str, object] = {"technique": title, "bottleneck": "memory-bound", "operators": ("nc_matmul",),
                                 "kernel": "other", "machine": "trn2", "toolchain": "sim 0.2"}  # fmt: skip
    return Experience(title, "s", speedup=speedup, **(values | more))  # type: ignore[arg-type]  # any field by name


def shown(*experiences: Experience, limit: int = 6) -> list[str]:
    found = OptimizationMemory(experiences).retrieve(
        bottleneck="memory-bound",
        operators=("nc_matmul", "dma_copy"),
        limit=limit,
        toolchain="sim 0.2",
        machine="simulated trn2",
    )
    return [experience.title for experience in found]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (known("b"), known("w", bottleneck="compute-bound")),
        (known("b"), known("w", operators=("activation",))),
        (known("b", 2.0), known("w", 1.1)),
        (known("b", confirmed=4), known("w")),
        (known("b"), known("w", refuted=3)),
        (known("b"), known("w", toolchain="sim 0.1")),
        (known("b", toolchain="sim 0.1"), known("w", toolchain="neuronx-cc 2.1")),
        (known("b"), known("w", machine="simulated trn1, uncalibrated")),
        (known("b"), known("w", None, bottleneck="", operators=())),
    ],
    ids=[
        "bottleneck",
        "operators",
        "effect",
        "confirmed",
        "refuted",
        "older toolchain",
        "another toolchain",
        "another machine",
        "old",
    ],
)
def test_the_more_relevant_experience_comes_first(better: Experience, worse: Experience) -> None:
    assert shown(worse, better) == ["b", "w"]


@pytest.mark.parametrize(
    ("wins", "rejections", "expected"), [(9, 9, (3, 3)), (2, 9, (2, 4)), (9, 1, (5, 1)), (0, 9, (0, 6))]
)
def test_rejections_do_not_crowd_out_wins(wins: int, rejections: int, expected: tuple[int, int]) -> None:
    titles = shown(*(known(f"win {n}") for n in range(wins)), *(known(f"loss {n}", 0.1) for n in range(rejections)))
    assert (sum("win" in title for title in titles), sum("loss" in title for title in titles)) == expected


@pytest.mark.parametrize(
    ("before", "now", "confirmed", "refuted"),
    [
        (known("hoist", 2.0), known("mine", 1.3, technique="hoist", kernel="mine"), 2, 0),
        (known("hoist", 2.0), known("mine", 0.9, technique="hoist", kernel="mine"), 1, 1),
        (known("hoist", 0.5), known("mine", 0.9, technique="hoist", kernel="mine"), 2, 0),
        (known("hoist", 0.5), known("mine", 1.3, technique="hoist", kernel="mine"), 1, 1),
        (known("hoist", 2.0), known("mine", 1.3, technique="retile", kernel="mine"), 1, 0),
    ],
    ids=["won again", "lost now", "lost again", "won now", "not followed"],
)
def test_what_was_shown_and_followed_is_confirmed_or_refuted(
    before: Experience, now: Experience, confirmed: int, refuted: int
) -> None:
    memory = OptimizationMemory([before])
    memory.add(now, shown=(before,))
    entry = memory.experiences[0]
    assert (entry.title, entry.confirmed, entry.refuted) == ("hoist", confirmed, refuted)
    assert len(memory) == 2


def test_what_was_not_shown_is_neither() -> None:
    memory = OptimizationMemory([known("hoist", 2.0)])
    memory.add(known("mine", 0.9, technique="hoist", kernel="mine"))
    assert (memory.experiences[0].confirmed, memory.experiences[0].refuted) == (1, 0)


def test_a_rejection_within_the_noise_is_no_win() -> None:
    assert not known("tie", 1.005, rejected=True).is_win
    assert known("tie", 1.005, rejected=True).key != known("tie", 1.5).key
