"""RFA: Pillutla et al., "Robust Aggregation for Federated Learning" (2022), algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.look import Column, Seen, check_among, check_iterations, check_length, shares
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


@dataclass(frozen=True)
class Weiszfeld:
    """Weights at which the weighted sum is nearly the geometric median of all updates."""

    iterations: int
    smoothing: float
    among: Weighting
    look = "products"

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        check_length("smoothing", self.smoothing)
        check_among(self.among)

    def __call__(self, seen: Seen) -> Column:
        return seen.median(shares(self.among(seen)), self.iterations, self.smoothing)


class GeometricMedian(Strategy):
    """The point with the least sum of distances to all updates: nearly half may be anything.

        x ← the v with the least Σ a_i · |x_i - v|        a_i: the share that `weighting` gives

    Args:
        iterations: Steps of the smoothed Weiszfeld algorithm, which finds v: at least 1. They cost
            little.
        smoothing: The least distance that is divided by, above 0: small beside the usual ones.
        weighting: How much each distance counts; `ByExamples()` if not given, as in the paper. With
            `Equally()` a client gains nothing by claiming many examples.
    """

    def __init__(
        self, iterations: int = 10, smoothing: float = 1e-6, weighting: Weighting | None = None
    ) -> None:
        among = weighting or ByExamples()
        super().__init__(Weiszfeld(iterations, smoothing, among), Mean(), Replace())
