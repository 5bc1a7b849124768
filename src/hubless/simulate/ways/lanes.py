"""Lanes: many clients' local training side by side on one device.

Every tick, each lane takes one local step on its own client's next batch; when a client ends, its
weighted params are added to the running sum and the lane starts the next client from the global
params. Memory grows with the lanes and not with the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hubless.simulate.job import Cohort, Job, Learned
from hubless.simulate.ways.graphs import Graphs
from hubless.simulate.ways.schedule import Floats, Ints, Schedule, lay_out, ticks_of
from hubless.simulate.ways.step import seed_draws
from hubless.simulate.ways.tick import Tick
from hubless.train.layers.factored import Factors
from hubless.train.layers.precision import tf32
from hubless.train.optimizers import fresh_slots

_LONGEST_UNROLL = 16
_ALIKE = 0.9
"""Where fewer than this share of clients take equally many steps, some client begins or ends at
almost every tick."""
_FLOW = 4
"""So many ticks are one call then."""
_FEW = 8
"""So many lanes are begun and added up one by one, which takes fewer kernels."""


@dataclass(frozen=True)
class _Orders:
    """A schedule, on the device what steps need of it, and what clients count for."""

    schedule: Schedule
    rows: Tensor
    shares: Tensor
    step: Tensor
    weights: Floats
    masks: NDArray[np.bool_]


class Lanes:
    """So many clients at once; `compiled` for speed, and on a GPU the step captured as a graph.

    Where data are `gathered`, they are those of a cohort's clients alone, one after the other.
    """

    def __init__(
        self,
        job: Job,
        data: Mapping[str, Tensor],
        device: torch.device,
        lanes: int,
        *,
        compiled: bool = False,
        gathered: bool = False,
    ) -> None:
        self.job, self.device = job, device
        self.lanes, self.compiled, self.gathered = lanes, compiled, gathered
        self.look_at(data)
        self._global = torch.zeros(job.layout.size, device=device)
        if compiled:
            self._tick = Tick.shared(job, device, lanes)
        elif gathered:
            # there is nothing yet to try factors on
            self._tick = Tick(job, device, lanes)
        else:
            weights = job.layout.named(self._global)
            self._tick = Tick(job, device, lanes, weights, job.sample(self.data, 4))
        self._factors = self._tick.factors
        apart = {f"{factor.name}.weight" for factor in self._factors}
        places = job.layout.trained
        self._stacked = [i for i, place in enumerate(places) if place.name not in apart]
        places = tuple(places[i] for i in self._stacked)
        zeros = [torch.zeros(lanes, *place.shape, device=device) for place in places]
        optimizer = job.recipe.optimizer
        self._params = zeros
        self._slots = fresh_slots(optimizer, zeros)
        self._sums = [torch.zeros_like(p) for p in zeros] if job.recipe.batch is None else []
        self._losses = torch.zeros(lanes, device=device)
        views = job.layout.views(self._global)
        self._anchors = [views[i] for i in self._stacked]
        constants = job.layout.places[len(job.layout.trained) :]
        buffers, values = dict(self._tick.module.named_buffers()), job.layout.named(self._global)
        self._buffers = [(buffers[place.name], values[place.name]) for place in constants]
        self._lr = torch.tensor(optimizer.lr, device=device)
        self._programs: dict[tuple[int, bool, int], Callable[..., None]] = {}
        slots = [slot for slots in self._slots for slot in slots]
        factors = [part for factor in self._factors for part in (factor.inputs, factor.outputs)]
        self._graphs = Graphs([*self._params, *slots, *self._sums, self._losses, *factors])
        self._unrolls, self._flows = self._plan_calls()

    def look_at(self, data: Mapping[str, Tensor]) -> None:
        """Train on these columns from now on."""
        self.data = dict(data)
        if self.compiled:
            for column in self.data.values():
                # what is compiled is the same for every population
                torch._dynamo.maybe_mark_dynamic(column, 0)

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        job = self.job
        schedule = lay_out(
            job.population,
            cohort.clients,
            job.recipe,
            self.lanes,
            job.seed,
            cohort.drawn,
            gathered=self.gathered,
        )
        seed_draws(cohort.key(job.seed, "lanes", self.lanes), self.device)
        with torch.no_grad(), tf32(job.recipe.precision != "float32"):
            self._global.copy_(params)
            for buffer, value in self._buffers:
                buffer.copy_(value)
            self._lr.fill_(job.recipe.lr(cohort.round))
            return self._follow(schedule, cohort, each)

    def _follow(self, schedule: Schedule, cohort: Cohort, each: bool) -> Learned:
        layout, clients = self.job.layout, len(cohort.clients)
        flows = self._flows and not each
        orders = self._orders(schedule.padded(_FLOW) if flows else schedule, cohort)
        total = torch.zeros(layout.size, device=self.device)
        kept = torch.zeros(clients + 1, layout.size, device=self.device) if each else None
        # what ends nowhere goes to one place past the last client
        losses = torch.zeros(clients + 1, device=self.device)
        if flows:
            self._flow(orders, layout.views(total), losses)
        else:
            self._go(orders, layout.views(total), kept, losses)
        # buffers are constants here: what changes them does not run in lanes
        constants = slice(layout.trained[-1].stop, None)
        total[constants] = self._global[constants] * float(cohort.weights.sum())
        if kept is None:
            return Learned(total, None, losses[:-1])
        kept[:, constants] = self._global[constants]
        return Learned(None, kept[:-1], losses[:-1])

    def _orders(self, schedule: Schedule, cohort: Cohort) -> _Orders:
        rows, shares, step = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (schedule.rows, schedule.shares, schedule.step)
        )
        weights = np.append(cohort.weights, 0.0).astype(np.float32)[schedule.client]
        # a client's params wait for the last part of a step; what an idle lane holds is nobody's
        masks = (schedule.step == 0).any(1) & (self.job.recipe.batch is None)
        return _Orders(schedule, rows, shares, step, weights, masks)

    def _go(
        self, orders: _Orders, totals: Sequence[Tensor], kept: Tensor | None, losses: Tensor
    ) -> None:
        """Take all steps, from one tick where clients begin or end to the next."""
        schedule, widths = orders.schedule, self._widths(orders.schedule)
        ending = np.where(schedule.ends, schedule.client, len(losses) - 1)
        receiving = torch.from_numpy(ending).to(self.device, non_blocking=True)
        for start, stop in schedule.stretches():
            if schedule.begins[start].any():
                self._begin(schedule.begins[start], schedule.client[start] < 0)
            at = start
            while at < stop:
                length = next(n for n in self._unrolls if n <= stop - at)
                width = int(widths[at : at + length].max())
                if self.device.type == "cpu":
                    # a graph would always have to take the same
                    for factor in self._factors:
                        factor.reach(int(schedule.step[at].max()) - 1)
                self._advance(orders, slice(at, at + length), width)
                at += length
            if not schedule.ends[stop - 1].any():
                continue
            losses.index_add_(0, receiving[stop - 1], self._losses)
            if kept is None:
                self._add(totals, orders.weights[stop - 1], schedule.ends[stop - 1])
            else:
                self._keep(kept, receiving[stop - 1])

    def _flow(self, orders: _Orders, totals: Sequence[Tensor], losses: Tensor) -> None:
        """Take all steps, clients beginning and ending on the way."""
        schedule = orders.schedule
        masked, width = self.job.recipe.batch is None, schedule.rows.shape[2]
        program = self._tick.compiled(_FLOW, masked, width, flowing=True)
        begins = torch.from_numpy(schedule.begins)
        weights = torch.from_numpy(np.where(schedule.ends, orders.weights, np.float32(0.0)))
        lost = torch.zeros(orders.step.shape)
        lanes = (self._params, self._slots, self._sums)
        constants = (self._anchors, self._lr, self.data)
        into = [totals[i] for i in self._stacked]
        for at in range(0, schedule.ticks, _FLOW):
            ticks = slice(at, at + _FLOW)
            given = (orders.rows[ticks], orders.shares[ticks], orders.step[ticks])
            program(*lanes, lost[ticks], *constants, *given, begins[ticks], weights[ticks], into)
        whose = torch.from_numpy(np.where(schedule.client < 0, len(losses) - 1, schedule.client))
        losses.index_add_(0, whose.flatten(), lost.flatten())

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
        for i, place in enumerate(self.job.layout.trained):
            learned = arrays[i].reshape(self.lanes, -1)
            kept[:, place.start : place.stop].index_copy_(0, receiving, learned)

    def _place(self, factor: Factors) -> int:
        names = [place.name for place in self.job.layout.trained]
        return names.index(f"{factor.name}.weight")

    def _plan_calls(self) -> tuple[list[int], bool]:
        """How many steps one call may take; and whether clients begin and end within one.

        That hangs on the population and on no cohort, or a resumed run would add otherwise.
        """
        if not self.compiled or self.device.type == "cuda":
            return [1], False
        sizes = self.job.population.sizes
        times = np.bincount(ticks_of(sizes[sizes > 0], self.job.recipe), minlength=1)
        usual, alike = int(times.argmax()), float(times.max() / max(times.sum(), 1))
        flows = self.lanes > 1 and alike < _ALIKE
        if alike > 0.5 and 0 < usual <= _LONGEST_UNROLL:
            return sorted({usual, 1}, reverse=True), flows
        return [4, 1], flows

    def _advance(self, orders: _Orders, ticks: slice, width: int) -> None:
        """Take the next steps on all lanes."""
        masked = bool(orders.masks[ticks].any())
        key = (ticks.stop - ticks.start, masked, width)
        if key not in self._programs:
            self._programs[key] = self._program(*key)
        rows, shares = orders.rows[ticks, :, :width], orders.shares[ticks, :, :width]
        self._programs[key](rows, shares, orders.step[ticks])

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
