"""What engines are given and what they give back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.data.index import ranges
from hubless.data.population import Population
from hubless.errors import DataError
from hubless.rng import keys
from hubless.train.layout import Layout
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task
from hubless.train.values import Value

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Everything that stays the same from round to round."""

    task: Task
    recipe: Recipe
    population: Population
    seed: int
    value: Value | None = None
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout.of(self.task.module))

    def sample(self, data: Mapping[str, Tensor], count: int) -> Batch:
        """The first so many examples, to try something on."""
        rows = self.population.rows
        some = slice(0, count) if rows is None else rows[:count]
        return {name: column[some] for name, column in data.items()}

    def rows_of(self, clients: Ints) -> tuple[Ints, Ints]:
        """The rows of these clients' examples, one client after the other, and their numbers."""
        begun = self.population.offsets[clients]
        sizes = self.population.offsets[clients + 1] - begun
        places, rows = ranges(begun, sizes), self.population.rows
        return (places if rows is None else np.asarray(rows[places])), sizes

    @property
    def most_steps(self) -> int:
        """How many local steps the client with the most examples takes."""
        sizes = np.array([self.population.sizes.max(initial=1)])
        return int(self.recipe.steps_for(sizes)[0])


@dataclass(frozen=True)
class Cohort:
    """Who trains in a round, counted from 0, and what each counts for.

    `draw` numbers what is drawn for them, where a round draws more than once.
    """

    round: int
    clients: Ints
    weights: NDArray[np.float64]
    draw: int = -1

    @property
    def drawn(self) -> int:
        """What shuffling and dropout depend on, besides the seed and the client."""
        return self.round if self.draw < 0 else self.draw

    def key(self, seed: int, label: str, number: int = 0) -> int:
        """A seed for what is drawn for these clients together; another part has another one."""
        first = int(self.clients[0]) if len(self.clients) else 0
        return int(keys(seed, label, self.drawn, number, first)) >> 1

    def part(self, positions: Ints) -> Cohort:
        """Some of the cohort."""
        return replace(self, clients=self.clients[positions], weights=self.weights[positions])


@dataclass(frozen=True)
class Learned:
    """What a cohort's training came to, still on the device.

    `total` is the weighted sum of the clients' params; `each` their params one by one, where that
    was asked for. `losses` sums each client's losses over all its steps; `values` is what training
    them is worth, where the job says how to tell.
    """

    total: Tensor | None
    each: Tensor | None
    losses: Tensor
    values: Tensor | None = None


class Running(Protocol):
    """What trains a cohort: lanes, one client after another, or all of them in one."""

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train every client of the cohort from these params."""
        ...


class Engine(Running, Protocol):
    """Trains cohorts. Made by a simulation from the engine it was given."""

    def close(self) -> None:
        """Let go of what it holds: processes, device memory."""
        ...

    @property
    def device(self) -> torch.device:
        """Where params live."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """How it runs: lanes, compiled or not, processes."""
        ...


def to_tensors(
    population: Population, names: tuple[str, ...], device: torch.device
) -> dict[str, Tensor]:
    """The columns that training needs, on the device."""
    tensors = {}
    for name in names:
        if name not in population.columns:
            raise DataError(
                f"the task needs a column {name!r}, and the population has "
                f"{sorted(population.columns)}"
            )
        column = population.columns[name]
        if column.dtype.kind not in "biuf":
            raise DataError(
                f"column {name!r} holds {column.dtype}, not numbers: turn it into numbers first"
            )
        if column.dtype in (np.uint16, np.uint32, np.uint64):
            column = column.astype(np.int64)
        elif column.dtype == np.float64:
            column = column.astype(np.float32)
        with warnings.catch_warnings():
            # mapped files are read-only, and nobody will write to them
            warnings.simplefilter("ignore", UserWarning)
            tensors[name] = torch.from_numpy(np.ascontiguousarray(column)).to(device)
    return tensors
