"""Karimireddy et al., "Learning from History for Byzantine Robust Optimization" (2021), alg. 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.strategy.base import Strategy
from hubless.strategy.look import Column, Seen, check_iterations, check_radius
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean


@dataclass(frozen=True)
class Clipped:
    """Weights of the point where clipped steps towards all updates end: see `CentredClipping`."""

    radius: float | None
    iterations: int
    look = "products"
    partial = True

    def __post_init__(self) -> None:
        check_radius("radius", self.radius)
        check_iterations(self.iterations)

    def __call__(self, seen: Seen) -> Column:
        weights = np.zeros(len(seen))
        for _ in range(self.iterations):
            away = seen.distances_to(weights)
            radius = float(np.median(away)) if self.radius is None else self.radius
            steps = np.minimum(1.0, radius / np.maximum(away, 1e-30)) / len(seen)
            weights = weights * (1.0 - steps.sum()) + steps
        return weights


class CentredClipping(Strategy):
    """Steps from the current version towards all updates, none of which pulls beyond a radius.

        v ← v + (1/n) · Σ (x_i - v) · min(1, radius / |x_i - v|)        v starts at x; repeated

    Args:
        radius: How far one update may pull in a step, above 0, over all params; if not given, the
            median distance from v in that step. The paper fixes it, and clips clients' momentum.
        iterations: Steps, at least 1. More are needed the more radii the true mean is away from x.
    """

    def __init__(self, radius: float | None = None, iterations: int = 3) -> None:
        super().__init__(Clipped(radius, iterations), Mean(), Replace())
