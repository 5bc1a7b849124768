"""Deciles are equal parts of clients, and a decile's measures are those of all its examples."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubless.data.population import Population
from hubless.errors import DataError
from hubless.measure.clients import by_client, spread
from hubless.measure.deciles import by_decile, decile_of, overall
from hubless.measure.outcome import Outcome
from hubless.measure.roc import auc


def _deciles_one_by_one(utterances: list[int]) -> list[int]:
    ranked = sorted((count, place) for place, count in enumerate(utterances) if count)
    deciles = [0] * len(utterances)
    for rank, (_, place) in enumerate(ranked):
        # the middle of this client's stretch of the line, in twentieths
        middle = (2 * rank + 1) * 10
        deciles[place] = next(d for d in range(1, 11) if middle < d * 2 * len(ranked))
    return deciles


@given(st.lists(st.integers(0, 5) | st.integers(0, 10**6), max_size=60))
def test_deciles_are_those_of_ranking_by_hand(utterances: list[int]) -> None:
    assert decile_of(np.array(utterances, np.int64)).tolist() == _deciles_one_by_one(utterances)


@given(st.integers(10, 500), st.integers(1, 9))
def test_deciles_are_equal_to_within_a_client_and_heavier_ones_come_later(
    clients: int, different: int
) -> None:
    utterances = np.random.default_rng(clients).integers(1, 1 + different, clients)
    deciles = decile_of(utterances)
    sizes = np.bincount(deciles, minlength=11)[1:]
    assert sizes.max() - sizes.min() <= 1
    for decile in range(1, 10):
        assert utterances[deciles == decile].max() <= utterances[deciles == decile + 1].min()


def test_twenty_clients_are_two_to_a_decile_the_lightest_first() -> None:
    assert decile_of(np.arange(1, 21)).tolist() == [1 + i // 2 for i in range(20)]


def test_equal_clients_are_ranked_as_they_stand() -> None:
    assert decile_of([3] * 20).tolist() == [1 + i // 2 for i in range(20)]
    assert decile_of([9] + [3] * 19).tolist()[0] == 10


@pytest.mark.parametrize(
    ("clients", "deciles"),
    [
        (1, [6]),
        (2, [3, 8]),
        (3, [2, 6, 9]),
        (5, [2, 4, 6, 8, 10]),
        (9, [1, 2, 3, 4, 6, 7, 8, 9, 10]),
        (10, list(range(1, 11))),
        (11, [1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10]),
    ],
)
def test_few_clients_spread_evenly(clients: int, deciles: list[int]) -> None:
    assert decile_of(np.arange(1, clients + 1)).tolist() == deciles
    # those who say nothing change nothing
    assert decile_of([0, *range(1, clients + 1), 0]).tolist() == [0, *deciles, 0]


def test_nobody_is_in_no_decile() -> None:
    assert decile_of([]).tolist() == []
    assert decile_of([0, 0]).tolist() == [0, 0]


def _outcome(sizes: list[int], seed: int = 0) -> Outcome:
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    tokens = rng.integers(0, 4, n)
    return Outcome(
        sizes,  # type: ignore[arg-type]
        {"loss": rng.exponential(2, n), "accuracy": rng.random(n)},
        tokens=tokens,
        scores=rng.integers(0, 4, n),
        labels=rng.integers(0, 2, n),
    )


def _by_hand(outcome: Outcome, examples: list[int]) -> dict[str, float | None]:
    assert outcome.tokens is not None and outcome.scores is not None and outcome.labels is not None
    tokens = [int(outcome.tokens[i]) for i in examples]
    row: dict[str, float | None] = {"examples": len(examples), "tokens": sum(tokens)}
    for name, values in outcome.means.items():
        total = math.fsum(values[i] * t for i, t in zip(examples, tokens, strict=True))
        row[name] = total / sum(tokens) if sum(tokens) else None
    loss = row["loss"]
    row["perplexity"] = None if loss is None else math.exp(loss)
    both = len({int(outcome.labels[i]) for i in examples}) == 2
    row["auc"] = auc(outcome.scores[examples], outcome.labels[examples]) if both else None
    return row


def _assert_row(got: dict[str, object], wanted: dict[str, float | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            assert got[name] is None, name
        else:
            assert got[name] == pytest.approx(value, rel=1e-12), name


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=25).filter(any), st.integers(0, 100))
def test_measures_are_those_of_all_examples_of_a_decile(sizes: list[int], seed: int) -> None:
    outcome = _outcome(sizes, seed)
    starts = np.cumsum([0, *sizes])
    deciles = _deciles_one_by_one(sizes)
    frame = by_decile(outcome)
    assert frame["decile"].to_list() == sorted({d for d in deciles if d})
    for row in frame.rows(named=True):
        members = [c for c, d in enumerate(deciles) if d == row["decile"]]
        assert row["clients"] == len(members)
        _assert_row(
            row, _by_hand(outcome, [i for c in members for i in range(starts[c], starts[c + 1])])
        )
    _assert_row(overall(outcome).row(0, named=True), _by_hand(outcome, list(range(sum(sizes)))))
    for row in by_client(outcome).rows(named=True):
        client = row["client"]
        assert row["decile"] == deciles[client] > 0
        _assert_row(row, _by_hand(outcome, list(range(starts[client], starts[client + 1]))))


def test_perplexity_is_pooled_within_a_decile_as_in_the_paper() -> None:
    # twenty clients, two to a decile. Decile 1: one token of 1/2 and one of 1/8, together 1/4;
    # the others predict every token with 1/3
    sizes = np.arange(1, 21)
    nll = np.full(sizes.sum(), math.log(3))
    nll[:3] = math.log(2), math.log(8), math.log(8)
    tokens = np.ones(len(nll), int)
    tokens[2], nll[2] = 0, 0
    frame = by_decile(Outcome(sizes, nll=nll, tokens=tokens))
    assert frame["perplexity"].to_list() == pytest.approx([4] + [3] * 9)
    assert frame["clients"].to_list() == [2] * 10
    assert frame["examples"].to_list() == [4 * d - 1 for d in range(1, 11)]


def test_a_perplexity_from_mean_losses_is_that_from_sums() -> None:
    nll, tokens = np.array([6.0, 0.0, 5.0]), np.array([3, 0, 1])
    mean = [2.0, math.nan, 5.0]
    one = overall(Outcome([3], nll=nll, tokens=tokens))  # type: ignore[arg-type]
    other = overall(Outcome([3], {"loss": mean}, tokens=tokens))  # type: ignore[arg-type,dict-item]
    assert one["perplexity"][0] == pytest.approx(other["perplexity"][0])
    assert other["loss"][0] == pytest.approx(11 / 4)


def test_without_tokens_every_example_counts_once() -> None:
    frame = overall(Outcome([2, 1], {"accuracy": [1, 0, 0]}))  # type: ignore[arg-type,dict-item]
    assert frame.rows() == [(None, 2, 3, 1 / 3)]


def test_deciles_can_be_given_and_zero_leaves_a_client_out() -> None:
    outcome = Outcome(
        [1, 1, 2],  # type: ignore[arg-type]
        {"loss": [1, 2, 3, 5]},  # type: ignore[dict-item]
    )
    assert by_decile(outcome, [2, 0, 2]).rows() == [(2, 2, 3, 3.0)]
    assert by_client(outcome, [2, 0, 2])["client"].to_list() == [0, 2]


def test_what_a_simulation_evaluates_fits_and_names_the_client() -> None:
    test = Population.by({"y": np.arange(4)}, ["bob", "ann", "ann", "bob"])
    values = {"loss": np.float32([1, 2, 3, 4]), "tokens": np.float32([1, 2, 1, 0])}
    outcome = Outcome.of(test, values)
    assert outcome.nll is not None and outcome.nll.tolist() == [1, 4, 3, 0]
    values["loss"][2] = math.nan
    with pytest.raises(DataError, match=r"loss of example 2 \(client 'bob', its number 0\)"):
        Outcome.of(test, values)


def test_some_examples_are_an_outcome_too() -> None:
    outcome = _outcome([2, 0, 3])
    some = outcome.where(np.array([True, False, False, True, True]))
    assert some.sizes.tolist() == [1, 0, 2]
    row = overall(some).row(0, named=True)
    _assert_row(row, _by_hand(outcome, [0, 3, 4]))


BAD: list[tuple[dict[str, object], str]] = [
    ({"sizes": [1, -1]}, "client 1 has -1 examples"),
    ({"sizes": [1, 1], "means": {"loss": [1]}}, "there are 1 values of loss for 2 examples"),
    ({"sizes": [1, 1], "means": {"loss": [1, math.nan]}}, "loss of example 1 .client 1, its num"),
    ({"sizes": [0, 2], "nll": [1, math.nan], "tokens": [1, 1]}, "of example 1 .client 1, its nu"),
    ({"sizes": [2], "nll": [1], "tokens": [1, 1]}, "1 negative log-likelihoods for 2 examples"),
    ({"sizes": [2], "nll": [1, 1], "tokens": [1]}, "1 tokens for 2 examples"),
    ({"sizes": [2], "tokens": [1, -4]}, "example 1 .client 0, its number 1. has -4 tokens"),
    ({"sizes": [1], "nll": [1]}, "needs the number of tokens"),
    ({"sizes": [1], "scores": [1]}, "needs both scores and labels"),
    ({"sizes": [1], "scores": [math.nan], "labels": [1]}, "score of example 0 .client 0"),
    ({"sizes": [1], "scores": [1], "labels": [2]}, "label of example 0 .client 0.* is 2, not"),
    ({"sizes": [1], "names": ["a", "b"]}, "2 names for 1 clients"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_an_outcome_that_makes_no_sense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Outcome(**given)  # type: ignore[arg-type]


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="one bool for each of 2"):
        _outcome([2]).where([True])


@pytest.mark.parametrize(
    ("decile", "message"),
    [([1], "each of 2 clients"), ([1, 11], "client 1 is in decile 11"), ([-1, 1], "decile -1")],
)
def test_deciles_that_make_no_sense_are_refused(decile: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        by_decile(_outcome([1, 1]), decile)


@pytest.mark.parametrize("sizes", [[], [0, 0]])
def test_a_test_set_without_examples_is_refused(sizes: list[int]) -> None:
    for measure in (overall, by_decile, by_client, spread):
        with pytest.raises(DataError, match=f"none of {len(sizes)} clients has test examples"):
            measure(_outcome(sizes))


def test_the_spread_over_twenty_clients_worked_by_hand() -> None:
    # client i has i + 1 examples of loss i and accuracy i / 100: deciles are pairs of clients
    sizes = np.arange(1, 21)
    each = np.repeat(np.arange(20.0), sizes)
    frame = spread(Outcome(sizes, {"loss": each, "accuracy": each / 100}))
    loss, accuracy = frame.rows(named=True)
    assert loss["clients"] == 20 and loss["mean"] == 9.5
    assert loss["std"] == pytest.approx(math.sqrt(399 / 12))
    assert [loss[f"q{q}"] for q in (10, 25, 50, 75, 90)] == [1, 4, 9, 14, 17]
    # the worst two clients, of loss 18 and 19; the last decile has 19 examples and 20
    assert loss["worst_tenth"] == 18.5
    assert (loss["worst_decile"], loss["worst_decile_value"]) == (
        10,
        pytest.approx((18 * 19 + 19 * 20) / 39),
    )
    assert accuracy["worst_tenth"] == pytest.approx(0.005)
    assert (accuracy["worst_decile"], accuracy["worst_decile_value"]) == (
        1,
        pytest.approx(0.02 / 3),
    )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 1))
@settings(max_examples=50)
def test_a_quantile_is_the_smallest_value_that_enough_clients_do_not_exceed(
    losses: list[float], q: float
) -> None:
    outcome = Outcome(np.ones(len(losses), int), {"loss": np.array(losses)})
    frame = spread(outcome, quantiles=[q])
    got = frame[f"q{100 * q:g}"][0]
    enough = [v for v in losses if sum(u <= v for u in losses) >= q * len(losses) * (1 - 1e-12)]
    assert got == min(enough)
    tenth = math.ceil(len(losses) / 10)
    assert frame["worst_tenth"][0] == pytest.approx(sum(sorted(losses)[-tenth:]) / tenth)


def test_clients_without_a_measure_count_nowhere_in_its_spread() -> None:
    # an AUC needs both labels, and only the last client has them
    outcome = Outcome(
        [1, 2],  # type: ignore[arg-type]
        scores=np.array([1, 1, 2]),
        labels=np.array([1, 0, 1]),
    )
    row = spread(outcome).row(0, named=True)
    assert (row["measure"], row["clients"], row["mean"], row["worst_decile"]) == ("auc", 1, 1.0, 8)
    lonely = Outcome([1], scores=np.array([1]), labels=np.array([1]))  # type: ignore[arg-type]
    row = spread(lonely).row(0, named=True)
    assert row["clients"] == 0 and row["mean"] is None and row["worst_decile"] is None
    assert by_decile(lonely)["auc"].dtype == pl.Float64


def test_an_infinite_perplexity_is_the_worst_and_breaks_nothing() -> None:
    nll, tokens = np.array([1e9, 0.0, 0.0]), np.ones(3, int)
    row = spread(Outcome([1, 1, 1], nll=nll, tokens=tokens)).row(0, named=True)  # type: ignore[arg-type]
    assert row["worst_tenth"] == row["mean"] == math.inf and row["std"] is None
    assert row["q50"] == 1 and row["worst_decile"] == 2
    nll[:] = 709  # still a float, but its square is not
    row = spread(Outcome([1, 1, 1], nll=nll, tokens=tokens)).row(0, named=True)  # type: ignore[arg-type]
    assert row["q50"] == math.exp(709) and row["mean"] == math.inf
    assert row["worst_decile"] == 2  # all tie


def test_a_quantile_beyond_all_clients_is_refused() -> None:
    with pytest.raises(DataError, match="not at 50"):
        spread(_outcome([1]), quantiles=[50])
