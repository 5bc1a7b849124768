"""A client's local step as a function of params, for one lane or for many at once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.utils.deterministic
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hubless.train.layers.factored import Factors
from hubless.train.optimizers import Slots, per_lane
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

_deterministic: Any = torch.utils.deterministic
Constants = dict[str, Tensor]
Gradient = Callable[
    [list[Tensor], Constants, Batch, Tensor], tuple[list[Tensor], tuple[Tensor, list[Tensor]]]
]


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The precision of forward and backward passes."""
    if recipe.precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for one operation, within a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """What meets at the same place is added up in the same order every time, within a block.

    GPUs and what compiles for them would rather have it in any.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    tolerant = torch.is_deterministic_algorithms_warn_only_enabled()
    filling = _deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    _deterministic.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            # that something has no such order
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=tolerant)
        _deterministic.fill_uninitialized_memory = filling


def channels_last(module: nn.Module, wanted: bool = True) -> bool:
    """Lay convolutions' weights out as oneDNN and cuDNN like them; False if there are none.

    What comes out of such a convolution is laid out likewise, and cannot be viewed in every shape.
    """
    layout = torch.channels_last if wanted else torch.contiguous_format
    changed = False
    for part in module.modules():
        # a subclass may use its weight in ways of its own
        if type(part) is nn.Conv2d or type(part) is nn.ConvTranspose2d:
            part.weight.data = part.weight.data.to(memory_format=layout)
            changed = True
    return changed


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what dropout and the like draw from; torch.manual_seed takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def lane_gradient(
    task: Task,
    recipe: Recipe,
    module: nn.Module,
    names: list[str],
    lanes: int,
    factors: Sequence[Factors] = (),
) -> Gradient:
    """A function from stacked params, batches and shares to stacked gradients and summed losses.

    With factored layers it also takes what they are made of, and gives what they saw.
    """
    device = next(module.parameters()).device

    def objective(
        params: list[Tensor], constants: Constants, batch: Batch, shares: Tensor
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        def call(*inputs: Any, **keywords: Any) -> Any:
            named = {**dict(zip(names, params, strict=True)), **constants}
            return functional_call(module, named, inputs, keywords)

        try:
            with autocast(recipe, device):
                losses = task.losses(call, batch)
            activations = [cast(Tensor, factor.layer.activations) for factor in factors]
        finally:
            for factor in factors:
                factor.layer.activations = None
        return (losses * shares).sum(), ((losses.detach() * (shares > 0)).sum(), activations)

    alone = grad(objective, has_aux=True)
    if lanes > 1:
        shared = {f"{factor.name}.weight" for factor in factors}
        parts = [name for factor in factors for name in factor.constants]
        spread = {name: None if name in shared else 0 for name in parts}
        return vmap(alone, in_dims=(0, spread, 0, 0), randomness="different")

    def one(
        params: list[Tensor], constants: Constants, batch: Batch, shares: Tensor
    ) -> tuple[list[Tensor], tuple[Tensor, list[Tensor]]]:
        gradients, (loss, _) = alone(
            [p[0] for p in params], {}, {name: v[0] for name, v in batch.items()}, shares[0]
        )
        return [g[None] for g in gradients], (loss[None], [])

    return one


def descend(
    recipe: Recipe,
    params: list[Tensor],
    gradients: list[Tensor],
    slots: list[Slots],
    anchors: list[Tensor],
    step: Tensor,
    lr: Tensor,
    *,
    masked: bool,
) -> None:
    """The optimizer's step on every array, in place; where `masked`, step 0 leaves a lane as it is.

    Arrays may be stacked over lanes, with `step` one number per lane, or be one client's own.
    """
    counted = step.clamp(min=1)
    if recipe.proximal or recipe.clip is not None or not recipe.optimizer.takes_half:
        gradients = [g.float() for g in gradients]
    if recipe.proximal:
        gradients = [
            g + recipe.proximal * (p - a)
            for g, p, a in zip(gradients, params, anchors, strict=True)
        ]
    if recipe.clip is not None:
        first = step.ndim
        squares = [g.square().flatten(first).sum(-1) for g in gradients if g.ndim > first]
        squares += [g.square() for g in gradients if g.ndim == first]
        norm = torch.stack(squares).sum(0).sqrt()
        scale = (recipe.clip / (norm + 1e-6)).clamp(max=1.0)
        gradients = [g * per_lane(scale, g) for g in gradients]
    optimizer = recipe.optimizer
    for p, g, own_slots in zip(params, gradients, slots, strict=True):
        if not masked:
            optimizer.apply(p, g, own_slots, counted, lr)
            continue
        before = [array.clone() for array in (p, *own_slots)]
        optimizer.apply(p, g, own_slots, counted, lr)
        for array, old in zip((p, *own_slots), before, strict=True):
            array.copy_(torch.where(per_lane(step, p) > 0, array, old))
