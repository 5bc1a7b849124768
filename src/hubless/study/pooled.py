"""Training on pooled data, for comparison: many models side by side, each on data of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hubless.data.population import Population
from hubless.errors import Diverged
from hubless.rng import stream
from hubless.simulate import checkpoint
from hubless.simulate.job import to_tensors
from hubless.simulate.ways.graphs import capture
from hubless.study.messages import Scorer, Sizes, reading
from hubless.train.layers.vectorise import vectorised
from hubless.train.layout import Layout
from hubless.train.optimizers import Adam
from hubless.train.task import Batch, Task

logger = logging.getLogger("hubless")

BATCH, PASSES = 128, 2


@dataclass(frozen=True)
class Model:
    """What sets one model apart: its name, its data, its learning rate, and where it starts.

    Examples of label 1 count `level` times among those that batches are drawn from.
    """

    label: str
    train: Population
    test: Population
    lr: float
    level: float
    seed: int


class Pool:
    """Models of one kind in training, an epoch at a time; their state is kept in a folder.

    An epoch is as long as one of the federated runs: it draws twice as many examples as there are
    to train on, since clients take two passes. Batches are drawn without replacement, as far as
    the examples go.
    """

    def __init__(
        self, models: Sequence[Model], sizes: Sizes, device: torch.device, folder: Path
    ) -> None:
        self.models, self.device, self.folder = models, device, folder
        share = float(models[0].train.columns["y"].mean())
        tasks = [reading(sizes, model.seed, share) for model in models]
        self._layout = Layout.of(tasks[0].module)
        self._scorers = [
            Scorer(task, model.test, device) for task, model in zip(tasks, models, strict=True)
        ]
        self._data = to_tensors(models[0].train, tasks[0].columns, device)
        self._stacked = torch.stack([self._layout.flatten(task.module) for task in tasks])
        self._moments = [torch.zeros_like(self._stacked) for _ in range(Adam.slots)]
        self._steps = torch.zeros(len(models))
        self.curves: list[list[float]] = [[] for _ in models]
        self.epoch = 0
        self._resume()
        self._stacked, *self._moments = (
            array.to(device) for array in (self._stacked, *self._moments)
        )
        self._steps = self._steps.to(device)
        examples = models[0].train.examples
        self.batch = min(BATCH, examples)
        self.steps = PASSES * examples // self.batch
        self._rows = torch.zeros(len(models), self.batch, dtype=torch.int64, device=device)
        self._rates = torch.tensor([[model.lr] for model in models], device=device)
        self._gradient = _gradient(tasks[0], self._layout, device)
        self._replay: Callable[[], None] | None = None

    def advance(self) -> None:
        """Train every model for one more epoch, tell how good it is, and save."""
        drawn = np.stack(
            [draw(model, self.epoch, self.steps * self.batch) for model in self.models]
        )
        rows = torch.from_numpy(drawn).to(self.device)
        rows = rows.view(len(self.models), self.steps, self.batch)
        for step in range(self.steps):
            self._rows.copy_(rows[:, step])
            self._once()
        self.epoch += 1
        for curve, scorer, params in zip(self.curves, self._scorers, self._stacked, strict=True):
            if len(curve) == self.epoch - 1:
                try:
                    curve.append(scorer(params, self.epoch))
                except Diverged as error:
                    logger.warning("%s", error)
        self._save()

    def _step(self) -> None:
        with torch.no_grad():
            batch = {name: column[self._rows] for name, column in self._data.items()}
            gradient = self._gradient(self._stacked, batch)
            self._steps.add_(1)
            moments = (self._moments[0], self._moments[1])
            Adam().apply(self._stacked, gradient, moments, self._steps, self._rates)

    def _once(self) -> None:
        """One step of every model; on a GPU as a captured graph, which costs one launch."""
        if self._replay is None:
            self._replay = self._captured() if self.device.type == "cuda" else self._step
        self._replay()

    def _captured(self) -> Callable[[], None]:
        try:
            return capture(self._step, [self._stacked, *self._moments, self._steps]).replay
        except RuntimeError as error:
            logger.warning("not captured as a CUDA graph, so slower: %s", error)
            return self._step

    def _save(self) -> None:
        arrays = (self._stacked, *self._moments, self._steps)
        named = {f"array {i}": array.cpu().numpy() for i, array in enumerate(arrays)}
        facts = {"models": self._labels(), "curves": self.curves, "epoch": self.epoch}
        checkpoint.write(self.folder, named, facts)

    def _resume(self) -> None:
        """Go on where the same models stopped; others start anew."""
        if not (self.folder / checkpoint.NAME).exists():
            return
        arrays, facts = checkpoint.read(self.folder)
        if facts["models"] == self._labels():
            read = [torch.tensor(arrays[f"array {i}"]) for i in range(len(arrays))]
            self._stacked, *self._moments, self._steps = read
            self.curves, self.epoch = facts["curves"], facts["epoch"]

    def _labels(self) -> list[str]:
        return [model.label for model in self.models]


def _gradient(
    task: Task, layout: Layout, device: torch.device
) -> Callable[[Tensor, Batch], Tensor]:
    """A function from the flat params and a batch of every model to their flat gradients."""
    module = vectorised(task.module, device).train()

    def objective(flat: Tensor, batch: Batch) -> Tensor:
        named = layout.named(flat)
        return task.losses(lambda *inputs: functional_call(module, named, inputs), batch).mean()

    return vmap(grad(objective))


def draw(model: Model, epoch: int, count: int) -> NDArray[np.int64]:
    """The rows of the columns that a model sees in an epoch, one after another."""
    people = model.train
    rows = np.arange(people.examples) if people.rows is None else people.rows
    rng = stream(model.seed, "pooled", epoch)
    times = np.where(people.columns["y"][rows] == 1, model.level, 1.0)
    # a level between two whole numbers is that on average
    times = (np.floor(times) + (rng.random(len(rows)) < times % 1)).astype(np.int64)
    pool = np.repeat(rows, times)
    passes = [rng.permutation(pool) for _ in range(-(-count // len(pool)))]
    return np.concatenate(passes)[:count]
