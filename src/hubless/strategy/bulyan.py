"""El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium" (2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.strategy.base import Strategy
from hubless.strategy.krum import scores
from hubless.strategy.look import Column, Seen, check_share, hostile_among
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import NearMedian


@dataclass(frozen=True)
class Repeated:
    """The n - 2 f of n updates that Krum chooses one after another."""

    hostile: float
    look = "products"

    def __post_init__(self) -> None:
        check_share(self.hostile)

    def __call__(self, seen: Seen) -> Column:
        hostile = min(hostile_among(self.hostile, len(seen)), max(0, (len(seen) - 3) // 4))
        left, weights = list(range(len(seen))), np.zeros(len(seen))
        for _ in range(max(1, len(seen) - 2 * hostile)):
            best = int(np.argmin(scores(seen.distances[np.ix_(left, left)], hostile)))
            weights[left.pop(best)] = 1.0
        return weights


class Bulyan(Strategy):
    """Per element the mean of the values nearest the median, among updates that Krum would choose.

    Of n updates f = min(⌊hostile · n⌋, ⌊(n - 3) / 4⌋) count as hostile, because no more can be
    withstood. Krum chooses n - 2 f, and n - 4 f values of each element are averaged. Unlike Krum
    this withstands an update that is close on the whole and far off in one element.

    Args:
        hostile: The share of updates that may be anything, in [0, 0.5). More than a quarter changes
            nothing, and with fewer than seven updates f is 0.
    """

    def __init__(self, hostile: float = 0.2) -> None:
        super().__init__(Repeated(hostile), NearMedian(), Replace())
