"""The fleet: unequal clients with tastes, intents that drift and appear, and no chance in it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubless.data import Population
from hubless.data.sources import fleet, phrases
from hubless.data.sources.fleet import INTENTS, Habits
from hubless.errors import DataError


@pytest.fixture(scope="module")
def busy() -> Population:
    """A fleet of equal clients with much to say, to see shares by."""
    return fleet.generate(clients=1500, seed=4, habits=Habits(utterances=100, spread=0.5))


def _month(people: Population) -> NDArray[np.int64]:
    return people.columns["time"].astype("datetime64[M]").astype(np.int64) % 12


def _shares(people: Population) -> NDArray[np.float64]:
    """The share of every intent in each month."""
    counts = np.zeros((12, len(INTENTS)))
    np.add.at(counts, (_month(people), people.columns["intent"]), 1)
    shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares


def _whole(chunks: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name])
        for name in one
    )


def test_activity_is_spread_over_four_orders_of_magnitude() -> None:
    for seed in (0, 1):
        drawn = [
            fleet._clients(block, 4096, fleet._calendar(np.datetime64("2023-01"), 12, 1.0), seed,
                           Habits()).sizes
            for block in range(5)
        ]  # fmt: skip
        sizes = np.concatenate(drawn)[:20_000]
        assert sizes.min() == 1
        assert sizes.max() / sizes.min() > 1e4
        assert np.median(sizes) < sizes.mean() / 5
        assert sizes.max() <= Habits().most


def test_activity_can_be_tuned() -> None:
    equal = fleet.generate(200, habits=Habits(utterances=20, spread=0.0, turnover=0.0))
    assert set(equal.sizes) == {20}
    capped = fleet.generate(200, habits=Habits(most=5))
    assert capped.sizes.max() == 5


def test_every_client_says_something_in_the_order_of_time(busy: Population) -> None:
    assert busy.sizes.min() >= 1
    owner = np.repeat(np.arange(len(busy)), busy.sizes)
    time = busy.columns["time"]
    assert time.dtype == "datetime64[us]"
    assert ((time[1:] >= time[:-1]) | (owner[1:] != owner[:-1])).all()
    assert time.min() >= np.datetime64("2023-01-01") and time.max() < np.datetime64("2024-01-01")
    assert set(_month(busy)) == set(range(12))


def test_new_intents_are_absent_before_their_month_and_common_after(busy: Population) -> None:
    shares = _shares(busy)
    new = [i for i, intent in enumerate(phrases.INTENTS) if intent.appears]
    assert [phrases.INTENTS[i].first_month(12) for i in new] == [2, 4, 6, 8, 10]
    for number in new:
        month = phrases.INTENTS[number].first_month(12)
        assert not shares[:month, number].any()
        assert shares[month, number] > 0
        assert shares[month + 1, number] > shares[month, number]
    assert (shares[:, [i for i in range(len(INTENTS)) if i not in new]] > 0).all()


def test_intents_drift_and_follow_the_seasons(busy: Population) -> None:
    shares = _shares(busy)
    call, message = shares[:, INTENTS.index("call")], shares[:, INTENTS.index("message")]
    assert call[:3].mean() > 1.5 * call[-3:].mean()
    assert message[-3:].mean() > 1.3 * message[:3].mean()
    garden, heating = shares[:, INTENTS.index("garden")], shares[:, INTENTS.index("heating")]
    assert garden[5] > 5 * garden[11]
    assert heating[0] > 3 * heating[6]


def test_seasons_are_those_of_the_calendar() -> None:
    july = fleet.generate(300, start="2022-07", months=1, seed=1)
    january = fleet.generate(300, start="2023-01", months=1, seed=1)
    garden, heating = INTENTS.index("garden"), INTENTS.index("heating")
    for people, more, less in ((july, garden, heating), (january, heating, garden)):
        counts = np.bincount(people.columns["intent"], minlength=len(INTENTS))
        assert counts[more] > counts[less]


def test_without_drift_every_month_is_alike() -> None:
    habits = Habits(utterances=100, spread=0.5, drift=0.0)
    shares = _shares(fleet.generate(clients=1500, seed=4, habits=habits))
    assert np.abs(shares - shares.mean(axis=0)).max() < 0.02
    assert (shares > 0).all()


def test_clients_have_tastes_of_their_own(busy: Population) -> None:
    def likeness(people: Population) -> float:
        """How often two utterances of one client share an intent."""
        owner = np.repeat(np.arange(len(people)), people.sizes)
        counts = np.zeros((len(people), len(INTENTS)))
        np.add.at(counts, (owner, people.columns["intent"]), 1)
        pairs = (counts * (counts - 1)).sum(axis=1)
        return float(pairs.sum() / (people.sizes * (people.sizes - 1)).sum())

    of_all = float((np.bincount(busy.columns["intent"]) / busy.examples) @ (
        np.bincount(busy.columns["intent"]) / busy.examples
    ))  # fmt: skip
    alike = fleet.generate(500, seed=4, habits=Habits(utterances=100, spread=0.5, taste=1e4))
    assert likeness(busy) > 1.8 * of_all
    assert likeness(alike) < 1.3 * of_all


def test_clients_have_contacts_of_their_own() -> None:
    habits = Habits(utterances=3000, spread=0.0, taste=1e4, turnover=0.0)
    people = fleet.generate(6, seed=3, habits=habits)
    called = re.compile(r"call (.*?)(?: on speaker| at .*)?")
    favourites = []
    for client in range(len(people)):
        names = [m[1] for text in people.client(client)["text"] if (m := called.fullmatch(text))]
        values, counts = np.unique(names, return_counts=True)
        order = np.argsort(-counts)
        assert counts[order][: phrases.OWN["contact"]].sum() > 0.5 * counts.sum()
        favourites.append(frozenset(values[order][:3]))
    assert len(set(favourites)) > 3


def test_some_clients_join_late_and_some_leave_early() -> None:
    habits = Habits(utterances=200, spread=0.0, turnover=0.3)
    people = fleet.generate(1000, seed=8, habits=habits)
    first = people.columns["time"][people.offsets[:-1]]
    last = people.columns["time"][people.offsets[1:] - 1]
    late = (first >= np.datetime64("2023-02-01")).mean()
    early = (last < np.datetime64("2023-12-01")).mean()
    assert 0.2 < late < 0.36
    assert 0.2 < early < 0.36
    stay = fleet.generate(300, seed=8, habits=Habits(utterances=200, spread=0.0, turnover=0.0))
    assert (stay.columns["time"][stay.offsets[:-1]] < np.datetime64("2023-02-01")).all()


def test_days_have_their_hours_and_clients_their_clocks(busy: Population) -> None:
    hours = busy.columns["time"].astype("datetime64[h]").astype(np.int64) % 24
    by_hour = np.bincount(hours, minlength=24) / busy.examples
    assert by_hour.min() > 0.8 / 24
    heaviest = int(busy.sizes.argmax())
    own = np.bincount(hours[busy.offsets[heaviest] : busy.offsets[heaviest + 1]], minlength=24)
    assert own.max() > 3 * own.min()


def test_a_fleet_is_the_same_for_a_seed_and_another_for_another() -> None:
    one, again, other = (fleet.generate(50, seed=seed).columns for seed in (1, 1, 2))
    assert _same(dict(one), dict(again))
    assert not _same(dict(one), dict(other))


@pytest.mark.parametrize("chunk", [1, 37, 1000, 10**9])
def test_chunks_make_no_difference(chunk: int) -> None:
    habits = Habits(utterances=10)
    expected = _whole(list(fleet.stream(300, seed=5, habits=habits)))
    chunks = list(fleet.stream(300, seed=5, habits=habits, chunk=chunk))
    assert _same(_whole(chunks), expected)
    for part in chunks:
        assert len(part["text"]) <= chunk or len(np.unique(part["client"])) == 1
    owners = [set(part["client"]) for part in chunks]
    assert sum(map(len, owners)) == 300


def test_a_client_says_the_same_in_any_company() -> None:
    habits = Habits(utterances=3, spread=1.0)
    many = fleet.generate(5000, seed=6, habits=habits)
    few = fleet.generate(10, seed=6, habits=habits)
    for client in (0, 9):
        assert _same(many.client(client), few.client(client))


def test_a_stream_and_a_population_are_the_same_fleet() -> None:
    streamed = _whole(list(fleet.stream(5000, seed=7, habits=Habits(utterances=2, spread=1.0))))
    people = fleet.generate(5000, seed=7, habits=Habits(utterances=2, spread=1.0))
    owner = streamed.pop("client")
    assert _same(streamed, dict(people.columns))
    assert np.array_equal(np.repeat(np.arange(5000), people.sizes), owner)
    assert set(np.diff(owner)) == {0, 1}


def test_a_stream_begins_before_it_ends() -> None:
    # ten million clients would take minutes
    part = next(fleet.stream(10_000_000, seed=1, chunk=500))
    assert len(part["text"]) > 0 and part["client"][0] == 0


def test_what_is_said_is_clean_and_of_its_intent(busy: Population) -> None:
    texts, intents = busy.columns["text"], busy.columns["intent"]
    assert isinstance(texts.dtype, np.dtypes.StringDType)
    said, first = np.unique(texts, return_index=True)
    assert len(said) > 10_000
    assert all(re.fullmatch(r"[a-z]+('[a-z]+)?( [a-z]+('[a-z]+)?)*", text) for text in said)
    for place in first[:: len(first) // 300]:
        patterns = [
            re.sub(r"\{\w+\}", ".+", template)
            for template in phrases.INTENTS[intents[place]].templates
        ]
        assert any(re.fullmatch(pattern, texts[place]) for pattern in patterns)


def test_every_phrase_can_be_said_and_every_slot_filled() -> None:
    used = set()
    for intent in phrases.INTENTS:
        for template in intent.templates:
            slots = re.findall(r"\{(\w+)\}", template)
            assert len(slots) <= fleet._SLOTS_EACH
            # numbers may be said twice; "call mom and mom" would be odd
            assert len(set(slots)) == len(slots) or set(slots) == {"number"}
            used.update(slots)
    assert used == set(phrases.SLOTS)
    assert set(phrases.OWN) <= used
    assert all(len(set(values)) == len(values) for values in phrases.SLOTS.values())
    assert len(set(INTENTS)) == len(INTENTS) < 256


@pytest.mark.parametrize("months", [1, 5, 30])
def test_a_fleet_may_last_any_number_of_months(months: int) -> None:
    people = fleet.generate(200, months=months, start="2024-02", seed=1)
    month = people.columns["time"].astype("datetime64[M]").astype(np.int64)
    assert set(month - month.min()) == set(range(months))
    assert month.min() == np.datetime64("2024-02", "M").astype(np.int64)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"clients": 0}, "of 0 clients"),
        ({"months": 0}, "0 months"),
        ({"chunk": 0}, "chunks of 0"),
        ({"start": "2023-01-02"}, "starts with a month, and 2023-01-02 begins none"),
    ],
    ids=str,
)
def test_a_fleet_that_is_none_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fleet.stream(**asked)


@pytest.mark.parametrize(
    ("habit", "value"),
    [
        ("utterances", 0),
        ("utterances", float("inf")),
        ("taste", -1),
        ("spread", -0.1),
        ("drift", float("nan")),
        ("most", 0),
        ("turnover", 1.1),
    ],
)
def test_habits_that_make_no_sense_are_refused(habit: str, value: Any) -> None:
    with pytest.raises(DataError, match="not"):
        Habits(**{habit: value})
