"""A strategy of one's own: how much each update counts, how they are folded, and the step taken.

One client has nearly as much data as all others together, and wrong labels. FedAvg believes it.
Here an update counts by the root of its examples, and what is far from the rest is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import hubless
from hubless.strategy import Column, Momentum, Seen, TrimmedMean
from hubless.train import accuracy


@dataclass(frozen=True)
class ByRoot:
    """The root of the examples: four times the data counts twice."""

    def __call__(self, seen: Seen) -> Column:
        return np.sqrt(seen.examples)


class Cautious(hubless.Strategy):
    """Weighting x reducer x server optimizer: any three make a strategy."""

    def __init__(self, cut: float = 0.1, momentum: float = 0.5) -> None:
        super().__init__(ByRoot(), TrimmedMean(cut), Momentum(1.0, momentum))


def population() -> hubless.Population:
    """Twenty clients with 20 to 60 examples, and one with 700 whose labels are the wrong way."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(21), [*rng.integers(20, 60, 20), 700])
    x = rng.standard_normal((len(owner), 10), dtype=np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    return hubless.Population.by({"x": x, "y": np.where(owner == 20, 1 - y, y)}, owner)


def trained(strategy: hubless.Strategy) -> float:
    """The accuracy on the twenty that are right, after fifteen rounds with everybody."""
    torch.manual_seed(0)
    people = population()
    simulation = hubless.Simulation(
        hubless.Task(torch.nn.Linear(10, 2), metrics={"accuracy": accuracy}),
        people,
        strategy=strategy,
        cohort=21,
        test=people.select(range(20)),
        engine=hubless.Local(lanes=21, compiled=False, processes=1),
    )
    simulation.run(rounds=15)
    return simulation.evaluate()["accuracy"]


if __name__ == "__main__":
    for strategy in (hubless.FedAvg(), Cautious()):
        print(f"{type(strategy).__name__:10} {trained(strategy):.1%} of the honest clients' data")
