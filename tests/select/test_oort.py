"""Oort: utility, speed, exploration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hubless.errors import SelectionError
from hubless.select.oort import Oort
from hubless.select.roster import Roster
from tests.support.frequencies import drawn, fits, often, successive


def _roster(values: list[float], unknown: int = 0, **columns: object) -> Roster:
    clients = len(values) + unknown
    roster = Roster(np.full(clients, 10), **columns)  # type: ignore[arg-type]
    roster.record_selected(np.arange(len(values)))
    roster.record_seen(np.arange(len(values)), values)
    return roster


def test_known_clients_are_picked_in_proportion_to_their_utility() -> None:
    """In round 0 there is no bonus for waiting; with no cut-off everybody is near enough."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    roster, rng = _roster(values), np.random.default_rng(1)
    oort = Oort(explore=0, least=0, cutoff=0, clip=1)
    assert fits(drawn(lambda: oort(roster, 2, rng), 1200), successive(values, 2))


def test_only_those_near_the_best_are_candidates() -> None:
    roster, rng = _roster([1.0, 9.4, 9.6, 10.0, 10.0, 2.0]), np.random.default_rng(2)
    oort = Oort(explore=0, least=0, clip=1)
    expected = successive([0, 0, 9.6, 10, 10, 0], 2)
    assert fits(drawn(lambda: oort(roster, 2, rng), 1200), expected)


def test_slow_clients_are_worth_less() -> None:
    speed = np.array([1.0, 1.0, 0.5, 0.1])
    roster, rng = _roster([4.0] * 4, speed=speed), np.random.default_rng(3)
    oort = Oort(preferred=10, alpha=2, explore=0, least=0, cutoff=0, clip=1)
    assert oort.utility(roster, np.arange(4)) == pytest.approx([4, 4, 1, 0.04])
    assert fits(drawn(lambda: oort(roster, 2, rng), 1200), successive([4, 4, 1, 0.04], 2))


def test_waiting_is_worth_something() -> None:
    roster = _roster([1.0, 1.0], round=1)
    roster.round = 9
    roster.record_selected(np.array([1]))
    roster.round = 99
    bonus = [math.sqrt(0.1 * math.log(100) / 2), math.sqrt(0.1 * math.log(100) / 10)]
    assert Oort().utility(roster, np.arange(2)) == pytest.approx([1 + bonus[0], 1 + bonus[1]])


def test_no_client_is_worth_more_than_the_clip() -> None:
    roster = _roster([1.0, 2.0, 3.0, 4.0, 1e9])
    assert Oort(clip=0.8).utility(roster, np.arange(5)).max() == 4.0


def test_a_share_of_the_cohort_explores_the_fast_ones() -> None:
    speed = np.concatenate([np.ones(50), np.repeat([1.0, 3.0], 25)])
    roster, rng = _roster([1.0] * 50, 50, speed=speed), np.random.default_rng(4)
    for turn, explored in ((0, 9), (20, 6), (1000, 2)):
        roster.round = turn
        picked = Oort()(roster, 10, rng)
        assert (picked >= 50).sum() == explored
    chances = np.concatenate([np.full(50, 9 / 50), np.full(25, 1 / 100), np.full(25, 3 / 100)])
    oort = Oort(least=0.1, explore=0.1)
    assert often(lambda: oort(roster, 10, rng), chances, 1000).max() < 5


def test_where_one_kind_is_short_the_other_makes_up_for_it() -> None:
    rng = np.random.default_rng(5)
    assert sorted(Oort()(_roster([1.0] * 3, 1), 4, rng).tolist()) == [0, 1, 2, 3]
    assert len(Oort()(_roster([1.0], 5), 6, rng)) == 6
    assert len(Oort(explore=0, least=0)(_roster([], 5), 5, rng)) == 5
    assert len(Oort()(_roster([0.0, -3.0, math.nan, -1.0]), 3, rng)) == 3


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SelectionError, match="least= is a number of at least 0"):
        Oort(least=2)
    with pytest.raises(SelectionError, match="preferred= is a number above 0"):
        Oort(preferred=0)
