"""Several hosts as one target: who gets which candidate, and what becomes of a host that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Evaluation
from accelopt_core.ports import (
    EvaluationRequest,
    Progress,
    TargetError,
    TargetInfo,
    TargetMisconfigured,
    TargetUnreachable,
)
from accelopt_core.task import ShapePreset, Task
from infra.targets.pool import TargetPool
from tests.processes import PATIENCE_S

REQUEST = EvaluationRequest(Task("t", "", (ShapePreset("small", (("M", 1),)),)), Candidate("c", "source"))


class Host:
    """A member that answers when the test lets it."""

    def __init__(self, name: str, width: int = 1, fingerprint: str = "f", fault: TargetError | None = None) -> None:
        self._name = name
        self._width = width
        self.fingerprint = fingerprint
        self.asked = 0
        self.fault = fault
        self.go = threading.Event()
        self.go.set()
        self.began: list[str] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self.owed = ""
        self.folder: Path | None = None
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def width(self) -> int:
        return self._width

    def owes(self, request: EvaluationRequest) -> bool:
        return request.candidate.source == self.owed

    def remember_in(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> TargetInfo:
        return TargetInfo(self._name, self.fingerprint, True, "trn2")

    def describe_again(self) -> TargetInfo:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.describe()

    def evaluate(self, request: EvaluationRequest, progress: Progress) -> Evaluation:
        with self._lock:
            self.began.append(request.candidate.source)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        self.go.wait(PATIENCE_S)
        with self._lock:
            self._now -= 1
        if self.fault is not None:
            raise self.fault
        return CompileFailed(f"{self._name}: {request.candidate.source}")

    def close(self) -> None:
        self.closed = True
        self.fault = TargetUnreachable("closed")
        self.go.set()


def evaluate(pool: TargetPool, source: str = "source", said: list[str] | None = None) -> Evaluation:
    lines = said if said is not None else []
    request = replace(REQUEST, candidate=Candidate("c", source))
    return pool.evaluate(request, lambda step, detail: lines.append(detail))


def side_by_side(pool: TargetPool, sources: list[str]) -> tuple[list[threading.Thread], dict[str, object]]:
    results: dict[str, object] = {}

    def one(source: str) -> None:
        try:
            results[source] = evaluate(pool, source)
        except TargetError as error:
            results[source] = error

    threads = [threading.Thread(target=one, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    return threads, results


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it does not come to this")


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_candidates_spread_over_the_members_and_none_has_more_than_its_width() -> None:
    hosts = [Host("a"), Host("b", width=2)]
    pool = TargetPool(hosts)
    assert pool.width == 3
    for host in hosts:
        host.go.clear()
    threads, results = side_by_side(pool, [f"s{number}" for number in range(7)])
    wait_for(lambda: len(hosts[0].began) == 1 and len(hosts[1].began) == 2)
    hosts[1].go.set()
    wait_for(lambda: len(results) == 6)
    assert len(hosts[0].began) == 1, "the slow one is not waited for"
    hosts[0].go.set()
    join(threads)
    assert len(results) == 7 and all(isinstance(result, CompileFailed) for result in results.values())
    assert [host.most_at_once for host in hosts] == [1, 2]


@pytest.mark.parametrize("fault", [TargetUnreachable("gone"), TargetMisconfigured("its disk is full")])
def test_a_member_that_fails_is_set_aside_and_another_evaluates_its_candidate(fault: TargetError) -> None:
    hosts = [Host("a", fault=fault), Host("b")]
    pool, said = TargetPool(hosts), list[str]()
    assert evaluate(pool, "x", said) == CompileFailed("b: x")
    assert [line for line in said if "a is set aside" in line and str(fault) in line]
    assert evaluate(pool, "y") == CompileFailed("b: y")
    assert hosts[0].began == ["x"]


@pytest.mark.parametrize(("fingerprint", "used"), [("f", True), ("upgraded meanwhile", False)])
def test_a_member_that_comes_back_alike_is_used_again(fingerprint: str, used: bool) -> None:
    hosts, now, said = [Host("a", fault=TargetUnreachable("it restarts")), Host("b")], [0.0], list[str]()
    pool = TargetPool(hosts, rest_s=600, clock=lambda: now[0])
    assert evaluate(pool, "u") == CompileFailed("b: u")
    hosts[0].fault = None
    hosts[0].fingerprint = fingerprint
    now[0] = 599.0
    assert evaluate(pool, "v") == CompileFailed("b: v") and hosts[0].asked == 0
    now[0] = 600.0
    assert evaluate(pool, "w", said) == CompileFailed("a: w" if used else "b: w") and hosts[0].asked == 1
    assert said == ["note: a is back" + ("" if used else ", but latencies there can no longer be compared")]
    assert evaluate(pool, "x", said) == CompileFailed("a: x" if used else "b: x") and len(said) == 1


def test_a_member_that_stays_away_is_asked_now_and_then_and_holds_nobody_up() -> None:
    hosts, now = [Host("a", fault=TargetUnreachable("gone")), Host("b")], [0.0]
    pool = TargetPool(hosts, rest_s=600, clock=lambda: now[0])
    for minute in range(30):
        now[0] = 60.0 * minute
        assert evaluate(pool, "u") == CompileFailed("b: u")
    assert hosts[0].asked == 2 and hosts[0].began == ["u"]


def test_the_last_ones_fault_ends_it_for_all_who_wait() -> None:
    hosts = [Host("a", fault=TargetUnreachable("a is gone")), Host("b", fault=TargetUnreachable("b is gone"))]
    for host in hosts:
        host.go.clear()
    pool = TargetPool(hosts)
    threads, results = side_by_side(pool, ["u", "v", "w", "x"])
    wait_for(lambda: bool(hosts[0].began) and bool(hosts[1].began))
    for host in hosts:
        host.go.set()
    join(threads)
    assert all(isinstance(result, TargetUnreachable) for result in results.values()) and len(results) == 4
    with pytest.raises(TargetUnreachable, match="is gone"):
        evaluate(pool)


def test_what_was_begun_before_a_restart_goes_where_it_was_begun() -> None:
    hosts = [Host("a"), Host("b")]
    hosts[1].owed = "x"
    pool = TargetPool(hosts)
    assert evaluate(pool, "x") == CompileFailed("b: x")
    assert evaluate(pool, "y") == CompileFailed("a: y")
    hosts[1].fault = TargetUnreachable("gone")
    assert evaluate(pool, "x") == CompileFailed("a: x")


def test_members_that_do_not_measure_alike_are_named_and_nothing_is_evaluated() -> None:
    hosts = [Host("a"), Host("b"), Host("c", fingerprint="other")]
    pool = TargetPool(hosts)
    for act in (pool.describe, lambda: evaluate(pool)):
        with pytest.raises(TargetMisconfigured, match="latencies of a and c cannot be compared") as caught:
            act()
        assert "\n" not in str(caught.value)
    assert not any(host.began for host in hosts)


def test_alike_members_describe_themselves_together(tmp_path: Path) -> None:
    hosts = [Host("a"), Host("b")]
    pool = TargetPool(hosts)
    assert pool.describe() == TargetInfo("a; b", "f", True, "trn2")
    pool.remember_in(tmp_path)
    assert [host.folder for host in hosts] == [tmp_path] * 2


def test_close_ends_those_who_evaluate_and_those_who_wait() -> None:
    host = Host("a")
    host.go.clear()
    pool = TargetPool([host])
    threads, results = side_by_side(pool, ["u", "v"])
    wait_for(lambda: bool(host.began))
    pool.close()
    join(threads)
    assert host.closed and len(host.began) == 1
    assert all(isinstance(result, TargetUnreachable) for result in results.values()) and len(results) == 2


def test_a_fault_that_is_not_the_targets_passes_and_frees_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host("a")
    pool = TargetPool([host])

    def interrupted(request: EvaluationRequest, progress: Progress) -> Evaluation:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(host, "evaluate", interrupted)
        evaluate(pool)
    assert evaluate(pool) == CompileFailed("a: source")
