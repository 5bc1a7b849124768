"""Lanes in tiers: many for most clients, and few for those that have far more examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from hubless.simulate.lanes import Lanes
from hubless.simulate.schedule import tiers
from hubless.simulate.work import Cohort, Learned, Work


class Tiers:
    """Lanes of several numbers over the same data, each made when it is first needed."""

    def __init__(
        self, work: Work, data: Mapping[str, Tensor], device: torch.device, lanes: int
    ) -> None:
        self.work, self.data, self.device, self.lanes = work, data, device, lanes
        self._of: dict[int, Lanes] = {}

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        offsets = self.work.population.offsets
        sizes = offsets[cohort.clients + 1] - offsets[cohort.clients]
        groups = tiers(sizes, self.work.recipe, self.lanes)
        if len(groups) == 1:
            return self._on(groups[0][0]).run(params, cohort, each=each)
        losses = torch.zeros(len(cohort.clients), device=self.device)
        kept: Tensor | None = None
        total: Tensor | None = None
        for lanes, part in groups:
            learned = self._on(lanes).run(params, cohort.part(part), each=each)
            where = torch.from_numpy(part).to(self.device)
            losses[where] = learned.losses
            if each:
                found = cast(Tensor, learned.each)
                if kept is None:
                    kept = found.new_zeros(len(cohort.clients), found.shape[1])
                kept[where] = found
            else:
                summed = cast(Tensor, learned.total)
                total = summed if total is None else total + summed
        return Learned(total, kept, losses)

    def _on(self, lanes: int) -> Lanes:
        if lanes not in self._of:
            self._of[lanes] = Lanes(self.work, self.data, self.device, lanes)
        return self._of[lanes]
