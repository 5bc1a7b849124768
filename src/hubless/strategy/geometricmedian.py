"""RFA: Pillutla et al., "Robust Aggregation for Federated Learning" (2022), algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.checks import number, whole
from hubless.errors import StrategyError
from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.look import Column, Seen, check_among, shares
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


@dataclass(frozen=True)
class Weiszfeld:
    """Weights at which the weighted sum is nearly the geometric median of all updates.

        v = Σ w_i · x_i
        w_i ← a_i / max(smoothing, |x_i - v|), then scaled to sum to 1

    The a_i come from `among`, and the w_i start from them.
    """

    iterations: int
    smoothing: float
    among: Weighting
    look = "products"

    def __post_init__(self) -> None:
        whole("iterations", self.iterations, least=1, error=StrategyError)
        number("smoothing", self.smoothing, above=0, error=StrategyError)
        check_among(self.among)

    def __call__(self, seen: Seen) -> Column:
        weights = given = shares(self.among(seen))
        for _ in range(self.iterations):
            weights = given / np.maximum(seen.distances_to(weights), self.smoothing)
            weights = weights / weights.sum()
        return weights


class GeometricMedian(Strategy):
    """The point with the least sum of distances to all updates: nearly half may be anything.

        x ← the v with the least Σ a_i · |x_i - v|

    a_i is the share that `weighting` gives update i. The smoothed Weiszfeld algorithm finds v.

    Args:
        iterations: Steps of that algorithm, at least 1. They cost little.
        smoothing: The least distance that is divided by, above 0: small beside the usual ones.
        weighting: How much each distance counts; `ByExamples()` if not given, as in the paper. With
            `Equally()` a client gains nothing by claiming many examples.

    Reference:
        Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", 2022, Algorithm
        2.
    """

    def __init__(
        self,
        iterations: int = 10,
        smoothing: float = 1e-6,
        weighting: Weighting | None = None,
    ) -> None:
        among = weighting or ByExamples()
        super().__init__(Weiszfeld(iterations, smoothing, among), Mean(), Replace())
