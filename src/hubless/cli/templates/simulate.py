"""Who should train? Two hundred clients with unequal data, and two ways to pick among them.

Keep what happens with `hubless run simulate.py`, then look at it with `hubless watch`.
"""

from __future__ import annotations

import numpy as np
import torch

import hubless
from hubless.data import iid, lognormal_sizes
from hubless.select import Activity, Selector, Uniform
from hubless.train import accuracy

CLIENTS, EXAMPLES, FEATURES = 200, 20_000, 20
ROUNDS = 40
SELECTORS: dict[str, Selector] = {"uniform": Uniform(), "activity": Activity("sqrt")}


def population() -> hubless.Population:
    """Your data goes here: arrays, a parquet file, or a Hugging Face dataset."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((EXAMPLES, FEATURES), dtype=np.float32)
    y = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] > 0).astype(np.int64)
    # most clients have little, a few have a lot, as it is with people
    parts = iid(EXAMPLES, CLIENTS, sizes=lognormal_sizes(CLIENTS, spread=1.0))
    return hubless.Population.pooled({"x": x, "y": y}).partition(parts)


def model() -> torch.nn.Module:
    """Any torch module will do."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    return torch.nn.Sequential(*layers)


def main() -> None:
    """Simulate both, each from the same start, and compare them."""
    # a tenth of everybody's examples is set aside
    train, test = population().split(0.9, seed=0)
    for name, selector in SELECTORS.items():
        simulation = hubless.Simulation(
            hubless.Task(model(), metrics={"accuracy": accuracy}),
            train,
            name=name,
            selector=selector,
            cohort=20,
            recipe=hubless.Recipe(hubless.SGD(0.1), epochs=2, batch=10),
            strategy=hubless.FedAvg(),
            test=test,
            evaluate_every=5,
            # what is measured and compiled on the first round pays for larger models
            engine=hubless.Local(compiled=False),
        )
        simulation.run(ROUNDS)
        print(f"{name:>10}: accuracy {simulation.evaluate()['accuracy']:.1%} after {ROUNDS} rounds")


if __name__ == "__main__":
    main()
