"""Whether predictions are in the measured order, and what the first choices cost; by hand."""

from __future__ import annotations

import pytest

from ka_extensions.residuals import kendall_tau_b, regret_percent

SAME_ORDER = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
REVERSED = [(3.0, 10.0), (2.0, 20.0), (1.0, 30.0)]


def test_tau_b_counts_ties_as_kendall_does() -> None:
    assert kendall_tau_b(SAME_ORDER) == 1
    assert kendall_tau_b(REVERSED) == -1
    # one tie among the predictions: (2 - 0) / sqrt(2 * 3)
    assert kendall_tau_b([(1, 10), (1, 20), (2, 30)]) == pytest.approx(2 / 6**0.5)
    assert kendall_tau_b([(1, 10), (1, 20)]) is None


def test_regret_is_what_the_first_choices_cost() -> None:
    rows = [(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)]
    assert regret_percent(rows, 1) == pytest.approx(200)
    assert regret_percent(rows, 2) == pytest.approx(100)
    assert regret_percent(rows, 3) == 0
    assert regret_percent(rows, 3, best=8.0) == pytest.approx(25)  # the best was refused


def test_of_equal_predictions_the_slower_is_what_a_search_may_get() -> None:
    assert regret_percent([(1.0, 10.0), (1.0, 15.0)], 1) == pytest.approx(50)
