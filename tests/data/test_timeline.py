"""The timeline: months in UTC, windows as views, and everything that is no window refused."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubless.data import Population, Timeline
from hubless.data.sources import fleet
from hubless.data.timeline import instant
from hubless.errors import DataError

US = "datetime64[us]"
YEAR = np.arange("2023-01", "2024-01", dtype="datetime64[M]")


def _line(moments: list[str], clients: list[Any]) -> Timeline:
    columns = {"time": np.array(moments, US), "number": np.arange(len(moments))}
    return Timeline.of(Population.by(columns, clients))


def _months(population: Population) -> list[int]:
    """The calendar months that a view has rows of."""
    rows = np.concatenate([population.rows_of(i) for i in range(len(population))])
    return sorted(
        set(population.columns["time"][rows].astype("datetime64[M]").astype(int) % 12 + 1)
    )


@pytest.fixture(scope="module")
def year() -> Timeline:
    """Three clients with an example in the middle of every month, and one in July alone."""
    middle = YEAR.astype(US) + np.timedelta64(14, "D")
    when = np.concatenate([middle, middle, middle, middle[6:7]])
    return Timeline.of(Population.by({"time": when}, [*np.repeat([0, 1, 2], 12), 3]))


def test_horizons_are_those_of_the_paper(year: Timeline) -> None:
    assert year.months == 12
    assert _months(year.test) == [12]
    assert _months(year.last(3)) == [9, 10, 11]
    assert _months(year.last(6)) == [6, 7, 8, 9, 10, 11]
    assert _months(year.last(11)) == list(range(1, 12))
    assert [_months(part) for part in year.segments(2, 3)] == [[6, 7], [8, 9], [10, 11]]


def test_clients_without_examples_keep_their_place_or_are_left_out(year: Timeline) -> None:
    assert year.test.sizes.tolist() == [1, 1, 1, 0]
    assert year.last(3, present=True).sizes.tolist() == [3, 3, 3]
    assert [len(part) for part in year.segments(2, 3, present=True)] == [4, 3, 3]
    july = year.window("2023-07", "2023-08", present=True)
    assert [july.name(i) for i in range(len(july))] == ["0", "1", "2", "3"]


def test_a_window_takes_its_first_microsecond_and_not_that_of_the_next() -> None:
    line = _line(
        [
            "2016-01-31T23:59:59.999999",
            "2016-02-01T00:00:00.000000",
            "2016-02-29T23:59:59.999999",
            "2016-03-01T00:00:00.000000",
        ],
        [0, 0, 0, 0],
    )
    february = line.window("2016-02", "2016-03")
    assert february.client(0)["number"].tolist() == [1, 2]
    assert line.window("2016-02-29", "2016-03-01").client(0)["number"].tolist() == [2]
    assert line.test.client(0)["number"].tolist() == [3]
    cut = line.window("2016-02-29T23:59:59.999999", "2016-03-01T00:00:00.000001")
    assert cut.client(0)["number"].tolist() == [2, 3]


@pytest.mark.parametrize(
    "moment",
    [
        "2016-02-29",
        "2016-02-29T00:00:00Z",
        "2016-02-28T19:00-05:00",
        date(2016, 2, 29),
        datetime(2016, 2, 29),
        datetime(2016, 2, 29, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2016, 2, 29, tzinfo=UTC),
        np.datetime64("2016-02-29"),
        np.datetime64("2016-02-29T00:00:00.000000000"),
    ],
    ids=repr,
)
def test_a_moment_may_be_said_in_many_ways(moment: Any) -> None:
    assert instant(moment) == np.datetime64("2016-02-29")
    assert instant(moment).dtype == US


@pytest.mark.parametrize("moment", ["", "soon", "2015-02-29", "2016-13", "NaT", 7, None])
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(DataError, match="is no moment: give a month"):
        instant(moment)
    with pytest.raises(DataError, match="is no moment"):
        instant(np.datetime64("NaT"))


def test_rows_out_of_order_are_put_in_order_without_touching_the_columns() -> None:
    when = ["2023-03-01", "2023-01-01", "2023-02-01", "2023-01-01", "2023-03-01"]
    line = _line(when, ["a", "a", "b", "a", "b"])
    assert line.population.client(0)["number"].tolist() == [1, 3, 0]
    assert line.population.client(1)["number"].tolist() == [2, 4]
    assert line.population.columns["number"].tolist() == [0, 1, 2, 3, 4]
    assert line.last(2).client(0)["number"].tolist() == [1, 3]


def test_clients_in_order_are_left_as_they_are() -> None:
    when = np.array(["2023-02-01", "2023-01-01", "2023-03-01"], US)
    people = Population({"time": when}, np.array([0, 0, 1, 1, 3, 3]))
    line = Timeline.of(people)
    assert line.population is people
    assert line.last(2).sizes.tolist() == [0, 1, 0, 1, 0]


def test_a_view_that_holds_back_rows_does_not_show_them() -> None:
    when = np.array(["1999-01-01", "NaT", "2023-01-01", "2023-02-01"], US)
    people = Population.of({"time": when}, [[3], [2]])
    assert repr(Timeline.of(people)) == (
        "Timeline(2023-01 to 2023-02, 2 months, 2 clients, 2 examples)"
    )


@pytest.mark.parametrize("unit", ["D", "s", "ms", "ns"])
def test_times_of_any_resolution_will_do(unit: str) -> None:
    when = np.array(["2023-01-31", "2023-02-01"], f"datetime64[{unit}]")
    assert Timeline.of(Population.pooled({"at": when}), "at").last(1).sizes.tolist() == [1]


def test_a_missing_time_is_refused_with_its_row_and_client() -> None:
    when = np.array(["2023-01-01", "2023-01-02", "NaT", "2023-01-04"], US)
    people = Population.by({"time": when}, ["zoe", "ann", "zoe", "bob"])
    with pytest.raises(DataError, match="'time' has no time at row 2, of client 'zoe'"):
        Timeline.of(people)


def test_what_is_no_time_is_refused() -> None:
    people = Population.pooled({"time": np.array(["2023-01-01"]), "y": np.array([1])})
    with pytest.raises(DataError, match="'time' is <U10.*needs one datetime64"):
        Timeline.of(people)
    with pytest.raises(DataError, match="no column 'when' to tell time by, only time, y"):
        Timeline.of(people, "when")
    with pytest.raises(DataError, match="no examples"):
        Timeline.of(Population.pooled({"time": np.array([], US)}))


def test_windows_that_are_none_are_refused_with_the_reason(year: Timeline) -> None:
    with pytest.raises(DataError, match="ends before it begins"):
        year.window("2023-03", "2023-02")
    with pytest.raises(DataError, match="is empty"):
        year.window("2023-03", "2023-03")
    for start, stop in (("2022-12", "2023-03"), ("2023-11", "2024-02"), ("2025-01", "2025-02")):
        with pytest.raises(DataError, match="beyond the data.* 2023-01 to 2023-12"):
            year.window(start, stop)
    with pytest.raises(DataError, match="no client has an example from 2023-03-01.*to 2023-03-14"):
        year.window("2023-03", "2023-03-14")


def test_horizons_that_are_longer_than_the_data_are_refused(year: Timeline) -> None:
    with pytest.raises(DataError, match="last 12 months before.*2023-12.*there are 11.*2023-01"):
        year.last(12)
    with pytest.raises(DataError, match="last 0 months"):
        year.last(0)
    with pytest.raises(DataError, match="6 segments of 2 months before"):
        year.segments(2, 6)
    for each, count in ((0, 3), (2, 0), (-1, -3)):
        with pytest.raises(DataError, match="give 1 or more"):
            year.segments(each, count)


def test_data_of_one_month_is_all_test() -> None:
    line = _line(["2023-01-01"], ["a"])
    assert line.test.sizes.tolist() == [1]
    with pytest.raises(DataError, match="there are 0"):
        line.last(1)


def test_an_empty_month_between_others_is_refused_on_its_own_only() -> None:
    line = _line(["2023-01-01", "2023-03-01", "2023-04-01"], [0, 0, 0])
    assert line.last(3).sizes.tolist() == [2]
    with pytest.raises(DataError, match="no client has an example from 2023-02"):
        line.segments(1, 3)


def test_a_year_is_taken_out_of_several(year: Timeline) -> None:
    part = year.between("2023-02", "2023-08")
    assert (part.months, part.population.examples) == (6, 19)
    assert _months(part.test) == [7] and _months(part.last(2)) == [5, 6]
    with pytest.raises(DataError, match="beyond the data, which is of the months 2023-02"):
        part.window("2023-01", "2023-03")
    with pytest.raises(DataError, match="whole months, and 2023-02-02T.* begins none"):
        year.between("2023-02-02", "2023-08")
    with pytest.raises(DataError, match="beyond the data"):
        year.between("2022-01", "2023-08")


def test_a_year_may_begin_and_end_without_examples() -> None:
    line = _line([f"2023-{month:02d}-01" for month in (1, 4, 5, 9)], [0, 0, 1, 1])
    part = line.between("2023-03", "2023-07")
    assert repr(part).startswith("Timeline(2023-03 to 2023-06, 4 months")
    with pytest.raises(DataError, match="no client"):
        _ = part.test


def test_sets_are_of_whole_clients_and_keep_the_months() -> None:
    # only client 0 speaks in the first month and only 1 in the last
    when = ["2023-01-01", "2023-06-01", *["2023-03-01", "2023-02-01"] * 8]
    line = _line(when, [0, 1, *np.repeat(np.arange(2, 10), 2)])
    sets = line.resampled(3, share=0.4, seed=5)
    assert [len(one.population) for one in sets] == [4, 4, 4]
    assert len({tuple(np.asarray(one.population.names)) for one in sets}) > 1
    for one in sets:
        assert (one.start, one.stop) == (line.start, line.stop)
        assert (np.diff(np.asarray(one.population.names)) > 0).all()
        for client in range(4):
            name = int(one.population.name(client))
            expected = line.population.client(name)["number"]
            assert one.population.client(client)["number"].tolist() == expected.tolist()
        assert one.window("2023-02", "2023-04").columns["time"] is line.population.columns["time"]


def test_sets_are_the_same_for_a_seed_whatever_their_number(year: Timeline) -> None:
    one, two = year.resampled(2, clients=2, seed=1), year.resampled(4, clients=2, seed=1)
    for a, b in zip(one, two, strict=False):
        assert np.array_equal(np.asarray(a.population.names), np.asarray(b.population.names))


def test_sets_are_drawn_from_those_who_are_there(year: Timeline) -> None:
    part = year.between("2023-01", "2023-03")
    (everyone,) = part.resampled(1, share=1.0)
    assert np.asarray(everyone.population.names).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"share": 0.0}, "above 0, up to 1"),
        ({"share": 1.5}, "above 0, up to 1"),
        ({"share": float("nan")}, "above 0, up to 1"),
        ({"clients": 5}, "5 clients cannot be drawn: 4 have an example"),
        ({"clients": 0}, "cannot be drawn"),
        ({"sets": 0}, "0 sets"),
        ({"clients": 4}, "3 sets of all 4 clients are the same"),
    ],
    ids=str,
)
def test_sets_that_cannot_be_drawn_are_refused(
    year: Timeline, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        year.resampled(**asked)


_FIRST = datetime(2019, 11, 1)
_examples = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.datetimes(_FIRST, datetime(2020, 4, 1) - timedelta(microseconds=1)),
    ),
    min_size=1,
    max_size=30,
)


@given(_examples, st.booleans(), st.integers(1, 3))
def test_every_row_is_in_exactly_one_segment(
    examples: list[tuple[int, datetime]], packed: bool, each: int
) -> None:
    # one example in every month, so that no segment is refused for being empty
    examples += [(5, datetime(2019 + (m > 12), (m - 1) % 12 + 1, 29)) for m in range(11, 16)]
    clients, moments = zip(*examples, strict=True)
    columns = {"time": np.array(moments, US), "number": np.arange(len(moments))}
    people = Population.by(columns, clients)
    line = Timeline.of(people.packed() if packed else people)
    count = 4 // each
    segments = line.segments(each, count)
    whole = line.last(each * count)
    for client in range(len(people)):
        seen = [row for part in segments for row in part.rows_of(client)]
        assert seen == whole.rows_of(client).tolist()
        both = sorted([*line.last(4).rows_of(client), *line.test.rows_of(client)])
        assert both == sorted(line.population.rows_of(client))
        said = whole.client(client)["time"]
        assert (said[1:] >= said[:-1]).all()
    for view in (*segments, whole, line.test):
        for name, values in line.population.columns.items():
            assert np.shares_memory(view.columns[name], values)


@given(_examples, st.datetimes(_FIRST, datetime(2020, 3, 31)), st.timedeltas(timedelta(1)))
def test_a_window_is_what_a_mask_would_keep(
    examples: list[tuple[int, datetime]], start: datetime, length: timedelta
) -> None:
    examples += [(5, _FIRST), (5, datetime(2020, 3, 31))]
    clients, moments = zip(*examples, strict=True)
    line = Timeline.of(Population.by({"time": np.array(moments, US)}, clients))
    stop = min(start + min(length, timedelta(200)), datetime(2020, 4, 1))
    when = line.population.columns["time"]
    expected = line.population.where((when >= np.datetime64(start)) & (when < np.datetime64(stop)))
    if not expected.examples:
        with pytest.raises(DataError, match="no client has an example"):
            line.window(start, stop)
        return
    view = line.window(start, stop)
    assert view.sizes.tolist() == expected.sizes.tolist()
    assert view.rows is not None and expected.rows is not None
    assert view.rows.tolist() == expected.rows.tolist()


def test_a_window_of_many_examples_takes_no_time() -> None:
    clients = 2000
    sizes = np.full(clients, 150)
    sizes[0] = 20_000
    rng = np.random.default_rng(0)
    when = rng.integers(0, 365 * 86_400, int(sizes.sum())).astype("timedelta64[s]")
    columns = {"time": np.datetime64("2023-01-01", "us") + when}
    line = Timeline.of(Population(columns, np.concatenate([[0], np.cumsum(sizes)])))
    taken = []
    for _ in range(5):
        began = time.process_time()
        line.last(11)
        taken.append(time.process_time() - began)
    # it takes about 3 ms: whatever else a machine does only makes it longer
    assert min(taken) < 0.1


def test_a_fleet_has_a_timeline() -> None:
    people = fleet.generate(clients=50, seed=2)
    line = Timeline.of(people)
    assert line.population is people
    assert line.months == 12
    assert line.last(11).examples + line.test.examples == people.examples
