"""A strategy: how updates become the next version, as three independent choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hubless.checks import fitting
from hubless.errors import StrategyError
from hubless.params import Array, is_floating, settle, zeros
from hubless.strategy.look import Column, Look, Seen, check_among, look_of, shares
from hubless.strategy.reducers import Middle

Slots = tuple[Array, ...]


class Weighting(Protocol):
    """How much each update counts: a function of what is known of all updates.

    Two attributes are optional. A `look`, "norms" or "products", says what it needs to see of whole
    updates. With `partial = True` its weights sum to one at most, and what they leave over stays
    with the current version; without it they may have any scale. Make it a frozen dataclass:
    members of a federation compare strategies by their text.

    >>> from hubless.strategy import FedAvg
    >>> @dataclass(frozen=True)
    ... class ByRoot:
    ...     def __call__(self, seen: Seen) -> Column:
    ...         return np.sqrt(seen.examples)
    >>> FedAvg(ByRoot()).weights(examples=[900, 100], staleness=[0, 0])
    array([0.75, 0.25])
    """

    def __call__(self, seen: Seen) -> Column:
        """One weight of at least 0 per update, in the order in which `seen` has them."""
        ...


class Reducer(Protocol):
    """Folds arrays into one: `add` takes them one by one, `finish` gives the result.

    What a total is, is the reducer's own business. An array is only valid during `add`, so what is
    kept of it must be copied.
    """

    def add(self, total: Any, array: Array, weight: float, spent: bool = False) -> Any:
        """Take one more array in.

        Args:
            total: What the last call gave; None for the first array.
            array: One array of an update.
            weight: Of this update; weights sum to one over all of them.
            spent: The array may be overwritten, and the first one may also be kept.
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
        """Whether the result is always the weighted sum; then it may be summed by other means."""
        ...


class ServerOptimizer(Protocol):
    """Takes the step from the current version towards the reduced one, element by element.

    It holds no state itself: what it remembers goes in and out of `apply` as `slots`.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the arrays it remembers from step to step."""
        ...

    @property
    def needs_current(self) -> bool:
        """Whether the current version matters, rather than only what was reduced."""
        ...

    def apply(self, current: Array, reduced: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        """The next version, and what to remember.

        Args:
            current: The current version of an array.
            reduced: What the updates' arrays were reduced to.
            slots: What the last call gave, one array per name in `slots`; zeros at first.
            step: How many steps were taken before, from 0.
        """
        ...


_PARTS = (
    ("reducer", "finish", "a reducer, such as hubless.strategy.Mean()"),
    ("optimizer", "apply", "a server optimizer, such as hubless.strategy.Replace()"),
)


@dataclass(frozen=True)
class Strategy:
    """How updates become the next version: weighting x reducer x server optimizer.

        w = weighting(what is known of the updates), scaled to sum to 1
        reduced = reducer(w, x_1, ..., x_n)        Σ w_i · x_i for a mean
        x ← optimizer(x, reduced)

    The named strategies are combinations of these, and any other combination works like them. Of
    counters and flags the middle one counts, whatever the reducer, and no optimizer changes it.

    Args:
        weighting: How much each update counts: see `hubless.strategy.weighting`.
        reducer: How the updates become one: see `hubless.strategy.reducers`. `Mean` needs memory
            for one update, the robust ones for all.
        optimizer: The step towards the reduced params: see `hubless.strategy.optimizers`. `Replace`
            goes all the way.

    >>> from hubless.strategy import FedAvg
    >>> FedAvg().weights(examples=[3, 1], staleness=[0, 0])
    array([0.75, 0.25])

    The median of all updates, approached with Adam:

    >>> from hubless.strategy import Equally, Median, ServerAdam
    >>> robust = Strategy(Equally(), Median(), ServerAdam(lr=0.01))
    >>> updates = [np.array([1.0]), np.array([2.0]), np.array([900.0])]
    >>> robust.fold(updates, [1 / 3] * 3, current=None)
    array([2.])
    """

    weighting: Weighting
    reducer: Reducer
    optimizer: ServerOptimizer

    def __post_init__(self) -> None:
        check_among(self.weighting)
        for name, does, takes in _PARTS:
            part = getattr(self, name)
            fitting(name, part, hasattr(part, does), takes, error=StrategyError)

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
        """Whether the current version matters, rather than only what updates are reduced to.

        A look is at how updates have changed, and so it is from there.
        """
        return self.optimizer.needs_current or self.partial or bool(self.look)

    def weights(
        self,
        examples: Sequence[int],
        staleness: Sequence[int],
        own: int | None = None,
        products: Column | None = None,
    ) -> Column:
        """One weight per update, summing to one, or to less if they are `partial`.

        Args:
            examples: Each update's number of examples.
            staleness: How many versions have passed since each update's starting point.
            own: The position of the member's own update, where there is one.
            products: What the strategy's `look` asked for; see `Seen`.
        """
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
        """The same array of all updates as one.

        Args:
            arrays: One per update.
            weights: What `weights` gave. What they leave over of 1 goes to the current version.
            current: The array in the current version; only a `partial` weighting needs it.
            real: False for counters and flags, of which the middle one counts.
        """
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
        """From one reduced array to its next version.

        Counters and flags are only ever reduced, because momentum on them means nothing. Without a
        current version everything is.

        Args:
            current: The array in the current version; None before there is one.
            reduced: What `fold` gave.
            like: An array of the dtype that the next version has.
            slots: What the last call gave; empty at first.
            step: How many steps were taken before, from 0.
        """
        if not is_floating(like):
            return settle(reduced, like), ()
        if not slots:
            slots = tuple(zeros(reduced) for _ in self.optimizer.slots)
        if current is None:
            return settle(reduced, like), slots
        following, slots = self.optimizer.apply(current, reduced, slots, step)
        return settle(following, like), slots
