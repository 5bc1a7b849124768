"""Series: a metric over a run of any length, in a bounded number of points."""

from __future__ import annotations

from typing import NamedTuple

MOST = 256
"""As many points as a chart has use for."""


class CurvePoint(NamedTuple):
    """A value, and how far the run was: rounds, seconds and bytes so far."""

    round: int
    seconds: float
    bytes: int
    value: float


class Series:
    """Points, thinned as they come: every one at first, then every second, every fourth...

    >>> series = Series()
    >>> for i in range(1000):
    ...     series.add(CurvePoint(i, float(i), 0, float(i)))
    >>> [point.round for point in series.drawn()[-3:]], len(series.drawn()) <= MOST + 1
    ([992, 996, 999], True)
    """

    def __init__(self) -> None:
        self._kept: list[CurvePoint] = []
        self._count = 0
        self._stride = 1
        self.last: CurvePoint | None = None

    def add(self, point: CurvePoint) -> None:
        """Take one more point, which is always the last one drawn."""
        if self._count % self._stride == 0:
            self._kept.append(point)
            if len(self._kept) > MOST:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._count += 1
        self.last = point

    def put(self, point: CurvePoint) -> None:
        """Take a point, in the place of the last one if it is of the same round."""
        if self.last is None or self.last.round != point.round:
            self.add(point)
            return
        if self._kept and self._kept[-1] is self.last:
            self._kept[-1] = point
        self.last = point

    def forget_after(self, round_: int) -> CurvePoint | None:
        """Go back to where this many rounds were done; the last point that is left."""
        self._kept = [point for point in self._kept if point.round <= round_]
        self._count = len(self._kept) * self._stride
        if self.last is not None and self.last.round > round_:
            self.last = self._kept[-1] if self._kept else None
        return self.last

    def drawn(self) -> list[CurvePoint]:
        """What to draw, in order."""
        if self.last is None or (self._kept and self._kept[-1] is self.last):
            return list(self._kept)
        return [*self._kept, self.last]
