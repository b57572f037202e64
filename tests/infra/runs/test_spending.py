"""One budget of hours and device minutes, over every session of a run and every thread of a round."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from accelopt_core.loop.events import BudgetUpdate, Event, Notice
from infra.journal import JournalDamaged
from infra.runs.event_log import Observers
from infra.runs.run_folder import RunFolder
from infra.runs.spending import Spending, TimeLimits
from tests.infra.samples import manifest


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)


class Clock:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.mark.parametrize(
    ("before_s", "elapsed_s", "used_up"),
    [(0.0, 3599.0, False), (0.0, 3600.0, True), (3000.0, 599.0, False), (3000.0, 600.0, True), (4000.0, 0.0, True)],
)
def test_the_hours_of_before_a_resume_count(before_s: float, elapsed_s: float, used_up: bool) -> None:
    clock = Clock()
    spending = Spending(TimeLimits(hours=1.0), Told(), seconds_before=before_s, clock=clock)
    clock.s += elapsed_s
    assert (spending.exhausted() is not None) is used_up
    assert spending.seconds_left() == max(0.0, 3600.0 - before_s - elapsed_s)


def test_what_the_last_check_takes_is_kept_of_the_hours_but_no_more_than_a_quarter() -> None:
    clock = Clock()
    spending = Spending(TimeLimits(hours=1.0), Told(), clock=clock)
    spending.reserve(100.0)
    clock.s += 3499.0
    assert spending.exhausted() is None and spending.seconds_left() == pytest.approx(1.0)
    clock.s += 1.0
    assert spending.exhausted() == "the 1 hours are used up, but for 100 s for the last check"
    spending.reserve(90_000.0)
    assert spending.seconds_left() == 0.0
    clock.s = 1000.0
    assert spending.seconds_left() == 2700.0
    unlimited = Spending(TimeLimits(), Told())
    unlimited.reserve(100.0)
    assert unlimited.seconds_left() == math.inf and unlimited.exhausted() is None


def test_without_a_limit_there_is_always_time_left() -> None:
    assert Spending(TimeLimits(), Told()).seconds_left() == math.inf


def test_a_run_that_was_killed_knows_how_long_it_had_been_at_work(tmp_path: Path) -> None:
    folder, clock = RunFolder.create(tmp_path, manifest("r"), {}), Clock()
    assert folder.seconds_used() == 0.0
    spending = Spending(TimeLimits(hours=1.0), Told(), on_time=folder.keep_time, clock=clock)
    for seconds in (5.0, 123456.0, 7.5):  # the last word counts, also where it is shorter than the one before
        clock.s = 1000.0 + seconds
        spending.exhausted()
    assert RunFolder(folder.path).seconds_used() == 7.5
    (folder.path / "time_used").write_text("long\n")
    with pytest.raises(JournalDamaged, match="time_used holds no number"):
        folder.seconds_used()


def test_device_seconds_of_several_threads_add_up_exactly() -> None:
    told = Told()
    spending = Spending(TimeLimits(device_minutes=10.0), Observers(told))
    threads = [
        threading.Thread(target=lambda: [spending.device_used(0.5) for _ in range(200)]) for _ in range(6)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "10 device minutes" in (spending.exhausted() or "")
    assert max(e.device_s for e in told.events if isinstance(e, BudgetUpdate)) == 600.0


def test_an_observer_is_told_one_event_at_a_time_and_may_be_told_more_by_a_signal_handler() -> None:
    inside, most = [0], [0]

    class Slow:
        def tell(self, event: Event) -> None:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.001)
            inside[0] -= 1

    class Handler:
        """Tells something itself, in the same thread, as the handler of Ctrl-C does."""

        def tell(self, event: Event) -> None:
            if isinstance(event, Notice) and event.message == "first":
                observers.tell(Notice("second"))

    slow = Slow()
    observers = Observers(slow, Handler())
    threads = [threading.Thread(target=lambda: observers.tell(Notice("first"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1] and inside == [0]
