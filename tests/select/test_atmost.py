"""At most k: all there are where there are fewer."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import SelectionError
from hubless.select.activity import Activity
from hubless.select.atmost import AtMost
from hubless.select.oort import Oort
from hubless.select.roster import Roster
from hubless.select.uniform import Uniform
from tests.support.frequencies import drawn, fits, successive


def test_all_who_can_be_picked_where_they_are_too_few() -> None:
    rng = np.random.default_rng(0)
    roster = Roster([3, 0, 5, 1], np.array([True, True, True, False]))
    assert AtMost(Activity("n"))(roster, 3, rng).tolist() == [0, 2]
    assert AtMost(Uniform())(roster, 4, rng).tolist() == [0, 1, 2]


def test_what_the_selector_picks_where_there_are_enough() -> None:
    roster, rng = Roster([3, 1, 5, 1]), np.random.default_rng(1)
    seen = drawn(lambda: AtMost(Activity("n"))(roster, 2, rng), 2000)
    assert fits(seen, successive([3, 1, 5, 1], 2))


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(SelectionError, match="-1"):
        AtMost(Uniform())(Roster([1]), -1, np.random.default_rng(0))


def test_what_is_known_of_the_selector_is_known_of_it() -> None:
    exact, roster = AtMost(Activity("n", "exact", unbiased=True)), Roster([3, 0, 1])
    assert exact.unbiased and not exact.looks_at
    assert AtMost(Oort()).looks_at and not AtMost(Oort()).unbiased
    assert exact.inclusion(roster, 1) == pytest.approx([0.75, 0, 0.25])
    assert exact.inclusion(roster, 3).tolist() == [1, 0, 1]
    with pytest.raises(SelectionError, match="does not know"):
        AtMost(Uniform()).inclusion(roster, 1)
