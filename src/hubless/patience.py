"""Waiting that ends: a clock that tests can replace, and growing pauses until patience runs out."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Protocol


class Clock(Protocol):
    """Seconds that only ever grow, and a way to let some of them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's monotonic clock: never set back, never compared with another machine's."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def pauses(
    clock: Clock, patience: float, first: float = 0.05, longest: float = 2.0, at_least: int = 1
) -> Iterator[float]:
    """Yield the seconds left, pausing ever longer in between, and end when none are left.

    One slow try may use all patience up, so there are `at_least` so many of them.

    Pauses are jittered so that members that were refused together do not return together.

    >>> for left in pauses(SystemClock(), patience=0.0):
    ...     print(left)
    0.0
    """
    until = clock.now() + patience
    pause = first
    yield patience
    tries = 1
    while (left := until - clock.now()) > 0 or tries < at_least:
        length = pause * (0.5 + random.random() / 2)
        clock.sleep(min(left, length) if left > 0 else length)
        pause = min(pause * 1.6, longest)
        tries += 1
        yield max(0.0, until - clock.now())
