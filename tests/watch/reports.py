"""Runs for the tests of reports: real ones, and made-up ones of any size."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hubless
from hubless.events import to_file
from hubless.simulate.simulation import Simulation
from tests.simulate.worlds import people, simulation

SIZES = (7, 1, 0, 23, 3, 3, 12, 0, 5, 1, 9, 40, 2, 18)
MEMBERS = ("antwerp", "bergen", "cadiz")


def simulated(path: Path, name: str = "simulation", rounds: int = 6, **changes: Any) -> Simulation:
    """A real simulation of 14 clients, whose events are in a file."""
    population = people(SIZES)
    settings = {"test": population, "evaluate_every": 2, "name": name, **changes}
    ran = simulation(population=population, events=path, **settings)
    ran.run(rounds=rounds)
    return ran


def federated(folder: Path, mode: Literal["async", "sync"], steps: int = 4) -> None:
    """A real federation of three members, whose events lie in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pace = hubless.Anytime() if mode == "async" else hubless.Rounds(MEMBERS, deadline=60)

    def site(place: int, name: str) -> None:
        listener = to_file(folder / f"{name}.jsonl")
        with hubless.join(folder, name, events=listener, pace=pace) as federation:
            for step in range(steps):
                weights = {"w": np.full(4, float(place + step), np.float32)}
                metrics = {"loss": 1 / (step + 1) + place}
                federation.step(weights, examples=10 * (place + 1), metrics=metrics)

    threads = [threading.Thread(target=site, args=pair) for pair in enumerate(MEMBERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def made_up(clients: int, rounds: int, cohort: int, name: str = "large") -> Iterator[str]:
    """The lines of a simulation that never was."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 100, clients)
    activity = np.quantile(sizes, np.linspace(0, 1, 11)).tolist()
    settings = {"clients": clients, "rounds": rounds, "seed": 0, "activity": activity}
    yield _line("started", name, 0, round=0, settings=settings)
    for number in range(1, rounds + 1):
        chosen = rng.choice(clients, cohort, replace=False)
        yield _line(
            "trained",
            name,
            number,
            round=number,
            cohort=chosen.tolist(),
            examples=sizes[chosen].tolist(),
            skipped=0,
            dropped=0,
            metrics={"train_loss": 2 / number, "loss": 1 / number, "accuracy": 1 - 1 / number},
            bytes_down=1000,
            bytes_up=500,
            seconds=0.9,
            virtual=2.0 * number,
            staleness=rng.integers(0, 9, cohort).tolist(),
            phases={"select": 0.1, "train": 0.7, "evaluate": 0.1},
            deciles={"loss": [1 / number + d / 10 for d in range(10)]},
        )
    yield _line("ended", name, rounds + 1, round=rounds, reason="complete")


def _line(kind: str, client: str, time: float, **fields: Any) -> str:
    return json.dumps({"event": kind, "client": client, "time": 1e9 + time, **fields}) + "\n"
