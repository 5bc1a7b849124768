"""A linear layer on the data themselves, trained in dual coordinates.

Gradient descent moves the weight of a layer y = W x along the examples that it has seen: at any
time it is W + sum of m_j x_j^T, with one m_j for each example of the client. Where the x_j are the
data themselves, y_i = W x_i + sum of (x_i . x_j) m_j. All W x_i are one product before training
begins, the x_i . x_j never change, a step moves the m_j of its batch, and what clients have come to
is one product again. No step looks at anything as large as x or W.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hubless.errors import TaskError
from hubless.train.factored import is_used_once
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

GIVEN = ("dual base", "dual row", "dual place")
"""Columns: W x_i, its products with all x_j of its client, and which one of these it is itself."""


class DualLinear(nn.Linear):
    """A linear layer that knows its inputs by their products with each other alone."""

    base: Tensor
    row: Tensor
    place: Tensor
    moved: nn.Parameter

    def forward(self, input: Tensor) -> Tensor:
        own = self.moved[self.place]
        # nothing but a number's own gradient moves it, whatever it has to do with the others
        output = self.base + (self.row @ self.moved).detach() + (own - own.detach())
        return output if self.bias is None else output + self.bias


class DualModule(nn.Module):
    """A module with the given layer in dual coordinates, for clients of so many examples at most.

    All params but that layer's weight have their names, behind `module.`
    """

    def __init__(self, module: nn.Module, name: str, examples: int) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        layer = cast(nn.Linear, self.module.get_submodule(name))
        leaves = ("base", "row", "place")
        self._paths = [within(name, leaf) for leaf in leaves]
        self.name = name
        self.moved = f"module.{within(name, 'moved')}"
        moved = layer.weight.new_zeros(examples, layer.out_features)
        layer.__class__ = DualLinear
        layer.register_parameter("weight", None)
        layer.register_parameter("moved", nn.Parameter(moved))
        for leaf in leaves:
            layer.register_buffer(leaf, torch.zeros(1), persistent=False)

    def forward(self, *inputs: Any, in_dual: tuple[Tensor, ...], **named: Any) -> Any:
        given = dict(zip(self._paths, in_dual, strict=True))
        return functional_call(self.module, given, inputs, named)


class DualTask(Task):
    """A task with a layer in dual coordinates: batches have the columns that are `GIVEN` too."""

    module: DualModule

    @classmethod
    def of(cls, task: Task, name: str, examples: int) -> DualTask:
        """The same task, for clients of so many examples at most."""
        parts = {field.name: getattr(task, field.name) for field in fields(task)}
        return cls(**{**parts, "module": DualModule(task.module, name, examples)})

    def output(self, module: Callable[..., Any], batch: Batch) -> Any:
        given = tuple(batch[name] for name in GIVEN)
        return super().output(partial(module, in_dual=given), batch)

    def prepared(self, batch: Batch) -> Batch:
        others = {name: column for name, column in batch.items() if name not in GIVEN}
        return {**super().prepared(others), **{name: batch[name] for name in GIVEN}}


def within(module: str, leaf: str) -> str:
    """The name of what lies in a module, which may be the whole."""
    return f"{module}.{leaf}" if module else leaf


def seen_by(name: str, task: Task, module: nn.Module, batch: Batch) -> Tensor:
    """What a layer is called on, for a batch as it is stored."""
    layer, seen = cast(nn.Linear, module.get_submodule(name)), []

    def stop(input: Tensor) -> Tensor:
        seen.append(input)
        raise _Reached

    layer.forward = stop  # type: ignore[method-assign]
    try:
        task.losses(module, batch)
    except _Reached:
        return seen[0]
    finally:
        del layer.forward
    raise TaskError(f"the layer {name!r} is not called on every batch")


class _Reached(BaseException):
    """The layer was called, and what comes after it does not matter; nobody's to catch."""


def dual_layer(task: Task, recipe: Recipe, batch: Batch, examples: int) -> str | None:
    """The largest layer to train in dual coordinates where clients have so many examples at most.

    It is called once, on what neither training nor chance has a part in, of more numbers than
    clients have examples; and the optimizer only adds gradients up. Tried on a few examples.
    """
    if type(task) is not Task:
        # one that somebody made of it may call the module as it likes
        return None
    optimizer = recipe.optimizer
    if type(optimizer) is not SGD or optimizer.weight_decay or recipe.clip is not None:
        return None
    # what no step comes to must not matter either, and zero times what is not finite does
    if recipe.precision == "bfloat16" or recipe.steps is not None:
        return None
    module = copy.deepcopy(task.module).train()
    if any(True for _ in module.buffers()):
        return None
    linear: list[tuple[int, str]] = [
        (layer.weight.numel(), name)
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear and layer.weight.requires_grad and layer.in_features >= examples
    ]
    for _, name in sorted(linear, reverse=True):
        if is_used_once(module, name, task, batch) and _is_data(name, task, module, batch):
            return name
    return None


def _is_data(name: str, task: Task, module: nn.Module, batch: Batch) -> bool:
    """Whether what a layer is called on depends on each example of the batch alone."""
    with torch.enable_grad(), torch.random.fork_rng():
        before = torch.random.get_rng_state()
        seen = seen_by(name, task, module, batch)
        drawn = not torch.equal(before, torch.random.get_rng_state())
        first = seen_by(name, task, module, {key: column[:1] for key, column in batch.items()})
    if drawn or seen.requires_grad or seen.dtype != torch.float32:
        return False
    return torch.allclose(seen[:1], first, rtol=1e-4, equal_nan=True)
