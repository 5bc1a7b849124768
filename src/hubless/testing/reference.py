"""What a strategy makes of updates, in plain arrays: what every runtime is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hubless.errors import ParamsError
from hubless.params import Array, Params, is_floating, whole_examples
from hubless.strategy.base import Slots, Strategy


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
) -> tuple[dict[str, Array], State]:
    """Whole updates in memory to the next params, with the state for the time after.

    `version` is the one being stepped from; without it the newest update counts as current.

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
    weights = strategy.weights(
        [u.examples for u in updates], [max(0, newest - u.version) for u in updates]
    )
    params: dict[str, Array] = {}
    slots: dict[str, Slots] = {}
    for name, like in updates[0].params.items():
        total: object | None = None
        reducer = strategy.reducer_for(is_floating(like))
        for update, weight in zip(updates, weights, strict=True):
            total = reducer.add(total, update.params[name], float(weight))
        params[name], slots[name] = strategy.advance(
            current[name] if current is not None else None,
            reducer.finish(total),
            like,
            state.slots.get(name, ()),
            state.step,
        )
    return params, State(state.step + 1, slots)
