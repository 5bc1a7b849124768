"""Bulyan: El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning" (2018)."""

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
    """The updates that Krum chooses one after another, until 2 f of n are left, f hostile."""

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
    """Of the updates that Krum would choose, per element the mean of those nearest the median.

    `hostile` is the share of updates that may be anything; of n updates (n - 3) / 4 at most are
    taken to be, as no more can be withstood.
    """

    def __init__(self, hostile: float = 0.2) -> None:
        super().__init__(Repeated(hostile), NearMedian(), Replace())
