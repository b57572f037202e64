"""The lanes of a round side by side, try by try: all that have something to write write it, then all are evaluated.

A lane runs in a thread of its own. Lanes share nothing that changes, and file nothing themselves: what they tried is
handed to the loop, which alone writes the journal. They wait for each other between writing and evaluating, since what
is worth evaluating is a matter of what the others wrote; which thread was faster never is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from accelopt_core.candidate import Attempt
from accelopt_core.loop.lane import Lane
from accelopt_core.loop.screening import Screening
from accelopt_core.loop.steps import Steps, Stop
from accelopt_core.ports import BudgetExhausted

Act = Callable[[Lane, Callable[[Attempt], None]], None]
"""Of a lane, which is to file its attempts so."""


def try_by_try(
    lanes: Sequence[Lane],
    write: Act,
    judge: Act,
    screening: Screening | None,
    steps: Steps,
    file: Callable[[Attempt], None],
    at_once: int,
) -> None:
    """Until each lane is through, or stopped: then `stopped_by` says by what. Of a single lane that is raised.

    `at_once`: lanes at work at a time. `screening` says what of a round is evaluated; without one everything is.
    Raises what the simulator raises where it cannot work.
    """

    def each(some: Sequence[Lane], act: Act) -> None:
        if len(lanes) > 1:
            run_side_by_side(some, act, steps, file, at_once)
        elif some:
            act(some[0], file)

    while not any(_ends_the_round(lane) for lane in lanes):
        if screening is not None:
            screening.tell_duplicates(lanes, file)
        to_write = [lane for lane in lanes if lane.is_under_way and lane.written is None]
        if to_write:
            each(to_write, write)
            continue
        waiting = [lane for lane in lanes if lane.is_under_way]
        sent = waiting if screening is None else screening.chosen(lanes)
        if not sent:
            break
        each(sent, judge)
    if screening is not None and all(lane.stopped_by is None for lane in lanes):
        screening.close(lanes, file)


def _ends_the_round(lane: Lane) -> bool:
    """Where one lane has no budget for its next question, what others wrote is evaluated all the same."""
    return lane.stopped_by is not None and not isinstance(lane.stopped_by, BudgetExhausted)


def run_side_by_side(lanes: Sequence[Lane], run: Callable[[Lane, Callable[[Attempt], None]], None], steps: Steps,
                     file: Callable[[Attempt], None], at_once: int) -> None:  # fmt: skip
    """Runs each lane in a thread, at most `at_once` at a time, and files in this one what they try, as it comes.

    When all are through, what stopped a lane is in its `stopped_by`. An interrupt of this thread leaves them behind:
    they are daemons, and end with the target they wait for.
    """
    said: queue.SimpleQueue[Attempt | Lane] = queue.SimpleQueue()
    turns = threading.Semaphore(at_once)

    def go(lane: Lane) -> None:
        try:
            with turns:
                run(lane, said.put)
        except BaseException as error:  # not this thread's to handle: the loop looks at it and raises it again
            lane.stopped_by = error
            if not isinstance(error, (Stop, BudgetExhausted)):
                steps.halt()
        finally:
            said.put(lane)

    for lane in lanes:
        threading.Thread(target=go, args=(lane,), name=f"lane {lane.place.lane}", daemon=True).start()
    under_way = len(lanes)
    while under_way:
        item = said.get()
        if isinstance(item, Attempt):
            file(item)
        else:
            under_way -= 1
