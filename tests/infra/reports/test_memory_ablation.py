"""What the comparison of runs with and without memory counts."""

from __future__ import annotations

from benchmarks.memory_ablation import WITH, WITHOUT, Curve, report

FAST, SLOW, NEVER = Curve((100, 51, 50), 2), Curve((100, 90, 52), 2), Curve((100, 90, 80), 2)


def test_rounds_are_counted_to_95_percent_of_the_best_of_all_runs() -> None:
    curves = {"a": {WITH: {1: FAST}, WITHOUT: {1: SLOW}}}
    with_memory, without = report(curves, ["a"])[2:]
    assert "| with | 1 | 1 | 1.00 | 2.000x |" in with_memory, "51 is within 95 % of 50 at its first round"
    assert "| without | 1 | 2 | 2.00 | 1.923x |" in without
    curves = {"a": {WITH: {1: FAST}, WITHOUT: {1: NEVER, 2: Curve((100, 70), 4)}}}
    assert "| without | 2 | never, never | 4.00 |" in report(curves, ["a"])[3]
    first = {WITH: {1: NEVER, 2: NEVER}, WITHOUT: {1: FAST, 2: FAST}}
    second = {WITH: {1: FAST, 2: FAST}, WITHOUT: {1: SLOW, 2: SLOW}}
    said = report({"a": first, "b": second}, ["a", "b"])[-1]
    assert "1.00 rounds with memory, 2.00 without; the difference is -1.00 (95 % interval -1.00 to -1.00" in said
