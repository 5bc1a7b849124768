"""A strategy: how updates become the next version, as three independent choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hubless.errors import StrategyError
from hubless.params import Array, is_floating, settle, zeros
from hubless.strategy.look import Column, Look, Seen, look_of, shares
from hubless.strategy.reducers import Middle

Slots = tuple[Array, ...]


class Weighting(Protocol):
    """How much each update counts.

    One that has a `look` ("norms" or "products") sees whole updates before. One that is `partial`
    gives weights that sum to one at most: what they leave over stays with the current version.
    """

    def __call__(self, seen: Seen) -> Column:
        """One weight per update; at any scale, unless they are `partial`."""
        ...


class Reducer(Protocol):
    """Folds arrays into one, through a total whose kind is nobody else's business.

    An array is only valid during `add`: what is kept of it must be copied.
    """

    def add(self, total: Any, array: Array, weight: float, spent: bool = False) -> Any:
        """Take one more array in (the first into None); weights sum to one over all of them.

        An array that is `spent` may be overwritten; the first one may then also be kept.
        """
        ...

    def finish(self, total: Any) -> Array:
        """What came out, in the dtype that sums are kept in."""
        ...

    @property
    def streaming(self) -> bool:
        """Whether a total stays the size of one array however many were added."""
        ...

    @property
    def linear(self) -> bool:
        """Whether what comes out is the weighted sum, however it is come by."""
        ...


class ServerOptimizer(Protocol):
    """Takes the step from the current version towards the reduced one, element by element."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the arrays it remembers from step to step."""
        ...

    @property
    def needs_current(self) -> bool:
        """Whether the current version matters, rather than only what was reduced."""
        ...

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        """The next version and what to remember; `step` counts from 0, slots start as zeros."""
        ...


@dataclass(frozen=True)
class Strategy:
    """Weighting x reducer x server optimizer. The named strategies are combinations of these.

    >>> from hubless.strategy.fedavg import FedAvg
    >>> FedAvg().weights(examples=[3, 1], staleness=[0, 0])
    array([0.75, 0.25])
    """

    weighting: Weighting
    reducer: Reducer
    optimizer: ServerOptimizer

    @property
    def look(self) -> Look:
        """What of whole updates has to be known before they are weighed."""
        return look_of(self.weighting)

    @property
    def partial(self) -> bool:
        """Whether weights may leave something over, which stays with the current version."""
        return bool(getattr(self.weighting, "partial", False))

    @property
    def needs_current(self) -> bool:
        """Whether the current version matters, rather than only what updates are reduced to."""
        return self.optimizer.needs_current or self.partial

    def weights(
        self,
        examples: Sequence[int],
        staleness: Sequence[int],
        own: int | None = None,
        products: Column | None = None,
    ) -> Column:
        """One weight per update, summing to one, or to less if they are `partial`."""
        seen = Seen(np.asarray(examples, float), np.asarray(staleness, float), own, products)
        raw = np.asarray(self.weighting(seen), float)
        if raw.shape != (len(examples),) or not np.isfinite(raw).all() or (raw < 0).any():
            raise StrategyError(
                f"weighting {self.weighting!r} must give {len(examples)} finite weights of at "
                f"least 0, and gave {raw.tolist()}"
            )
        return raw / max(1.0, raw.sum()) if self.partial else shares(raw)

    def reducer_for(self, real: bool) -> Reducer:
        """What folds arrays of this kind.

        Counters and flags are no directions to go in, and one far off value would move their mean
        as far as it likes: of those, the middle one counts.
        """
        return self.reducer if real else Middle()

    def fold(
        self,
        arrays: Iterable[Array],
        weights: Sequence[float],
        current: Array | None,
        *,
        real: bool = True,
    ) -> Array:
        """The same array of all updates as one; what weights leave over is the current one's."""
        reducer, total = self.reducer_for(real), None
        for array, weight in zip(arrays, weights, strict=True):
            if weight or not reducer.linear:
                total = reducer.add(total, array, float(weight))
        rest = 1.0 - sum(weights)
        if self.partial and real and rest > 0:
            if current is None:
                raise StrategyError(f"{self!r} needs to know the version that updates started from")
            total = reducer.add(total, current, rest)
        return reducer.finish(total)

    def advance(
        self, current: Array | None, reduced: Array, like: Array, slots: Slots, step: int
    ) -> tuple[Array, Slots]:
        """From one reduced array to the next version of it, in the dtype of `like`.

        Counters and flags are only ever reduced: momentum on them means nothing. So is
        everything before there is a current version.
        """
        if not is_floating(like):
            return settle(reduced, like), ()
        if not slots:
            slots = tuple(zeros(reduced) for _ in self.optimizer.slots)
        if current is None:
            return settle(reduced, like), slots
        following, slots = self.optimizer.apply(current, reduced, slots, step)
        return settle(following, like), slots
