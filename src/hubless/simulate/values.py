"""What training the clients of a cohort is worth, told from the params that they start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hubless.simulate.evaluate import Forward
from hubless.simulate.job import Cohort, Ints, Job, Learned, Running
from hubless.train.task import Batch
from hubless.train.values import GradientNorm, UpdateNorm, ValueOfLosses

_LOSS = "the loss itself"


class Valuing:
    """Adds to what a cohort's training came to what it was worth."""

    def __init__(self, job: Job, data: Mapping[str, Tensor], device: torch.device) -> None:
        self.job, self.data, self.device = job, dict(data), device
        self._forward = Forward(job.task, device, job.recipe)

    def run(self, running: Running, params: Tensor, cohort: Cohort, *, each: bool) -> Learned:
        """Train a cohort, and value its clients."""
        value = self.job.value
        if isinstance(value, UpdateNorm):
            return self._by_update(running, params, cohort, each)
        # first what needs the params as they are
        if isinstance(value, GradientNorm):
            values = self._gradient_norms(params, cohort.clients)
        else:
            values = self._of_losses(cast(ValueOfLosses, value), params, cohort.clients)
        return replace(running.run(params, cohort, each=each), values=values)

    def _by_update(self, running: Running, params: Tensor, cohort: Cohort, each: bool) -> Learned:
        learned = running.run(params, cohort, each=True)
        kept = cast(Tensor, learned.each)
        norms = torch.linalg.vector_norm(kept - params.to(kept.device), dim=1)
        if each:
            return replace(learned, values=norms)
        weights = torch.from_numpy(cohort.weights.astype(np.float32)).to(kept.device)
        return Learned(kept.t() @ weights, None, learned.losses, norms)

    def _of_losses(self, value: ValueOfLosses, params: Tensor, clients: Ints) -> Tensor:
        task = self.job.task
        rows, sizes = self._rows(clients)
        if not len(rows):
            return torch.zeros(len(clients), device=self.device)

        def measure(output: Any, batch: Batch) -> dict[str, Tensor]:
            targets = {name: batch[name] for name in task.targets}
            return {**targets, _LOSS: task.loss(output, *targets.values()).float()}

        columns = self._forward.look(params, self.data, rows, measure)
        with torch.inference_mode():
            return value(columns.pop(_LOSS), columns, torch.repeat_interleave(sizes), sizes)

    def _gradient_norms(self, params: Tensor, clients: Ints) -> Tensor:
        forward, task = self._forward, self.job.task
        forward.layout.load(forward.module, params)
        trained = [p for p in forward.module.parameters() if p.requires_grad]
        norms = torch.zeros(len(clients), device=self.device)
        for i, client in enumerate(clients):
            rows, _ = self._rows(np.array([client]))
            # cuDNN's recurrent layers have no backward pass while they only look
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                batch = {name: column[rows] for name, column in self.data.items()}
                loss = task.losses(forward.module, batch).mean()
                gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            squares = [g.square().sum() for g in gradients if g is not None]
            norms[i] = torch.stack(squares).sum().sqrt()
        return norms

    def _rows(self, clients: Ints) -> tuple[Tensor, Tensor]:
        rows, sizes = self.job.rows_of(clients)
        return torch.from_numpy(rows).to(self.device), torch.from_numpy(sizes).to(self.device)
