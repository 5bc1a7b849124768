"""The population: views never copy, every example stays with its client, and errors say why."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hubless.data import Parts, Population, iid
from hubless.errors import DataError


def _columns(rows: int) -> dict[str, NDArray[Any]]:
    return {"x": np.arange(rows * 2).reshape(rows, 2), "y": np.arange(rows)}


def _people() -> Population:
    """Four clients, one of them empty, whose rows stand in no order."""
    return Population.of(_columns(7), [[5, 2], [], [0, 6, 1], [3]])


def _owned(population: Population) -> list[list[int]]:
    return [population.client(i)["y"].tolist() for i in range(len(population))]


@st.composite
def populations(draw: st.DrawFn) -> Population:
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=30))
    population = Population.by(_columns(len(ids)), ids)
    return population.packed() if draw(st.booleans()) else population


def test_a_client_has_its_rows_of_every_column() -> None:
    client = _people().client(2)
    assert client["y"].tolist() == [0, 6, 1]
    assert client["x"].tolist() == [[0, 1], [12, 13], [2, 3]]


def test_counts_are_those_of_clients_and_examples() -> None:
    people = _people()
    assert len(people) == people.clients == 4
    assert people.examples == 6
    assert people.sizes.tolist() == [2, 0, 3, 1]
    assert people.sizes.dtype == np.int64


def test_without_rows_the_columns_stand_in_client_order() -> None:
    people = Population(_columns(3), np.array([0, 2, 2, 3]))
    assert _owned(people) == [[0, 1], [], [2]]
    assert people.rows_of(0).tolist() == [0, 1]


def test_a_client_of_a_population_in_order_is_a_view_of_the_columns() -> None:
    columns = _columns(4)
    people = Population(columns, np.array([0, 1, 4]))
    assert np.shares_memory(people.client(1)["x"], columns["x"])


def test_views_share_the_columns() -> None:
    people = _people()
    first, second = people.split(0.5)
    views = [people.select([2]), people.where(np.ones(7, np.bool_)), first, second]
    for view in views:
        assert view.columns["x"] is people.columns["x"]


def test_clients_are_named_by_their_ids_in_sorted_order() -> None:
    people = Population.by(_columns(4), ["bob", "ann", "bob", "eve"])
    assert [people.name(i) for i in range(3)] == ["ann", "bob", "eve"]
    assert _owned(people) == [[1], [0, 2], [3]]


def test_clients_can_be_named_by_numbers() -> None:
    people = Population.by(_columns(3), np.array([70, -2, 70], np.int32))
    assert [people.name(0), people.name(1)] == ["-2", "70"]
    assert _owned(people) == [[1], [0, 2]]


def test_clients_can_be_named_by_variable_length_strings() -> None:
    ids = np.array(["zoë", "", "zoë"], np.dtypes.StringDType())
    people = Population.by(_columns(3), ids)
    assert [people.name(0), people.name(1)] == ["", "zoë"]


def test_clients_without_names_go_by_number() -> None:
    assert _people().name(3) == "3"


def test_rows_that_already_stand_by_client_need_no_index() -> None:
    assert Population.by(_columns(4), [1, 1, 2, 9]).rows is None
    assert Population.by(_columns(4), [1, 2, 1, 9]).rows is not None


def test_one_pooled_client_owns_everything() -> None:
    assert _owned(Population.pooled(_columns(3))) == [[0, 1, 2]]


def test_selected_clients_keep_their_names_and_come_in_the_order_asked_for() -> None:
    people = Population.by(_columns(4), ["bob", "ann", "bob", "eve"]).select([2, 1])
    assert [people.name(0), people.name(1)] == ["eve", "bob"]
    assert _owned(people) == [[3], [0, 2]]


def test_names_given_as_a_list_survive_a_selection() -> None:
    people = Population(_columns(2), np.array([0, 1, 2]), None, ["a", "b"])
    assert people.select(np.array([1])).name(0) == "b"


def test_nobody_can_be_selected() -> None:
    nobody = _people().select([])
    assert (len(nobody), nobody.examples) == (0, 0)


def test_a_mask_leaves_every_client_in_its_place() -> None:
    people = _people()
    kept = people.where(people.columns["y"] >= 3)
    assert _owned(kept) == [[5], [], [6], [3]]


def test_masks_and_selections_can_be_combined() -> None:
    people = _people().select([2, 0])
    assert _owned(people.where(people.columns["y"] < 6)) == [[0, 1], [5, 2]]


def test_packing_changes_nothing_but_the_place_of_values() -> None:
    people = _people()
    packed = people.packed()
    assert packed.rows is None
    assert _owned(packed) == _owned(people)
    assert len(packed.columns["x"]) == 6
    assert packed.packed() is packed


def test_a_new_partition_deals_the_same_examples() -> None:
    people = _people().partition(Parts.of([[0, 5], [1]]))
    assert _owned(people) == [[5, 3], [2]]


def test_a_partition_of_a_pooled_population_numbers_its_rows() -> None:
    people = Population.pooled(_columns(10)).partition(iid(10, clients=3, seed=4))
    assert sorted(y for ys in _owned(people) for y in ys) == list(range(10))


@given(populations(), st.floats(0.01, 0.99), st.none() | st.integers(0, 9))
def test_a_split_uses_every_example_once_and_keeps_their_order(
    people: Population, share: float, seed: int | None
) -> None:
    first, second = people.split(share, seed=seed)
    for whole, train, test in zip(_owned(people), _owned(first), _owned(second), strict=True):
        assert sorted(train + test) == sorted(whole)
        assert [y for y in whole if y in train] == train
        assert [y for y in whole if y in test] == test
        if len(whole) >= 2:
            assert len(test) == max(1, int(len(whole) * share + 1e-9))
            assert train
        if seed is None:
            assert train + test == whole


def test_a_random_split_depends_on_its_seed_alone() -> None:
    people = Population.pooled(_columns(100))
    once, again, other = (_owned(people.split(0.3, seed=s)[1]) for s in (1, 1, 2))
    assert once == again != other


def test_a_share_is_not_lost_to_rounding() -> None:
    assert Population.pooled(_columns(100)).split(0.29)[1].examples == 29


@given(populations(), st.data())
def test_any_selection_holds_what_its_clients_hold(people: Population, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(people) - 1), max_size=10))
    everyone = _owned(people)
    assert _owned(people.select(chosen)) == [everyone[i] for i in chosen]


@given(populations(), st.data())
def test_any_mask_keeps_exactly_what_satisfies_it(people: Population, data: st.DataObject) -> None:
    height = len(people.columns["y"])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=height, max_size=height)))
    kept = set(people.columns["y"][mask].tolist())
    expected = [[y for y in ys if y in kept] for ys in _owned(people)]
    assert _owned(people.where(mask)) == expected


def test_a_population_can_be_sent_to_another_process() -> None:
    people = Population.by(_columns(3), ["b", "a", "b"])
    again = pickle.loads(pickle.dumps(people))
    assert _owned(again) == _owned(people)
    assert again.name(0) == "a"


def test_a_population_shows_itself_in_a_line() -> None:
    assert repr(_people()) == "Population(4 clients, 6 examples, x: int64[2], y: int64[])"


_BAD: list[tuple[str, Callable[[], object]]] = [
    ("offsets start at 1", lambda: Population(_columns(2), np.array([1, 2]))),
    ("offsets are empty", lambda: Population(_columns(2), np.array([], np.int64))),
    ("fall from 2 to 1 at client 1", lambda: Population(_columns(2), np.array([0, 2, 1, 2]))),
    ("end at 1 but the columns have 2 rows", lambda: Population(_columns(2), np.array([0, 1]))),
    (
        "end at 1 but there are 2 rows",
        lambda: Population(_columns(2), np.array([0, 1]), np.array([0, 1])),
    ),
    (
        "row 7 is out of range: there are 2 rows",
        lambda: Population(_columns(2), np.array([0, 1]), np.array([7])),
    ),
    (
        "row -1 is out of range",
        lambda: Population(_columns(2), np.array([0, 1]), np.array([-1])),
    ),
    (
        "3 names for 1 clients",
        lambda: Population(_columns(2), np.array([0, 2]), None, ["a", "b", "c"]),
    ),
    (
        "column 'x' has 2 rows and column 'y' has 3",
        lambda: Population.pooled({"x": np.zeros(2), "y": np.zeros(3)}),
    ),
    ("at least one column", lambda: Population.pooled({})),
    ("column 'x' is a single value", lambda: Population.pooled({"x": np.array(1)})),
    ("offsets are float64", lambda: Population(_columns(2), np.array([0.0, 2.0]))),
    ("shape (3,) and the columns 2 rows", lambda: Population.by(_columns(2), [1, 2, 3])),
    ("give integers or strings", lambda: Population.by(_columns(2), [1.5, 2.5])),
    ("part 0 is float64", lambda: Population.of(_columns(2), [[0.5]])),
    ("no client 4: the population has 4", lambda: _people().client(4)),
    ("no client -1", lambda: _people().name(-1)),
    ("no client 9", lambda: _people().select([0, 9])),
    ("no client -1", lambda: _people().select([-1])),
    ("list of numbers, not bool", lambda: _people().select([True, False])),
    ("for each of the columns' 7 rows", lambda: _people().where(np.ones(6, np.bool_))),
    ("the mask is int64", lambda: _people().where(np.ones(7, np.int64))),
    ("row 6 is out of range: there are 6", lambda: _people().partition(Parts.of([[6]]))),
    ("above 0 and below 1, not 1.0", lambda: _people().split(1.0)),
    ("above 0 and below 1, not nan", lambda: _people().split(float("nan"))),
]


@pytest.mark.parametrize(("message", "make"), _BAD, ids=[message for message, _ in _BAD])
def test_bad_input_is_refused_in_words(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert message in str(caught.value)


def test_ten_million_clients_are_a_few_arrays() -> None:
    clients = 10_000_000
    x = np.zeros((clients, 4), np.uint8)
    tracemalloc.start()
    try:
        people = Population({"x": x}, np.arange(clients + 1))
        assert int(people.sizes.sum()) == clients
        assert people.client(clients - 1)["x"].shape == (1, 4)
        chosen = people.select(np.arange(0, clients, 1000))
        assert chosen.packed().columns["x"].shape == (10_000, 4)
        window = people.where(np.arange(clients) % 2 == 0)
        assert window.examples == clients // 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 600e6
