"""A function over many items in several processes: what comes back is what one process finds."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial

import pytest

from infra.prediction.trees import mapped


def children() -> list[int]:
    return [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_the_order_of_the_items_and_no_process_is_left(processes: int, count: int) -> None:
    before = children()
    items = list(range(count))
    assert list(mapped(processes, partial(pow, 3), items)) == [3**item for item in items]
    assert children() == before


def test_helpers_do_their_share() -> None:
    whose = list(mapped(3, lambda item: os.getpid(), range(9)))
    assert len(set(whose[:3])) == 3 and whose == 3 * whose[:3] and whose[0] == os.getpid()


def test_whoever_asks_for_no_more_leaves_no_process_behind() -> None:
    before = children()
    found = mapped(3, lambda item: "x" * 100_000, range(90))
    next(found)
    assert len(children()) == len(before) + 2
    found.close()  # type: ignore[attr-defined]
    assert children() == before


def test_what_a_helper_raises_is_raised_here_and_what_a_lost_one_had_is_found_here() -> None:
    me = os.getpid()

    def kills_helpers(item: int) -> int:
        if os.getpid() != me and item > 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    assert list(mapped(2, kills_helpers, range(10))) == list(range(10))

    def fails(items: Sequence[int], item: int) -> int:
        return items[item]

    with pytest.raises(IndexError):
        list(mapped(2, partial(fails, [0]), [0, 1]))
