"""A selector of one's own: a pure function of what is known of every client.

A round lasts as long as its slowest client. Leaving slow devices out loses what they know; this
selector takes them together, so that they hold up each other and nobody else.
"""

from __future__ import annotations

import numpy as np
import torch

import hubless
from hubless.select import Roster, Selector, selector
from hubless.simulate import lognormal
from hubless.train import accuracy


@selector
def alike(roster: Roster, k: int, rng: np.random.Generator) -> np.ndarray:
    """Whoever waited longest, with those of a like speed among the next who did."""
    waited = np.lexsort((rng.random(len(roster)), roster.last_selected))[: 4 * k]
    pace = np.log(roster.speed[waited])
    return waited[np.argsort(np.abs(pace - pace[0]), kind="stable")[:k]]


def simulated(chosen: Selector | None) -> hubless.Simulation:
    """Forty rounds over a hundred clients, some a hundred times as fast as others."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 8), dtype=np.float32)
    people = hubless.Population.by(
        {"x": x, "y": (x[:, 0] > x[:, 1]).astype(int)}, np.arange(4000) % 100
    )
    simulation = hubless.Simulation(
        hubless.Task(torch.nn.Linear(8, 2), metrics={"accuracy": accuracy}),
        people,
        selector=chosen,
        cohort=10,
        devices=hubless.Devices(speed=lognormal(20.0, 1.0)),
        test=people,
        engine=hubless.Local(lanes=10, compiled=False, processes=1),
    )
    simulation.run(rounds=40)
    return simulation


if __name__ == "__main__":
    for name, chosen in {"uniform": None, "alike": alike}.items():
        simulation = simulated(chosen)
        least = int(simulation.roster.selected.min())
        print(
            f"{name:8} {simulation.evaluate()['accuracy']:.1%} after {simulation.virtual:.0f} s of "
            f"the devices' time; everybody trained at least {least} times"
        )
