"""A tick of all lanes: every client's next step, as a function of everything that it changes."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hubless.simulate.job import Job
from hubless.simulate.ways.step import descend, lane_gradient, repeatable
from hubless.train.layers.factored import FactoredLinear, Factors, factored
from hubless.train.layers.vectorise import vectorised
from hubless.train.layout import Place
from hubless.train.optimizers import SGD, Adam, AdamW, Slots, per_lane
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

Steps = Callable[..., None]
"""Of params, slots, sums and losses, all changed; anchors, lr, data, rows, shares and steps."""


class Tick:
    """The task's module in the form that so many lanes run, and what they do with it.

    Where `weights` are given, layers that a few steps change little need no weight per lane: these
    are kept as `factors` of the given weights. It is tried on a few examples which those are.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        lanes: int,
        weights: Mapping[str, Tensor] | None = None,
        examples: Batch | None = None,
    ) -> None:
        self.recipe = job.recipe
        module = job.task.module
        twin = vectorised(module, device) if lanes > 1 else copy.deepcopy(module)
        self.module = twin.to(device).train()
        self.factors: list[Factors] = []
        if lanes > 1 and weights is not None and examples is not None:
            self.factors = _factors(job, self.module, lanes, weights, examples)
        apart = {f"{factor.name}.weight" for factor in self.factors}
        places = [place for place in job.layout.trained if place.name not in apart]
        names = [place.name for place in places]
        names += [f"{factor.name}.nudge" for factor in self.factors]
        self._halved = [_is_halved(self.module, place, job.recipe) for place in places]
        # of its own, or what is kept with a task would keep the task
        task = replace(job.task, module=self.module)
        self._gradient = lane_gradient(task, job.recipe, self.module, names, lanes, self.factors)
        self._device = device
        self._compiled: dict[tuple[int, bool, int, bool], Steps] = {}

    @classmethod
    def shared(cls, job: Job, device: torch.device, lanes: int) -> Tick:
        """The same for all engines that run a task like this, so that it is compiled once."""
        ticks, module = _TICKS.setdefault(job.task, {}), job.task.module
        try:
            key = (_of_a_step(job.recipe), _but_for_numbers(module), device, lanes)
            tick = ticks.setdefault(key, None)
        except Exception:
            # an optimizer or a module that cannot be told from others, for whatever reason
            return cls(job, device, lanes)
        if tick is None:
            ticks[key] = tick = cls(job, device, lanes)
        tick.refresh(module)
        return tick

    def refresh(self, module: nn.Module) -> None:
        """Take over what is not trained as it is in a module by now."""
        with torch.no_grad():
            for of in (nn.Module.named_parameters, nn.Module.named_buffers):
                there = dict(of(module))
                for name, array in of(self.module):
                    if name in there and not array.requires_grad:
                        array.copy_(there[name])

    def steps(self, length: int, masked: bool, width: int) -> Steps:
        """So many ticks in a row, on batches so wide; `masked` where lanes may have to pause."""
        recipe, gradient, halved, factors = self.recipe, self._gradient, self._halved, self.factors
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
                batch = {name: _taken(column, rows[i]) for name, column in data.items()}
                thin = [factor.constants for factor in factors]
                constants = {name: part for parts in thin for name, part in parts.items()}
                # weights are cast before they are differentiated, so that gradients stay small too
                values = [p.bfloat16() if h else p for p, h in zip(params, halved, strict=True)]
                gradients, (loss, activations) = gradient(
                    [*values, *nudges], constants, batch, shares[i]
                )
                losses.add_(loss)
                gradients, moves = gradients[: len(params)], gradients[len(params) :]
                for factor, x, dy in zip(factors, activations, moves, strict=True):
                    factor.descend(x, dy, step[i], lr)
                if sums:
                    gradients = [s.add_(g).clone() for s, g in zip(sums, gradients, strict=True)]
                    for s in sums:
                        s.masked_fill_(per_lane(step[i] > 0, s), 0.0)
                descend(recipe, params, gradients, slots, anchors, step[i], lr, masked=masked)

        return steps

    def flow(self, length: int, masked: bool, width: int) -> Steps:
        """The same, where clients may begin and end at any tick; losses are told tick by tick."""
        tick = self.steps(1, masked, width)

        def flow(
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
            begins: Tensor,
            weights: Tensor,
            totals: list[Tensor],
        ) -> None:
            cleared = [*(s for own_slots in slots for s in own_slots), *sums]
            for i in range(length):
                for p, a in zip(params, anchors, strict=True):
                    p.copy_(torch.where(per_lane(begins[i], p), a, p))
                for array in cleared:
                    array.masked_fill_(per_lane(begins[i], array), 0.0)
                at = slice(i, i + 1)
                given = (rows[at], shares[at], step[at])
                tick(params, slots, sums, losses[i], anchors, lr, data, *given)
                for total, p in zip(totals, params, strict=True):
                    weight = per_lane(weights[i], p)
                    # what has not ended need not be finite, and zero times that is not zero
                    total.add_((torch.where(weight == 0, 0.0, p) * weight).sum(0))

        return flow

    def compiled(self, length: int, masked: bool, width: int, *, flowing: bool = False) -> Steps:
        """The same, compiled when it is first called."""
        key = (length, masked, width, flowing)
        if key not in self._compiled:
            _compile_here(self._device)
            make = self.flow if flowing else self.steps
            steps: Any = make(length, masked, width)
            # of the same code no more than eight may be compiled
            steps.__code__ = steps.__code__.replace()
            steps = torch.compile(steps, dynamic=False, fullgraph=True)
            self._compiled[key] = _repeatably(steps) if self._device.type == "cuda" else steps
        return self._compiled[key]


_TICKS: MutableMapping[Task, dict[Hashable, Tick | None]] = WeakIdKeyDictionary()
"""By task, for as long as it is there: those that were compiled for it."""


def _factors(
    job: Job, module: nn.Module, lanes: int, weights: Mapping[str, Tensor], examples: Batch
) -> list[Factors]:
    """Layers that need no weight per lane, because clients take few steps."""
    most = job.most_steps
    return [
        Factors(
            cast(FactoredLinear, module.get_submodule(name)),
            name,
            weights[f"{name}.weight"],
            lanes,
            most,
            job.recipe.batch or 1,
        )
        for name in factored(module, job.task, job.recipe, most, examples)
    ]


def _taken(column: Tensor, rows: Tensor) -> Tensor:
    """The examples in these rows."""
    # on a CPU this copies whole rows, where an index copies number by number
    return column.index_select(0, rows.flatten()).view(*rows.shape, *column.shape[1:])


def _repeatably(steps: Steps) -> Steps:
    """The same, but compiled so that it comes to the same bits every time."""

    def repeatably(*given: Any) -> None:
        with repeatable():
            steps(*given)

    return repeatably


def _of_a_step(recipe: Recipe) -> Recipe:
    """A recipe but for what makes no difference to a step: how many there are, and the rate."""
    optimizer = recipe.optimizer
    # one that somebody made of these may do with its rate what it likes
    if type(optimizer) in (SGD, Adam, AdamW):
        optimizer = replace(optimizer, lr=1.0)  # type: ignore[type-var]
    return replace(recipe, optimizer=optimizer, decay=1.0, epochs=1, steps=None, shuffle=True)


def _but_for_numbers(module: nn.Module) -> bytes:
    """All that a module is, but for what its arrays hold."""

    order: dict[int, int] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, part: Any) -> Any:
            if not isinstance(part, Tensor):
                return None
            # one that is used twice is the same one again
            place = order.setdefault(id(part), len(order))
            return place, part.shape, part.dtype, part.requires_grad

    written = io.BytesIO()
    Pickler(written).dump(module)
    return written.getvalue()


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
