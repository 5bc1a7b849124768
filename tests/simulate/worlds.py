"""Small populations, models and simulations that the tests share."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars
import torch
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.simulate.engine.executor import LocalExecutor
from hubless.simulate.engine.machine import Local
from hubless.simulate.job import Cohort, Job, Learned, to_tensors
from hubless.simulate.simulation import Simulation
from hubless.simulate.ways.lanes import Lanes
from hubless.simulate.ways.plain import Plain
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task

CPU = torch.device("cpu")
PLAIN = Local(lanes=0, compiled=False, processes=1)
UNEQUAL = (7, 1, 0, 23, 3, 3, 12, 0, 5, 1, 9)
"""Clients of very different sizes, some of one example and some of none."""


def mlp(seed: int = 0, features: int = 4, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))


class Fragile(nn.Module):
    """Fails on a client that has a number above 100."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if (x > 100).any():
            raise ArithmeticError("that is too much")
        return self.linear(x)


class Deadly(nn.Module):
    """Kills the process it runs in while a file is there to be taken, but never the first one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.linear, self.folder, self.spared = nn.Linear(4, 3), folder, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.spared:
            for path in sorted(self.folder.iterdir()):
                # of two that see the file, one takes it
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)


def people(sizes: Sequence[int] = UNEQUAL, features: int = 4, seed: int = 0) -> Population:
    """Clients of these sizes; their rows stand in another order than the clients."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    x = rng.standard_normal((total, features), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)
    offsets = np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))])
    return Population({"x": x, "y": y}, offsets, rng.permutation(total))


def twins() -> Population:
    """Two clients with the same examples."""
    two = people((6, 6))
    return Population(two.columns, two.offsets, np.append(two.rows_of(0), two.rows_of(0)))


def simulation(**changes: Any) -> Simulation:
    """A simulation of an MLP that is run plainly, but for what is changed."""
    task = Task(mlp(), metrics={"accuracy": accuracy})
    settings: dict[str, Any] = {
        "task": task,
        "population": people(),
        "recipe": Recipe(SGD(0.1, momentum=0.5), batch=4),
        "cohort": 4,
        "engine": PLAIN,
        **changes,
    }
    return Simulation(settings.pop("task"), settings.pop("population"), **settings)


def after(ran: Simulation, rounds: int) -> polars.DataFrame:
    """The history after so many rounds."""
    ran.run(rounds=rounds)
    return ran.history


def job_of(task: Task, population: Population, recipe: Recipe, seed: int = 3) -> Job:
    return Job(task, recipe, population, seed)


def cohort_of(clients: Sequence[int], population: Population, round: int = 2) -> Cohort:
    chosen = np.array(clients, np.int64)
    sizes = population.sizes[chosen].astype(float)
    return Cohort(round, chosen, sizes / max(1.0, sizes.sum()))


def trained(
    job: Job, clients: Sequence[int], lanes: int, *, each: bool = False, compiled: bool = False
) -> Learned:
    """What these clients come to in a round, on so many lanes (0: plainly)."""
    data = to_tensors(job.population, job.task.columns, CPU)
    running: Plain | Lanes
    if lanes == 0:
        running = Plain(job, data, CPU)
    else:
        running = Lanes(job, data, CPU, lanes, compiled=compiled)
    start = job.layout.flatten(job.task.module)
    return running.run(start, cohort_of(clients, job.population), each=each)


def executor(job: Job) -> LocalExecutor:
    return LocalExecutor(job, CPU)


def furthest(a: Tensor | None, b: Tensor | None) -> float:
    """The largest difference between two tensors."""
    assert a is not None
    assert b is not None
    return float((a - b).abs().max())
