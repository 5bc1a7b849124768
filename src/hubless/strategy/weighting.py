"""Weightings: how much each update counts."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from hubless.checks import fitting, number, one_of
from hubless.errors import StrategyError
from hubless.strategy.look import Column, Seen


@dataclass(frozen=True)
class ByExamples:
    """In proportion to the number of examples: w_i = n_i.

    Every example then counts the same.

    Reference:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        2017, Algorithm 1.
    """

    def __call__(self, seen: Seen) -> Column:
        return seen.examples


@dataclass(frozen=True)
class Equally:
    """Every update the same: w_i = 1, whatever number of examples a client claims."""

    def __call__(self, seen: Seen) -> Column:
        return np.ones(len(seen))


@dataclass(frozen=True)
class Capped:
    """By examples up to a limit, which tames one very large client: w_i = min(n_i, most).

    Args:
        most: The number of examples from which on more of them do not count, above 0.

    >>> from hubless.strategy import FedAvg
    >>> FedAvg(Capped(100)).weights(examples=[5000, 100], staleness=[0, 0])
    array([0.5, 0.5])
    """

    most: float

    def __post_init__(self) -> None:
        number("most", self.most, above=0, error=StrategyError)

    def __call__(self, seen: Seen) -> Column:
        return np.minimum(seen.examples, self.most)


@dataclass(frozen=True)
class Decay:
    """s(t), how much an update still counts that is t versions old.

        constant:    s(t) = 1
        hinge:       s(t) = 1 up to t = b, then 1 / (a · (t - b) + 1)
        polynomial:  s(t) = (t + 1)^-a

    Args:
        kind: The shape, as above. `hinge` forgives a little lateness altogether.
        a: How fast it falls, at least 0. 0.5 for `polynomial` halves what an update counts that is
            3 versions old.
        b: How many versions may pass before `hinge` falls, at least 0.

    >>> Decay("polynomial", a=0.5)(np.array([0.0, 3.0]))
    array([1. , 0.5])

    Reference:
        Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019, section 5.
    """

    kind: Literal["constant", "hinge", "polynomial"] = "polynomial"
    a: float = 0.5
    b: float = 4.0

    def __post_init__(self) -> None:
        one_of("decay", self.kind, ("constant", "hinge", "polynomial"), error=StrategyError)
        number("a", self.a, least=0, error=StrategyError)
        number("b", self.b, least=0, error=StrategyError)

    def __call__(self, staleness: Column) -> Column:
        if self.kind == "constant":
            return np.ones_like(staleness)
        if self.kind == "hinge":
            return 1.0 / (self.a * np.maximum(staleness - self.b, 0.0) + 1.0)
        return np.array([_power(late + 1.0, -self.a) for late in staleness])


_EXACT = Context(prec=28)


@lru_cache(10_000)
def _power(base: float, exponent: float) -> float:
    """The same on every machine: processors differ in the last digit of a power."""
    return float(_EXACT.power(Decimal(base), Decimal(exponent)))


@dataclass(frozen=True)
class ByStaleness:
    """By examples, times how fresh an update is: w_i = n_i · s(t_i).

    In synchronous rounds every update is fresh, and this is `ByExamples`.

    Args:
        decay: The function s of an update's age in versions.

    >>> from hubless.strategy import FedAvg
    >>> FedAvg(ByStaleness(Decay())).weights(examples=[10, 10], staleness=[0, 3]).round(2)
    array([0.67, 0.33])
    """

    decay: Decay

    def __post_init__(self) -> None:
        _check_decay(self.decay)

    def __call__(self, seen: Seen) -> Column:
        return seen.examples * self.decay(seen.staleness)


@dataclass(frozen=True)
class Mixing:
    """Each of the others is mixed into one's own params in turn, the oldest first.

        x ← (1 - share · s(t_k)) · x + share · s(t_k) · x_k

    Multiplied out this is one weight per update, so that updates need not be kept. Where no update
    is one's own there is nothing to mix into: w_i = n_i · s(t_i).

    Args:
        share: How much of a fresh update is mixed in, in (0, 1].
        decay: The function s of an update's age in versions.

    Reference:
        Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019, Algorithm 1.
    """

    share: float
    decay: Decay

    def __post_init__(self) -> None:
        number("share", self.share, above=0, most=1, error=StrategyError)
        _check_decay(self.decay)

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
    """The mean of the others' changes, each shrunk by its age.

        x ← x + Σ s(t_k) · (x_k - x) / K        over the K others

    What an old update loses goes to x, one's own params. Where no update is one's own, weights are
    only in proportion to s(t_i).

    Args:
        decay: The function s of an update's age in versions.

    Reference:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022, Algorithm
        1.
    """

    decay: Decay

    def __post_init__(self) -> None:
        _check_decay(self.decay)

    def __call__(self, seen: Seen) -> Column:
        weights = self.decay(seen.staleness)
        if seen.own is None:
            return weights
        weights = weights / max(1, len(weights) - 1)
        weights[seen.own] = 0.0
        weights[seen.own] = max(0.0, 1.0 - weights.sum())
        return weights


def _check_decay(decay: Any) -> None:
    takes = 'a decay, such as Decay("hinge")'
    fitting("decay", decay, callable(decay), takes, error=StrategyError)
