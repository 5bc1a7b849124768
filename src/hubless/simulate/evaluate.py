"""How well params do on data that nobody trains on."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.data.population import Population
from hubless.errors import DataError
from hubless.simulate.local import autocast, tf32
from hubless.simulate.work import to_tensors
from hubless.train.layout import Layout
from hubless.train.recipe import Recipe
from hubless.train.task import Task

_BATCH = 2000


class Evaluation:
    """A test population on a device; per-example losses and metrics of any params.

    In the precision that a recipe trains in.
    """

    def __init__(
        self, task: Task, test: Population, device: torch.device, recipe: Recipe | None = None
    ) -> None:
        if not test.examples:
            raise DataError("there are no examples to evaluate on")
        self.task, self.test, self.device = task, test, device
        self.layout = Layout.of(task.module)
        self._recipe = recipe or Recipe()
        self._module = copy.deepcopy(task.module).to(device).eval()
        if device.type == "cuda":
            # how cuDNN likes its convolutions
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._data = to_tensors(test, task.columns, device)
        rows = np.arange(test.examples) if test.rows is None else np.asarray(test.rows)
        self._rows = torch.from_numpy(rows).to(device)

    def values(self, params: Tensor) -> dict[str, Tensor]:
        """Loss and metrics of every example, in client order."""
        self.layout.load(self._module, params)
        parts: dict[str, list[Tensor]] = {"loss": [], **{name: [] for name in self.task.metrics}}
        recipe = self._recipe
        with (
            torch.inference_mode(),
            autocast(recipe, self.device),
            tf32(recipe.precision == "tf32"),
        ):
            for rows in torch.split(self._rows, _BATCH):
                batch = self.task.prepared({n: c[rows] for n, c in self._data.items()})
                output = self.task.output(self._module, batch)
                targets = [batch[name] for name in self.task.targets]
                for name, measure in {"loss": self.task.loss, **self.task.metrics}.items():
                    parts[name].append(measure(output, *targets).float())
        return {name: torch.cat(values) for name, values in parts.items()}

    def means(self, params: Tensor) -> dict[str, Tensor]:
        """Loss and metrics over all examples, still on the device."""
        return {name: values.mean() for name, values in self.values(params).items()}

    def by_client(self, params: Tensor) -> dict[str, NDArray[np.float64]]:
        """Loss and metrics of each client's own examples; NaN for a client that has none.

        >>> from torch import nn
        >>> test = Population({"x": np.zeros((3, 2), np.float32), "y": np.array([0, 1, 1])},
        ...                   np.array([0, 2, 2, 3]))
        >>> evaluation = Evaluation(Task(nn.Linear(2, 2)), test, torch.device("cpu"))
        >>> evaluation.by_client(torch.zeros(6))["loss"].round(3)
        array([0.693,   nan, 0.693])
        """
        sizes = self.test.sizes
        owner = np.repeat(np.arange(len(sizes)), sizes)
        means = {}
        for name, values in self.values(params).items():
            sums = np.bincount(owner, values.double().cpu().numpy(), len(sizes))
            means[name] = np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)
        return means
