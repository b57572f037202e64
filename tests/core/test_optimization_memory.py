"""Which experiences a round is shown, and what becomes of those it follows."""

from __future__ import annotations

import datetime

import pytest

from accelopt_core.optimization_memory import MOST_EVIDENCE, Experience, OptimizationMemory


def known(title: str, speedup: float | None = 1.5, **more: object) -> Experience:
    values: dict[str, object] = {"technique": title, "bottleneck": "memory-bound", "operators": ("nc_matmul",),
                                 "kernel": "other", "machine": "trn2", "toolchain": "sim 0.2"}  # fmt: skip
    return Experience(title, "s", speedup=speedup, **(values | more))  # type: ignore[arg-type]  # any field by name


def shown(*experiences: Experience, limit: int = 6) -> list[str]:
    of_round = {"bottleneck": "memory-bound", "operators": ("nc_matmul", "dma_copy"), "limit": limit}
    found = OptimizationMemory(experiences).retrieve(**of_round, toolchain="sim 0.2", machine="simulated trn2")
    return [experience.title for experience in found]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (known("b"), known("w", bottleneck="compute-bound")),
        (known("b"), known("w", operators=("activation",))),
        (known("b", 2.0), known("w", 1.1)),
        (known("b", confirmed=4), known("w")),
        (known("b"), known("w", refuted=3)),
        (known("b", used=3, helped=3), known("w")),
        (known("b"), known("w", used=3, helped=0)),
        (known("b"), known("w", toolchain="sim 0.1")),
        (known("b", toolchain="sim 0.1"), known("w", toolchain="neuronx-cc 2.1")),
        (known("b"), known("w", machine="simulated trn1, uncalibrated")),
        (known("b"), known("w", None, bottleneck="", operators=())),
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
def test_what_was_shown_and_followed_is_confirmed_or_refuted(before, now, confirmed, refuted) -> None:
    memory = OptimizationMemory([before])
    memory.add(now, shown=(before,))
    entry = memory.experiences[0]
    assert (entry.title, entry.confirmed, entry.refuted) == ("hoist", confirmed, refuted)
    assert len(memory) == 2


def test_the_same_program_at_the_same_shape_says_a_thing_once() -> None:
    at = {"technique": "hoist", "kernel": "mine"}
    mine = known("mine", 1.3, **at, evidence=("p1 [128, 512]",))
    memory = OptimizationMemory([mine])
    for evidence, confirmed in (
        ("p1 [128, 512]", 1),
        ("p2 [128, 512]", 2),
        ("p1 [128, 1024]", 3),
        ("p2 [128, 512]", 3),
    ):
        filed = memory.add(known("mine", 1.3, **at, evidence=(evidence,)))
        assert filed.confirmed == confirmed
    other = known("hoist", 2.0, evidence=("p9 [64]",))
    memory = OptimizationMemory([other])
    for speedup, confirmed, refuted in ((1.3, 2, 0), (1.3, 2, 0), (0.8, 2, 1), (0.8, 2, 1)):
        memory.add(known("mine", speedup, **at, evidence=("p1 [128, 512]",)), shown=(other,))
        told = memory.experiences[0]
        assert (told.title, told.confirmed, told.refuted) == ("hoist", confirmed, refuted)
    for number in range(100):
        memory.add(known("hoist", 2.0, evidence=(f"p{number} [64]",)))
    assert len(memory.experiences[0].evidence) == MOST_EVIDENCE and memory.experiences[0].confirmed == 2 + 99


def test_what_was_not_shown_is_neither_and_a_tie_is_no_win() -> None:
    memory = OptimizationMemory([known("hoist", 2.0)])
    memory.add(known("mine", 0.9, technique="hoist", kernel="mine"))
    assert (memory.experiences[0].confirmed, memory.experiences[0].refuted) == (1, 0)
    assert not known("tie", 1.005, rejected=True).is_win
    assert known("tie", 1.005, rejected=True).key != known("tie", 1.5).key


@pytest.mark.parametrize(
    ("speedup", "rejected", "told"),
    [(1.05, False, True), (1.03, False, False), (0.9, True, False), (0.86, True, True), (2.0, True, True),
     (None, False, True)],
    ids=["a win", "hardly a win", "hardly a loss", "a loss", "faster and wrong", "no number"],
)  # fmt: skip
def test_another_kernel_is_told_of_what_is_clear_alone(speedup: float | None, rejected: bool, told: bool) -> None:
    experience = known("x", speedup, rejected=rejected, kernel="softmax")
    memory = OptimizationMemory([experience])

    def found(kernel: str) -> bool:
        return memory.retrieve(bottleneck="memory-bound", operators=(), limit=6, kernel=kernel) == (experience,)

    assert found("softmax") and found("matmul") is told


def test_an_experience_has_a_record_of_whom_it_helped() -> None:
    memory = OptimizationMemory([known("a"), known("b", 0.5)])
    won, lost = (each.key for each in memory.experiences)
    assert [each.usefulness for each in memory.experiences] == [1.0, 1.0]
    for _ in range(3):
        memory.credit((won, lost), improved=False)
    misled, right = memory.experiences
    assert (misled.used, misled.helped, misled.usefulness) == (3, 0, 0.4), "a win that was none"
    assert (right.used, right.helped, right.usefulness) == (3, 3, 1.6), "a warning that was right"
    memory = OptimizationMemory([known("a"), known("b", 0.5)])
    keys = [each.key for each in memory.experiences]
    memory.credit(keys, improved=True)
    memory.credit(keys, improved=False, instead=True)
    assert [(each.used, each.helped) for each in memory.experiences] == [(1, 0), (1, 1)]
    memory = OptimizationMemory([known("a", used=3, helped=2)])
    again = memory.add(known("a", 1.7))
    assert (again.used, again.helped, again.confirmed, again.speedup) == (3, 2, 2, 1.7)


def test_the_worst_go_first_and_the_newest_of_equals_stay() -> None:
    memory = OptimizationMemory([
        known("unclear", 1.01, confirmed=50), known("misled", used=9), known("old", date="2026-01-01"),
        known("new", date="2026-02-01"), known("useful", used=3, helped=3),
    ])  # fmt: skip
    today = datetime.date(2026, 3, 1)
    assert memory.expire(today, most=2) == (0, 3)
    assert [each.title for each in memory.experiences] == ["new", "useful"]
    assert memory.expire(today, most=1, keep=known("new").key) == (0, 1)
    assert [each.title for each in memory.experiences] == ["new"]
    assert memory.expire(today, days=20) == (1, 0) and len(memory) == 0
