"""Algorithm 1 against probabilities computed by going through every set, and at its extremes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import combinations
from math import comb, exp, floor, inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubless.errors import SelectionError, Shortage
from hubless.select.active import Active
from hubless.select.ranking import hottest, ranked
from hubless.select.roster import Roster
from tests.support.frequencies import Subsets, drawn, fits, inclusion, often, successive

VALUES = [4.0, 1.0, 2.5, 0.0, 3.0, 2.0, 5.0]


def _roster(values: Sequence[float], **more: NDArray[np.bool_]) -> Roster:
    roster = Roster(np.full(len(values), 5), **more)
    roster.record_seen(np.arange(len(values)), np.array(values, np.float64))
    return roster


def _expected(values: Sequence[float], k: int, selector: Active) -> Subsets:
    """Every way to break ties, to draw by value and to fill up, with its probability."""
    clients = len(values)
    kept = clients - floor(selector.alpha1 * clients)
    ordered = sorted(values, reverse=True)
    edge = ordered[kept - 1] if kept else inf
    above = [i for i in range(clients) if values[i] > edge]
    tied = [i for i in range(clients) if values[i] == edge]
    ways = list(combinations(tied, kept - len(above)))
    by_value = min(k - floor(selector.alpha3 * k + 0.5), kept)
    found: Subsets = {}
    for way in ways:
        survivors = [*above, *way]
        top = max((values[i] for i in survivors), default=0.0)
        weights = [exp(selector.alpha2 * (values[i] - top)) for i in survivors]
        for subset, chance in successive(weights, by_value).items():
            first = {survivors[i] for i in subset}
            rest = [i for i in range(clients) if i not in first]
            for more in combinations(rest, k - by_value):
                key = tuple(sorted([*first, *more]))
                share = chance / len(ways) / comb(len(rest), k - by_value)
                found[key] = found.get(key, 0.0) + share
    return found


@pytest.mark.parametrize(
    "selector",
    [
        Active(),
        Active(alpha1=0.5, alpha2=1.0, alpha3=0.34),
        Active(alpha1=0.0, alpha2=0.7, alpha3=0.0),
        Active(alpha1=0.99, alpha2=1.0, alpha3=0.0),
        Active(alpha1=1.0),
        Active(alpha1=0.3, alpha2=0.0, alpha3=0.0),
        Active(alpha2=1.0, alpha3=1.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("k", [1, 3, 6, 7])
def test_sets_come_as_often_as_they_should(selector: Active, k: int) -> None:
    roster, rng = _roster(VALUES), np.random.default_rng(k)
    assert fits(drawn(lambda: selector(roster, k, rng), 1000), _expected(VALUES, k, selector))


@pytest.mark.parametrize(
    "values",
    [[2.0] * 6, [1.0, 2.0, 2.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0, 9.0, 9.0]],
    ids=["all equal", "some at the edge", "two kinds"],
)
@pytest.mark.parametrize("alpha1", [0.0, 0.5, 0.67, 0.75])
def test_equal_valuations_have_equal_chances(values: list[float], alpha1: float) -> None:
    selector, rng = Active(alpha1, 0.3, 0.0), np.random.default_rng(2)
    roster = _roster(values)
    assert fits(drawn(lambda: selector(roster, 2, rng), 1200), _expected(values, 2, selector))


@pytest.mark.parametrize("spread", [1e4, 1e8])
def test_weights_may_be_ten_thousand_times_and_more_apart(spread: float) -> None:
    values = np.log([1.0, 2.0, spread, 3.0 * spread, 5.0]).tolist()
    selector, rng = Active(0.0, 1.0, 0.0), np.random.default_rng(3)
    roster, expected = _roster(values), _expected(values, 3, Active(0.0, 1.0, 0.0))
    assert fits(drawn(lambda: selector(roster, 3, rng), 1200), expected)


@pytest.mark.parametrize("offset", [0.0, 1e12, -1e12])
def test_only_differences_of_valuations_count(offset: float) -> None:
    selector, rng = Active(0.0, 1.0, 0.0), np.random.default_rng(4)
    roster = _roster([offset + value for value in VALUES])
    assert fits(drawn(lambda: selector(roster, 2, rng), 1000), _expected(VALUES, 2, selector))


@pytest.mark.parametrize(
    ("alpha2", "values"),
    [
        (1e6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        (1.0, [0.0, 1e4, 2e4, 3e4, 4e4, 5e4]),
        (1e6, [-1e300, -1.0, 0.0, 1e10, 1e299, 1e300]),
        (1e300, [-1e308, -1e300, 0.0, 1e-3, 1e307, 1e308]),
    ],
)
def test_at_any_temperature_the_most_valuable_come_first(
    alpha2: float, values: list[float]
) -> None:
    selector, rng = Active(0.0, alpha2, 0.0), np.random.default_rng(5)
    roster = _roster(values)
    for k in range(7):
        for _ in range(20):
            assert sorted(selector(roster, k, rng).tolist()) == list(range(6 - k, 6))


def test_weights_that_vanish_beside_the_first_are_still_compared() -> None:
    """exp(-1000) and exp(-1001) are both 0, and one is e times the other."""
    values = [0.0, -1000.0, -1001.0, -1000.0, -2000.0, -2001.0, -2001.0]
    selector, rng = Active(0.0, 1.0, 0.0), np.random.default_rng(6)
    roster = _roster(values)
    second = successive([1.0, exp(-1), 1.0], 1)
    expected = {tuple(sorted((0, 1 + i))): p for (i,), p in second.items()}
    assert fits(drawn(lambda: selector(roster, 2, rng), 1200), expected)
    fifth = successive([1.0, exp(-1), exp(-1)], 1)
    expected = {(0, 1, 2, 3, 4 + i): p for (i,), p in fifth.items()}
    assert fits(drawn(lambda: selector(roster, 5, rng), 1200), expected)


def test_logarithms_draw_the_same_as_weights() -> None:
    values, rng = np.array(VALUES), np.random.default_rng(7)
    expected = successive([exp(0.8 * (value - 5)) for value in VALUES], 3)
    assert fits(drawn(lambda: hottest(values, 0.8, 3, rng), 1200), expected)


@pytest.mark.parametrize(
    ("unseen", "worth"), [("highest", 5.0), ("mean", 8 / 3), ("lowest", 1.0), (2.0, 2.0), (7, 7.0)]
)
@pytest.mark.parametrize("alpha1", [0.0, 0.5])
def test_the_unseen_count_as_was_said(unseen: str | float, worth: float, alpha1: float) -> None:
    values = [nan, 2.0, 5.0, nan, 1.0, nan]
    selector = Active(alpha1, 0.5, 0.0, unseen)  # type: ignore[arg-type]
    roster, rng = _roster(values), np.random.default_rng(8)
    filled = [worth if value != value else value for value in values]
    assert fits(drawn(lambda: selector(roster, 2, rng), 1200), _expected(filled, 2, selector))


@pytest.mark.parametrize("unseen", ["highest", "mean", "lowest", -3.0, -1e9])
def test_where_nobody_was_seen_all_are_alike(unseen: str | float) -> None:
    selector, rng = Active(unseen=unseen), np.random.default_rng(9)  # type: ignore[arg-type]
    roster, chances = Roster(np.full(30, 5)), np.full(30, 1 / 6)
    assert often(lambda: selector(roster, 5, rng), chances, 800).max() < 4.5


def test_by_default_everybody_is_asked_soon() -> None:
    roster, rng = Roster(np.full(1000, 5)), np.random.default_rng(10)
    for turn in range(40):
        roster.round = turn
        picked = Active()(roster, 20, rng)
        roster.record_seen(picked, rng.random(len(picked)))
    # 18 of 20 picks are of the unseen until three quarters were seen
    assert np.count_nonzero(roster.valued >= 0) > 700


def test_only_those_available_are_ranked() -> None:
    values = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0]
    here = [1, 3, 5, 6]
    roster = _roster(values, available=np.isin(np.arange(7), here))
    selector, rng = Active(0.5, 0.5, 0.4), np.random.default_rng(11)
    among = _expected([values[i] for i in here], 2, selector)
    expected = {tuple(here[i] for i in subset): chance for subset, chance in among.items()}
    assert fits(drawn(lambda: selector(roster, 2, rng), 1200), expected)


def test_where_all_are_available_the_mask_costs_no_ranking() -> None:
    roster, rng = _roster(VALUES), np.random.default_rng(12)
    alone = [Active()(roster, 3, np.random.default_rng(s)).tolist() for s in range(20)]
    roster.available = np.ones(7, np.bool_)
    assert [Active()(roster, 3, np.random.default_rng(s)).tolist() for s in range(20)] == alone
    roster.available = np.zeros(7, np.bool_)
    assert Active()(roster, 0, rng).tolist() == []


@pytest.mark.parametrize("away", [False, True])
def test_clients_without_examples_are_not_picked_nor_counted(away: bool) -> None:
    values, sizes = [9.0, 1.0, 8.0, 2.0, 3.0, 7.0], [0, 5, 0, 5, 5, 5]
    roster = Roster(sizes, np.array([True] * 5 + [False]) if away else None)
    roster.record_seen(np.arange(6), values)
    there = [1, 3, 4] if away else [1, 3, 4, 5]
    selector, rng = Active(0.5, 0.5, 0.5), np.random.default_rng(13)
    among = _expected([values[i] for i in there], 2, selector)
    expected = {tuple(there[i] for i in subset): chance for subset, chance in among.items()}
    assert fits(drawn(lambda: selector(roster, 2, rng), 1200), expected)
    with pytest.raises(Shortage, match="can be picked") as refused:
        selector(roster, len(there) + 1, rng)
    assert refused.value.eligible == there


def test_too_few_survivors_are_filled_up_uniformly() -> None:
    selector, rng = Active(0.75, 0.01, 0.0), np.random.default_rng(14)
    roster = _roster(np.arange(12.0).tolist())
    chances = np.where(np.arange(12) >= 9, 1.0, 4 / 9)
    assert often(lambda: selector(roster, 7, rng), chances, 1000).max() < 4.5


@pytest.mark.parametrize(("k", "uniform"), [(4, 0), (5, 1), (14, 1), (15, 2), (200, 20)])
def test_how_many_are_uniform_is_rounded(k: int, uniform: int) -> None:
    """With the best quarter known, whoever is picked beside it was picked uniformly."""
    clients, rng = 100_000, np.random.default_rng(15)
    roster = _roster(np.arange(clients, dtype=np.float64).tolist())
    outside = [int((Active()(roster, k, rng) < 75_000).sum()) for _ in range(60)]
    assert max(outside) <= uniform
    assert uniform == 0 or np.mean(outside) == pytest.approx(0.75 * uniform, rel=0.25)


@pytest.mark.parametrize(
    ("alpha1", "clients", "left"), [(0.29, 100, 71), (0.75, 7, 2), (0.1, 30, 27)]
)
def test_exactly_as_many_are_dropped_as_should_be(alpha1: float, clients: int, left: int) -> None:
    values = np.random.default_rng(16).permutation(clients).astype(np.float64)
    ranking = ranked(values, None, alpha1, 1.0, "highest")
    assert ranking.above is not None
    assert sorted(ranking.above.tolist()) == sorted(np.argsort(values)[clients - left :].tolist())
    level = ranked(np.ones(clients), None, alpha1, 1.0, "highest")
    assert (len(level.tied), level.room) == (clients, left)


@settings(max_examples=25)
@given(data=st.data())
def test_large_rosters_are_ranked_as_by_sorting(data: st.DataObject) -> None:
    """The edge is looked for in a sample first; the result must not show it."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    clients = data.draw(st.sampled_from([1, 17, 65_536, 100_001]))
    kinds = data.draw(st.sampled_from([1, 3, 50, 10**9]))
    alpha1 = data.draw(st.sampled_from([0.01, 0.5, 0.75, 0.9999]))
    worth = data.draw(st.sampled_from(["highest", "mean", "lowest", 1.0]))
    values = rng.integers(0, kinds, clients).astype(np.float64)
    if data.draw(st.booleans()):
        values.sort()
    if data.draw(st.booleans()):
        # who comes into the sample is unlike everybody else
        values[:: max(1, clients >> 15)] += 1e9
    values[rng.random(clients) < data.draw(st.sampled_from([0.0, 0.3, 1.0]))] = nan
    ranking = ranked(values, None, alpha1, 0.01, worth)
    known = values[~np.isnan(values)]
    says = {"highest": np.max, "lowest": np.min, "mean": np.mean}
    fill = float(worth) if not isinstance(worth, str) else says[worth](known) if len(known) else 0.0
    values = np.where(np.isnan(values), fill, values)
    drop = floor(round(alpha1 * clients, 6))
    ordered = np.sort(values)[drop:]
    np.testing.assert_allclose(np.sort(ranking.values), ordered, rtol=1e-12)
    if ranking.above is not None:
        assert len(ranking.above) + ranking.room == clients - drop
        assert np.all(values[ranking.above] >= ordered[0] * (1 - 1e-12))
        assert len(ranking.tied) >= ranking.room
        assert not np.intersect1d(ranking.above, ranking.tied).size


def test_weights_are_the_chances_of_a_single_draw() -> None:
    values = [4.0, 1.0, nan, 2.0, 3.0, 2.0, 9.0, 2.0]
    roster = Roster([5, 5, 5, 5, 5, 5, 0, 5], np.arange(8) > 3)
    roster.record_seen(np.arange(8), values)
    weights = Active(0.3, 0.7, 0.25).weights(roster)
    here = [0, 1, 2, 3, 4, 5, 7]
    known = [4.0, 1.0, 4.0, 2.0, 3.0, 2.0, 2.0]
    by_value = inclusion(_expected(known, 1, Active(0.3, 0.7, 0.0)), 7)
    assert weights[here] == pytest.approx(0.75 * by_value + 0.25 / 7)
    assert weights[6] == 0
    assert Active(1.0).weights(roster)[here] == pytest.approx(1 / 7)


@pytest.mark.parametrize("bad", [inf, -inf])
def test_infinite_valuations_are_refused_by_name(bad: float) -> None:
    roster, rng = _roster([1.0, 2.0, nan, bad, 5.0]), np.random.default_rng(17)
    with pytest.raises(SelectionError, match="client 3's valuation is -?inf"):
        Active()(roster, 1, rng)
    roster.available = np.array([False, True, True, True, True])
    with pytest.raises(SelectionError, match="client 3's valuation is -?inf"):
        Active()(roster, 1, rng)
    roster.available[3] = False
    assert len(Active()(roster, 1, rng)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha1": -0.1},
        {"alpha1": 1.1},
        {"alpha2": -1.0},
        {"alpha2": inf},
        {"alpha2": nan},
        {"alpha3": 2.0},
        {"unseen": "best"},
        {"unseen": nan},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float | str]) -> None:
    with pytest.raises(SelectionError, match="alpha|unseen"):
        Active(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_ranking_takes_less_than_three_columns(share: float) -> None:
    clients, rng = 400_000, np.random.default_rng(18)
    roster = Roster(np.full(clients, 5))
    values = rng.random(clients)
    values[rng.random(clients) < share] = nan
    roster.record_seen(np.arange(clients), values)
    tracemalloc.start()
    try:
        Active()(roster, 100, rng)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 8 * clients
