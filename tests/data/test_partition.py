"""Partitions: every example exactly once, the same for the same seed, and as skewed as asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.data import (
    Parts,
    Population,
    by_column,
    dirichlet,
    iid,
    label_skew,
    lognormal_sizes,
    shards,
)
from hubless.errors import DataError

DIGITS = np.arange(6000) % 10
PARTITIONS: dict[str, Callable[[int], Parts]] = {
    "iid": lambda seed: iid(6000, 100, seed=seed),
    "unequal": lambda seed: iid(6000, 100, seed=seed, sizes=lognormal_sizes(100, seed=seed)),
    "shards": lambda seed: shards(DIGITS, 100, seed=seed),
    "dirichlet": lambda seed: dirichlet(DIGITS, 100, 0.1, seed=seed, least=10),
    "label skew": lambda seed: label_skew(DIGITS, 5, 0.9, seed=seed),
}
every_partition = pytest.mark.parametrize("name", PARTITIONS)

labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def _each_once(parts: Parts, examples: int) -> None:
    assert sorted(parts.rows.tolist()) == list(range(examples))
    assert parts.offsets[0] == 0 and parts.offsets[-1] == examples
    assert (parts.sizes >= 0).all()


@every_partition
def test_the_same_seed_deals_the_same_and_another_does_not(name: str) -> None:
    once, again, other = (PARTITIONS[name](seed) for seed in (3, 3, 4))
    assert np.array_equal(once.rows, again.rows)
    assert np.array_equal(once.offsets, again.offsets)
    assert not np.array_equal(once.rows, other.rows)


@every_partition
def test_a_partition_makes_a_population(name: str) -> None:
    people = Population.pooled({"y": DIGITS}).partition(PARTITIONS[name](0))
    assert people.examples == 6000


@given(st.data())
def test_iid_uses_each_example_once_in_parts_that_differ_by_one(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 20))
    examples = data.draw(st.integers(clients, 80))
    parts = iid(examples, clients, seed=data.draw(st.integers(0, 3)))
    _each_once(parts, examples)
    assert parts.sizes.max() - parts.sizes.min() <= 1


@given(st.data())
def test_unequal_parts_follow_their_proportions_and_are_never_empty(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
    examples = data.draw(st.integers(len(sizes), 500))
    parts = iid(examples, len(sizes), sizes=sizes)
    _each_once(parts, examples)
    assert (parts.sizes >= 1).all()
    by_size = np.argsort(sizes)
    assert (np.diff(parts.sizes[by_size]) >= -1).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_sizes_that_add_up_are_met_exactly(sizes: list[int]) -> None:
    assert iid(sum(sizes), len(sizes), sizes=sizes).sizes.tolist() == sizes


def test_lognormal_sizes_spread_as_far_as_asked() -> None:
    logs = np.log(lognormal_sizes(20_000, spread=2.0, seed=1))
    assert abs(logs.std() - 2.0) < 0.05
    assert np.ptp(lognormal_sizes(10, spread=0)) == 0


@given(labels, st.data())
def test_shards_use_each_example_once_and_are_equal(column: list[int], data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, len(column)))
    each = data.draw(st.integers(1, len(column) // clients))
    parts = shards(column, clients, each=each)
    _each_once(parts, len(column))
    assert parts.sizes.max() - parts.sizes.min() <= each
    assert (parts.sizes >= each).all()


def test_two_shards_are_at_most_two_labels_where_they_divide_evenly() -> None:
    parts = shards(DIGITS, 100)
    assert parts.sizes.tolist() == [60] * 100
    assert max(len(set(DIGITS[parts.rows_of(i)])) for i in range(100)) == 2


@given(labels, st.sampled_from([1e-3, 0.1, 1.0, 100.0]), st.data())
def test_dirichlet_uses_each_example_once_and_gives_everyone_the_least(
    column: list[int], alpha: float, data: st.DataObject
) -> None:
    clients = data.draw(st.integers(1, len(column)))
    least = data.draw(st.integers(0, len(column) // clients))
    parts = dirichlet(column, clients, alpha, least=least, seed=data.draw(st.integers(0, 3)))
    _each_once(parts, len(column))
    assert (parts.sizes >= least).all()


def test_a_small_alpha_concentrates_labels_and_a_large_one_spreads_them() -> None:
    def largest(alpha: float) -> float:
        parts = dirichlet(DIGITS, 10, alpha, seed=1)
        table = np.array([np.bincount(DIGITS[parts.rows_of(i)], minlength=10) for i in range(10)])
        return float(table.max(axis=0).mean() / 600)

    assert largest(0.05) > 0.7
    assert largest(1000.0) < 0.15


@given(labels, st.floats(0, 1), st.data())
def test_label_skew_uses_each_example_once(
    column: list[int], skew: float, data: st.DataObject
) -> None:
    clients = data.draw(st.integers(1, len(set(column))))
    _each_once(label_skew(column, clients, skew), len(column))


def test_full_skew_gives_two_clients_the_digits_below_and_above_five() -> None:
    parts = label_skew(DIGITS, 2, 1.0)
    assert set(DIGITS[parts.rows_of(0)]) == {0, 1, 2, 3, 4}
    assert set(DIGITS[parts.rows_of(1)]) == {5, 6, 7, 8, 9}


def test_full_skew_among_three_shares_no_label() -> None:
    parts = label_skew(DIGITS, 3, 1.0)
    owned = [set(DIGITS[parts.rows_of(i)]) for i in range(3)]
    assert sorted(map(len, owned)) == [3, 3, 4]
    assert set.union(*owned) == set(range(10))


@pytest.mark.parametrize(("skew", "own"), [(0.0, 0.2), (0.5, 0.6), (0.9, 0.92)])
def test_skew_is_the_probability_of_going_home(skew: float, own: float) -> None:
    parts = label_skew(DIGITS, 5, skew, seed=2)
    home = np.repeat(np.arange(5), parts.sizes) == DIGITS[parts.rows] // 2
    assert abs(home.mean() - own) < 0.02


def test_labels_may_be_words() -> None:
    column = np.array(["cat", "dog", "cat", "eel"], np.dtypes.StringDType())
    parts = label_skew(column, 3, 1.0)
    assert [parts.rows_of(i).tolist() for i in range(3)] == [[0, 2], [1], [3]]


def test_texts_may_come_as_objects_as_polars_gives_them() -> None:
    parts = by_column(np.array(["bob", "ann", "bob"], dtype=object))
    assert parts.names is not None and parts.names.tolist() == ["ann", "bob"]
    assert parts.rows_of(1).tolist() == [0, 2]
    with pytest.raises(DataError, match="give integers or strings"):
        by_column(np.array(["bob", None], dtype=object))


@given(labels)
def test_by_column_makes_a_client_of_each_value(column: list[int]) -> None:
    parts = by_column(column)
    _each_once(parts, len(column))
    assert parts.names is not None
    assert parts.names.tolist() == sorted(set(column))
    for client, value in enumerate(parts.names):
        assert parts.rows_of(client).tolist() == [i for i, v in enumerate(column) if v == value]


_BAD: list[tuple[str, Callable[[], object]]] = [
    ("at least 1 client, not 0", lambda: iid(10, 0)),
    ("5 examples are too few for 6 clients", lambda: iid(5, 6)),
    ("give one for each of 3 clients", lambda: iid(10, 3, sizes=[1, 2])),
    ("the size of client 1 is 0.0", lambda: iid(10, 3, sizes=[1, 0, 2])),
    ("the size of client 2 is nan", lambda: iid(10, 3, sizes=[1, 1, np.nan])),
    ("0 or above, not -1", lambda: lognormal_sizes(3, spread=-1)),
    ("with at least 2 each", lambda: shards([0, 1, 0], 2)),
    ("at least 1 shard, not 0", lambda: shards([0, 1, 0], 2, each=0)),
    ("at least 1 client, not 0", lambda: shards([0, 1, 0], 0)),
    ("labels have shape (1, 2)", lambda: shards([[0, 1]], 1)),
    ("labels or client ids are float64", lambda: dirichlet([0.5, 1.5], 1, 1.0)),
    ("above 0, not 0", lambda: dirichlet([0, 1], 1, 0)),
    ("above 0, not nan", lambda: dirichlet([0, 1], 1, float("nan"))),
    ("too few for 2 clients with at least 3 each", lambda: dirichlet([0, 1], 2, 1.0, least=3)),
    ("2 labels are not enough for 3 clients", lambda: label_skew([0, 1, 1], 3, 0.5)),
    ("from 0 to 1, not 1.5", lambda: label_skew([0, 1], 2, 1.5)),
]


@pytest.mark.parametrize(("message", "make"), _BAD, ids=[message for message, _ in _BAD])
def test_bad_input_is_refused_in_words(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert message in str(caught.value)
