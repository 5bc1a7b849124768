"""Who should train? Uniform, by activity and by loss, on clients as unequal as real ones.

There are six kinds of examples, and two of them are found with light clients only. Runs differ in
nothing but the selector; the test asks every client alike, heavy or light.
"""

from __future__ import annotations

import numpy as np
import torch

import hubless
from hubless.select import Active, Activity, Selector
from hubless.train import accuracy

CLIENTS, KINDS, TARGET, ROUNDS = 200, 6, 0.7, 40
SELECTORS: dict[str, Selector | None] = {
    "uniform": None,
    "activity: n": Activity("n"),
    "activity: 1/log": Activity("1/log"),
    "active": Active(alpha1=0.5, alpha2=1.0),
}
CENTRES = np.random.default_rng(7).normal(0, 0.7, (KINDS, 20))


def population(sizes: np.ndarray, seed: int) -> hubless.Population:
    """Clients in the order of their sizes; the lighter half has the last two kinds only."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(CLIENTS), sizes)
    light = owner < CLIENTS // 2
    y = np.where(light, rng.integers(4, KINDS, len(owner)), rng.integers(0, 4, len(owner)))
    x = CENTRES[y] + rng.standard_normal((len(owner), 20))
    return hubless.Population.by({"x": x.astype(np.float32), "y": y}, owner)


def history(selector: Selector | None) -> tuple[list[int], list[float]]:
    """The rounds that were evaluated, and the accuracy after each."""
    torch.manual_seed(0)
    sizes = np.sort(np.random.default_rng(0).lognormal(2.0, 1.0, CLIENTS).astype(int) + 1)
    simulation = hubless.Simulation(
        hubless.Task(torch.nn.Linear(20, KINDS), metrics={"accuracy": accuracy}),
        population(sizes, seed=0),
        recipe=hubless.Recipe(hubless.SGD(0.1), batch=10),
        selector=selector,
        cohort=10,
        test=population(np.full(CLIENTS, 5), seed=1),
        evaluate_every=2,
        engine=hubless.Local(lanes=10, compiled=False, processes=1),
    )
    simulation.run(ROUNDS)
    evaluated = simulation.history.drop_nulls("accuracy")
    return evaluated["round"].to_list(), evaluated["accuracy"].to_list()


if __name__ == "__main__":
    for name, selector in SELECTORS.items():
        rounds, scores = history(selector)
        reached = [n for n, score in zip(rounds, scores, strict=True) if score >= TARGET]
        when = f"after {reached[0]} rounds" if reached else f"not within {ROUNDS} rounds"
        print(f"{name:16} {TARGET:.0%} {when}, {scores[-1]:.1%} in the end")
