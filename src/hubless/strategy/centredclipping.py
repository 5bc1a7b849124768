"""Centred clipping: Karimireddy et al., "Learning from History" (2021), algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.errors import StrategyError
from hubless.strategy.base import Strategy
from hubless.strategy.look import Column, Seen
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean


@dataclass(frozen=True)
class Clipped:
    """The point that clipped steps towards all updates lead to, beginning at the current version.

    v <- v + mean of (x_i - v) min(1, radius / |x_i - v|), so many times.
    """

    radius: float | None
    iterations: int
    look = "products"
    partial = True

    def __post_init__(self) -> None:
        if self.iterations < 1 or (self.radius is not None and not self.radius > 0):
            raise StrategyError("centred clipping takes an iteration, and a radius above 0")

    def __call__(self, seen: Seen) -> Column:
        weights = np.zeros(len(seen))
        for _ in range(self.iterations):
            away = seen.distances_to(weights)
            radius = float(np.median(away)) if self.radius is None else self.radius
            steps = np.minimum(1.0, radius / np.maximum(away, 1e-30)) / len(seen)
            weights = weights * (1.0 - steps.sum()) + steps
        return weights


class CentredClipping(Strategy):
    """Steps from the current version towards all updates, none of them longer than a radius.

    `radius` is that of the ball around where it stands, or the median of this time's distances if
    not given; `iterations` is how often it steps.
    """

    def __init__(self, radius: float | None = None, iterations: int = 3) -> None:
        super().__init__(Clipped(radius, iterations), Mean(), Replace())
