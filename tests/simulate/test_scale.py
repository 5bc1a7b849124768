"""A million clients: what a round costs does not depend on how many do not train in it."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
from torch import nn

from hubless.data.population import Population
from hubless.select.uniform import Uniform
from hubless.simulate.simulation import Simulation
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from tests.simulate.worlds import PLAIN


def _of(clients: int) -> Simulation:
    x = np.zeros((2 * clients, 2), np.float32)
    people = Population(
        {"x": x, "y": np.zeros(2 * clients, np.uint8)}, np.arange(0, 2 * clients + 1, 2)
    )
    task, recipe = Task(nn.Linear(2, 2)), Recipe(SGD(0.1))
    return Simulation(task, people, recipe=recipe, cohort=10, engine=PLAIN, selector=Uniform())


def test_a_round_over_a_million_clients_does_not_touch_them_all() -> None:
    """What rounds take in a hundred times as many clients, taken in turns on a busy machine."""
    few, many = _of(10_000), _of(1_000_000)
    for rounds in range(5, 25, 5):
        for simulation in (few, many):
            simulation.run(rounds=rounds)
    # whatever else a machine does only makes them longer
    short, long = (min(s.history["seconds"].to_list()) for s in (few, many))
    assert long < 5 * short


def test_a_round_over_a_million_clients_makes_no_list_of_them() -> None:
    with _of(1_000_000) as simulation:
        simulation.run(rounds=1)
        tracemalloc.start()
        try:
            simulation.run(rounds=3)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # about 17 kB; a mark for each of them would be 1 MB
    assert peak < 500_000


def test_a_million_clients_are_there_at_once() -> None:
    started = time.process_time()
    simulation = _of(1_000_000)
    simulation.run(rounds=1)
    assert time.process_time() - started < 5
    assert simulation.history["clients"].to_list() == [10]
