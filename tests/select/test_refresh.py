"""Refreshing: how old valuations get, and whose choice the rest is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from hubless.errors import SelectionError, Shortage
from hubless.select.active import Active
from hubless.select.activity import Activity
from hubless.select.fixed import Fixed, Weighted
from hubless.select.optimal import OptimalSampling
from hubless.select.reachable import Reachable
from hubless.select.refresh import Refreshed
from hubless.select.roster import Ints, Roster, Selector
from hubless.select.uniform import Uniform
from tests.support.frequencies import often


def _oldest(roster: Roster, selector: Selector, k: int, turns: int, seed: int = 0) -> list[int]:
    """The age of the oldest valuation in each round, when clients are picked for it."""
    rng, ages = np.random.default_rng(seed), []
    for turn in range(turns):
        roster.round = turn
        ages.append(turn - int(roster.valued.min()))
        picked = selector(roster, k, rng)
        roster.record_selected(picked)
        roster.record_seen(picked, rng.random(len(picked)))
    return ages


@pytest.mark.parametrize(
    ("clients", "k", "rounds"), [(60, 6, 10), (60, 6, 25), (61, 6, 11), (50, 50, 1), (7, 1, 7)]
)
@pytest.mark.parametrize("greedy", [True, False])
def test_nobody_gets_older_than_said_if_that_can_be(
    clients: int, k: int, rounds: int, greedy: bool
) -> None:
    """Even where the selector itself would only ever pick the same few."""
    inner: Selector = Fixed(tuple(range(clients))) if greedy else Active()
    selector = Refreshed(inner, rounds)
    roster = Roster(np.full(clients, 5))
    assert selector.feasible(roster, k)
    assert max(_oldest(roster, selector, k, 6 * rounds + 20)) <= rounds
    if greedy and clients < rounds * k:
        assert roster.selected[0] > roster.selected[-1]


def test_without_it_they_do() -> None:
    assert max(_oldest(Roster(np.full(60, 5)), Fixed(tuple(range(60))), 6, 60)) == 60


def test_where_it_cannot_be_the_oldest_go_first() -> None:
    selector, roster = Refreshed(Fixed(tuple(range(60))), rounds=5), Roster(np.full(60, 5))
    assert not selector.feasible(roster, 6)
    # everybody in turn: as good as any way of picking six of sixty can be
    assert max(_oldest(roster, selector, 6, 80)) == 10


def test_the_rest_is_the_selectors_choice_among_the_others() -> None:
    roster, rng = Roster(np.full(20, 5), round=50), np.random.default_rng(1)
    roster.put("valued", slice(None), 49)
    roster.put("valued", np.array([3, 4]), 10)
    weights = np.where(np.arange(20) < 5, 1.0, 0.0)
    selector = Refreshed(Weighted(weights), rounds=30)
    for _ in range(20):
        picked = selector(roster, 4, rng).tolist()
        assert {3, 4} <= set(picked) <= {0, 1, 2, 3, 4}
    chances = np.where(np.arange(20) < 5, 2 / 3, 0.0)
    chances[[3, 4]] = 1.0
    assert often(lambda: selector(roster, 4, rng), chances, 1000).max() < 4.5
    with pytest.raises(Shortage, match="7 clients were asked for, and 5 of 20 can be") as refused:
        selector(roster, 7, rng)
    assert refused.value.eligible == [0, 1, 2, 3, 4]


def test_while_nobody_is_due_the_selector_is_left_alone() -> None:
    roster = Roster(np.full(20, 5), round=5)
    roster.put("valued", slice(None), 4)
    for seed in range(10):
        alone = Uniform()(roster, 4, np.random.default_rng(seed))
        picked = Refreshed(Uniform(), rounds=50)(roster, 4, np.random.default_rng(seed))
        assert picked.tolist() == alone.tolist()


def test_equally_old_ones_are_taken_at_random() -> None:
    roster, rng = Roster(np.full(12, 5), round=90), np.random.default_rng(2)
    roster.put("valued", slice(None), 20)
    roster.put("valued", np.array([7, 8]), 10)
    chances = np.full(12, 0.3)
    chances[[7, 8]] = 1.0
    selector = Refreshed(Uniform(), rounds=30)
    assert often(lambda: selector(roster, 5, rng), chances, 1500).max() < 4.5


def test_those_who_are_away_or_empty_are_not_waited_for() -> None:
    sizes = np.full(10, 5)
    sizes[:3] = 0
    away = np.isin(np.arange(10), [3, 4])
    roster, rng = Roster(sizes, ~away, round=200), np.random.default_rng(3)
    roster.put("valued", slice(None), 199)
    roster.put("valued", np.array([0, 3, 5]), 2)
    selector = Refreshed(Fixed((9, 8, 7, 6)), rounds=20)
    assert selector(roster, 2, rng).tolist() == [5, 9]
    roster.available = None
    assert sorted(selector(roster, 2, rng).tolist()) == [3, 5]
    assert selector.feasible(roster, 1)


def test_the_roster_is_as_it_was() -> None:
    available = np.ones(30, np.bool_)
    roster = Roster(np.full(30, 5), available, round=40)
    roster.record_seen(np.arange(10), np.arange(10.0))
    Refreshed(Active(), rounds=20)(roster, 25, np.random.default_rng(4))
    assert roster.available is available and available.all()


def test_no_rounds_are_refused() -> None:
    with pytest.raises(SelectionError, match="rounds= is a whole number of at least 1"):
        Refreshed(Uniform(), rounds=0)


def test_valuations_are_those_that_the_selector_within_looks_at() -> None:
    @dataclass(frozen=True)
    class ByNorm:
        looks_at: str = "update norms"

        def __call__(self, roster: Roster, k: int, rng: np.random.Generator) -> Ints:
            return np.argsort(roster.valuation)[-k:]

    assert Refreshed(ByNorm()).looks_at == "update norms"
    assert Refreshed(Uniform()).looks_at == Refreshed(Active()).looks_at == "losses"


@pytest.mark.parametrize("around", [Refreshed, Reachable])
@pytest.mark.parametrize("inside", [OptimalSampling(), Activity("n", "exact", unbiased=True)])
def test_nothing_can_make_up_for_a_choice_that_is_changed_from_outside(
    around: Callable[[Selector], Selector], inside: Selector
) -> None:
    with pytest.raises(SelectionError, match="is to be unbiased, and within another"):
        around(inside)
