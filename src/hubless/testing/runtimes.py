"""The same updates through every runtime: what a strategy is comes out everywhere alike.

Clients whose loss is half the squared distance to a point of their own, and who take one step of
size one, come to exactly that point: so a simulation can be given any updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubless.federate.joining import join
from hubless.federate.pace import Rounds
from hubless.store.memory import MemoryStore
from hubless.strategy.base import Strategy
from hubless.testing.reference import State, Update, aggregate

Point = NDArray[np.float32]


def by_reference(
    strategy: Strategy, start: Point, sent: Sequence[Point], examples: Sequence[int], rounds: int
) -> Point:
    """What the strategy makes of these updates, sent again in each round."""
    current: Any = {"w": start}
    state: State | None = None
    for number in range(rounds):
        updates = _updates(sent, examples, number)
        current, state = aggregate(strategy, updates, current, state)
    return np.asarray(current["w"])


def by_reference_as_one_of_them(
    strategy: Strategy, start: Point, sent: Sequence[Point], examples: Sequence[int]
) -> Point:
    """The same for the first of the clients, which knows what it has trained itself."""
    params, _ = aggregate(strategy, _updates(sent, examples, 0), {"w": start}, own=0)
    return np.asarray(params["w"])


def in_rounds(
    strategy: Strategy, start: Point, sent: Sequence[Point], examples: Sequence[int], rounds: int
) -> Point:
    """The same by members of a synchronous federation."""
    store = MemoryStore()
    pace = Rounds(members=len(sent), deadline=60.0)

    def member(number: int) -> Point:
        name, model = f"client-{number}", {"w": start}
        with join(store, name, pace=pace, strategy=strategy, model=model) as joined:
            for _ in range(rounds):
                result = joined.step({"w": sent[number]}, examples=examples[number])
        return np.asarray(result["w"])

    with ThreadPoolExecutor(len(sent)) as pool:
        results = list(pool.map(member, range(len(sent))))
    for result in results:
        assert result.tobytes() == results[0].tobytes(), "members end a round with other params"
    return results[0]


def without_rounds(
    strategy: Strategy, start: Point, sent: Sequence[Point], examples: Sequence[int]
) -> Point:
    """The same by a member of an asynchronous federation, the first, once all have shared."""
    store = MemoryStore()
    first = join(store, "client-0", strategy=strategy, model={"w": start})
    for number in range(1, len(sent)):
        with join(store, f"client-{number}", strategy=strategy) as joined:
            joined.step({"w": sent[number]}, examples=examples[number])
    with first:
        return np.asarray(first.step({"w": sent[0]}, examples=examples[0])["w"])


def simulated(
    strategy: Strategy, start: Point, sent: Sequence[Point], examples: Sequence[int], rounds: int
) -> Point:
    """The same by clients of a simulation."""
    import torch

    from hubless.data.population import Population
    from hubless.simulate.engine.machine import Local
    from hubless.simulate.simulation import Simulation
    from hubless.train.optimizers import SGD
    from hubless.train.recipe import Recipe
    from hubless.train.task import Task

    class Place(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(start.copy()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - self.w

    def halved(away: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return (away * away).sum(-1) / 2

    owner = np.repeat(np.arange(len(sent)), examples)
    columns = {"x": np.stack(sent)[owner], "y": np.zeros(len(owner), np.float32)}
    ran = Simulation(
        Task(Place(), halved),
        Population.by(columns, owner),
        recipe=Recipe(SGD(1.0), batch=None),
        strategy=strategy,
        cohort=len(sent),
        engine=Local(lanes=2, compiled=False, processes=1),
    )
    with ran:
        ran.run(rounds=rounds)
    return np.asarray(ran.flat.cpu().numpy())


def _updates(sent: Sequence[Point], examples: Sequence[int], version: int) -> list[Update]:
    return [
        Update(f"client-{i}", {"w": params}, count, version)
        for i, (params, count) in enumerate(zip(sent, examples, strict=True))
    ]
