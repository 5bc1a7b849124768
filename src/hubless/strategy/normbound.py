"""Norm bounding: Sun et al., "Can You Really Backdoor Federated Learning?" (2019), section 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.look import Column, Seen, check_among, check_radius, shares
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples


@dataclass(frozen=True)
class Bounded:
    """The weights of `among`, each lowered where a change is longer than the bound."""

    bound: float | None
    among: Weighting
    look = "norms"
    partial = True

    def __post_init__(self) -> None:
        check_radius("bound", self.bound)
        check_among(self.among)

    def __call__(self, seen: Seen) -> Column:
        given = shares(self.among(seen))
        bound = float(np.median(seen.norms)) if self.bound is None else self.bound
        return np.asarray(given * np.minimum(1.0, bound / np.maximum(seen.norms, 1e-30)))


class NormBound(Strategy):
    """The mean of all changes d_i = x_i - x, where none counts as longer than a bound.

        x ← x + Σ w_i · min(1, bound / |d_i|) · d_i

    Args:
        bound: The longest a change may be, above 0, over all params. If not given it is the median
            length in this round, which needs no tuning. The paper fixes it.
        weighting: How much each update counts; `ByExamples()` if not given.
    """

    def __init__(self, bound: float | None = None, weighting: Weighting | None = None) -> None:
        super().__init__(Bounded(bound, weighting or ByExamples()), Mean(), Replace())
