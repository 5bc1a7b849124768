"""Weightings against their formulas, and arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hubless.errors import ParamsError, StrategyError
from hubless.strategy.base import Strategy
from hubless.strategy.fedasync import FedAsync
from hubless.strategy.fedavg import FedAvg
from hubless.strategy.fedtrimmedmean import FedTrimmedMean
from hubless.strategy.look import Seen
from hubless.strategy.weighting import (
    Buffer,
    ByExamples,
    ByStaleness,
    Capped,
    Decay,
    Equally,
    Mixing,
)
from hubless.testing import Update, aggregate

EXAMPLES = np.array([30.0, 10.0, 0.0, 160.0])
STALENESS = np.array([0.0, 3.0, 1.0, 8.0])
# the machine may be busy with other tests, so no example is judged by its time
fewer = settings(max_examples=100)


def test_by_examples_is_in_proportion_to_them() -> None:
    assert ByExamples()(Seen(EXAMPLES, STALENESS)).tolist() == [30, 10, 0, 160]
    weights = FedAvg().weights([30, 10, 0, 160], [0, 3, 1, 8])
    assert weights == pytest.approx([0.15, 0.05, 0, 0.8])


def test_uniform_is_the_same_for_everybody() -> None:
    assert Equally()(Seen(EXAMPLES, STALENESS, 1)).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("most", "expected"), [(20, [20, 10, 0, 20]), (1000, [30, 10, 0, 160])])
def test_capped_counts_nobody_for_more_than_the_cap(most: float, expected: list[float]) -> None:
    assert Capped(most)(Seen(EXAMPLES, STALENESS)).tolist() == expected
    assert EXAMPLES.tolist() == [30, 10, 0, 160]


def test_constant_decay_is_none() -> None:
    assert Decay("constant")(STALENESS).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("a", "b"), [(0.5, 4.0), (10.0, 4.0), (1.0, 0.0), (0.0, 2.0)])
def test_hinge_decay_starts_after_b_versions(a: float, b: float) -> None:
    expected = [1.0 if t <= b else 1.0 / (a * (t - b) + 1.0) for t in range(12)]
    assert Decay("hinge", a, b)(np.arange(12.0)) == pytest.approx(expected)


@pytest.mark.parametrize("a", [0.0, 0.5, 1.0, 3.0])
def test_polynomial_decay_is_a_power_of_the_age(a: float) -> None:
    expected = [(t + 1.0) ** -a for t in range(12)]
    assert Decay("polynomial", a)(np.arange(12.0)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["constant", "hinge", "polynomial"])
def test_what_is_fresh_counts_fully_and_nothing_counts_for_more_by_ageing(kind: str) -> None:
    decayed = Decay(kind)(np.arange(100.0))  # type: ignore[arg-type]
    assert decayed[0] == 1
    assert (np.diff(decayed) <= 0).all()
    assert (decayed > 0).all()


def test_by_staleness_is_examples_times_freshness() -> None:
    weights = ByStaleness(Decay("polynomial", 0.5))(Seen(EXAMPLES, STALENESS))
    assert weights == pytest.approx([30, 5, 0, 160 / 3])


def _mixed_by_hand(
    values: list[float], staleness: list[int], own: int, share: float, decay: Decay
) -> float:
    """x <- (1 - a s) x + a s x_k, the stalest peer first."""
    others = [i for i in range(len(values)) if i != own]
    others.sort(key=lambda i: -staleness[i])
    mixed = values[own]
    for i in others:
        part = share * float(decay(np.array([float(staleness[i])]))[0])
        mixed = (1 - part) * mixed + part * values[i]
    return mixed


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    count = draw(st.integers(1, 7))
    values = draw(st.lists(st.floats(-100, 100), min_size=count, max_size=count))
    staleness = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    return values, staleness, draw(st.integers(0, count - 1))


@fewer
@given(
    situations(),
    st.floats(0.01, 1.0),
    st.sampled_from([Decay("constant"), Decay("hinge", 1.0, 2.0), Decay("polynomial", 0.7)]),
)
def test_mixing_equals_mixing_peers_in_one_after_another(
    situation: tuple[list[float], list[int], int], share: float, decay: Decay
) -> None:
    values, staleness, own = situation
    weights = Mixing(share, decay)(Seen(np.ones(len(values)), np.array(staleness, float), own))
    assert weights.sum() == pytest.approx(1.0)
    expected = _mixed_by_hand(values, staleness, own, share, decay)
    assert float(weights @ np.array(values)) == pytest.approx(expected, abs=1e-9)


def test_mixing_with_nobody_leaves_ones_own_params() -> None:
    weights = Mixing(0.6, Decay())(Seen(np.array([5.0]), np.array([0.0]), 0))
    assert weights.tolist() == [1.0]


def test_mixing_without_an_update_of_ones_own_goes_by_examples_and_freshness() -> None:
    weights = Mixing(0.6, Decay("polynomial", 0.5))(Seen(EXAMPLES, STALENESS))
    assert weights == pytest.approx([30, 5, 0, 160 / 3])


def test_fedasync_mixes_with_the_share_and_decay_it_was_given() -> None:
    strategy = FedAsync(share=0.5, decay="hinge", a=1.0, b=1.0)
    values, staleness = [1.0, 10.0, 100.0], [0, 3, 1]
    expected = _mixed_by_hand(values, staleness, 0, 0.5, Decay("hinge", 1.0, 1.0))
    assert strategy.weights([1, 1, 1], staleness, own=0) @ np.array(values) == pytest.approx(
        expected
    )


@fewer
@given(
    situations(),
    st.sampled_from([Decay("constant"), Decay("hinge", 1.0, 2.0), Decay("polynomial", 0.7)]),
)
def test_a_buffer_adds_what_was_learned_as_far_as_it_is_fresh(
    situation: tuple[list[float], list[int], int], decay: Decay
) -> None:
    """x + the sum of s(staleness) delta over the number of updates, whatever their examples."""
    values, staleness, own = situation
    weights = Buffer(decay)(
        Seen(np.arange(len(values), dtype=float), np.array(staleness, float), own)
    )
    assert weights.sum() == pytest.approx(1.0)
    fresh = decay(np.array(staleness, float))
    deltas = [fresh[i] * (values[i] - values[own]) for i in range(len(values)) if i != own]
    expected = values[own] + sum(deltas) / max(1, len(deltas))
    assert float(weights @ np.array(values)) == pytest.approx(expected, abs=1e-9)


def test_a_buffer_without_a_version_to_add_to_goes_by_freshness_alone() -> None:
    weights = Buffer(Decay("polynomial", 0.5))(Seen(EXAMPLES, STALENESS))
    assert weights == pytest.approx([1, 1 / 2, 2**-0.5, 1 / 3])


def test_staleness_is_counted_from_the_version_stepped_from() -> None:
    strategy = FedAvg(weighting=ByStaleness(Decay("polynomial", 1.0)))
    updates = [
        Update("fresh", {"w": np.array([0.0])}, examples=1, version=9),
        Update("stale", {"w": np.array([1.0])}, examples=1, version=8),
    ]
    assert aggregate(strategy, updates)[0]["w"] == pytest.approx([1 / 3])
    assert aggregate(strategy, updates, version=10)[0]["w"] == pytest.approx([(1 / 3) / (5 / 6)])


@fewer
@given(
    hnp.arrays(np.int64, st.integers(1, 6), elements=st.integers(0, 10**14)),
    st.sampled_from([ByExamples(), Equally(), Capped(100), Mixing(1.0, Decay("constant"))]),
)
def test_weights_are_shares_for_any_number_of_examples(
    examples: np.ndarray[tuple[int], np.dtype[np.int64]], weighting: ByExamples
) -> None:
    strategy = FedAvg(weighting=weighting)
    for own in (None, 0):
        weights = strategy.weights(examples.tolist(), [0] * len(examples), own)
        assert weights.sum() == pytest.approx(1.0)
        assert (weights >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decay("linear"), "'constant', 'hinge' or 'polynomial', not 'linear'"),  # type: ignore[arg-type]
        (lambda: Decay("hinge", a=-1.0), "at least 0"),
        (lambda: Decay("hinge", b=-1.0), "at least 0"),
        (lambda: FedAsync(share=0.0), "share= .* 0.0"),
        (lambda: FedAsync(share=1.5), "share= .* 1.5"),
        (lambda: FedAsync(share=float("nan")), "share= .* nan"),
        (lambda: FedAsync(decay="none"), "not 'none'"),  # type: ignore[arg-type]
        (lambda: FedTrimmedMean(cut=0.5), "0.5"),
        (lambda: FedTrimmedMean(cut=-0.1), "-0.1"),
        (lambda: Capped(0), "0"),
        (lambda: Capped(-5), "-5"),
        (lambda: Mixing(1.5, Decay()), "1.5"),
        (lambda: Mixing(-0.5, Decay()), "-0.5"),
    ],
    ids=[
        "an unknown decay",
        "a negative a",
        "a negative b",
        "no share",
        "too large a share",
        "a share that is no number",
        "an unknown decay in FedAsync",
        "a cut of one half",
        "a negative cut",
        "a cap of nothing",
        "a negative cap",
        "mixing in more than all",
        "mixing in less than nothing",
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_when_it_is_given(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        make()


@pytest.mark.parametrize("bad", [[1.0, np.nan], [1.0, np.inf], [1.0, -0.1], [1.0], 1.0])
def test_a_weighting_that_gives_no_weights_is_named(bad: object) -> None:
    class Broken:
        def __call__(self, *_: object) -> object:
            return np.array(bad)

        def __repr__(self) -> str:
            return "Broken()"

    parts = FedAvg()
    strategy = Strategy(Broken(), parts.reducer, parts.optimizer)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match=r"weighting Broken\(\) must give 2 finite weights"):
        strategy.weights([1, 1], [0, 0])


def test_no_updates_cannot_be_aggregated() -> None:
    with pytest.raises(ParamsError, match="no updates"):
        aggregate(FedAvg(), [])
