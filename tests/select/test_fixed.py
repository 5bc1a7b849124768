"""Lists and weights given by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.fixed import Fixed, Weighted
from hubless.select.roster import Roster
from tests.support.frequencies import drawn, fits, successive


def test_the_first_of_the_list_who_are_available() -> None:
    roster, rng = Roster(np.ones(6, np.int64)), np.random.default_rng(0)
    assert Fixed((4, 1, 3))(roster, 2, rng).tolist() == [4, 1]
    roster.available = np.arange(6) != 4
    assert Fixed((4, 1, 3))(roster, 2, rng).tolist() == [1, 3]
    with pytest.raises(Shortage, match="2 of 6 can be picked"):
        Fixed((4, 1, 3))(roster, 3, rng)


def test_lists_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SelectionError, match="more than once"):
        Fixed((1, 2, 1))
    with pytest.raises(SelectionError, match="clients= .* not -1"):
        Fixed((3, -1))
    with pytest.raises(SelectionError, match="client 7 is in the fixed list.*0 to 4"):
        Fixed((7,))(Roster(np.ones(5, np.int64)), 1, np.random.default_rng(0))


def test_weights_are_kept_to() -> None:
    weights = [1.0, 0.0, 4.0, 2.0, 8.0]
    roster, rng = Roster(np.zeros(5, np.int64)), np.random.default_rng(1)
    seen = drawn(lambda: Weighted(np.array(weights))(roster, 2, rng), 1500)
    assert fits(seen, successive(weights, 2))
    with pytest.raises(Shortage, match="4 of 5 can be picked"):
        Weighted(np.array(weights))(roster, 5, rng)


def test_weights_belong_to_as_many_clients_and_stay_as_they_were() -> None:
    given = np.array([1.0, 2.0])
    selector = Weighted(given)
    given[0] = 0
    assert selector.weights.tolist() == [1, 2]
    with pytest.raises(SelectionError, match="2 weights and 3 clients"):
        selector(Roster([1, 1, 1]), 1, np.random.default_rng(0))
    assert repr(selector) == repr(Weighted(np.array([1.0, 2.0]))) != repr(Weighted(given))
