"""One client after another, on the module itself: for what cannot be vectorised, and to debug."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from hubless.errors import ClientFailed
from hubless.rng import keys
from hubless.simulate.job import Cohort, Job, Learned
from hubless.simulate.ways.schedule import Schedule, lay_out
from hubless.simulate.ways.step import autocast, channels_last, descend, seed_draws
from hubless.train.layers.precision import tf32
from hubless.train.optimizers import fresh_slots


class Plain:
    """One lane, eager: breakpoints work, and an error names its client."""

    def __init__(self, job: Job, data: Mapping[str, Tensor], device: torch.device) -> None:
        self.job, self.data, self.device = job, dict(data), device
        self.module = copy.deepcopy(job.task.module).to(device).train()
        if channels_last(self.module) and not self._runs():
            channels_last(self.module, wanted=False)
        arrays = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.arrays = [arrays[place.name] for place in job.layout.places]
        self.trained = self.arrays[: len(job.layout.trained)]
        shared = {place.name for place in job.layout.places}
        # what clients do not share each finds as it was, too: counters, of batches seen
        own = [b for name, b in self.module.named_buffers() if name not in shared]
        self._counters = [(buffer, buffer.clone()) for buffer in own]
        self._global = torch.zeros(job.layout.size, device=device)
        self.anchors = job.layout.views(self._global)

    def _runs(self) -> bool:
        """Whether the module can be run as it is, tried on a copy."""
        try:
            with torch.no_grad(), torch.random.fork_rng():
                few = self.job.sample(self.data, 2)
                self.job.task.losses(copy.deepcopy(self.module), few)
        except Exception:
            return False
        return True

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        job, layout, clients = self.job, self.job.layout, len(cohort.clients)
        self._global.copy_(params)
        schedule = lay_out(job.population, cohort.clients, job.recipe, 1, job.seed, cohort.drawn)
        total = torch.zeros(layout.size, device=self.device)
        totals = layout.views(total)
        kept = torch.zeros(clients, layout.size, device=self.device) if each else None
        losses = torch.zeros(clients, device=self.device)
        # on its own stream each, so that what a client draws depends neither on who went before
        # it nor on which worker it runs on
        seeds = keys(job.seed, "client", cohort.drawn, cohort.clients) >> 1
        lr = torch.tensor(job.recipe.lr(cohort.round), device=self.device)
        # wherever this is called from, and whatever an interrupt has left behind
        with torch.enable_grad(), tf32(job.recipe.precision == "tf32"):
            for start, stop in schedule.stretches():
                i = int(schedule.client[start, 0])
                seed_draws(int(seeds[i]), self.device)
                try:
                    losses[i] = self._train(schedule, start, stop, lr)
                except torch.OutOfMemoryError:
                    # no fault of the client's
                    raise
                except Exception as error:
                    client = int(cohort.clients[i])
                    raise ClientFailed(
                        f"client {client} failed in round {cohort.round + 1}: "
                        f"{type(error).__name__}: {error}",
                        client,
                        cohort.round + 1,
                    ) from error
                with torch.no_grad():
                    if kept is None:
                        torch._foreach_add_(totals, self.arrays, alpha=float(cohort.weights[i]))
                    else:
                        torch._foreach_copy_(layout.views(kept[i]), self.arrays)
        return Learned(None if each else total, kept, losses)

    def start(self, params: Tensor) -> None:
        """Have the module start from these params."""
        self._global.copy_(params)
        self._begin()

    def _begin(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.arrays, self.anchors)
            for counter, before in self._counters:
                counter.copy_(before)

    def _train(self, schedule: Schedule, start: int, stop: int, lr: Tensor) -> Tensor:
        """One client's steps, from the global params."""
        job, recipe, trained = self.job, self.job.recipe, self.trained
        self._begin()
        slots = fresh_slots(recipe.optimizer, trained)
        lost = torch.zeros((), device=self.device)
        sums: list[Tensor] | None = None
        rows = torch.from_numpy(schedule.rows[start:stop, 0]).to(self.device)
        step = torch.from_numpy(schedule.step[start:stop, 0]).to(self.device)
        anchors = self.anchors[: len(trained)]
        # only the last batch of an epoch is short: cut it rather than fill it up
        counts = (schedule.shares[start:stop, 0] > 0).sum(1).tolist()
        shares = schedule.shares[start:stop, 0, 0].tolist()
        complete = (schedule.step[start:stop, 0] > 0).tolist()
        for i in range(stop - start):
            batch = {name: column[rows[i, : counts[i]]] for name, column in self.data.items()}
            with autocast(recipe, self.device):
                total = job.task.losses(self.module, batch).sum()
            for parameter in trained:
                parameter.grad = None
            (total * shares[i]).backward()
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
            with torch.no_grad():
                lost += total
                if sums is not None:
                    torch._foreach_add_(gradients, sums)
                sums = None if complete[i] else gradients
                if complete[i]:
                    descend(recipe, trained, gradients, slots, anchors, step[i], lr, masked=False)
        return lost
