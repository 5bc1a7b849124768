"""Clients who take a single step, all of them in one.

What such a client comes to differs from the global params by its gradient alone. Where the
optimizer is linear in that, the weighted sum over clients is what one client with all of their
examples comes to, each example counting for as much as it does in its own client's step. So they
cost their examples, and no model each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.errors import TaskError
from hubless.simulate.job import Cohort, Ints, Job, Learned
from hubless.simulate.ways.graphs import Graphs
from hubless.simulate.ways.plain import Plain
from hubless.simulate.ways.step import autocast, descend, repeatable, seed_draws
from hubless.train.layers.precision import tf32
from hubless.train.optimizers import SGD, fresh_slots
from hubless.train.recipe import Recipe

_MOST = {"cuda": 2048, "cpu": 256}
_LEAST = 64
"""Examples at a time; on a GPU filled up to a power of two, of which each is another graph."""


def take_single_step(sizes: Ints, recipe: Recipe) -> NDArray[np.bool_]:
    """Which clients of so many examples take one step, on all of them, that adds up with others'.

    >>> take_single_step(np.array([0, 3, 10, 11]), Recipe(batch=10)).tolist()
    [False, True, True, False]
    """
    linear = type(recipe.optimizer) is SGD and recipe.clip is None
    whole = np.full(len(sizes), True) if recipe.batch is None else sizes <= recipe.batch
    return np.asarray(whole & (recipe.steps_for(sizes) == 1) & linear)


class Single:
    """Trains clients who take a single step, about so many examples at a time."""

    def __init__(
        self, job: Job, data: Mapping[str, Tensor], device: torch.device, examples: int
    ) -> None:
        self.job, self.data, self.device = job, dict(data), device
        self._plain = Plain(job, data, device)
        most = min(max(examples, _LEAST), _MOST.get(device.type, 256))
        self._chunk = 1 << (most.bit_length() - 1)
        self._lost = torch.zeros(self._chunk, device=device)
        self._gradients = [torch.zeros_like(p) for p in self._plain.trained]
        for parameter, gradient in zip(self._plain.trained, self._gradients, strict=True):
            parameter.grad = gradient
        self._programs: dict[int, Callable[..., None]] = {}
        self._graphs = Graphs([*self._gradients, self._lost])

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        if each:
            raise TaskError("what each client comes to is not told apart where they are one")
        job, plain = self.job, self._plain
        recipe, weight = job.recipe, float(cohort.weights.sum())
        rows, sizes = job.rows_of(cohort.clients)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        counts = (cohort.weights / (weight or 1.0) / np.maximum(sizes, 1))[owner]
        seed_draws(cohort.key(job.seed, "single"), self.device)
        plain.start(params)
        losses = torch.zeros(len(sizes), device=self.device)
        with tf32(recipe.precision != "float32"):
            torch._foreach_zero_(self._gradients)
            for start in range(0, len(rows), self._chunk):
                some = slice(start, start + self._chunk)
                lost = self._look(rows[some], counts[some].astype(np.float32))
                place = torch.from_numpy(owner[some]).to(self.device, non_blocking=True)
                # in a fixed order, which index_add_ does not keep on a GPU
                losses.index_put_((place,), lost, accumulate=True)
        with torch.no_grad():
            lr = torch.tensor(recipe.lr(cohort.round), device=self.device)
            step, trained = torch.ones((), device=self.device), plain.trained
            slots = fresh_slots(recipe.optimizer, trained)
            anchors = plain.anchors[: len(trained)]
            descend(recipe, trained, self._gradients, slots, anchors, step, lr, masked=False)
            total = torch.zeros(job.layout.size, device=self.device)
            torch._foreach_add_(job.layout.views(total), plain.arrays, alpha=weight)
        return Learned(total, None, losses)

    def _look(self, rows: Ints, counts: NDArray[np.float32]) -> Tensor:
        """Add the gradient of these examples to what there is; their losses."""
        number = len(rows)
        width = number
        if self.device.type == "cuda":
            width = max(_LEAST, 1 << (number - 1).bit_length())
            rows = np.append(rows, np.full(width - number, rows[0]))
            counts = np.append(counts, np.zeros(width - number, np.float32))
        if width not in self._programs:
            self._programs[width] = self._program(width)
        given = (torch.from_numpy(a).to(self.device, non_blocking=True) for a in (rows, counts))
        self._programs[width](*given)
        return self._lost[:number]

    def _order(self) -> AbstractContextManager[None]:
        return repeatable() if self.device.type == "cuda" else nullcontext()

    def _program(self, width: int) -> Callable[..., None]:
        def program(rows: Tensor, counts: Tensor) -> None:
            batch = {name: column[rows] for name, column in self.data.items()}
            with self._order(), torch.enable_grad(), autocast(self.job.recipe, self.device):
                losses = self.job.task.losses(self._plain.module, batch)
                (losses * counts).sum().backward()  # type: ignore[no-untyped-call]
            self._lost[:width].copy_(losses.detach())

        return self._graphs.captured(program) if self.device.type == "cuda" else program
