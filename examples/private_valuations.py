"""Selecting by loss without telling losses: valuations under differential privacy.

Clients add noise to what they say of their data before anybody sees it. What each has given away so
far is accounted for, and a budget ends its reports. Noise costs some of what selecting gains.
"""

from __future__ import annotations

import numpy as np
import torch

import hubless
from hubless.privacy import Laplace, Ledger
from hubless.select import Active, Selector, Uniform
from hubless.train import accuracy

CLIENTS, BUDGET = 100, 10.0
BY_LOSS = Active(alpha2=0.5)


def population(seed: int) -> hubless.Population:
    """One client in ten has examples of the rare label, and only those."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(CLIENTS), rng.integers(5, 25, CLIENTS))
    x = rng.standard_normal((len(owner), 10), dtype=np.float32)
    y = (owner % 10 == 0).astype(int)
    x[:, 0] += 3.0 * y
    return hubless.Population.by({"x": x, "y": y}, owner)


def run(
    selector: Selector, private: Laplace | None = None, ledger: Ledger | None = None
) -> tuple[float, float]:
    """The accuracy on the rare label after fifty rounds, and the most that a client gave away."""
    torch.manual_seed(0)
    simulation = hubless.Simulation(
        hubless.Task(torch.nn.Linear(10, 2), metrics={"accuracy": accuracy}),
        population(0),
        recipe=hubless.Recipe(hubless.SGD(0.1)),
        selector=selector,
        private=private,
        ledger=ledger,
        cohort=10,
        test=population(100).select(range(0, CLIENTS, 10)),
        engine=hubless.Local(lanes=10, compiled=False, processes=1),
    )
    simulation.run(rounds=50)
    last = simulation.rows[-1]
    return last["accuracy"], last.get("epsilon", float("inf"))


if __name__ == "__main__":
    print(f"uniform             {run(Uniform())[0]:.1%} of the rare label")
    print(f"by loss, told       {run(BY_LOSS)[0]:.1%}")
    noise = Laplace(epsilon=4.0, clip=5.0)
    rate, epsilon = run(BY_LOSS, noise)
    print(f"by loss, with noise {rate:.1%}; whoever told most gave away epsilon {epsilon:.1f}")
    ledger = Ledger(CLIENTS, budget=BUDGET)
    rate, epsilon = run(BY_LOSS, noise, ledger)
    print(
        f"with a budget       {rate:.1%}; epsilon {epsilon:.1f} of {BUDGET:.0f} at most, and "
        f"{ledger.withheld.sum()} reports withheld"
    )
