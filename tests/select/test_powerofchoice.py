"""Power of choice: candidates by examples, and of these the highest valuations."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.powerofchoice import PowerOfChoice
from hubless.select.roster import Roster
from tests.support.frequencies import Subsets, drawn, fits, successive


@pytest.mark.parametrize("d", [2, 3, 5])
def test_sets_come_out_as_often_as_they_should(d: int) -> None:
    sizes, values = [3, 1, 8, 2, 5], [1.0, 9.0, 0.5, 4.0, 2.0]
    roster, rng = Roster(sizes), np.random.default_rng(1)
    roster.record_seen(np.arange(5), values)
    expected: Subsets = {}
    for candidates, chance in successive([float(n) for n in sizes], d).items():
        best = tuple(sorted(sorted(candidates, key=lambda i: -values[i])[:2]))
        expected[best] = expected.get(best, 0.0) + chance
    assert fits(drawn(lambda: PowerOfChoice(d)(roster, 2, rng), 1200), expected)


def test_never_valued_counts_as_highest() -> None:
    roster = Roster(np.ones(6, np.int64))
    roster.record_seen(np.arange(5), [1e300, -5, 0, np.inf, 2])
    for seed in range(20):
        picked = PowerOfChoice(6)(roster, 2, np.random.default_rng(seed))
        assert set(picked.tolist()) == {5, 3}


def test_among_equals_chance_decides() -> None:
    roster, rng = Roster([1, 2, 3]), np.random.default_rng(2)
    seen = drawn(lambda: PowerOfChoice(3)(roster, 1, rng), 1200)
    assert fits(seen, successive([1, 2, 3], 1))


def test_too_few_candidates_are_refused() -> None:
    with pytest.raises(SelectionError, match="raise d"):
        PowerOfChoice(2)(Roster([1, 2, 3]), 3, np.random.default_rng(0))
    with pytest.raises(SelectionError, match="d= is a whole number of at least 1"):
        PowerOfChoice(0)
    with pytest.raises(Shortage, match="2 of 3 can be picked"):
        PowerOfChoice(9)(Roster([1, 0, 3]), 3, np.random.default_rng(0))
