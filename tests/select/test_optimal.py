"""Optimal client sampling: the paper's probabilities, and the unbiased sum they are for."""

from __future__ import annotations

import numpy as np
import pytest

from hubless.errors import SelectionError
from hubless.select.optimal import OptimalSampling
from hubless.select.roster import Floats, Roster
from tests.support.frequencies import often


def _paper(norms: Floats, m: int) -> Floats:
    """In ascending order, the first l in proportion and the others 1, for the largest such l."""
    n, order = len(norms), np.argsort(norms)
    ascending = norms[order]
    for smaller in range(n, n - m, -1):
        total = ascending[:smaller].sum()
        if m + smaller - n <= total / ascending[smaller - 1]:
            chances = np.ones(n)
            chances[order[:smaller]] = (m + smaller - n) * ascending[:smaller] / total
            return chances
    raise AssertionError


@pytest.mark.parametrize("m", [1, 5, 20, 39])
def test_probabilities_are_the_papers(m: int) -> None:
    rng = np.random.default_rng(m)
    sizes, norms = rng.geometric(0.1, 40), rng.lognormal(0, 2, 40)
    roster = Roster(sizes)
    roster.record_seen(np.arange(40), norms)
    chances = OptimalSampling().inclusion(roster, m)
    assert np.allclose(chances, _paper(sizes * norms, m), rtol=1e-9)
    assert often(lambda: OptimalSampling()(roster, m, rng), chances, 1000).max() < 5


def test_no_other_probabilities_have_a_smaller_variance() -> None:
    rng = np.random.default_rng(1)
    norms = rng.lognormal(0, 2, 30)
    roster = Roster(np.ones(30, np.int64))
    roster.record_seen(np.arange(30), norms)
    chances = OptimalSampling().inclusion(roster, 6)
    least = (norms**2 / chances).sum()
    for _ in range(200):
        other = np.clip(chances * rng.uniform(0.8, 1.25, 30), 0, 1)
        for _ in range(50):
            other = np.minimum(1, other * 6 / other.sum())
        assert (norms**2 / other).sum() >= least * (1 - 1e-6)


def test_the_sum_of_updates_is_unbiased() -> None:
    rng = np.random.default_rng(2)
    updates = rng.normal(0, 1, (30, 3)) * rng.lognormal(0, 1, (30, 1))
    roster = Roster(np.ones(30, np.int64))
    roster.record_seen(np.arange(30), np.linalg.norm(updates, axis=1))
    chances, sums = OptimalSampling().inclusion(roster, 8), []
    for _ in range(3000):
        picked = OptimalSampling()(roster, 8, rng)
        sums.append((updates[picked] / chances[picked, None]).sum(0))
    error = np.std(sums, axis=0) / np.sqrt(len(sums))
    assert (np.abs(np.mean(sums, axis=0) - updates.sum(0)) < 5 * error).all()


def test_whoever_has_no_norm_yet_counts_as_the_mean() -> None:
    roster = Roster([1, 1, 1, 2, 0])
    assert OptimalSampling().inclusion(roster, 1) == pytest.approx([0.2, 0.2, 0.2, 0.4, 0])
    roster.record_seen(np.arange(2), [3.0, 1.0])
    assert OptimalSampling().inclusion(roster, 1) == pytest.approx([0.3, 0.1, 0.2, 0.4, 0])


def test_a_norm_of_nothing_is_forgotten_unless_asked_otherwise() -> None:
    roster = Roster([1, 1, 1])
    roster.record_seen(np.arange(3), [4.0, 0.0, -1.0])
    assert OptimalSampling().inclusion(roster, 1).tolist() == [1, 0, 0]
    kept = OptimalSampling(least=0.75).inclusion(roster, 1)
    assert kept == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    with pytest.raises(SelectionError, match="least= is a number"):
        OptimalSampling(least=2)


def test_probabilities_are_of_those_available() -> None:
    roster = Roster([1, 2, 3, 4], np.array([True, False, True, True]))
    assert OptimalSampling().inclusion(roster, 1) == pytest.approx([1 / 8, 0, 3 / 8, 4 / 8])
