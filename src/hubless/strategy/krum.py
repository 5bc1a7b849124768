"""Krum: Blanchard et al., "Machine Learning with Adversaries" (2017), section 4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hubless.strategy.base import Strategy, Weighting
from hubless.strategy.look import Column, Seen, check_chosen, hostile_among, kept, unrounded
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Equally


@dataclass(frozen=True)
class Nearest:
    """Only the `keep` updates (None: n - f) that are nearest to their n - f - 2 nearest others."""

    hostile: float
    keep: int | None
    among: Weighting
    look = "products"

    def __post_init__(self) -> None:
        check_chosen(self.hostile, self.keep, self.among)

    def __call__(self, seen: Seen) -> Column:
        hostile = hostile_among(self.hostile, len(seen))
        keep = len(seen) - hostile if self.keep is None else self.keep
        chosen = np.zeros(len(seen), bool)
        chosen[np.argsort(scores(seen.distances, hostile), kind="stable")[:keep]] = True
        return kept(chosen, self.among(seen))


def scores(distances: Column, hostile: int) -> Column:
    """The sum of the squared distances from each to its nearest: the lower, the more trusted."""
    near = max(1, len(distances) - hostile - 2)
    return unrounded(np.sort(distances**2, axis=1)[:, 1 : near + 1].sum(1))


class Krum(Strategy):
    """The one update with the least s_i = Σ |x_i - x_j|² over its n - f - 2 nearest others x_j.

    `hostile`, in [0, 0.5), is the share of the n updates that may be anything: f = ⌊hostile · n⌋.
    The proof needs n > 2 f + 2; with few updates, f is 0. See `MultiKrum` to keep more than one.
    """

    def __init__(self, hostile: float = 0.2) -> None:
        super().__init__(Nearest(hostile, 1, Equally()), Mean(), Replace())
