"""Lanes: many clients' local training side by side on one device.

Every tick, each lane takes one local step on its own client's next batch; when a client ends, its
weighted params are added to the running sum and the lane starts the next client from the global
params. Memory grows with the lanes and not with the cohort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hubless.simulate.graphs import Graphs
from hubless.simulate.local import seed_draws
from hubless.simulate.schedule import Floats, Ints, Schedule, lay_out
from hubless.simulate.tick import Tick
from hubless.simulate.work import Cohort, Learned, Work
from hubless.train.factored import Factors
from hubless.train.optimizers import fresh_slots
from hubless.train.precision import tf32

_LONGEST_UNROLL = 16
_FEW = 8
"""So many lanes are begun and added up one by one, which takes fewer kernels."""


class Lanes:
    """So many clients at once; `compiled` for speed, and on a GPU the step captured as a graph."""

    def __init__(
        self,
        work: Work,
        data: Mapping[str, Tensor],
        device: torch.device,
        lanes: int,
        *,
        compiled: bool = False,
    ) -> None:
        self.work, self.data, self.device = work, dict(data), device
        self.lanes, self.compiled = lanes, compiled
        self._global = torch.zeros(work.layout.size, device=device)
        if compiled:
            self._tick = Tick.shared(work, device, lanes)
            for column in self.data.values():
                # what is compiled is the same for every population
                torch._dynamo.maybe_mark_dynamic(column, 0)
        else:
            weights = work.layout.named(self._global)
            self._tick = Tick(work, device, lanes, weights, work.sample(self.data, 4))
        self._factors = self._tick.factors
        apart = {f"{factor.name}.weight" for factor in self._factors}
        places = work.layout.trained
        self._stacked = [i for i, place in enumerate(places) if place.name not in apart]
        places = tuple(places[i] for i in self._stacked)
        zeros = [torch.zeros(lanes, *place.shape, device=device) for place in places]
        optimizer = work.recipe.optimizer
        self._params = zeros
        self._slots = fresh_slots(optimizer, zeros)
        self._sums = [torch.zeros_like(p) for p in zeros] if work.recipe.batch is None else []
        self._losses = torch.zeros(lanes, device=device)
        views = work.layout.views(self._global)
        self._anchors = [views[i] for i in self._stacked]
        constants = work.layout.places[len(work.layout.trained) :]
        buffers, values = dict(self._tick.module.named_buffers()), work.layout.named(self._global)
        self._buffers = [(buffers[place.name], values[place.name]) for place in constants]
        self._lr = torch.tensor(optimizer.lr, device=device)
        self._programs: dict[tuple[int, bool, int], Callable[..., None]] = {}
        slots = [slot for slots in self._slots for slot in slots]
        factors = [part for factor in self._factors for part in (factor.inputs, factor.outputs)]
        self._graphs = Graphs([*self._params, *slots, *self._sums, self._losses, *factors])
        self._unrolls: list[int] = []

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        work = self.work
        schedule = lay_out(
            work.population, cohort.clients, work.recipe, self.lanes, work.seed, cohort.drawn
        )
        seed_draws(cohort.key(work.seed, "lanes", self.lanes), self.device)
        with torch.no_grad(), tf32(work.recipe.precision != "float32"):
            self._global.copy_(params)
            for buffer, value in self._buffers:
                buffer.copy_(value)
            self._lr.fill_(work.recipe.lr(cohort.round))
            return self._follow(schedule, cohort, each)

    def _follow(self, schedule: Schedule, cohort: Cohort, each: bool) -> Learned:
        layout, clients = self.work.layout, len(cohort.clients)
        rows, shares, step = (
            torch.from_numpy(a).to(self.device, non_blocking=True)
            for a in (schedule.rows, schedule.shares, schedule.step)
        )
        weights = np.append(cohort.weights, 0.0).astype(np.float32)[schedule.client]
        # what ends nowhere goes to one place past the last client
        ending = np.where(schedule.ends, schedule.client, clients)
        receiving = torch.from_numpy(ending).to(self.device, non_blocking=True)
        total = torch.zeros(layout.size, device=self.device)
        totals = layout.views(total)
        kept = torch.zeros(clients + 1, layout.size, device=self.device) if each else None
        losses = torch.zeros(clients + 1, device=self.device)
        # a client's params wait for the last part of a step; what an idle lane holds is nobody's
        waits = self.work.recipe.batch is None
        masks = (schedule.step == 0).any(1) & waits
        widths = self._widths(schedule)
        stretches = list(schedule.stretches())
        self._plan_unrolls([stop - start for start, stop in stretches])
        for start, stop in stretches:
            if schedule.begins[start].any():
                self._begin(schedule.begins[start], schedule.client[start] < 0)
            at = start
            while at < stop:
                length = next(n for n in self._unrolls if n <= stop - at)
                masked = bool(masks[at : at + length].any())
                width = int(widths[at : at + length].max())
                if self.device.type == "cpu":
                    # a graph would always have to take the same
                    for factor in self._factors:
                        factor.reach(int(schedule.step[at].max()) - 1)
                self._advance(rows, shares, step, at, length, masked, width)
                at += length
            if not schedule.ends[stop - 1].any():
                continue
            losses.index_add_(0, receiving[stop - 1], self._losses)
            if kept is None:
                self._add(totals, weights[stop - 1], schedule.ends[stop - 1])
            else:
                self._keep(kept, receiving[stop - 1])
        # buffers are constants here: what changes them does not run in lanes
        constants = slice(layout.trained[-1].stop, None)
        total[constants] = self._global[constants] * float(cohort.weights.sum())
        if kept is None:
            return Learned(total, None, losses[:-1])
        kept[:, constants] = self._global[constants]
        return Learned(None, kept[:-1], losses[:-1])

    def _widths(self, schedule: Schedule) -> Ints:
        if self.compiled and self.device.type == "cpu":
            # compiling for another width takes longer than it saves
            return np.full(schedule.ticks, schedule.rows.shape[2])
        return schedule.widths(coarse=self.compiled)

    def _begin(self, begins: Any, idle: Any) -> None:
        """Start lanes from the global params."""
        if (begins | idle).all():
            if self._params:  # all may be in factors
                anchors = zip(self._anchors, self._params, strict=True)
                torch._foreach_copy_(self._params, [a.expand_as(p) for a, p in anchors])
            for group in (*zip(*self._slots, strict=True), self._sums):
                if group:
                    torch._foreach_zero_(list(group))
            self._losses.zero_()
            for factor in self._factors:
                factor.begin(None)
            return
        chosen = np.flatnonzero(begins)
        lanes = torch.from_numpy(chosen).to(self.device, non_blocking=True)
        for factor in self._factors:
            factor.begin(lanes)
        cleared = [*(s for slots in self._slots for s in slots), *self._sums, self._losses]
        if len(chosen) <= _FEW and self._params:
            # a few kernels for all arrays of a lane, instead of one for each array
            for lane in chosen.tolist():
                torch._foreach_copy_([array[lane] for array in self._params], self._anchors)
            torch._foreach_zero_([array[lane] for array in cleared for lane in chosen.tolist()])
            return
        for anchor, array in zip(self._anchors, self._params, strict=True):
            array.index_copy_(0, lanes, anchor.expand(len(lanes), *anchor.shape))
        for array in cleared:
            array.index_fill_(0, lanes, 0.0)

    def _add(self, totals: Sequence[Tensor], weights: Floats, ends: Any) -> None:
        """Add what lanes that end have come to, each with its weight, to the running sum."""
        # not the others times zero: theirs need not be finite
        chosen = np.flatnonzero(ends)
        if len(chosen) < min(_FEW + 1, self.lanes) and not self._factors:
            into = [totals[i] for i in self._stacked]
            for lane in chosen.tolist():
                learned = [array[lane] for array in self._params]
                torch._foreach_add_(into, learned, alpha=float(weights[lane]))
            return
        some = None
        weighing = torch.from_numpy(weights[chosen]).to(self.device, non_blocking=True)
        if len(chosen) < self.lanes:
            some = torch.from_numpy(chosen).to(self.device, non_blocking=True)
        for i, array in zip(self._stacked, self._params, strict=True):
            array = array if some is None else array[some]
            totals[i].view(-1).addmv_(array.view(len(array), -1).t(), weighing)
        for factor in self._factors:
            factor.add(totals[self._place(factor)], weighing, some)

    def _keep(self, kept: Tensor, receiving: Tensor) -> None:
        """Put what lanes have come to where each client's params are kept."""
        arrays = dict(zip(self._stacked, self._params, strict=True))
        arrays.update({self._place(factor): factor.each() for factor in self._factors})
        for i, place in enumerate(self.work.layout.trained):
            learned = arrays[i].reshape(self.lanes, -1)
            kept[:, place.start : place.stop].index_copy_(0, receiving, learned)

    def _place(self, factor: Factors) -> int:
        names = [place.name for place in self.work.layout.trained]
        return names.index(f"{factor.name}.weight")

    def _plan_unrolls(self, lengths: list[int]) -> None:
        """How many steps one compiled call takes: all of a stretch, where most are alike."""
        if self._unrolls or not lengths:
            return
        if not self.compiled or self.device.type == "cuda":
            self._unrolls = [1]
            return
        usual, times = Counter(lengths).most_common(1)[0]
        if times > len(lengths) / 2 and usual <= _LONGEST_UNROLL:
            self._unrolls = sorted({usual, 1}, reverse=True)
        else:
            self._unrolls = [4, 1]

    def _advance(
        self,
        rows: Tensor,
        shares: Tensor,
        step: Tensor,
        at: int,
        length: int,
        masked: bool,
        width: int,
    ) -> None:
        """Take the next steps on all lanes."""
        key = (length, masked, width)
        if key not in self._programs:
            self._programs[key] = self._program(length, masked, width)
        ticks = slice(at, at + length)
        self._programs[key](rows[ticks, :, :width], shares[ticks, :, :width], step[ticks])

    def _program(self, length: int, masked: bool, width: int) -> Callable[..., None]:
        make = self._tick.compiled if self.compiled else self._tick.steps
        steps = make(length, masked, width)

        def bound(rows: Tensor, shares: Tensor, step: Tensor) -> None:
            steps(
                self._params,
                self._slots,
                self._sums,
                self._losses,
                self._anchors,
                self._lr,
                self.data,
                rows,
                shares,
                step,
            )

        return self._graphs.captured(bound) if self.device.type == "cuda" else bound
