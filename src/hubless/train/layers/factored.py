"""Linear layers whose weights differ from lane to lane only by the few steps taken so far.

After plain gradient descent a weight is W - lr * sum(dy^T x) over the examples it was trained on.
Where those are few, keeping dy and x of each is far less than a weight per lane: the product with
W is one for all lanes, and what a lane has learned is a product of thin matrices.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hubless.errors import TaskError
from hubless.train.optimizers import SGD, per_lane
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

_ROUND = 8
"""Matrix products of half precision are fast where sizes are multiples of this."""


class FactoredLinear(nn.Linear):
    """A linear layer with W for all lanes, and a lane's own steps as two thin matrices.

    `nudge` is zero: the gradient with respect to it is dy, and `activations` is the x that goes
    with it.
    """

    inputs: Tensor
    outputs: Tensor
    nudge: Tensor
    activations: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        if self.activations is not None or input.ndim != 2:
            raise TaskError("a factored layer is called once, on one row per example")
        self.activations = input
        parts, device = [input, self.weight, self.inputs, self.outputs], input.device.type
        if torch.is_autocast_enabled(device):
            parts = [part.to(torch.get_autocast_dtype(device)) for part in parts]
        x, weight, inputs, outputs = parts
        product = x @ weight.t() + self.nudge
        if len(inputs):
            product = product + (x @ inputs.t()) @ outputs
        return product if self.bias is None else product + self.bias


class Factors:
    """The steps of every lane in one layer: x and -lr * dy of each example, in step order."""

    def __init__(
        self, layer: FactoredLinear, name: str, weight: Tensor, lanes: int, steps: int, batch: int
    ) -> None:
        self.layer, self.name, self.weight = layer, name, weight
        out, width = weight.shape
        rank = steps * batch
        rows = -(-rank // _ROUND) * _ROUND if weight.is_cuda else rank
        self.inputs = weight.new_zeros(lanes, rows, width, dtype=layer.inputs.dtype)
        self.outputs = weight.new_zeros(lanes, rows, out)
        # by step and example, as views
        self._saw = self.inputs[:, :rank].view(lanes, steps, batch, width)
        self._moved = self.outputs[:, :rank].view(lanes, steps, batch, out)
        self.nudge = weight.new_zeros(lanes, batch, out)
        self._lanes = torch.arange(lanes, device=weight.device)
        self._batch, self._filled = batch, rows

    @property
    def constants(self) -> dict[str, Tensor]:
        """What the layer needs besides what is differentiated; a lane axis first but for W."""
        return {
            f"{self.name}.weight": self.weight,
            f"{self.name}.inputs": self.inputs[:, : self._filled],
            f"{self.name}.outputs": self.outputs[:, : self._filled],
        }

    def reach(self, steps: int) -> None:
        """No lane has taken more steps than so many: there is nothing to be seen beyond."""
        self._filled = steps * self._batch

    def begin(self, lanes: Tensor | None) -> None:
        """Start these lanes, or all of them, from W itself."""
        # not the outputs alone, as zero times an input need not be zero
        for part in (self.inputs, self.outputs):
            if lanes is None:
                part.zero_()
            else:
                part.index_fill_(0, lanes, 0.0)

    def descend(self, activations: Tensor, gradient: Tensor, step: Tensor, lr: Tensor) -> None:
        """Remember a step of every lane; one that idles has step 0, and what it wrote is gone."""
        slot = (step - 1).clamp(min=0).long()
        moved = gradient.float() * (-lr * per_lane((step > 0).float(), gradient))
        place, width = (self._lanes, slot), activations.shape[1]
        self._saw[:, :, :width].index_put_(place, activations.to(self.inputs.dtype))
        self._moved[:, :, :width].index_put_(place, moved)

    def add(self, total: Tensor, weights: Tensor, lanes: Tensor | None = None) -> None:
        """Add what all lanes, or these, have come to, each with its weight, to a running sum."""
        inputs = self.inputs if lanes is None else self.inputs[lanes]
        outputs = self.outputs if lanes is None else self.outputs[lanes]
        moved = (outputs * per_lane(weights, outputs)).flatten(0, 1)
        total.addmm_(moved.t(), inputs.flatten(0, 1).float())
        total.addcmul_(self.weight, weights.sum())

    def each(self) -> Tensor:
        """Every lane's weight, written out."""
        return self.weight + self.outputs.mT @ self.inputs.float()


def factorable(module: nn.Module, recipe: Recipe, steps: int) -> list[str]:
    """The linear layers that so many steps make smaller as factors, going by sizes alone."""
    optimizer = recipe.optimizer
    if not isinstance(optimizer, SGD) or optimizer != SGD(optimizer.lr):
        return []
    if recipe.batch is None or recipe.clip is not None or recipe.proximal:
        return []
    rank = steps * recipe.batch
    return [
        name
        for name, part in module.named_modules()
        if name
        and type(part) is nn.Linear
        and part.weight.requires_grad
        and rank * (part.in_features + part.out_features) <= part.weight.numel()
    ]


def factored(module: nn.Module, task: Task, recipe: Recipe, steps: int, batch: Batch) -> list[str]:
    """Turn those linear layers of a module for which it pays into factored ones; their names.

    `steps` is how many a client takes at most. `batch` is a few examples: on them it is checked
    that a layer's weight is used by the layer alone, once, which tied weights are not.
    """
    names = [n for n in factorable(module, recipe, steps) if is_used_once(module, n, task, batch)]
    half = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    for name in names:
        part = module.get_submodule(name)
        part.__class__ = FactoredLinear
        part.activations = None  # type: ignore[assignment]
        for thin in ("inputs", "outputs", "nudge"):
            part.register_buffer(thin, torch.zeros(1, dtype=half), persistent=False)
    return names


def is_used_once(module: nn.Module, name: str, task: Task, batch: Batch) -> bool:
    """Whether a layer is called once, on one row per example, and its weight used nowhere else."""
    layer = cast(nn.Linear, module.get_submodule(name))
    calls: list[Tensor] = []

    def aside(input: Tensor) -> Tensor:
        calls.append(input)
        return functional.linear(input, layer.weight.detach(), layer.bias)

    layer.forward = aside  # type: ignore[method-assign]
    try:
        with torch.enable_grad(), torch.random.fork_rng():
            loss = task.losses(module, batch).sum()
    finally:
        del layer.forward
    if len(calls) != 1 or calls[0].ndim != 2:
        return False
    if not loss.requires_grad:
        return True
    # with this call out of the way, nothing of the weight is left
    (left,) = torch.autograd.grad(loss, [layer.weight], allow_unused=True)
    return left is None
