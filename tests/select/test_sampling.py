"""Sampling by weight: the promised frequencies, whatever the weights and whichever way is taken."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubless.errors import SelectionError
from hubless.select import sampling
from hubless.select.sampling import NOBODY, Exact, Table
from tests.support.frequencies import drawn, fits, inclusion, often, successive

WEIGHTS = {
    "plain": [1, 2, 3, 4, 5, 6],
    "equal": [2.5] * 6,
    "zeros": [0, 3, 0, 1, 2, 4, 0],
    "spread of 10^4": [1, 1e4, 10, 3, 5e3, 100],
    "spread of 10^8": [1e8, 1, 2, 1e-3, 5, 1e5],
    "one giant": [1e16, 1, 1, 2, 3, 1],
    "from 1e-300 to 1e300": [1e-300, 1e300, 2e-300, 5e-300, 1.0, 3.0],
    "all tiny": [5e-324, 1e-323, 1.5e-323, 5e-324, 2e-323],
}
# (CLOSE, PATIENCE): keys for everybody; a few draws and keys for the rest; draws to the end
WAYS = {"keys": (math.inf, 64), "both": (0, 64), "draws": (0, 1e-6)}


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    close, patience = WAYS[request.param]
    monkeypatch.setattr(sampling, "CLOSE", close)
    monkeypatch.setattr(sampling, "PATIENCE", patience)
    return str(request.param)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_sets_come_out_as_often_as_successive_draws_would_have_them(
    name: str, k: int, way: str
) -> None:
    weights = WEIGHTS[name]
    if way == "draws" and name not in ("plain", "equal", "zeros", "spread of 10^4", "all tiny"):
        pytest.skip("drawing again and again would take forever, which is what keys are for")
    table, rng = Table.of(weights), np.random.default_rng(k)
    assert fits(drawn(lambda: table.draw(k, rng), 1500), successive(weights, k))


def test_a_test_that_fits_everything_would_be_none() -> None:
    """Sorted distinct draws cut off at k are a mistake that is easily made."""
    table, rng = Table.of(WEIGHTS["plain"]), np.random.default_rng(0)

    def mistaken() -> sampling.Ints:
        return np.unique(table._find(rng.random(40) * table.total))[:2]

    assert not fits(drawn(mistaken, 1500), successive(WEIGHTS["plain"], 2))
    assert not fits(drawn(lambda: table.draw(2, rng), 6000), successive([1, 2, 3, 4, 5, 7.5], 2))


def test_clients_come_in_the_order_they_were_drawn(way: str) -> None:
    weights = [1, 2, 3, 4]
    table, rng, times = Table.of(weights), np.random.default_rng(4), 2000
    first = np.bincount([table.draw(3, rng)[0] for _ in range(times)], minlength=4)
    share = np.array(weights) / 10
    assert (np.abs(first - times * share) < 5 * np.sqrt(times * share * (1 - share))).all()


def test_whoever_is_not_available_or_taken_has_no_part_in_it(way: str) -> None:
    weights = [4, 2, 3, 9, 5, 6, 1]
    available = np.array([True, True, True, False, True, True, True])
    table, rng = Table.of(weights), np.random.default_rng(5)
    taken = np.array([5])
    left = [4, 2, 3, 0, 5, 0, 1]
    seen = drawn(lambda: table.draw(2, rng, available, taken), 1500)
    assert fits(seen, successive(left, 2))


def test_many_clients_with_a_wide_spread_are_picked_in_proportion() -> None:
    """The exponential race: 1 - exp(-w t) with the t at which k are expected (Rosen 1972)."""
    rng = np.random.default_rng(6)
    weights = np.exp(rng.uniform(0, math.log(1e4), 4000))
    k, times = 100, 1000
    low, high = 0.0, 1.0
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if (1 - np.exp(-weights * t)).sum() < k else (low, t)
    chances = 1 - np.exp(-weights * low)
    table, counts = Table.of(weights), np.zeros(4000)
    for _ in range(times):
        counts[table.draw(k, rng)] += 1
    for group in np.array_split(np.argsort(weights), 10):
        expected, spread = chances[group].sum(), (chances * (1 - chances))[group].sum()
        assert abs(counts[group].sum() - times * expected) < 5 * np.sqrt(times * spread)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_as_many_as_have_a_weight_are_all_of_them(weights: list[float], way: str) -> None:
    if way == "draws":
        pytest.skip("drawing again and again would take forever, which is what keys are for")
    table, rng = Table.of(weights), np.random.default_rng(7)
    everyone = np.flatnonzero(weights).tolist()
    assert table.positive == len(everyone)
    for k in (len(everyone), len(everyone) + 1, 100):
        assert sorted(table.draw(k, rng).tolist()) == everyone


def test_a_point_on_the_edge_belongs_to_whoever_has_a_weight() -> None:
    table = Table.of([0, 0, 2, 0, 1, 0, 0])
    points = np.array([0.0, np.nextafter(2.0, 0), 2.0, np.nextafter(3.0, 0), 3.0])
    assert table._find(points).tolist() == [2, 2, 4, 4, 4]


@settings(max_examples=100)
@given(
    st.lists(st.just(0.0) | st.floats(5e-324, 1e300), min_size=1, max_size=60),
    st.integers(0, 70),
    st.integers(0, 2**32),
    st.data(),
)
def test_nobody_without_weight_nobody_twice_nobody_hidden(
    weights: list[float], k: int, seed: int, data: st.DataObject
) -> None:
    marks = data.draw(st.none() | st.lists(st.booleans(), min_size=60, max_size=60))
    available = None if marks is None else np.array(marks[: len(weights)])
    can = np.array(weights) > 0
    if available is not None:
        can &= available
    rng = np.random.default_rng(seed)
    table = Table.of(weights)
    picks = [table.draw(k, rng, available)]
    exact = Exact(table if available is None else table.among(available))
    picks.append(exact.draw(k, rng))
    for picked in picks:
        assert picked.dtype == np.int64
        assert len(set(picked.tolist())) == len(picked) == min(k, int(can.sum()))
        assert can[picked].all()
    chances = exact.inclusion(k)
    assert ((chances >= 0) & (chances <= 1)).all()
    assert chances.sum() == pytest.approx(min(k, can.sum()), rel=1e-9)
    assert (chances[~can] == 0).all()
    assert np.array_equal(exact.inclusion(k, np.arange(len(weights))), chances)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_weight_is_refused_with_its_client(bad: float) -> None:
    weights = np.ones(2 * sampling.BLOCK)
    weights[sampling.BLOCK + 3] = bad
    with pytest.raises(SelectionError, match=f"client {sampling.BLOCK + 3} has weight {bad}"):
        Table.of(weights)


def test_weights_that_cannot_be_summed_are_refused() -> None:
    with pytest.raises(SelectionError, match="scale them down"):
        Table.of([1.7e308, 1.7e308])


def test_no_clients_are_no_trouble() -> None:
    table, rng = Table.of([]), np.random.default_rng(0)
    assert table.draw(3, rng).tolist() == Exact(table).draw(3, rng).tolist() == []
    assert Table.of([0, 0]).draw(1, rng).tolist() == []


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    weights = rng.lognormal(0, 3, 1000) * (rng.random(1000) < 0.8)
    whole, design = Table.of(weights), Exact(Table.of(weights)).inclusion(60)
    keyed = whole._by_keys(50, np.random.default_rng(1), None, NOBODY)
    monkeypatch.setattr(sampling, "BLOCK", 48)
    parts = Table.of(weights)
    assert parts.positive == whole.positive and parts.peaks.max() == whole.peaks.max()
    assert parts.total == pytest.approx(whole.total, rel=1e-12)
    assert (np.diff(parts.sums) >= 0).all()
    assert np.allclose(Exact(parts).inclusion(60), design, rtol=1e-12)
    assert parts._by_keys(50, np.random.default_rng(1), None, NOBODY).tolist() == keyed.tolist()


def test_drawing_from_a_million_takes_no_memory_to_speak_of() -> None:
    table, rng = Table.of(np.ones(1_000_000)), np.random.default_rng(3)
    tracemalloc.start()
    try:
        table.draw(1000, rng)
        _, few = tracemalloc.get_traced_memory()
        table._by_keys(1000, rng, None, NOBODY)
        _, many = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert few < 400_000
    assert many < 8_000_000 / 2


class Starts(np.random.Generator):
    """Random starts at equal distances, so that frequencies are probabilities up to one over n."""

    def __init__(self, number: int) -> None:
        super().__init__(np.random.PCG64(0))
        self._left = [(i + 0.5) / number for i in range(number)]

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self._left.pop()


def _capped(weights: list[float], k: int) -> np.ndarray:
    """min(1, c w) that sum to k, capping those above 1 until there are none."""
    values, certain = np.array(weights, float), np.zeros(len(weights), bool)
    while True:
        left = np.where(certain, 0.0, values)
        chances = np.where(certain, 1.0, (k - certain.sum()) * left / left.sum())
        if (chances <= 1).all():
            return chances
        certain |= chances > 1


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_inclusion_probabilities_are_exact(name: str, k: int) -> None:
    weights = WEIGHTS[name]
    exact, starts = Exact(Table.of(weights)), 1000
    chances = exact.inclusion(k)
    if name != "all tiny":
        expected = _capped(weights, k) if k < np.count_nonzero(weights) else np.sign(weights)
        assert np.allclose(chances, expected, rtol=1e-9, atol=1e-11)
    counts, rng = np.zeros(len(weights)), Starts(starts)
    for _ in range(starts):
        picked = exact.draw(k, rng)
        assert len(picked) == k
        counts[picked] += 1
    assert np.abs(counts / starts - chances).max() < 1.5 / starts


def test_a_total_weighed_by_inverse_probabilities_is_unbiased() -> None:
    rng = np.random.default_rng(9)
    weights, values = rng.lognormal(0, 2, 40), rng.normal(3, 1, 40)
    exact, starts = Exact(Table.of(weights)), 8000
    chances, evenly = exact.inclusion(8), Starts(starts)
    assert (chances == 1).any()
    estimates = []
    for _ in range(starts):
        picked = exact.draw(8, evenly)
        estimates.append((values[picked] / chances[picked]).sum())
    assert np.mean(estimates) == pytest.approx(values.sum(), rel=2e-3)


def test_many_clients_are_picked_with_their_exact_probabilities() -> None:
    rng = np.random.default_rng(10)
    exact = Exact(Table.of(rng.lognormal(0, 2.5, 500)))
    assert often(lambda: exact.draw(50, rng), exact.inclusion(50), 1000).max() < 5


def test_a_design_is_made_once_for_a_k_and_again_for_another() -> None:
    exact, rng = Exact(Table.of(np.arange(1, 9))), np.random.default_rng(11)
    designs = [exact._design(k) for k in (3, 3, 4)]
    assert designs[0] is designs[1] is not designs[2]
    assert len(exact.draw(5, rng)) == 5


def test_giants_do_not_drown_the_others() -> None:
    """Sums of everybody would have no digits left for clients so much lighter."""
    weights = [1e20, 1.0, 2e20, 2.0, 3.0, 4.0]
    exact = Exact(Table.of(weights))
    assert exact.inclusion(3) == pytest.approx([1, 0.1, 1, 0.2, 0.3, 0.4])
    assert inclusion(successive(weights, 3), 6) == pytest.approx([1, 0.1, 1, 0.2, 0.3, 0.4])
