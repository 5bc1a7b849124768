"""Availability-corrected selection: the bias it takes away, and what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.active import Active
from hubless.select.activity import Activity
from hubless.select.fixed import Fixed, Weighted
from hubless.select.reachable import Reachable
from hubless.select.roster import Floats, Roster, Selector
from hubless.select.uniform import Uniform

CLIENTS, K, ROUNDS = 300, 3, 6000


def _rates(selector: Selector, availability: Floats, values: Floats | None = None) -> Floats:
    """How often everybody is picked, of rounds in which each is reachable as often as it is."""
    rng = np.random.default_rng(1)
    roster = Roster(1 + np.arange(CLIENTS) % 20, availability=availability)
    if values is not None:
        roster.record_seen(np.arange(CLIENTS), values)
    counts = np.zeros(CLIENTS)
    for _ in range(ROUNDS):
        roster.available = rng.random(CLIENTS) < availability
        counts[selector(roster, K, rng)] += 1
    return counts / ROUNDS


SELDOM = np.arange(CLIENTS) // 20 % 2 == 0
AVAILABILITY = np.where(SELDOM, 0.2, 0.9)


@pytest.mark.parametrize("selector", [Uniform(), Activity("n")], ids=repr)
def test_who_is_seldom_reachable_is_picked_as_often_as_others(selector: Selector) -> None:
    """Both groups have as many examples a client, so each should train by its number."""
    share = SELDOM.mean()
    there = share * 0.2 + (1 - share) * 0.9
    without = _rates(selector, AVAILABILITY)
    assert without[SELDOM].sum() / K == pytest.approx(share * 0.2 / there, abs=0.02)
    # of 18,000 picks a half is off by 0.0037 at one standard deviation
    rates = _rates(Reachable(selector), AVAILABILITY)
    assert rates[SELDOM].sum() / K == pytest.approx(share, abs=0.015)


def test_activity_is_kept_within_the_correction() -> None:
    rates = _rates(Reachable(Activity("n")), AVAILABILITY)
    examples = 1 + np.arange(CLIENTS) % 20
    for group in (SELDOM, ~SELDOM):
        slope = np.polyfit(examples[group], rates[group], 1)
        expected = K / examples.sum()
        assert slope[0] == pytest.approx(expected, rel=0.1)
        assert abs(slope[1]) < 2 * expected


def test_active_is_corrected_as_a_whole() -> None:
    """The share picked by value and the uniform one both are what they would be."""
    values = np.random.default_rng(2).gamma(2.0, 40.0, CLIENTS)
    selector = Active(alpha1=0.75, alpha2=0.01, alpha3=0.1)
    roster = Roster(1 + np.arange(CLIENTS) % 20)
    roster.record_seen(np.arange(CLIENTS), values)
    expected = K * selector.weights(roster)
    best = values >= np.sort(values)[225]
    without = _rates(selector, AVAILABILITY, values)
    assert without[SELDOM & best].sum() < 0.5 * expected[SELDOM & best].sum()
    rates = _rates(Reachable(selector), AVAILABILITY, values)
    for group in (SELDOM & best, ~SELDOM & best):
        assert rates[group].sum() == pytest.approx(expected[group].sum(), rel=0.1)
    for group in (SELDOM & ~best, ~SELDOM & ~best):
        assert rates[group].sum() == pytest.approx(expected[group].sum(), rel=0.25)


def test_weights_are_divided_by_availability_down_to_the_floor() -> None:
    roster = Roster([5, 5, 5], availability=[1.0, 0.2, 0.0])
    assert Reachable(floor=0.1).weights(roster).tolist() == [1.0, 5.0, 10.0]
    assert Reachable(Weighted([1, 2, 0]), floor=0.1).weights(roster).tolist() == [1.0, 10.0, 0.0]
    assert Reachable(Activity("n")).weights(Roster([5, 1, 0])).tolist() == [5.0, 1.0, 0.0]


def test_tables_are_made_again_when_something_changes() -> None:
    roster, rng = Roster(np.ones(50), availability=np.full(50, 0.5)), np.random.default_rng(3)
    for selector in (Reachable(), Reachable(Activity("n")), Reachable(Active())):
        selector(roster, 2, rng)
        roster.put("availability", slice(None), 1.0)
        roster.put("availability", np.array([7]), 0.05)
        roster.put("examples", slice(None), 1)
        times = sum(7 in selector(roster, 2, rng) for _ in range(300))
        assert times > 100
        roster.put("availability", slice(None), 0.5)


def test_those_without_weight_fill_up() -> None:
    roster, rng = Roster(np.full(8, 5)), np.random.default_rng(4)
    roster.record_seen(np.arange(8), np.arange(8.0))
    selector = Reachable(Active(alpha3=0.0))
    assert {6, 7} <= set(selector(roster, 5, rng).tolist())
    roster.put("examples", np.array([0, 1]), 0)
    with pytest.raises(Shortage, match="7 clients were asked for, and 6 of 8 can be picked"):
        selector(roster, 7, rng)


def test_what_cannot_be_corrected_is_refused() -> None:
    with pytest.raises(SelectionError, match="no weights"):
        Reachable(Fixed((1, 2)))
    with pytest.raises(SelectionError, match="floor= is a number above 0 and at most 1"):
        Reachable(floor=0.0)
    roster = Roster([5, 5, 5], availability=[1.0, np.nan, 0.5])
    with pytest.raises(SelectionError, match="client 1's availability is nan"):
        Reachable()(roster, 1, np.random.default_rng(5))


def test_it_says_whether_valuations_are_needed() -> None:
    assert Reachable(Active()).looks_at
    assert not Reachable(Uniform()).looks_at
