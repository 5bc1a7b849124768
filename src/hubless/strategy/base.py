"""A strategy: how updates become the next version, as three independent choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hubless.errors import StrategyError
from hubless.params import Array, is_floating, settle, zeros
from hubless.strategy.reducers import Middle

Slots = tuple[Array, ...]


class Weighting(Protocol):
    """How much each update counts, from what is known before any of them is read."""

    def __call__(
        self, examples: NDArray[np.float64], staleness: NDArray[np.float64], own: int | None
    ) -> NDArray[np.float64]:
        """One weight per update, at any scale.

        `staleness` is how many versions have passed since each update's starting point; `own` is
        the position of the member's own update, where there is one.
        """
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

    def weights(
        self, examples: Sequence[int], staleness: Sequence[int], own: int | None = None
    ) -> NDArray[np.float64]:
        """One weight per update, summing to one."""
        raw = np.asarray(
            self.weighting(np.asarray(examples, float), np.asarray(staleness, float), own), float
        )
        if raw.shape != (len(examples),) or not np.isfinite(raw).all() or (raw < 0).any():
            raise StrategyError(
                f"weighting {self.weighting!r} must give {len(examples)} finite weights of at "
                f"least 0, and gave {raw.tolist()}"
            )
        total = raw.sum()
        return raw / total if total > 0 else np.full(len(raw), 1 / len(raw))

    def reducer_for(self, real: bool) -> Reducer:
        """What folds arrays of this kind.

        Counters and flags are no directions to go in, and one far off value would move their mean
        as far as it likes: of those, the middle one counts.
        """
        return self.reducer if real else Middle()

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
