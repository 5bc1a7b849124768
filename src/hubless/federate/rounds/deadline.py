"""Deadlines of rounds: fixed, or as long as rounds usually take and some more."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hubless.checks import number, whole
from hubless.errors import FederationError
from hubless.patience import LONGEST, Clock

_FEW = 3
"""Fewer rounds tell nothing of how long they take."""
_NORMAL = 1.4826
"""The standard deviation of a normal distribution is so many times its median deviation."""
_LEAST_SPREAD = 0.1
"""A spread is at least this share of the median: rounds that took the same may be chance."""


@dataclass(frozen=True)
class Adaptive:
    """A deadline that follows the rounds: their median time, plus `k` times their spread.

        deadline = min(ceiling, median + k · max(1.4826 · median |t - median|, median / 10))

    The time t of a round is from the end of the round before to its own end, as this member saw
    it. So it counts training, too, and is much the same for fast and for slow members. Median
    and median deviation are not moved by a few rounds that took very long. If more than half of
    the rounds reach their deadline, it grows.

    Once it has passed, a quorum is enough. While fewer updates are there, the round waits on, up to
    the ceiling. So do the first three rounds after a start.

    Args:
        k: How many spreads beyond the median a round may take; 0 closes half of them early.
        ceiling: Seconds that are waited at most.
        window: How many of the last rounds count.

    >>> round(Adaptive(k=3).seconds([20.0, 22.0, 21.0, 300.0, 19.0]), 1)
    27.3
    """

    k: float = 3.0
    ceiling: float = 600.0
    window: int = 20

    def __post_init__(self) -> None:
        number("k", self.k, error=FederationError, least=0, most=1e6)
        number("ceiling", self.ceiling, error=FederationError, above=0, most=LONGEST)
        whole("window", self.window, error=FederationError, least=_FEW)

    def seconds(self, took: Sequence[float]) -> float:
        """How long a round may take, after rounds that took so long."""
        if len(took) < _FEW:
            return self.ceiling
        usual = median(took)
        spread = _NORMAL * median(abs(seconds - usual) for seconds in took)
        return min(self.ceiling, usual + self.k * max(spread, _LEAST_SPREAD * usual))


class Deadline:
    """When rounds go on without those who are missing, and how long anybody waits at most."""

    def __init__(self, deadline: float | Adaptive, clock: Clock) -> None:
        self._adaptive = deadline if isinstance(deadline, Adaptive) else None
        self.ceiling = deadline.ceiling if isinstance(deadline, Adaptive) else float(deadline)
        self._clock = clock
        self._took = deque[float](maxlen=self._adaptive.window if self._adaptive else 0)
        self._last = -1, 0.0

    def arrived(self, number: int) -> None:
        """This member has the result of a round."""
        now = self._clock.now()
        last, since = self._last
        if number == last:
            return
        if number == last + 1 and last >= 0:
            self._took.append(now - since)
        self._last = number, now

    def due(self, number: int, began: float) -> float:
        """When a round for which this member has waited since `began` goes on with a quorum."""
        latest = began + self.ceiling
        last, since = self._last
        if self._adaptive is None or number != last + 1 or last < 0:
            return latest
        usual = self._adaptive.seconds(self._took)
        return latest if usual >= self.ceiling else since + usual
