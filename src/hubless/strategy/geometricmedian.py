"""RFA: Pillutla et al., "Robust Aggregation for Federated Learning" (2022), algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.errors import StrategyError
from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.look import Column, Seen, shares
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


@dataclass(frozen=True)
class Weiszfeld:
    """Weights at which the sum is nearly the point with the least distance to all updates.

    Smoothed Weiszfeld: v is the weighted mean; then w_i <- a_i / max(nu, |x_i - v|), normalised,
    so many times, where a_i is what `among` gives and nu the `smoothing`.
    """

    iterations: int
    smoothing: float
    among: Weighting
    look = "products"

    def __post_init__(self) -> None:
        if self.iterations < 1 or not self.smoothing > 0:
            raise StrategyError("a geometric median takes an iteration, and a smoothing above 0")

    def __call__(self, seen: Seen) -> Column:
        weights = given = shares(self.among(seen))
        for _ in range(self.iterations):
            weights = given / np.maximum(seen.distances_to(weights), self.smoothing)
            weights = weights / weights.sum()
        return weights


class GeometricMedian(Strategy):
    """The point with the least sum of distances to all updates: half of them may be anything.

    `iterations` and `smoothing` are Weiszfeld's; `weighting` says how much each distance counts.
    """

    def __init__(
        self,
        iterations: int = 10,
        smoothing: float = 1e-6,
        weighting: Weighting | None = None,
    ) -> None:
        among = weighting or ByExamples()
        super().__init__(Weiszfeld(iterations, smoothing, among), Mean(), Replace())
