"""Noise as promised: its distribution, and what an adversary can tell two neighbours apart by.

An audit reports two neighbouring values very often and compares how often each outcome comes. No
outcome may be more than e^epsilon times likelier with one than with the other; and one of them
should come near to that, or the audit sees nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hubless.errors import DataError, PrivacyError
from hubless.privacy.ledger import Floats, Ledger
from hubless.privacy.mechanisms import Additive, Count, Gaussian, Laplace, SparseVector

MANY = 100_000
EVERYBODY = np.arange(MANY)


def _reports(mechanism: Additive, value: float, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return mechanism.report(EVERYBODY, np.full(MANY, value), Ledger(MANY), rng)


def _seen(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """The largest epsilon that counts of outcomes prove, with five standard deviations to spare."""
    lower = one - 5 * np.sqrt(one + 1.0)
    upper = other + 5 * np.sqrt(other + 1.0)
    return float(np.log(np.maximum(lower, 1e-9) / upper).max())


def _audit(one: Floats, other: Floats, outcomes: int = 12) -> float:
    edges = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, outcomes + 1)))
    counts = [np.histogram(reports, edges)[0] for reports in (one, other)]
    return max(_seen(counts[0], counts[1]), _seen(counts[1], counts[0]))


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _laplace(x: float) -> float:
    return 0.5 * math.exp(x) if x < 0 else 1 - 0.5 * math.exp(-x)


@pytest.mark.parametrize(
    ("mechanism", "value", "scale", "below"),
    [
        (Laplace(epsilon=2.0, clip=4.0), 1.5, 2.0, _laplace),
        (Laplace(epsilon=0.1, clip=1.0), 1.0, 10.0, _laplace),
        (Gaussian(sigma=3.0, clip=2.0), 0.5, 6.0, _normal),
        (Count(epsilon=0.2), 17.0, 5.0, _laplace),
    ],
    ids=["laplace", "wide laplace", "gaussian", "count"],
)
def test_noise_has_the_distribution_it_should(
    mechanism: Additive, value: float, scale: float, below: Callable[[float], float]
) -> None:
    off = _reports(mechanism, value, 1) - value
    # rounded to the grid: what is at most n steps was at most n and a half
    for steps in np.rint(np.linspace(-3, 3, 13) * scale / mechanism.step):
        chance = below((steps + 0.5) * mechanism.step / scale)
        share = np.mean(off <= (steps + 0.25) * mechanism.step)
        assert abs(share - chance) < 5 * math.sqrt(chance * (1 - chance) / MANY)


@pytest.mark.parametrize("mechanism", [Laplace(0.7, 3.0), Gaussian(2.0, 3.0), Count(0.7)], ids=repr)
def test_reports_are_whole_steps_of_the_grid(mechanism: Additive) -> None:
    """Which floats come out must not depend on the value: Mironov (2012)."""
    for value in (0.0, 1.0, 3.0):
        steps = _reports(mechanism, value, 2) / mechanism.step
        assert np.abs(steps - np.rint(steps)).max() < 1e-6
        assert len(np.unique(np.rint(steps) % 7)) == 7


def test_values_are_clipped() -> None:
    laplace, rng = Laplace(epsilon=30.0, clip=2.0), np.random.default_rng(3)
    values = np.array([-5.0, 1.0, 2.0, 1e9, math.inf])
    held = laplace.report(np.arange(5), values, Ledger(5), rng)
    assert held == pytest.approx([0.0, 1.0, 2.0, 2.0, 2.0], abs=0.8)
    assert laplace.sensitivity == 2.0 and laplace.step * 1024 == 2.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["laplace", "count"])
def test_neighbours_are_as_hard_to_tell_apart_as_promised(kind: str, epsilon: float) -> None:
    mechanism = Laplace(epsilon, clip=3.0) if kind == "laplace" else Count(epsilon)
    values = (0.0, 3.0) if kind == "laplace" else (4.0, 5.0)
    proven = _audit(_reports(mechanism, values[0], 4), _reports(mechanism, values[1], 5))
    assert 0.6 * epsilon < proven <= epsilon


def test_an_audit_finds_too_little_noise() -> None:
    weak = Laplace(epsilon=2.0, clip=3.0)
    assert _audit(_reports(weak, 0.0, 6), _reports(weak, 3.0, 7)) > 1.2


def test_gaussian_neighbours_differ_by_epsilon_but_for_delta() -> None:
    epsilon, delta = 1.0, 0.02
    gaussian = Gaussian.promising(epsilon, delta, clip=3.0)
    one, other = _reports(gaussian, 3.0, 8), _reports(gaussian, 0.0, 9)
    spare = 5 * math.sqrt(0.25 / MANY) * (1 + math.e)
    left = [
        float(np.mean(one > limit) - math.exp(epsilon) * np.mean(other > limit))
        for limit in np.linspace(-5, 25, 61)
    ]
    assert 0.5 * delta < max(left) < delta + spare
    # half the noise would not do
    weak = Gaussian(gaussian.sigma / 2, clip=3.0)
    one, other = _reports(weak, 3.0, 8), _reports(weak, 0.0, 9)
    limits = np.linspace(-5, 25, 61)
    assert max(np.mean(one > at) - math.e * np.mean(other > at) for at in limits) > delta + spare


def _first_yes(sparse: SparseVector, values: list[float], last: float, seed: int) -> list[int]:
    """How many said first yes at each question, and how many never."""
    ledger, rng = Ledger(MANY), np.random.default_rng(seed)
    ledger.last[:] = last
    counts, waiting = [], EVERYBODY
    for value in values:
        sparse.report(waiting, np.full(len(waiting), value), ledger, rng)
        said = ledger.reports[waiting] > 0
        counts.append(int(said.sum()))
        waiting = waiting[~said]
    return [*counts, len(waiting)]


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_questions_of_a_sparse_vector_cost_epsilon_once(epsilon: float) -> None:
    """Values of neighbours differ by one example each time, and in the most telling direction."""
    sparse = SparseVector(Count(epsilon=1.0), epsilon, threshold=5.0)
    one = np.array(_first_yes(sparse, [15.0, 15.0, 15.0, 16.0], 10.0, 10))
    other = np.array(_first_yes(sparse, [16.0, 16.0, 16.0, 15.0], 10.0, 11))
    proven = max(_seen(one, other), _seen(other, one))
    assert 0.2 * epsilon < proven <= epsilon


def test_a_sparse_vector_at_the_level_of_clients_keeps_its_promise() -> None:
    sparse = SparseVector(Laplace(epsilon=1.0, clip=4.0), epsilon=1.5, threshold=2.0)
    one = np.array(_first_yes(sparse, [0.0, 0.0, 0.0, 4.0], 0.0, 12))
    other = np.array(_first_yes(sparse, [4.0, 4.0, 4.0, 0.0], 0.0, 13))
    proven = max(_seen(one, other), _seen(other, one))
    assert 0.4 < proven <= 1.5


def test_a_sparse_vector_reports_what_changed_and_little_else() -> None:
    clients, ledger, rng = np.arange(2000), Ledger(2000), np.random.default_rng(14)
    sparse = SparseVector(Count(epsilon=1.0), epsilon=1.0, threshold=60.0)
    values = rng.integers(0, 50, 2000).astype(np.float64)
    for turn in range(30):
        if turn == 20:
            values[:500] += 150
        held = sparse.report(clients, values + rng.integers(0, 4, 2000), ledger, rng)
        assert not np.isnan(held).any()
        if turn == 20:
            assert np.mean(ledger.reports[:500] == 2) > 0.98
    assert np.abs(held - values).max() < 60 + 60
    assert np.mean(ledger.reports[:500] == 2) > 0.98
    assert np.mean(ledger.reports[500:] == 1) > 0.97
    assert ledger.queries.tolist() == [29] * 2000
    # against thirty reports a client
    every = Ledger(2000)
    for _ in range(30):
        Count(epsilon=1.0).report(clients, values, every, rng)
    assert ledger.spent() < 0.4 * every.spent()


def test_between_reports_the_server_keeps_the_last() -> None:
    ledger, rng = Ledger(100), np.random.default_rng(15)
    sparse = SparseVector(Count(epsilon=2.0), epsilon=2.0, threshold=500.0)
    some = np.arange(0, 100, 2)
    first = sparse.report(some, np.full(50, 20.0), ledger, rng)
    for _ in range(5):
        assert sparse.report(some, np.full(50, 21.0), ledger, rng).tolist() == first.tolist()
    assert ledger.reports[some].tolist() == [1] * 50
    assert ledger.reports[1::2].sum() == ledger.queries[1::2].sum() == 0
    thresholds = ledger.threshold[some].copy()
    assert len(np.unique(thresholds)) > 1
    sparse.report(some, np.full(50, 5000.0), ledger, rng)
    assert np.isnan(ledger.threshold[some]).all()
    sparse.report(some, np.full(50, 5000.0), ledger, rng)
    assert np.mean(ledger.threshold[some] == thresholds) < 0.7


@pytest.mark.parametrize(
    "mechanism",
    [Laplace(1.0, 5.0), Gaussian(1.0, 5.0), Count(1.0), SparseVector(Count(1.0), 1.0, 3.0)],
    ids=repr,
)
def test_the_same_generator_state_reports_the_same(mechanism: Laplace) -> None:
    clients, values = np.array([3, 0, 7]), np.array([1.0, 2.0, 3.0])
    reports = [
        mechanism.report(clients, values, Ledger(8), np.random.default_rng(s)).tolist()
        for s in (1, 1, 2)
    ]
    assert reports[0] == reports[1] != reports[2]
    assert mechanism.report(clients[:0], values[:0], Ledger(8), np.random.default_rng(1)).size == 0


def test_what_cannot_be_hidden_is_refused() -> None:
    ledger, rng = Ledger(9), np.random.default_rng(16)
    for mechanism in (Laplace(1.0, 5.0), SparseVector(Gaussian(1.0, 5.0), 1.0, 3.0)):
        with pytest.raises(DataError, match="client 7 has no value to report"):
            mechanism.report(np.array([2, 7]), np.array([1.0, math.nan]), ledger, rng)
        with pytest.raises(PrivacyError, match="there twice"):
            mechanism.report(np.array([2, 2]), np.array([1.0, 1.0]), ledger, rng)
        with pytest.raises(PrivacyError, match="1 clients cannot report 2 values"):
            mechanism.report(np.array([2]), np.array([1.0, 1.0]), ledger, rng)
    for value in (-1.0, 1.5, math.inf, math.nan):
        with pytest.raises(DataError, match="client 4 counts"):
            Count(1.0).report(np.array([4]), np.array([value]), ledger, rng)
    assert ledger.spent() == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Laplace(0.0, 1.0),
        lambda: Laplace(1.0, math.inf),
        lambda: Gaussian(-1.0, 1.0),
        lambda: Gaussian(1.0, math.nan),
        lambda: Count(-2.0),
        lambda: SparseVector(Count(1.0), 0.0, 1.0),
        lambda: SparseVector(Count(1.0), 1.0, 0.0),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(PrivacyError, match="= is a number above 0, not"):
        make()
