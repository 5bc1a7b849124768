"""Round robin: everybody once before anybody twice."""

from __future__ import annotations

import numpy as np

from hubless.select.roster import Roster
from hubless.select.roundrobin import RoundRobin
from tests.support.frequencies import often


def test_nobody_is_picked_twice_before_everyone_was_once() -> None:
    roster, rng = Roster(np.ones(103, np.int64)), np.random.default_rng(1)
    for turn in range(40):
        roster.round = turn
        picked = RoundRobin()(roster, 10, rng)
        roster.record_selected(picked)
        assert np.ptp(roster.selected) <= 1
    assert roster.selected.sum() == 400


def test_those_who_were_away_come_first_when_they_are_back() -> None:
    roster, rng = Roster(np.ones(10, np.int64)), np.random.default_rng(2)
    roster.available = np.arange(10) < 8
    for turn in range(6):
        roster.round = turn
        roster.record_selected(RoundRobin()(roster, 4, rng))
    roster.available = None
    assert {8, 9} <= set(RoundRobin()(roster, 3, rng).tolist())


def test_among_equals_chance_decides() -> None:
    roster, rng = Roster(np.ones(10, np.int64), round=3), np.random.default_rng(3)
    roster.record_selected(np.arange(7))
    chances = np.array([2 / 7] * 7 + [1.0] * 3)
    assert often(lambda: RoundRobin()(roster, 5, rng), chances, 1000).max() < 5
