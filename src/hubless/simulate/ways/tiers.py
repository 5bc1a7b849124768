"""Lanes in tiers: many for most clients, and few for those that have far more examples.

Who takes a single step needs no lane at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hubless.simulate.job import Cohort, Ints, Job, Learned, Running
from hubless.simulate.ways.dual import Dual
from hubless.simulate.ways.lanes import Lanes
from hubless.simulate.ways.schedule import CHUNK, Costs, cost_in_one, tiers
from hubless.simulate.ways.single import Single, take_single_step
from hubless.train.layers.dual import DualTask

_WORTH = 0.75
"""Who takes a single step is run apart where that costs no more than this share of running all."""


class Tiers:
    """Lanes of several numbers over the same data, each made when it is first needed.

    With a layer in dual coordinates where a task is given that has it there.
    """

    def __init__(
        self,
        job: Job,
        data: Mapping[str, Tensor],
        device: torch.device,
        lanes: int,
        *,
        compiled: bool = False,
        dual: DualTask | None = None,
    ) -> None:
        self.job, self.data, self.device = job, data, device
        self.lanes, self.compiled, self.dual = lanes, compiled, dual
        self._of: dict[int, Running] = {}
        self._single: Single | None = None

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        offsets = self.job.population.offsets
        sizes = offsets[cohort.clients + 1] - offsets[cohort.clients]
        groups = self._groups(sizes, each)
        if len(groups) == 1:
            return groups[0][0].run(params, cohort, each=each)
        losses = torch.zeros(len(cohort.clients), device=self.device)
        kept: Tensor | None = None
        total: Tensor | None = None
        for running, part in groups:
            learned = running.run(params, cohort.part(part), each=each)
            where = torch.from_numpy(part).to(self.device)
            losses[where] = learned.losses
            if each:
                stack = cast(Tensor, learned.each)
                if kept is None:
                    kept = stack.new_zeros(len(cohort.clients), stack.shape[1])
                kept[where] = stack
            else:
                summed = cast(Tensor, learned.total)
                total = summed if total is None else total + summed
        return Learned(total, kept, losses)

    def _groups(self, sizes: Ints, each: bool) -> list[tuple[Running, Ints]]:
        """Who is run on what."""
        recipe = self.job.recipe
        parts, cost = self._tiers(sizes)
        single = np.flatnonzero(take_single_step(sizes, recipe))
        if len(single) and not each:
            others = np.setdiff1d(np.arange(len(sizes)), single)
            fewer, less = self._tiers(sizes[others]) if len(others) else ([], 0.0)
            if less + cost_in_one(sizes[single], recipe) < _WORTH * cost:
                rest = [(self._on(lanes), others[part]) for lanes, part in fewer]
                return [(self._in_one(), single), *rest]
        return [(self._on(lanes), part) for lanes, part in parts]

    def _tiers(self, sizes: Ints) -> tuple[list[tuple[int, Ints]], float]:
        if (
            self.lanes == 1
            or self.dual is not None
            or (self.compiled and self.device.type == "cpu")
        ):
            # compiling for another number of lanes takes longer than it saves, and products that
            # are remembered would be remembered for each
            cost = Costs(sizes, self.job.recipe, full=self.compiled).of(self.lanes)
            return [(self.lanes, np.arange(len(sizes)))], cost
        return tiers(sizes, self.job.recipe, self.lanes, coarse=self.compiled)

    def _in_one(self) -> Single:
        if self._single is None:
            # no more examples at a time than all lanes have
            examples = self.lanes * (self.job.recipe.batch or CHUNK)
            self._single = Single(self.job, self.data, self.device, examples)
        return self._single

    def _on(self, lanes: int) -> Running:
        if lanes not in self._of:
            given = (self.job, self.data, self.device, lanes)
            if self.dual is None:
                self._of[lanes] = Lanes(*given, compiled=self.compiled)
            else:
                self._of[lanes] = Dual(*given, self.dual, compiled=self.compiled)
        return self._of[lanes]
