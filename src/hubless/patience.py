"""Waiting that ends: a clock that tests can replace, and growing pauses until patience runs out."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

_INSTANT = 1e-6
"""Fewer seconds than these are none: they may be too few for a clock to move."""
LONGEST = 1e9
"""Whoever waits longer waits for ever."""


class Clock(Protocol):
    """Seconds that only ever grow, and a way to let some of them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's monotonic clock: never set back, never compared with another machine's."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class SharedPatience:
    """One patience for many operations, on any threads, and a time when it ends at the latest.

    Time that several of them lose at once counts once.
    """

    def __init__(self, clock: Clock, patience: float, seconds: float) -> None:
        self._until = clock.now() + seconds
        self._left = patience
        self._lost: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def left(self, now: float) -> float:
        """How long a pause that begins now may be; not positive where it may not begin."""
        with self._lock:
            # to wait while somebody else waits anyway costs nothing more
            waiting = max(0.0, self._lost[-1][1] - now) if self._lost else 0.0
            return min(self._left + waiting, self._until - now)

    def lose(self, began: float, ended: float) -> None:
        """Count a failed try, or a pause that begins now and ends then."""
        with self._lock:
            # what is lost ends now or later, so it can overlap with the latest stretches alone
            while self._lost and self._lost[-1][1] >= began:
                earlier = self._lost.pop()
                self._left += earlier[1] - earlier[0]
                began, ended = min(began, earlier[0]), max(ended, earlier[1])
            self._lost.append((began, ended))
            self._left -= ended - began


def pauses(
    clock: Clock,
    patience: float,
    first: float = 0.05,
    longest: float = 2.0,
    at_least: int = 1,
    shared: Sequence[SharedPatience] = (),
    failed_since: float | None = None,
) -> Iterator[float]:
    """Yield the seconds left, pausing ever longer in between, and end when none are left.

    One slow try may use all patience up, so there are `at_least` so many of them; a patience that
    is `shared` with others is theirs, too, and when it is used up no more tries are made. Where
    the first try was made already and has failed, `failed_since` is when it began.

    Pauses are jittered so that members that were refused together do not return together.

    >>> for left in pauses(SystemClock(), patience=0.0):
    ...     print(left)
    0.0
    """
    tried = clock.now() if failed_since is None else failed_since
    until = tried + patience
    pause, tries = first, 1
    if failed_since is None:
        yield max(0.0, _least(patience, tried, shared))
    while True:
        now = clock.now()
        for each in shared:
            each.lose(tried, now)
        left = _least(until - now, now, shared)
        if left < _INSTANT and (shared or tries >= at_least):
            return
        length = pause * (0.5 + random.random() / 2)
        if left >= _INSTANT:
            length = min(left, length)
        for each in shared:
            each.lose(now, now + length)
        clock.sleep(length)
        pause = min(pause * 1.6, longest)
        tries += 1
        tried = clock.now()
        yield max(0.0, _least(until - tried, tried, shared))


def _least(own: float, now: float, shared: Sequence[SharedPatience]) -> float:
    return min([own, *(each.left(now) for each in shared)])
