"""Curves over a run of any length, in a bounded number of points."""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, NamedTuple, Protocol, TypeVar

from hubless.watch.values import MOST_METRICS

DRAWN = 256
"""As many points as a chart on a page has use for."""
_POINTS = 50_000
_LINES = 200


class CurvePoint(NamedTuple):
    """A value, and how far the run was: rounds, seconds and bytes so far, and clients' clock."""

    round: int
    seconds: float
    bytes: int
    value: float
    clock: float | None = None


class DecilePoint(NamedTuple):
    """A metric's value in each tenth of the test's clients, lightest first."""

    round: int
    values: tuple[float | None, ...]


class _OfRound(Protocol):
    @property
    def round(self) -> int: ...


P = TypeVar("P", bound=_OfRound)


class Series(Generic[P]):
    """Points by round: every one, or after `thin` every second, after another every fourth...

    >>> series = Series()
    >>> for i in range(9):
    ...     series.put(CurvePoint(i, float(i), 0, float(i)))
    >>> series.thin()
    >>> [point.round for point in series.points], [point.round for point in series.drawn(2)]
    ([0, 2, 4, 6, 8], [0, 6, 8])
    """

    def __init__(self) -> None:
        self.points: list[P] = []
        self._count = 0
        self._stride = 1
        self._is_loose = False

    def put(self, point: P) -> None:
        """Take one more point, or another one for its round; the last one is always there."""
        if self.points and point.round <= self.points[-1].round:
            self._put_back(point)
            return
        if self._is_loose:
            self.points[-1] = point
        else:
            self.points.append(point)
        self._is_loose = self._count % self._stride != 0
        self._count += 1

    def thin(self) -> None:
        """Keep every second point."""
        if not self.points:
            return
        last = self.points[-1]
        self.points = (self.points[:-1] if self._is_loose else self.points)[::2]
        self._stride *= 2
        self._is_loose = self.points[-1] is not last
        if self._is_loose:
            self.points.append(last)

    def forget_after(self, round_: int) -> None:
        """Go back to where this many rounds were done."""
        self.points = [point for point in self.points if point.round <= round_]
        self._count = len(self.points) * self._stride
        self._is_loose = False

    def drawn(self, most: int = DRAWN) -> list[P]:
        """At most about so many of the points, in order, the first and the last among them."""
        if len(self.points) <= most:
            return list(self.points)
        chosen = self.points[:: -(-len(self.points) // most)]
        return chosen if chosen[-1] is self.points[-1] else [*chosen, self.points[-1]]

    def _put_back(self, point: P) -> None:
        at = bisect_left(self.points, point.round, key=lambda other: other.round)
        if self.points[at].round == point.round:
            self.points[at] = point
        elif self._stride == 1:
            self.points.insert(at, point)
            self._count += 1


class Curves(Generic[P]):
    """The curves of a run, by metric and line, which share a bound.

    When there are more points than that in all, every curve is thinned. A simulation has one line
    for each metric, which is called "", and a federation one for each member.
    """

    def __init__(self, most: int = _POINTS) -> None:
        self._most, self._count = most, 0
        self._series: dict[str, dict[str, Series[P]]] = {}

    def put(self, metric: str, line: str, point: P) -> None:
        """Take a point of a curve; of too many metrics or lines, the later ones are left out."""
        if metric not in self._series and len(self._series) >= MOST_METRICS:
            return
        lines = self._series.setdefault(metric, {})
        if line not in lines and len(lines) >= _LINES:
            return
        lines.setdefault(line, Series()).put(point)
        self._count += 1
        if self._count > self._most:
            for series in self._all():
                series.thin()
            self._count = sum(len(series.points) for series in self._all())

    def get(self, metric: str, line: str = "") -> list[P]:
        """The points of one curve."""
        series = self._series.get(metric, {}).get(line)
        return list(series.points) if series else []

    def lines(self) -> dict[str, dict[str, Series[P]]]:
        """All curves, by metric and line."""
        return {metric: dict(lines) for metric, lines in self._series.items()}

    def forget_after(self, round_: int) -> None:
        """Go back to where this many rounds were done."""
        for series in self._all():
            series.forget_after(round_)

    def _all(self) -> list[Series[P]]:
        return [series for lines in self._series.values() for series in lines.values()]
