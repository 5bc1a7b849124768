"""Waiting for stragglers, dropping them, or not waiting at all: seconds to an accuracy.

Devices differ by more than a hundred times in speed and bandwidth. The clock is virtual: it says
how long the devices would have taken, and nobody waits for it.
"""

from __future__ import annotations

import numpy as np
import torch

import hubless
from hubless.simulate import lognormal
from hubless.train import accuracy

TARGET = 0.93
DEVICES = hubless.Devices(
    speed=lognormal(10.0, 1.2), down=lognormal(2e4, 1.0), up=lognormal(5e3, 1.0)
)
PACES = {
    "wait for all": hubless.Pace(),
    "30 % more, deadline 20 s": hubless.Pace(over=1.3, deadline=20.0),
    "buffered, nobody waits": hubless.Buffered(concurrency=20, buffer=5),
}


def population() -> hubless.Population:
    """Two hundred clients with thirty examples each."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6000, 12), dtype=np.float32)
    y = (x[:, :4].sum(1) > 0).astype(int)
    return hubless.Population.by({"x": x, "y": y}, np.arange(6000) % 200)


def run(pace: hubless.Pace | hubless.Buffered) -> hubless.Simulation:
    """Train until the accuracy is there, or for three hundred rounds."""
    torch.manual_seed(0)
    people = population()
    simulation = hubless.Simulation(
        hubless.Task(torch.nn.Linear(12, 2), metrics={"accuracy": accuracy}),
        people,
        recipe=hubless.Recipe(hubless.SGD(0.05), batch=10),
        strategy=hubless.FedBuff() if isinstance(pace, hubless.Buffered) else hubless.FedAvg(),
        cohort=20,
        devices=DEVICES,
        pace=pace,
        test=people,
        evaluate_every=2,
        callbacks=[hubless.EarlyStop("accuracy", target=TARGET, best="high")],
        engine=hubless.Local(lanes=20, compiled=False, processes=1),
    )
    simulation.run(rounds=300)
    return simulation


if __name__ == "__main__":
    for name, pace in PACES.items():
        ended = run(pace)
        history = ended.history
        print(
            f"{name:26} {history['accuracy'][-1]:.1%} after {ended.virtual:7.0f} s, "
            f"{ended.round} versions, {history['dropped'].sum()} answers dropped"
        )
