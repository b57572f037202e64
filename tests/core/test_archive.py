"""Of each kind the fastest stays; the search goes on from the best until that is worn out, and never loses it."""

from __future__ import annotations

from accelopt_core.evaluation import Bottleneck
from accelopt_core.loop.beam import Archive, Cell

INPUT = Cell(Bottleneck.MEMORY_BOUND, frozenset())
WIDE = Cell(Bottleneck.MEMORY_BOUND, frozenset({"widen"}))
WIDE_BOUND = Cell(Bottleneck.COMPUTE_BOUND, frozenset({"widen"}))
FUSED = Cell(Bottleneck.MEMORY_BOUND, frozenset({"fuse"}))


def filled(**settings: float) -> Archive[str]:
    archive = Archive[str](restart_after=int(settings.pop("restart_after", 2)), **settings)
    for cell, item, us in ((INPUT, "input", 100.0), (WIDE, "wide", 80.0), (FUSED, "fused", 90.0)):
        assert archive.offer(cell, item, us)
    return archive


def test_of_each_cell_the_fastest_stays_until_it_is_dropped() -> None:
    archive = filled()
    assert not archive.offer(WIDE, "wide, again", 80.0)
    assert archive.offer(WIDE, "wider", 70.0) and archive.offer(WIDE_BOUND, "wide, and bound", 95.0)
    assert {cell: elite.item for cell, elite in archive.cells.items()} == {
        INPUT: "input", WIDE: "wider", FUSED: "fused", WIDE_BOUND: "wide, and bound",
    }  # fmt: skip
    archive = filled()
    archive.drop("wide", [(WIDE, "wide before", 85.0), (FUSED, "fused before", 99.0), (INPUT, "input", 100.0)])
    assert archive.draw(9) == ("wide before", "fused", "input")


def test_the_fastest_come_first_and_several_always_hold_the_best() -> None:
    assert filled().draw() == ("wide",)
    assert filled().draw(9) == ("wide", "fused", "input")
    assert filled(explore_within=0.2).draw(9) == ("wide", "fused")
    assert Archive[str]().draw(3) == ()
    archive = filled(restart_after=1)
    archive.went_on_from("wide", gained=False)
    assert archive.draw() == ("fused",) and archive.draw(2) == ("fused", "wide")


def test_where_nothing_improves_it_restarts_elsewhere_until_a_gain_makes_it_fresh() -> None:
    archive, drawn = filled(), []
    for _ in range(8):
        (item,) = archive.draw()
        drawn.append(item)
        archive.went_on_from(item, gained=False)
    assert drawn == ["wide", "wide", "fused", "fused", "input", "input", "wide", "wide"]
    archive = filled()
    for gained in (False, True, False):
        archive.went_on_from("wide", gained)
    assert archive.draw() == ("wide",)
    archive.went_on_from("wide", gained=False)
    assert archive.draw() == ("fused",)
    assert archive.offer(WIDE, "wider", 75.0) and archive.draw() == ("wider",)
