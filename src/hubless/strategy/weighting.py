"""Weightings: how much each update counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hubless.errors import StrategyError
from hubless.strategy.look import Column, Seen


@dataclass(frozen=True)
class ByExamples:
    """In proportion to the number of examples, as McMahan et al. (2017) have it."""

    def __call__(self, seen: Seen) -> Column:
        return seen.examples


@dataclass(frozen=True)
class Equally:
    """Everybody the same."""

    def __call__(self, seen: Seen) -> Column:
        return np.ones(len(seen))


@dataclass(frozen=True)
class Capped:
    """By examples, but none counts for more than `most` of them: tames one very large client."""

    most: float

    def __post_init__(self) -> None:
        if self.most <= 0:
            raise StrategyError(f"the most that a client may count for is above 0, not {self.most}")

    def __call__(self, seen: Seen) -> Column:
        return np.minimum(seen.examples, self.most)


@dataclass(frozen=True)
class Decay:
    """s(staleness) of Xie et al. (2019), section 5: how trust fades as an update ages.

    constant: 1. hinge: 1 up to `b` versions, then 1 / (a (t - b) + 1). polynomial: (t + 1)^-a.

    >>> Decay("polynomial", a=0.5)(np.array([0.0, 3.0]))
    array([1. , 0.5])
    """

    kind: Literal["constant", "hinge", "polynomial"] = "polynomial"
    a: float = 0.5
    b: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "hinge", "polynomial"):
            raise StrategyError(
                f"staleness decays as constant, hinge or polynomial, not {self.kind}"
            )
        if self.a < 0 or self.b < 0:
            raise StrategyError(f"a and b must be at least 0, not {self.a} and {self.b}")

    def __call__(self, staleness: Column) -> Column:
        if self.kind == "constant":
            return np.ones_like(staleness)
        if self.kind == "hinge":
            return 1.0 / (self.a * np.maximum(staleness - self.b, 0.0) + 1.0)
        return np.asarray((staleness + 1.0) ** -self.a)


@dataclass(frozen=True)
class ByStaleness:
    """By examples, times how fresh the update is."""

    decay: Decay

    def __call__(self, seen: Seen) -> Column:
        return seen.examples * self.decay(seen.staleness)


@dataclass(frozen=True)
class Mixing:
    """Mix each peer in turn into one's own params, oldest first: x <- (1 - a s) x + a s x_k.

    Written out, that is a weight per update, so it streams like any other mean. Where no update
    is one's own there is nothing to mix into, and each counts by its examples and freshness.
    """

    share: float
    decay: Decay

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise StrategyError(
                f"share is how much of a fresh peer is mixed in, in (0, 1], not {self.share}"
            )

    def __call__(self, seen: Seen) -> Column:
        if seen.own is None:
            return seen.examples * self.decay(seen.staleness)
        order = np.argsort(-seen.staleness, kind="stable")
        others = order[order != seen.own]
        shares = self.share * self.decay(seen.staleness[others])
        kept = np.append(np.cumprod((1.0 - shares)[::-1])[::-1], 1.0)
        weights = np.empty(len(seen))
        weights[seen.own] = kept[0]
        weights[others] = shares * kept[1:]
        return weights


@dataclass(frozen=True)
class Buffer:
    """x <- x + sum of s(staleness) delta / their number: what is lost to age goes to x itself.

    Where no update is one's own, only how fresh each is in proportion can count.
    """

    decay: Decay

    def __call__(self, seen: Seen) -> Column:
        weights = self.decay(seen.staleness)
        if seen.own is None:
            return weights
        weights = weights / max(1, len(weights) - 1)
        weights[seen.own] = 0.0
        weights[seen.own] = max(0.0, 1.0 - weights.sum())
        return weights
