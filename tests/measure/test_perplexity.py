"""Perplexity is exp of the mean loss per token, of everything in a group together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.errors import DataError
from hubless.measure.perplexity import perplexity_by, perplexity_of

LOSSES = st.floats(0, 50)
EXAMPLES = st.lists(st.lists(LOSSES, max_size=4), max_size=12)


def _token_by_token(examples: list[list[float]]) -> float:
    losses = [loss for example in examples for loss in example]
    return math.exp(math.fsum(losses) / len(losses)) if losses else math.nan


@given(EXAMPLES, st.data())
def test_it_is_what_going_through_all_tokens_gives(
    examples: list[list[float]], data: st.DataObject
) -> None:
    nll = np.array([sum(example) for example in examples])
    tokens = [len(example) for example in examples]
    group = data.draw(st.lists(st.integers(-1, 2), min_size=len(tokens), max_size=len(tokens)))
    wanted = [
        _token_by_token([e for e, g in zip(examples, group, strict=True) if g == one])
        for one in range(3)
    ]
    got = perplexity_by(nll, tokens, np.array(group, np.int64), 3)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    if sum(tokens):
        assert perplexity_of(nll, tokens) == pytest.approx(_token_by_token(examples), rel=1e-12)


def test_two_tokens_of_one_in_two_and_two_of_one_in_eight_are_one_in_four() -> None:
    # by hand: (ln 2 + ln 2 + ln 8 + ln 8) / 4 = 2 ln 2, whoever said how much
    for nll, tokens in (
        ([2 * math.log(2), 2 * math.log(8)], [2, 2]),
        ([math.log(2), math.log(2) + 2 * math.log(8)], [1, 3]),
    ):
        assert perplexity_of(nll, tokens) == pytest.approx(4, rel=1e-15)


def test_it_is_not_a_mean_of_perplexities() -> None:
    assert perplexity_of([0.0, math.log(100)], [1, 1]) == pytest.approx(10)


def test_a_loss_too_large_for_a_float_gives_infinity_without_a_warning() -> None:
    assert perplexity_of([1e6], [1]) == math.inf
    assert perplexity_of([math.inf, 1.0], [1, 1]) == math.inf
    assert perplexity_by([1e6, 0.0], [1, 1], [0, 1]).tolist() == [math.inf, 1.0]


def test_counts_may_come_as_floats_from_a_device() -> None:
    assert perplexity_of(np.float32([math.log(3)] * 2), np.float32([1, 1])) == pytest.approx(3)


def test_a_group_without_tokens_has_none() -> None:
    assert np.isnan(perplexity_by([0.0], [0], [0], 2)).all()
    assert perplexity_by([], [], []).shape == (0,)


@pytest.mark.parametrize(
    ("nll", "tokens", "message"),
    [
        ([], [], "no token is predicted in 0 examples"),
        ([0.0], [0], "no token is predicted in 1 examples"),
        ([1.0], [1, 2], "there are 2 tokens for 1 examples"),
        ([1.0, 1.0], [1, -2], "example 1 has -2 tokens"),
        ([1.0, 1.0], [1, 0.5], "example 1 has 0.5 tokens"),
        ([1.0], [math.nan], "example 0 has nan tokens"),
        ([1.0], [math.inf], "example 0 has inf tokens"),
        ([1.0, math.nan], [1, 1], "log-likelihood of example 1 is nan"),
        ([-math.inf], [1], "log-likelihood of example 0 is -inf"),
        ([1.0], [0], "example 0 has no tokens, and a negative log-likelihood of 1"),
        ([[1.0]], [1], r"shape \(1, 1\): give a flat list"),
        (["a"], [1], "give a flat list of numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(nll: object, tokens: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        perplexity_of(nll, tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([0], "shape .1,.: give a number for each of 2"),
        ([0, 3], "example 1 is of group 3, and there are 3"),
        ([-2, 0], "example 0 is of group -2"),
        ([0.0, 1.0], "groups are float64"),
    ],
)
def test_groups_that_make_no_sense_are_refused(group: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        perplexity_by([1.0, 1.0], [1, 1], group, 3)  # type: ignore[arg-type]
