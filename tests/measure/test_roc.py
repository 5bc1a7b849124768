"""The AUC is what counting pairs gives, ties and all."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hubless.errors import DataError
from hubless.measure.roc import auc, auc_by


def _by_pairs(scores: list[float], labels: list[bool]) -> Fraction:
    ones = [s for s, y in zip(scores, labels, strict=True) if y]
    zeros = [s for s, y in zip(scores, labels, strict=True) if not y]
    won = sum(2 * (a > b) + (a == b) for a in ones for b in zeros)
    return Fraction(won, 2 * len(ones) * len(zeros))


@given(st.lists(st.tuples(st.integers(-3, 3) | st.floats(allow_nan=False), st.booleans())))
def test_it_is_the_share_of_pairs_in_the_right_order(examples: list[tuple[float, bool]]) -> None:
    scores, labels = [s for s, _ in examples], [y for _, y in examples]
    assume(len(set(labels)) == 2)
    assert auc(scores, labels) == float(_by_pairs(scores, labels))


def test_it_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(5000) < 0.02
    scores = (rng.standard_normal(5000) + labels).round(1).astype(np.float32)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_scores_that_say_nothing_give_one_half() -> None:
    assert auc(np.zeros(1000), np.arange(1000) % 3 == 0) == 0.5


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, 0.2], [1, 1], "all 2 labels are 1"),
        ([0.1, 0.2], [False, False], "all 2 labels are 0"),
        ([], [], "there are no examples"),
        ([0.1, float("nan")], [0, 1], "the score of example 1 is not a number"),
        ([0.1, 0.2], [1, 2], "labels are 0 or 1, and one is 2"),
        ([0.1], [0, 1], r"scores have shape \(1,\) and labels \(2,\)"),
        ([[0.1], [0.2]], [[0], [1]], "one of each per example"),
    ],
)
def test_what_has_no_auc_is_refused(scores: object, labels: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        auc(scores, labels)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(-2, 2) | st.floats(-1, 1), st.booleans(), st.integers(-1, 3)))
)
def test_within_groups_it_is_that_of_each_group_alone(
    examples: list[tuple[float, bool, int]],
) -> None:
    scores, labels, group = (np.array([e[i] for e in examples]) for i in range(3))
    got = auc_by(scores, labels.astype(bool), group.astype(np.int64), 4)
    for one in range(4):
        mine = [(s, y) for s, y, g in examples if g == one]
        if len({y for _, y in mine}) < 2:
            assert np.isnan(got[one])
        else:
            assert got[one] == float(_by_pairs([s for s, _ in mine], [y for _, y in mine]))


def test_groups_are_as_many_as_are_asked_for() -> None:
    assert auc_by([], [], []).shape == (0,)
    np.testing.assert_array_equal(auc_by([1, 2], [0, 1], [1, 1], 3), [np.nan, 1.0, np.nan])
