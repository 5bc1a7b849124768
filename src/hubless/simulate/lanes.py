"""Lanes: many clients' local training side by side on one device.

Every tick, each lane takes one local step on its own client's next batch; when a client ends, its
weighted params are added to the running sum and the lane starts the next client from the global
params. Memory grows with the lanes and not with the cohort.
"""

from __future__ import annotations

import copy
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hubless.rng import keys
from hubless.simulate.graphs import capture
from hubless.simulate.local import descend, lane_gradient, seed_draws, tf32
from hubless.simulate.schedule import Schedule, lay_out
from hubless.simulate.work import Cohort, Learned, Work
from hubless.train.factored import FactoredLinear, Factors, factored
from hubless.train.layout import Place
from hubless.train.optimizers import Slots, per_lane
from hubless.train.recipe import Recipe
from hubless.train.vectorise import vectorised

logger = logging.getLogger("hubless")

_LONGEST_UNROLL = 16


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
        places = work.layout.trained
        module = (
            vectorised(work.task.module, device) if lanes > 1 else copy.deepcopy(work.task.module)
        )
        module = module.to(device).train()
        self._global = torch.zeros(work.layout.size, device=device)
        self._factors = self._factored(module) if lanes > 1 and not compiled else []
        apart = {f"{factor.name}.weight" for factor in self._factors}
        self._stacked = [i for i, place in enumerate(places) if place.name not in apart]
        places = tuple(places[i] for i in self._stacked)
        names = [place.name for place in places]
        names += [f"{factor.name}.nudge" for factor in self._factors]
        self._halved = [_is_halved(module, place, work.recipe) for place in places]
        self._gradient = lane_gradient(work.task, work.recipe, module, names, lanes, self._factors)
        zeros = [torch.zeros(lanes, *place.shape, device=device) for place in places]
        optimizer = work.recipe.optimizer
        self._params = zeros
        self._slots: list[Slots] = [
            tuple(torch.zeros_like(p) for _ in range(optimizer.slots)) for p in zeros
        ]
        self._sums = [torch.zeros_like(p) for p in zeros] if work.recipe.batch is None else []
        self._losses = torch.zeros(lanes, device=device)
        views = work.layout.views(self._global)
        self._anchors = [views[i] for i in self._stacked]
        constants = work.layout.places[len(work.layout.trained) :]
        buffers, values = dict(module.named_buffers()), work.layout.named(self._global)
        self._buffers = [(buffers[place.name], values[place.name]) for place in constants]
        self._lr = torch.tensor(optimizer.lr, device=device)
        self._programs: dict[tuple[int, bool, int], Callable[..., None]] = {}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._unrolls: list[int] = []

    def _factored(self, module: nn.Module) -> list[Factors]:
        """Layers that need no weight per lane, because clients take few steps."""
        work = self.work
        steps, batch = work.most_steps, work.sample(self.data, 4)
        weights = work.layout.named(self._global)
        return [
            Factors(
                cast(FactoredLinear, module.get_submodule(name)),
                name,
                weights[f"{name}.weight"],
                self.lanes,
                steps,
                work.recipe.batch or 1,
            )
            for name in factored(module, work.task, work.recipe, steps, batch)
        ]

    def run(self, params: Tensor, cohort: Cohort, *, each: bool = False) -> Learned:
        """Train a cohort from these params."""
        work = self.work
        schedule = lay_out(
            work.population, cohort.clients, work.recipe, self.lanes, work.seed, cohort.drawn
        )
        seed_draws(int(keys(work.seed, "lanes", cohort.drawn, self.lanes)) >> 1, self.device)
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
        weights = np.append(cohort.weights, 0.0)[schedule.client] * schedule.ends
        weighing = torch.from_numpy(weights.astype(np.float32)).to(self.device, non_blocking=True)
        # what ends nowhere goes to one place past the last client
        ending = np.where(schedule.ends, schedule.client, clients)
        receiving = torch.from_numpy(ending).to(self.device, non_blocking=True)
        total = torch.zeros(layout.size, device=self.device)
        totals = layout.views(total)
        kept = torch.zeros(clients + 1, layout.size, device=self.device) if each else None
        losses = torch.zeros(clients + 1, device=self.device)
        masks = (schedule.step == 0).any(1)
        # compiling for another width costs more than it saves
        widths = np.full(schedule.ticks, rows.shape[2]) if self.compiled else schedule.widths
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
                self._advance(rows, shares, step, at, length, masked, width)
                at += length
            if not schedule.ends[stop - 1].any():
                continue
            losses.index_add_(0, receiving[stop - 1], self._losses)
            if kept is None:
                self._add(totals, weighing[stop - 1])
            else:
                self._keep(kept, receiving[stop - 1])
        # buffers are constants here: what changes them does not run in lanes
        constants = slice(layout.trained[-1].stop, None)
        total[constants] = self._global[constants] * float(cohort.weights.sum())
        if kept is None:
            return Learned(total, None, losses[:-1])
        kept[:, constants] = self._global[constants]
        return Learned(None, kept[:-1], losses[:-1])

    def _begin(self, begins: Any, idle: Any) -> None:
        """Start lanes from the global params."""
        if (begins | idle).all():
            torch._foreach_copy_(
                self._params,
                [a.expand_as(p) for a, p in zip(self._anchors, self._params, strict=True)],
            )
            for group in (*zip(*self._slots, strict=True), self._sums):
                if group:
                    torch._foreach_zero_(list(group))
            self._losses.zero_()
            for factor in self._factors:
                factor.begin(None)
            return
        lanes = torch.from_numpy(np.flatnonzero(begins)).to(self.device, non_blocking=True)
        for factor in self._factors:
            factor.begin(lanes)
        for anchor, array in zip(self._anchors, self._params, strict=True):
            array.index_copy_(0, lanes, anchor.expand(len(lanes), *anchor.shape))
        for array in (*(s for slots in self._slots for s in slots), *self._sums, self._losses):
            array.index_fill_(0, lanes, 0.0)

    def _add(self, totals: Sequence[Tensor], weights: Tensor) -> None:
        """Add what lanes have come to, each with its weight, to the running sum."""
        for i, array in zip(self._stacked, self._params, strict=True):
            totals[i].view(-1).addmv_(array.view(self.lanes, -1).t(), weights)
        for factor in self._factors:
            factor.add(totals[self._place(factor)], weights)

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
        recipe, data = self.work.recipe, self.data
        gradient, halved, factors = self._gradient, self._halved, self._factors
        constants = {name: part for factor in factors for name, part in factor.constants.items()}
        nudges = [factor.nudge[:, :width] for factor in factors]

        def steps(
            params: list[Tensor],
            slots: list[Slots],
            sums: list[Tensor],
            losses: Tensor,
            anchors: list[Tensor],
            lr: Tensor,
            data: dict[str, Tensor],
            rows: Tensor,
            shares: Tensor,
            step: Tensor,
        ) -> None:
            for i in range(length):
                batch = {name: column[rows[i]] for name, column in data.items()}
                # weights are cast before they are differentiated, so that gradients stay small too
                values = [p.bfloat16() if h else p for p, h in zip(params, halved, strict=True)]
                gradients, (loss, seen) = gradient([*values, *nudges], constants, batch, shares[i])
                losses.add_(loss)
                gradients, moves = gradients[: len(params)], gradients[len(params) :]
                for factor, x, dy in zip(factors, seen, moves, strict=True):
                    factor.descend(x, dy, step[i], lr)
                if sums:
                    gradients = [s.add_(g).clone() for s, g in zip(sums, gradients, strict=True)]
                    for s in sums:
                        s.masked_fill_(per_lane(step[i] > 0, s), 0.0)
                descend(recipe, params, gradients, slots, anchors, step[i], lr, masked=masked)

        if self.compiled:
            _compile_here(self.device)
            steps = torch.compile(steps, dynamic=False, fullgraph=True)

        def bound(rows: Tensor, shares: Tensor, step: Tensor) -> None:
            steps(
                self._params,
                self._slots,
                self._sums,
                self._losses,
                self._anchors,
                self._lr,
                data,
                rows,
                shares,
                step,
            )

        return self._captured(bound) if self.device.type == "cuda" else bound

    def _captured(self, bound: Callable[..., None]) -> Callable[..., None]:
        """The same as a CUDA graph, which costs one launch however many kernels it has."""
        graph: torch.cuda.CUDAGraph | None = None
        inputs: list[Tensor] = []
        failed = False

        def replay(*given: Tensor) -> None:
            nonlocal graph, failed
            if graph is None and not failed:
                inputs.extend(g.clone() for g in given)
                try:
                    graph = capture(lambda: bound(*inputs), self._state, self._graph)
                    self._graph = graph
                except RuntimeError as error:
                    failed = True
                    reason = str(error).splitlines()[0]
                    logger.warning("not captured as a CUDA graph, so slower: %s", reason)
            if graph is None:
                bound(*given)
                return
            torch._foreach_copy_(inputs, list(given))
            graph.replay()

        return replay

    @property
    def _state(self) -> list[Tensor]:
        """Everything that a step changes."""
        slots = [slot for slots in self._slots for slot in slots]
        factors = [part for factor in self._factors for part in (factor.inputs, factor.outputs)]
        return [*self._params, *slots, *self._sums, self._losses, *factors]


def _compile_here(device: torch.device) -> None:
    """On a CPU, compile in this process: the compiler's helpers do not survive being forked.

    What it keeps is kept by kind of CPU: it would take one kind's code for another's.
    """
    if device.type == "cpu":
        import torch._inductor.config
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        torch._inductor.config.compile_threads = 1
        if os.environ.get(name := "TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir()):
            kind = torch.backends.cpu.get_cpu_capability()
            os.environ[name] = f"{default_cache_dir()}_{kind}"


def _is_halved(module: nn.Module, place: Place, recipe: Recipe) -> bool:
    """Whether a parameter is used in half precision: weights of products, as in autocast."""
    owner, _, _ = place.name.rpartition(".")
    looked_up = isinstance(module.get_submodule(owner), nn.Embedding)
    return recipe.precision == "bfloat16" and len(place.shape) > 1 and not looked_up
