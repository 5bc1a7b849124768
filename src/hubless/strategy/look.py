"""What a strategy sees of updates before it weighs them: of whole updates, not of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hubless.checks import fitting, number, whole
from hubless.errors import StrategyError
from hubless.params import Array, products

Column: TypeAlias = NDArray[np.float64]
Look: TypeAlias = Literal["", "norms", "products"]
"""Nothing; how long each update's change is; or the products of all changes with each other."""


@dataclass(frozen=True)
class Seen:
    """What is known of updates when they are weighed, in the order in which they are folded.

    The change of an update is how far its params are from the current version, over all real
    numbers in them.

    Args:
        examples: Each update's number of examples.
        staleness: For each update, how many versions have passed since its starting point.
        own: The position of the member's own update, where there is one.
        products: What the weighting's `look` asked for. "products" gives the inner products of all
            changes with each other, [updates, updates]; "norms" only those of each with itself.

    >>> ones = np.ones(2)
    >>> seen = Seen(ones, ones, products=np.array([[25.0, 0.0], [0.0, 144.0]]))
    >>> seen.norms.tolist(), seen.distances[0, 1].item()
    ([5.0, 12.0], 13.0)
    """

    examples: Column
    staleness: Column
    own: int | None = None
    products: Column | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def norms(self) -> Column:
        """How long each change is; for a weighting with a `look`."""
        looked = self._looked
        squared = looked if looked.ndim == 1 else looked.diagonal()
        return np.asarray(np.sqrt(np.maximum(squared, 0.0)))

    @cached_property
    def distances(self) -> Column:
        """How far each update is from each other one, as a matrix; for the look "products"."""
        squared = self.norms**2
        apart = squared[:, None] + squared[None] - 2.0 * self._looked
        np.fill_diagonal(apart, 0.0)
        return np.asarray(np.sqrt(np.maximum(apart, 0.0)))

    def distances_to(self, weights: Column) -> Column:
        """How far each update is from the weighted sum of all; for the look "products".

        Args:
            weights: One per update. What they leave over of 1 counts for the current version, so
                zeros give the distance from that.
        """
        along = (self._looked * weights).sum(1)
        squared = self.norms**2 - 2.0 * along + (along * weights).sum()
        return np.asarray(np.sqrt(np.maximum(squared, 0.0)))

    def median(self, given: Column, iterations: int, smoothing: float) -> Column:
        """Weights at which the sum is nearly the geometric median; for the look "products".

            v = Σ w_i · x_i
            w_i ← a_i / max(smoothing, |x_i - v|), then scaled to sum to 1

        Args:
            given: The a_i, which sum to 1: how much each distance counts. The w_i start from them.
            iterations: How many of these steps, which are Weiszfeld's.
            smoothing: The least distance that is divided by.
        """
        weights = given
        for _ in range(iterations):
            weights = given / np.maximum(self.distances_to(weights), smoothing)
            weights = weights / weights.sum()
        return weights

    @property
    def _looked(self) -> Column:
        if self.products is None:
            raise StrategyError("a weighting that goes by whole updates has to say so: look = ...")
        return self.products


def shares(weights: Column) -> Column:
    """Weights at any scale as ones that sum to one; equal ones where nobody counts.

    >>> shares(np.array([3.0, 1.0]))
    array([0.75, 0.25])
    """
    total = weights.sum()
    return np.asarray(weights / total if total > 0 else np.full(len(weights), 1 / len(weights)))


def unrounded(values: Column) -> Column:
    """Values without their last digits, so that order and not rounding decides between equals.

    >>> (unrounded(np.array([0.1 + 0.2])) == unrounded(np.array([0.3]))).item()
    True
    """
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, 40)), exponent - 40))


def kept(chosen: NDArray[np.bool_], weights: Column) -> Column:
    """The weights of those chosen; equal ones where none of these counts for anything.

    >>> kept(np.array([True, False, True]), np.array([0.0, 9.0, 0.0])).tolist()
    [1.0, 0.0, 1.0]
    """
    some = np.where(chosen, weights, 0.0)
    return some if some.any() else chosen.astype(float)


def hostile_among(share: float, count: int) -> int:
    """How many of so many updates may be hostile; at least one stays that is not.

    Args:
        share: Of all updates; the number is rounded down.
        count: How many updates there are.

    >>> hostile_among(0.2, 5), hostile_among(0.2, 4)
    (1, 0)
    """
    # the small excess keeps 0.2 * 5 from becoming 0.999... and so 0
    return min(int(share * count + 1e-9), max(0, count - 1))


def check_share(share: float) -> None:
    """Refuse a share of hostile updates that nothing could withstand."""
    number("hostile", share, least=0, below=0.5, error=StrategyError)


def check_among(among: Any) -> None:
    """Refuse what cannot weigh updates."""
    takes = "a weighting, such as hubless.strategy.Equally()"
    fitting("weighting", among, callable(among), takes, error=StrategyError)


def check_chosen(hostile: float, keep: int | None, among: Any) -> None:
    """Refuse a choice of some updates that leaves nobody, or nobody who is not hostile."""
    check_share(hostile)
    check_among(among)
    if keep is not None:
        whole("keep", keep, least=1, error=StrategyError)


def check_radius(name: str, radius: float | None) -> None:
    """Refuse a length that nothing is within; None is one that is found by looking."""
    if radius is not None:
        check_length(name, radius)


def check_length(name: str, length: float) -> None:
    """Refuse a length of nothing."""
    number(name, length, above=0, error=StrategyError)


def check_iterations(iterations: int) -> None:
    """Refuse no steps at all."""
    whole("iterations", iterations, least=1, error=StrategyError)


class Looking:
    """Adds up what a look comes to, some elements of all updates at a time.

    `exact` looks come to the same on every machine, so that all can weigh alike.
    """

    def __init__(self, look: Look, count: int, *, exact: bool = False) -> None:
        self.look, self.exact = look, exact
        self.products: Column = np.zeros(count if look == "norms" else (count, count))

    def add(self, number: int, array: Array, current: Array | None) -> None:
        """Take some elements of one update in, where norms are enough."""
        (product,) = products([array], current, alone=True, exact=self.exact)
        self.products[number] += product

    def add_all(self, arrays: Sequence[Array], current: Array | None) -> None:
        """Take the same elements of all updates in."""
        alone = self.look == "norms"
        self.products += products(arrays, current, alone=alone, exact=self.exact)


def look_of(weighting: Any) -> Look:
    """What a weighting has to see."""
    look: Look = getattr(weighting, "look", "")
    if look not in ("", "norms", "products"):
        raise StrategyError(f"{weighting!r} looks at 'norms' or 'products', not {look!r}")
    return look
