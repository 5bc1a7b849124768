"""How a member keeps its valuations private."""

from __future__ import annotations

import math

import numpy as np

from hubless.errors import FederationError
from hubless.privacy.ledger import Ledger
from hubless.privacy.mechanisms import Additive, Mechanism, SparseVector

_MYSELF = np.zeros(1, np.int64)


class Reporter:
    """Passes a member's valuations through a mechanism, and knows what that cost so far.

    The generator comes from the operating system's entropy: with one that others know, they could
    take the noise off again. What former processes under this name gave away is counted as one
    report, the dearest there is, for each update they are known to have shared (`shared`) and one
    more for each of their `lives`, whose last write may still be on its way.

    >>> from hubless.privacy.mechanisms import Count
    >>> reporter = Reporter(Count(epsilon=0.5), shared=2, lives=1)
    >>> round(reporter.epsilon, 3)
    1.5
    """

    def __init__(self, mechanism: Mechanism, shared: int, lives: int) -> None:
        self._mechanism = mechanism
        self._rng = np.random.default_rng()
        self._ledger = Ledger(1)
        one = Ledger(1)
        if isinstance(mechanism, SparseVector):
            costs = [mechanism.cost, mechanism.fresh.cost]
        elif isinstance(mechanism, Additive):
            costs = [mechanism.cost]
        else:
            raise FederationError(
                f"private= takes a mechanism of hubless.privacy.mechanisms, not {mechanism!r}: "
                "what it gave away before a restart could not be counted"
            )
        for cost in costs:
            one.pay(_MYSELF, cost)
        one.spent()  # what composing costs needs is missed now rather than in the midst of a run
        self._ledger.restore({n: c * (shared + lives) for n, c in one.state().items()})

    @property
    def epsilon(self) -> float:
        """What was given away so far, at the ledger's delta."""
        return self._ledger.spent()

    def report(self, valuation: float | None) -> float | None:
        """What may be published for a valuation; paid for here, whether or not it arrives."""
        if valuation is None:
            return None
        values = np.array([valuation])
        (held,) = self._mechanism.report(_MYSELF, values, self._ledger, self._rng)
        return float(held) if math.isfinite(held) else None
