"""What a strategy makes of updates, in plain arrays: what every runtime is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hubless.errors import ParamsError, StrategyError
from hubless.params import Array, Params, is_floating, whole_examples
from hubless.strategy.base import Slots, Strategy
from hubless.strategy.look import Looking


@dataclass(frozen=True, slots=True)
class Update:
    """Params a client trained, on how many examples, and the version it started from.

    >>> import numpy as np
    >>> Update("site-a", {"w": np.ones(3)}, examples=120).version
    0
    """

    client: str
    params: Params
    examples: int
    version: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", whole_examples(self.examples))


@dataclass(frozen=True)
class State:
    """What a strategy carries from one aggregation to the next."""

    step: int = 0
    slots: Mapping[str, Slots] = field(default_factory=dict)


def aggregate(
    strategy: Strategy,
    updates: Sequence[Update],
    current: Params | None = None,
    state: State | None = None,
    version: int | None = None,
    own: int | None = None,
) -> tuple[dict[str, Array], State]:
    """Whole updates in memory to the next params, with the state for the time after.

    `version` is the one being stepped from; without it the newest update counts as current. `own`
    is which of the updates is the member's that aggregates, if one is.

    >>> import numpy as np
    >>> from hubless.strategy import FedAvg
    >>> updates = [Update("a", {"w": np.array([1.0])}, examples=3),
    ...            Update("b", {"w": np.array([5.0])}, examples=1)]
    >>> params, state = aggregate(FedAvg(), updates)
    >>> params["w"]
    array([2.])
    """
    if not updates:
        raise ParamsError("there are no updates to aggregate")
    state = state or State()
    newest = max(u.version for u in updates) if version is None else version
    examples = [u.examples for u in updates]
    staleness = [max(0, newest - u.version) for u in updates]
    products = _look(strategy, [u.params for u in updates], current) if strategy.look else None
    weights = strategy.weights(examples, staleness, own, products).tolist()
    params: dict[str, Array] = {}
    slots: dict[str, Slots] = {}
    for name, like in updates[0].params.items():
        before = None if current is None else current[name]
        arrays = (update.params[name] for update in updates)
        folded = strategy.fold(arrays, weights, before, real=is_floating(like))
        remembered = state.slots.get(name, ())
        params[name], slots[name] = strategy.advance(before, folded, like, remembered, state.step)
    return params, State(state.step + 1, slots)


def _look(
    strategy: Strategy, everybodys: Sequence[Params], current: Params | None
) -> NDArray[np.float64]:
    if strategy.partial and current is None:
        raise StrategyError(f"{strategy!r} needs to know the version that updates started from")
    looking = Looking(strategy.look, len(everybodys), exact=True)
    for name, like in everybodys[0].items():
        if is_floating(like):
            before = None if current is None else current[name]
            looking.add_all([params[name] for params in everybodys], before)
    return looking.products
