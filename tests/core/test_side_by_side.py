"""Checks in processes of their own: in order, what they raise, and what becomes of one whose share is too little."""

from __future__ import annotations

import os
import platform
import resource
import signal

import numpy as np
import pytest

from accelopt_core.judging.side_by_side import WORTH_A_PROCESS_BYTES, side_by_side

HERE = os.getpid()


def test_results_come_in_order_from_other_processes() -> None:
    found = list(side_by_side(lambda case: (case, os.getpid() != HERE), range(5), WORTH_A_PROCESS_BYTES, 2))
    assert [case for case, _ in found] == list(range(5))
    assert len(os.sched_getaffinity(0)) < 2 or all(other for _, other in found)


def test_what_needs_more_than_its_share_of_memory_is_checked_alone() -> None:
    def check(case: int) -> tuple[int, bool]:
        if case == 1 and os.getpid() != HERE:
            raise MemoryError
        return case, os.getpid() != HERE

    found = list(side_by_side(check, range(4), WORTH_A_PROCESS_BYTES, 2))
    assert [case for case, _ in found] == list(range(4))
    assert not any(other for _, other in found[1:])


@pytest.mark.parametrize("most", [1, 2])
def test_what_the_system_ends_for_want_of_memory_is_checked_alone(most: int) -> None:
    def check(case: int) -> tuple[int, bool]:
        if case == 1 and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return case, os.getpid() != HERE

    found = list(side_by_side(check, range(4), WORTH_A_PROCESS_BYTES, most))
    assert [case for case, _ in found] == list(range(4))
    assert not any(other for _, other in found[1:])


def test_one_process_is_worth_it_for_several_checks_and_none_for_what_must_stay_here() -> None:
    def elsewhere(case: int) -> bool:
        return os.getpid() != HERE

    assert all(side_by_side(elsewhere, range(3), WORTH_A_PROCESS_BYTES, 1))
    assert not any(side_by_side(elsewhere, range(3), WORTH_A_PROCESS_BYTES, 0))
    assert not any(side_by_side(elsewhere, range(1), WORTH_A_PROCESS_BYTES, 1))


def test_what_a_check_raises_is_raised_here_also_where_memory_does_not_suffice() -> None:
    def check(case: int) -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        list(side_by_side(check, range(3), WORTH_A_PROCESS_BYTES, 2))

    def check(case: int) -> int:
        raise KeyError(case)

    with pytest.raises(KeyError, match="0"):
        list(side_by_side(check, range(3), WORTH_A_PROCESS_BYTES, 2))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep what is freed")
def test_what_one_check_frees_the_next_uses_again() -> None:
    here = page_faults(0)
    there = list(side_by_side(page_faults, range(2), WORTH_A_PROCESS_BYTES, 2))
    assert min(here) >= PIECE >> 21, "fewer than huge pages"
    assert all(max(again) < min(here) // 2 for _, *again in there)


PIECE = 96 << 20
"""Bytes: beyond what glibc keeps by itself."""


def page_faults(case: int) -> list[int]:
    """Of writing to one piece of memory after the other, each freed at once."""
    seen = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(4):
        np.empty(PIECE, np.uint8).fill(case)
        seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return [after - before for before, after in zip(seen, seen[1:])]
