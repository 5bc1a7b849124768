"""How well params do, example by example: on test data, and on what clients are about to train on.

Never in lanes: it is one set of params for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.data.index import tenths
from hubless.data.population import Population
from hubless.errors import DataError
from hubless.simulate.job import to_tensors
from hubless.simulate.ways.step import autocast, channels_last
from hubless.train.layers.precision import tf32
from hubless.train.layout import Layout
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

_BATCH = {"cuda": 2000, "cpu": 256}
"""Examples at a time; on a CPU few enough for a layer's output to be in the cache for the next."""
Measure = Callable[[Any, Batch], dict[str, Tensor]]


class Forward:
    """A module on a device that is only looked at, in the precision that a recipe trains in."""

    def __init__(self, task: Task, device: torch.device, recipe: Recipe) -> None:
        self.task, self.device, self.recipe = task, device, recipe
        self.layout = Layout.of(task.module)
        self.module = copy.deepcopy(task.module).to(device).eval()
        self._channels_last = channels_last(self.module)

    def look(
        self, params: Tensor, data: Mapping[str, Tensor], rows: Tensor, measure: Measure
    ) -> dict[str, Tensor]:
        """What is measured of the module's output on these rows, batch by batch."""
        self.layout.load(self.module, params)
        try:
            return self._looked(data, rows, measure)
        except RuntimeError:
            if not self._channels_last:
                raise
        # the module may flatten what its convolutions put out by a view
        self._channels_last = False
        channels_last(self.module, wanted=False)
        return self._looked(data, rows, measure)

    def _looked(
        self, data: Mapping[str, Tensor], rows: Tensor, measure: Measure
    ) -> dict[str, Tensor]:
        parts: list[dict[str, Tensor]] = []
        with (
            torch.inference_mode(),
            autocast(self.recipe, self.device),
            tf32(self.recipe.precision == "tf32"),
        ):
            for some in torch.split(rows, _BATCH.get(self.device.type, 256)):
                batch = self.task.prepared({name: column[some] for name, column in data.items()})
                parts.append(measure(self.task.output(self.module, batch), batch))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Evaluation:
    """A test population on a device; per-example losses and metrics of any params."""

    def __init__(
        self, task: Task, test: Population, device: torch.device, recipe: Recipe | None = None
    ) -> None:
        if not test.examples:
            raise DataError("there are no examples to evaluate on")
        self.task, self.test = task, test
        self._forward = Forward(task, device, recipe or Recipe())
        self._data = to_tensors(test, task.columns, device)
        rows = np.arange(test.examples) if test.rows is None else np.asarray(test.rows)
        self._rows = torch.from_numpy(rows).to(device)
        self._tenths = _tenths(test)

    def values(self, params: Tensor) -> dict[str, Tensor]:
        """Loss and metrics of every example, in client order."""
        measures = {"loss": self.task.loss, **self.task.metrics}

        def measure(output: Any, batch: Batch) -> dict[str, Tensor]:
            targets = [batch[name] for name in self.task.targets]
            return {name: of(output, *targets).float() for name, of in measures.items()}

        return self._forward.look(params, self._data, self._rows, measure)

    def means(self, params: Tensor) -> dict[str, Tensor]:
        """Loss and metrics over all examples, still on the device."""
        return self.measured(params)[0]

    def measured(self, params: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss and metrics over all examples, and of each tenth of clients if there are ten."""
        values = self.values(params)
        means = {name: each.mean() for name, each in values.items()}
        if self._tenths is None:
            return means, {}
        self._tenths = self._tenths.to(self._rows.device)
        return means, {name: self._tenths @ each for name, each in values.items()}

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


def _tenths(test: Population) -> Tensor | None:
    """Takes the mean over each tenth of clients, as a matrix; None for fewer than ten clients."""
    sizes = test.sizes
    if np.count_nonzero(sizes) < 10:
        return None
    tenth = torch.from_numpy(np.repeat(tenths(sizes), sizes))
    member = (tenth == torch.arange(1, 11)[:, None]).float()
    return member / member.sum(1, keepdim=True)
