"""`kill -9` at every step that reaches the disk, then `--resume`: as if nothing had happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.runs.memory_file import MemoryFile
from tests.llm.wire_server import WireServer
from tests.resume.scripted_run import Kill, World, reply_to

MOST_STEPS = 400


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer(reply_to) as running:
        yield running


def asked(server: WireServer, since: int) -> Counter[str]:
    return Counter(json.dumps(request.body, sort_keys=True) for request in server.requests[since:])


def state(world: World) -> dict[str, Any]:
    """All that a run comes to, less what says when."""
    run = world.run
    best, baseline, manifest = run.winner(), run.baseline(), run.manifest()
    assert best is not None and baseline is not None
    memory = MemoryFile(world.folder / "memory.json", print).load()
    return {
        "best": best,
        "baseline": baseline,
        "best_kernel": run.best_kernel.read_text(encoding="utf-8"),
        "tries": run.attempts(),
        "lines": len((run.path / "experiments.jsonl").read_text(encoding="utf-8").splitlines()),
        "memory": memory.experiences,
        "ledger": run.model_calls(),
        "exchanges": [key for key, _ in run.exchanges()],
        "ending": (manifest.status, manifest.reason),
        "diff": (run.path / "best.diff").read_text(encoding="utf-8").replace(str(world.folder), ""),
    }


@pytest.fixture(scope="module")
def undisturbed(server: WireServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any, Any]:
    World(tmp_path_factory.mktemp("warm") / "w", server.url).warm_up()
    world = World(tmp_path_factory.mktemp("undisturbed") / "w", server.url)
    since = len(server.requests)
    assert world.start() == 0, (world.folder / "output").read_text()
    return state(world), asked(server, since), world.evaluations


def test_the_undisturbed_run_is_worth_the_comparison(undisturbed: tuple[dict[str, Any], Any, Any]) -> None:
    final, requests, evaluations = undisturbed
    outcomes = [entry.outcome for entry in final["tries"]]
    assert outcomes == ["incorrect", "improved", "no_kernel", "reverted", "improved"]
    assert final["best"].result.latency_us == 100.0 and final["ending"][0] == "finished"
    assert set(requests.values()) == {1} and set(evaluations.values()) == {1}
    assert len(final["ledger"]) == sum(requests.values()) == len(final["exchanges"])


@pytest.mark.parametrize(
    ("after", "stride"),
    [(True, 9), pytest.param(False, 4, marks=pytest.mark.slow), pytest.param(True, 1, marks=pytest.mark.slow)],
    ids=["after", "before", "after each"],
)
def test_killed_at_every_step_and_resumed_it_ends_the_same(after, stride, server, undisturbed, tmp_path) -> None:
    final, requests, evaluations = undisturbed
    # Just before a step is just after the one before it, but for what is half done: a sample will do.
    for step in range(1, MOST_STEPS, stride):
        world = World(tmp_path / str(step), server.url)
        since = len(server.requests)
        status = world.start(Kill(step, after))
        if status is not None:
            assert status == 0
            break
        assert world.start() == 0, (world.folder / "output").read_text()
        where = f"killed {'after' if after else 'before'} step {step}"
        for name, value in state(world).items():
            assert value == final[name], f"{where}: {name}"
        again = sum((asked(server, since) - requests).values())
        repeated = world.evaluations - evaluations
        # What was under way when the process died, and had not reached the disk, cannot be known; nothing else repeats.
        assert again + sum(repeated.values()) <= (0 if after else 1), f"{where}: {again} calls, {repeated}"
        assert not list(world.run.path.glob("**/.*.tmp")), where
    else:
        pytest.fail("the run never ends by itself")
    assert step > 50, "the enumeration missed the journal"


TWO_KERNELS = ("--beam", "2", "--samples", "2", "--revert-above", "9", "--rounds", "3")
"""So far from the best as here nothing would be gone on from otherwise."""

FOUR_LANES_OF_ROUND_2 = (
    ("a", "r001at2", "no_kernel"), ("b", "r001at2", "no_kernel"),
    ("c", "input", "incorrect"), ("d", "input", "incorrect"),
)  # fmt: skip


def of_two_kernels(*second: str) -> list[tuple[str, int, str, str]]:
    """The first two rounds. `second`: what the second tries of the second round come to, lane by lane."""
    first = [
        (lane, number, "input", outcome)
        for lane, then in (("a", "improved"), ("b", "no_improvement"))
        for number, outcome in ((1, "incorrect"), (2, then))
    ]
    return first + [
        (lane, number, parent, outcome)
        for (lane, parent, fault), then in zip(FOUR_LANES_OF_ROUND_2, second)
        for number, outcome in ((1, fault), (2, then))
    ]


@pytest.mark.parametrize(
    ("flags", "device", "tries", "last", "winner"),
    [
        pytest.param(
            ("--rounds", "3"),
            False,
            [
                ("a", 1, "input", "incorrect"), ("a", 2, "input", "improved"),
                ("b", 1, "input", "no_kernel"), ("b", 2, "input", "reverted"),
                ("a", 1, "r001at2", "no_kernel"), ("a", 2, "r001at2", "reverted"),
                ("b", 1, "r001at2", "incorrect"), ("b", 2, "r001at2", "reverted"),
            ],
            [("a", 1, "improved"), ("b", 1, "reverted")],
            "r003at1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TWO_KERNELS,
            False,
            of_two_kernels(*["no_improvement"] * 4),
            [
                ("a", 1, "improved"), ("b", 1, "duplicate"), ("b", 2, "no_improvement"),
                ("c", 1, "no_improvement"), ("d", 1, "duplicate"), ("d", 2, "no_improvement"),
            ],
            "r003at1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TWO_KERNELS,
            True,
            of_two_kernels("no_improvement", "outranked", "no_improvement", "no_improvement"),
            [
                ("a", 1, "improved"), ("b", 1, "duplicate"), ("b", 2, "no_improvement"),
                ("c", 1, "no_improvement"), ("d", 1, "duplicate"), ("d", 2, "outranked"),
            ],
            "r003at1",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two plans", "two kernels, two samples", "the same on a device"],
)  # fmt: skip
def test_a_run_with_several_candidates_a_round_ends_the_same_wherever_it_is_killed(
    server: WireServer, tmp_path: Path, flags: tuple[str, ...], device: bool, tries: list[tuple[str, int, str, str]],
    last: list[tuple[str, int, str]], winner: str,
) -> None:  # fmt: skip
    """Which of two threads is first is chance; what comes of it is not."""
    World(tmp_path / "warm", server.url, flags=flags).warm_up()
    undisturbed = World(tmp_path / "undisturbed", server.url, width=2, flags=flags, device=device)
    since = len(server.requests)
    assert undisturbed.start() == 0, (undisturbed.folder / "output").read_text()
    final, requests, evaluations = state(undisturbed), asked(server, since), undisturbed.evaluations
    assert [(e.lane, e.number, e.parent_id, e.outcome) for e in final["tries"] if e.round < 3] == tries
    assert [(e.lane, e.number, e.outcome) for e in final["tries"] if e.round == 3] == last
    assert final["best"].candidate.id == winner and set(requests.values()) == {1}
    for step in range(3, MOST_STEPS, 13 if flags != TWO_KERNELS else 29):
        world = World(tmp_path / str(step), server.url, width=2, flags=flags, device=device)
        since = len(server.requests)
        if world.start(Kill(step, True)) is not None:
            break
        assert world.start() == 0, (world.folder / "output").read_text()
        for name, value in state(world).items():
            if name in ("ledger", "exchanges"):  # in the order of two threads
                assert Counter(map(repr, value)) == Counter(map(repr, final[name])), f"killed after step {step}: {name}"
            else:
                assert value == final[name], f"killed after step {step}: {name}"
        again = sum((asked(server, since) - requests).values())
        repeated = sum((world.evaluations - evaluations).values())
        assert again + repeated <= 1, f"killed after step {step}: more than what the other lane had under way"
    else:
        pytest.fail("the run never ends by itself")
    assert step > 80, "the enumeration missed the journal"
