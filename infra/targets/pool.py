"""Several hosts as one target: a candidate goes to whichever is free, and a host that fails is gone on without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from accelopt_core.evaluation import Evaluation, Step
from accelopt_core.ports import (
    EvaluationRequest,
    Progress,
    Target,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TargetUnreachable,
)

REST_S = 600.0
"""After so long a member that failed is asked once whether it is back."""


class Member(Target, Protocol):
    """A target that can be one of several."""

    @property
    def name(self) -> str:
        """For people: the host."""
        ...

    def owes(self, request: EvaluationRequest) -> bool:
        """An earlier process began this evaluation there: that member has the result, or soon will."""
        ...

    def remember_in(self, folder: Path) -> None:
        """Keep there what is under way, for a later process to collect."""
        ...

    def describe_again(self) -> TargetInfo:
        """Asked afresh, with one try to reach it. Raises TargetError."""
        ...


@dataclass
class _Aside:
    error: TargetError
    asked: float
    """When it failed, or was last asked whether it is back."""


class TargetPool:
    """One or more members that measure alike. Safe to use from several threads; who finds no member free, waits."""

    def __init__(
        self, members: Sequence[Member], *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not members:
            raise ValueError("a pool needs a member")
        self._rest_s = rest_s
        self._clock = clock
        self._members = tuple(members)
        self._in_use = {index: 0 for index in range(len(members))}
        self._aside: dict[int, _Aside] = {}
        self._changed = threading.Condition()
        self._describing = threading.Lock()
        self._info: TargetInfo | None = None
        self._closed = False

    @property
    def width(self) -> int:
        """As long as no member is set aside."""
        return sum(member.width for member in self._members)

    def remember_in(self, folder: Path) -> None:
        for member in self._members:
            member.remember_in(folder)

    def describe(self) -> TargetInfo:
        """What all members agree on. Raises TargetMisconfigured naming two that differ, TargetError for one that fails.

        At the start somebody is there to mend what does not answer, so nothing is set aside yet.
        """
        with self._describing:
            if self._info is None:
                infos = [member.describe() for member in self._members]
                for other in infos[1:]:
                    if other.fingerprint != infos[0].fingerprint:
                        raise TargetMisconfigured(
                            f"latencies of {infos[0].name} and {other.name} cannot be compared (machine, tools or "
                            "versions differ): make them alike, or use one of them"
                        )
                name = "; ".join(info.name for info in infos)
                self._info = replace(infos[0], name=name)
            return self._info

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        """Where it was begun before a restart, else where most is free. Raises the last TargetError when all failed."""
        self.describe()
        self._ask_those_aside(progress)
        while True:
            index = self._occupy(request)
            member = self._members[index]
            try:
                return member.evaluate(request, progress)
            except TargetError as error:
                self._set_aside(index, error)
                progress(Step.UPLOAD, f"note: {member.name} is set aside: {error}")
            finally:
                with self._changed:
                    self._in_use[index] -= 1
                    self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with ThreadPoolExecutor(len(self._members)) as threads:  # each may have to wait for a host out of reach
            list(threads.map(lambda member: member.close(), self._members))

    def _occupy(self, request: EvaluationRequest) -> int:
        """Wait for a member to be free. Raises TargetError when there is none to wait for."""
        with self._changed:
            while True:
                if self._closed:
                    raise TargetUnreachable("the evaluation was ended by this program")
                there = [index for index in range(len(self._members)) if index not in self._aside]
                if not there:
                    raise list(self._aside.values())[-1].error
                owing = [index for index in there if self._members[index].owes(request)]
                free = {index: self._members[index].width - self._in_use[index] for index in owing or there}
                freest = max(free, key=lambda index: free[index])  # of equals the first
                if free[freest] > 0:
                    self._in_use[freest] += 1
                    return freest
                self._changed.wait()

    def _set_aside(self, index: int, error: TargetError) -> None:
        with self._changed:
            self._aside.setdefault(index, _Aside(error, self._clock()))
            if self._closed or len(self._aside) == len(self._members):
                raise error
            self._changed.notify_all()

    def _ask_those_aside(self, progress: Progress) -> None:
        """Whoever has rested is asked, by one thread, which it holds up for one try to connect."""
        with self._changed:
            rested = [index for index, aside in self._aside.items() if self._clock() - aside.asked >= self._rest_s]
            for index in rested:
                self._aside[index].asked = self._clock()
        for index in rested:
            member = self._members[index]
            try:
                alike = member.describe_again().fingerprint == self.describe().fingerprint
            except TargetError:
                continue
            if not alike:
                progress(Step.UPLOAD, f"note: {member.name} is back, but latencies there can no longer be compared")
                continue
            with self._changed:
                self._aside.pop(index, None)
                self._changed.notify_all()
            progress(Step.UPLOAD, f"note: {member.name} is back")
