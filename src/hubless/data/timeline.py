"""The timeline: a population by month, and stretches of it as views."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import Index, offsets_of, ranges
from hubless.data.population import Population
from hubless.errors import DataError
from hubless.rng import stream

Moment = str | date | np.datetime64
"""A month ("2016-02"), a date or an instant; without a zone it is taken to be in UTC."""
Times = NDArray[np.datetime64]
MONTH = np.timedelta64(1, "M")

_PLAIN = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")


@dataclass(frozen=True, eq=False)
class Timeline:
    """A population whose clients' rows stand in the order of time, from one month to another.

    Months are those of the calendar in UTC, and the last is for tests, as in Dupuy et al. (2022):
    of twelve months, `last(3)` is the months 9 to 11 and `segments(2, 3)` is the months 6 to 11 in
    three parts. A window is two searches in each client's times; its columns are the population's
    own. Clients without an example in a window keep their place with none, so that a client has
    one number in all windows; `present=True` leaves them out.

    >>> when = np.array(["2016-01-31T23:59", "2016-02-29", "2016-03-01"], "datetime64[us]")
    >>> line = Timeline.of(Population.by({"time": when}, ["ann", "bob", "ann"]))
    >>> line
    Timeline(2016-01 to 2016-03, 3 months, 2 clients, 3 examples)
    >>> line.last(1).sizes, line.last(2).sizes, line.test.sizes
    (array([0, 1]), array([1, 1]), array([1, 0]))
    """

    population: Population
    times: Times
    """The time of every example, in client order."""
    start: np.datetime64
    """The first month."""
    stop: np.datetime64
    """The month after the last."""

    @classmethod
    def of(cls, population: Population, column: str = "time") -> Timeline:
        """From the month of the first example to that of the last, sorted unless they are."""
        times = _times(population, column)
        if not len(times):
            raise DataError("the population has no examples: there is no first month and no last")
        # a fall from one client to the next is none
        falls = times[1:] < times[:-1]
        ends = population.offsets[1:-1]
        falls[ends[(ends > 0) & (ends < len(times))] - 1] = False
        if falls.any():
            owner = np.repeat(np.arange(len(population)), population.sizes)
            order = np.lexsort((times, owner))
            rows = order if population.rows is None else population.rows[order]
            population = Population(population.columns, population.offsets, rows, population.names)
            times = times[order]
        first, last = times.min().astype("datetime64[M]"), times.max().astype("datetime64[M]")
        return cls(population, times, first, last + MONTH)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.start} to {self.tested}, {self.months} months, "
            f"{len(self.population)} clients, {self.population.examples} examples)"
        )

    @property
    def months(self) -> int:
        """How many months there are, the one for tests included."""
        return int((self.stop - self.start).astype(np.int64))

    @property
    def tested(self) -> np.datetime64:
        """The month for tests, which is the last."""
        return self.stop - MONTH

    @property
    def test(self) -> Population:
        """What the month for tests holds."""
        return self.window(self.tested, self.stop)

    def last(self, months: int, *, present: bool = False) -> Population:
        """The last so many months before the one for tests: what one-shot training sees."""
        self._enough(months, f"the last {months} months")
        return self.window(self.tested - months * MONTH, self.tested, present=present)

    def segments(
        self, months_each: int, count: int, *, present: bool = False
    ) -> tuple[Population, ...]:
        """Consecutive stretches up to the month for tests: what continual training sees in turn.

        >>> when = np.arange("2023-01", "2024-01", dtype="datetime64[M]").astype("datetime64[us]")
        >>> line = Timeline.of(Population.pooled({"time": when}))
        >>> for segment in line.segments(2, 3):
        ...     print(when[segment.rows].astype("datetime64[M]"))
        ['2023-06' '2023-07']
        ['2023-08' '2023-09']
        ['2023-10' '2023-11']
        """
        if count < 1 or months_each < 1:
            raise DataError(f"{count} segments of {months_each} months are none: give 1 or more")
        self._enough(months_each * count, f"{count} segments of {months_each} months")
        each = months_each * MONTH
        starts = self.tested - each * np.arange(count, 0, -1)
        return tuple(self.window(at, at + each, present=present) for at in starts)

    def window(self, start: Moment, stop: Moment, *, present: bool = False) -> Population:
        """The examples from one moment on, up to but not at another.

        A window that has no example, or reaches beyond the timeline's months, is refused.
        """
        low, high = self._places(start, stop)
        population = self._view(low, high)
        if present:
            population = population.select(np.flatnonzero(population.sizes))
        return population

    def between(self, start: Moment, stop: Moment) -> Timeline:
        """The timeline from one month up to but not including another: a year out of several."""
        first, end = instant(start), instant(stop)
        for moment in (first, end):
            if moment != moment.astype("datetime64[M]"):
                raise DataError(f"a timeline is of whole months, and {moment} begins none")
        low, high = self._places(first, end)
        times = self.times[ranges(low, high - low)]
        month = "datetime64[M]"
        return Timeline(self._view(low, high), times, first.astype(month), end.astype(month))

    def resampled(
        self, sets: int = 3, *, share: float = 0.5, clients: int | None = None, seed: int = 0
    ) -> tuple[Timeline, ...]:
        """Sets of clients drawn at random, to tell how much a result depends on who was there.

        Every set is drawn on its own, without replacement, out of the clients who have an example
        in these months, and a client brings all it has: training and test are of the same clients.
        Sets overlap unless they are few of many. With half of the clients in each, a mean over
        clients varies from set to set as a mean over all of them would, were they drawn anew; a
        larger share varies less than that. `clients` is a number to draw instead of a share.

        >>> when = np.arange("2023-01", "2023-11", dtype="datetime64[M]").astype("datetime64[us]")
        >>> line = Timeline.of(Population.by({"time": when}, range(10)))
        >>> [[int(one.population.name(i)) for i in range(5)] for one in line.resampled(2)]
        [[2, 3, 4, 5, 8], [0, 1, 2, 3, 5]]
        """
        there = np.flatnonzero(self.population.sizes)
        if clients is None:
            if not 0 < share <= 1:
                raise DataError(f"the share of clients to draw lies above 0, up to 1, not {share}")
            clients = max(round(share * len(there)), 1)
        if sets < 1 or not 1 <= clients <= len(there):
            raise DataError(
                f"{sets} sets of {clients} clients cannot be drawn: {len(there)} have an example"
            )
        if sets > 1 and clients == len(there):
            raise DataError(
                f"{sets} sets of all {clients} clients are the same: draw fewer, or one set"
            )
        return tuple(self._of(there, clients, seed, number) for number in range(sets))

    def _of(self, there: Index, clients: int, seed: int, number: int) -> Timeline:
        rng = stream(seed, "timeline", "set", number)
        drawn = np.sort(rng.choice(there, clients, replace=False, shuffle=False))
        offsets = self.population.offsets
        places = ranges(offsets[drawn], offsets[drawn + 1] - offsets[drawn])
        return Timeline(self.population.select(drawn), self.times[places], self.start, self.stop)

    def _places(self, start: Moment, stop: Moment) -> tuple[Index, Index]:
        """Where each client's examples of a window begin and end, in client order."""
        first, end = instant(start), instant(stop)
        if first >= end:
            raise DataError(f"a window from {first} to {end} is empty: it ends before it begins")
        if first < self.start or end > self.stop:
            raise DataError(
                f"a window from {first} to {end} reaches beyond the data, which is of the months "
                f"{self.start} to {self.tested}"
            )
        offsets = self.population.offsets
        low = _first_not_before(self.times, offsets[:-1], offsets[1:], first)
        high = _first_not_before(self.times, low, offsets[1:], end)
        if not (low < high).any():
            raise DataError(f"no client has an example from {first} to {end}")
        return low, high

    def _view(self, low: Index, high: Index) -> Population:
        whole, places = self.population, ranges(low, high - low)
        rows = places if whole.rows is None else whole.rows[places]
        return Population(whole.columns, offsets_of(high - low), rows, whole.names)

    def _enough(self, months: int, what: str) -> None:
        if not 1 <= months < self.months:
            raise DataError(
                f"{what} before the month for tests, {self.tested}, were asked for, and there "
                f"are {self.months - 1}, from {self.start} on"
            )


def instant(moment: Moment) -> np.datetime64:
    """A month, a date or an instant as microseconds in UTC: where it begins.

    >>> instant("2016-02"), instant("2016-02-29T01:30+02:00")
    (np.datetime64('2016-02-01T00:00:00.000000'), np.datetime64('2016-02-28T23:30:00.000000'))
    """
    try:
        if isinstance(moment, str) and not _PLAIN.fullmatch(moment):
            moment = datetime.fromisoformat(moment)
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        start: np.datetime64 = np.datetime64(moment).astype("datetime64[us]")
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(_no_moment(moment)) from error
    if np.isnat(start):
        raise DataError(_no_moment(moment))
    return start


def _no_moment(moment: object) -> str:
    return f"{moment!r} is no moment: give a month (2016-02), a date, or a date and time"


def _times(population: Population, column: str) -> Times:
    """The time of every example in client order, in microseconds."""
    if column not in population.columns:
        there = ", ".join(population.columns)
        raise DataError(f"the population has no column {column!r} to tell time by, only {there}")
    values = population.columns[column]
    if values.dtype.kind != "M" or values.ndim != 1:
        raise DataError(
            f"column {column!r} is {values.dtype} of shape {values.shape}: a timeline needs one "
            "datetime64 for each row"
        )
    if population.rows is not None:
        values = values[population.rows]
    times = values.astype("datetime64[us]", copy=False)
    missing = np.isnat(times)
    if missing.any():
        place = int(missing.argmax())
        client = int(np.searchsorted(population.offsets, place, "right")) - 1
        row = place if population.rows is None else int(population.rows[place])
        raise DataError(
            f"column {column!r} has no time at row {row}, of client {population.name(client)!r}: "
            "fill it or drop the row first"
        )
    return times


def _first_not_before(times: Times, low: Index, high: Index, moment: np.datetime64) -> Index:
    """For each client, the first of its places from low to high that is not before a moment.

    A binary search of all clients in step; those who are done drop out.
    """
    low, high = low.copy(), high.copy()
    searching = np.flatnonzero(low < high)
    while len(searching):
        middle = (low[searching] + high[searching]) // 2
        before = times[middle] < moment
        low[searching[before]] = middle[before] + 1
        high[searching[~before]] = middle[~before]
        searching = searching[low[searching] < high[searching]]
    return low
