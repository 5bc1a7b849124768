"""Lanes with a layer in dual coordinates: what no step needs to look at is done for all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hubless.simulate.job import Cohort, Ints, Job, Learned
from hubless.simulate.ways.lanes import Lanes
from hubless.train.layers.dual import GIVEN, DualTask
from hubless.train.layers.products import product

_AT_ONCE = 8 << 20
"""So many numbers are held of clients that are looked at together, unless lanes have more."""
_REMEMBERED = 256 << 20
"""Bytes of clients' products with themselves that are kept from round to round."""


class Dual:
    """Trains clients as lanes do; `task` is the job's own with a layer in dual coordinates."""

    def __init__(
        self,
        job: Job,
        data: Mapping[str, Tensor],
        device: torch.device,
        lanes: int,
        task: DualTask,
        *,
        compiled: bool = False,
    ) -> None:
        self.job, self.data = job, data
        self._layer = task.module.dual
        self._inner = replace(job, task=task)
        places = {place.name: place for place in self._inner.layout.places}
        self._moved = places[task.module.moved_name]
        self._lanes = Lanes(self._inner, {}, device, lanes, compiled=compiled, gathered=True)
        # no lane idles that need not
        weight = job.task.module.get_parameter(self._layer.weight)
        each = self._inner.layout.size + self._moved.shape[0] * weight.shape[1]
        self._at_once = max(_AT_ONCE // each // lanes, 1) * lanes
        self._products: dict[int, Tensor] = {}
        self._remembered = 0

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        with torch.no_grad():
            parts = [self._run(params, part, each) for part in self._parts(cohort)]
        losses = torch.cat([part.losses for part in parts])
        if each:
            return Learned(None, torch.cat([cast(Tensor, part.each) for part in parts]), losses)
        total = cast(Tensor, parts[0].total)
        for part in parts[1:]:
            total += cast(Tensor, part.total)
        return Learned(total, None, losses)

    def _parts(self, cohort: Cohort) -> Iterator[Cohort]:
        """As many clients at a time as there is room for."""
        count = len(cohort.clients)
        for start in range(0, max(count, 1), self._at_once):
            yield cohort.part(np.arange(start, min(start + self._at_once, count)))

    def _run(self, params: Tensor, cohort: Cohort, each: bool) -> Learned:
        job, arrays = self.job, self.job.layout.named(params)
        rows, sizes = job.rows_of(cohort.clients)
        if not len(rows):
            nothing = torch.zeros(len(sizes) if each else 1, job.layout.size)
            total, kept = (None, nothing) if each else (nothing[0], None)
            return Learned(total, kept, torch.zeros(len(sizes)))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        first = np.cumsum(sizes) - sizes
        place = torch.from_numpy(np.arange(len(rows)) - first[owner])
        chosen = torch.from_numpy(rows)
        batch = {name: column.index_select(0, chosen) for name, column in self.data.items()}
        inputs = job.task.prepared(batch)[self._layer.column].flatten(1)
        weight = arrays[self._layer.weight]
        given = (product(inputs, weight), self._rows(inputs, cohort.clients, sizes, first), place)
        self._lanes.look_at({**batch, **dict(zip(GIVEN, given, strict=True))})
        learned = self._lanes.run(self._start(arrays), cohort, each=True)
        come_to = cast(Tensor, learned.each)
        moved = come_to[:, self._moved.start : self._moved.stop].view(-1, *self._moved.shape)
        if each:
            whole = self._each(come_to, weight, moved, inputs, sizes, first)
            return Learned(None, whole, learned.losses)
        # who has no examples has learned nothing, and counts for nothing
        weights = torch.from_numpy(np.where(sizes > 0, cohort.weights, 0.0).astype(np.float32))
        steps = (moved * weights[:, None, None]).flatten(0, 1)
        if len(steps) > len(inputs):
            # what is beyond a client's examples is nobody's
            steps = steps[torch.from_numpy(owner) * self._moved.shape[0] + place]
        total = torch.empty(job.layout.size)
        others = self._inner.layout.named(weights @ come_to)
        for name, array in job.layout.named(total).items():
            if name == self._layer.weight:
                change = product(steps.t(), inputs.t())
                torch.add(change, weight, alpha=float(weights.sum()), out=array)
            else:
                array.copy_(others[f"module.{name}"])
        return Learned(total, None, learned.losses)

    def _start(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Where lanes begin: nothing has moved."""
        start = torch.zeros(self._inner.layout.size)
        for name, array in self._inner.layout.named(start).items():
            if name != self._moved.name:
                array.copy_(arrays[name.removeprefix("module.")])
        return start

    def _each(
        self, kept: Tensor, weight: Tensor, moved: Tensor, inputs: Tensor, sizes: Ints, first: Ints
    ) -> Tensor:
        """Every client's params, written out."""
        whole = torch.zeros(len(sizes), self.job.layout.size)
        others = {place.name: place for place in self._inner.layout.places}
        for place in self.job.layout.places:
            into = whole[:, place.start : place.stop]
            if place.name != self._layer.weight:
                there = others[f"module.{place.name}"]
                into.copy_(kept[:, there.start : there.stop])
                continue
            for i in np.flatnonzero(sizes).tolist():
                mine = inputs[first[i] : first[i] + sizes[i]]
                learned = product(moved[i, : sizes[i]].t(), mine.t())
                into[i].copy_((weight + learned).flatten())
        return whole

    def _rows(self, inputs: Tensor, clients: Ints, sizes: Ints, first: Ints) -> Tensor:
        """Each example's products with all examples of its client."""
        tables = []
        for client, size, at in zip(clients.tolist(), sizes.tolist(), first.tolist(), strict=True):
            table = self._products.get(client)
            if table is None:
                mine = inputs[at : at + size]
                table = functional.pad(product(mine, mine), (0, self._moved.shape[0] - size))
                if self._remembered + table.nbytes <= _REMEMBERED:
                    self._remembered += table.nbytes
                    self._products[client] = table
            tables.append(table)
        return torch.cat(tables)
