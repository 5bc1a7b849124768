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
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from hubless.train.layers.factored import is_used_once
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

_LEAVES = ("base", "row", "place")
GIVEN = tuple(f"dual {leaf}" for leaf in _LEAVES)
"""Columns: W x_i, its products with all x_j of its client, and which one of these it is itself."""


@dataclass(frozen=True)
class DualLayer:
    """A linear layer, and the column that it is called on."""

    name: str
    column: str

    @property
    def weight(self) -> str:
        """The name of its weight."""
        return self.within("weight")

    def within(self, leaf: str) -> str:
        """The name of what the layer has, which may be the whole module."""
        return f"{self.name}.{leaf}" if self.name else leaf


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
    """A module with a layer in dual coordinates, for clients of so many examples at most.

    All params but that layer's weight have their names, behind `module.`
    """

    def __init__(self, module: nn.Module, dual: DualLayer, examples: int) -> None:
        super().__init__()
        self.module, self.dual = copy.deepcopy(module), dual
        self.moved_name = f"module.{dual.within('moved')}"
        layer = cast(nn.Linear, self.module.get_submodule(dual.name))
        moved = layer.weight.new_zeros(examples, layer.out_features)
        layer.__class__ = DualLinear
        layer.register_parameter("weight", None)
        layer.register_parameter("moved", nn.Parameter(moved))
        for leaf in _LEAVES:
            layer.register_buffer(leaf, torch.zeros(1), persistent=False)

    def forward(self, *inputs: Any, in_dual: tuple[Tensor, ...], **named: Any) -> Any:
        given = dict(zip(map(self.dual.within, _LEAVES), in_dual, strict=True))
        return functional_call(self.module, given, inputs, named)


class DualTask(Task):
    """A task with a layer in dual coordinates: batches have the columns that are `GIVEN` too."""

    module: DualModule

    @classmethod
    def of(cls, task: Task, dual: DualLayer, examples: int) -> DualTask:
        """The same task, for clients of so many examples at most."""
        parts = {field.name: getattr(task, field.name) for field in fields(task)}
        return cls(**{**parts, "module": DualModule(task.module, dual, examples)})

    def output(self, module: Callable[..., Any], batch: Batch) -> Any:
        given = tuple(batch[name] for name in GIVEN)
        return super().output(partial(module, in_dual=given), batch)

    def prepared(self, batch: Batch) -> Batch:
        others = {name: column for name, column in batch.items() if name not in GIVEN}
        return {**super().prepared(others), **{name: batch[name] for name in GIVEN}}


def dual_layer(task: Task, recipe: Recipe, batch: Batch, examples: int) -> DualLayer | None:
    """The largest layer to train in dual coordinates where clients have so many examples at most.

    It is called once, on a column as it was prepared, and has no fewer inputs than clients have
    examples; and the optimizer only adds gradients up. Tried on a few examples.
    """
    if type(task) is not Task:
        # one that somebody made of it may call the module as it likes
        return None
    optimizer = recipe.optimizer
    if type(optimizer) is not SGD or optimizer.weight_decay or recipe.clip is not None:
        return None
    # every example has to be trained on: zero times one that is not finite would show
    if recipe.precision == "bfloat16" or recipe.steps is not None:
        return None
    module = copy.deepcopy(task.module).train()
    if any(True for _ in module.buffers()) or not _prepares_one_by_one(task, batch):
        return None
    linear = [
        (layer.weight.numel(), name)
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear and layer.weight.requires_grad and layer.in_features >= examples
    ]
    named = dict(module.named_parameters())
    for _, name in sorted(linear, reverse=True):
        column = _column_seen(name, task, module, batch)
        if column is not None and is_used_once(module, name, task, batch):
            dual = DualLayer(name, column)
            # a weight of two names has a place under one of them only
            return dual if dual.weight in named else None
    return None


def _prepares_one_by_one(task: Task, batch: Batch) -> bool:
    """Whether what an example is turned into depends on nothing but the example."""
    if task.prepare is None:
        return True
    with torch.random.fork_rng():
        before = torch.random.get_rng_state()
        whole = task.prepared(batch)
        if not torch.equal(before, torch.random.get_rng_state()):
            return False
        count = len(next(iter(batch.values())))
        parts = [slice(None)] * count + [slice(i, i + 1) for i in range(count)]
        return all(
            torch.equal(whole[name][part], value)
            for part in parts
            for name, value in task.prepared({n: c[part] for n, c in batch.items()}).items()
        )


def _column_seen(name: str, task: Task, module: nn.Module, batch: Batch) -> str | None:
    """The column that a layer is called on: the very same numbers, in whatever shape."""
    layer, inputs = cast(nn.Linear, module.get_submodule(name)), []
    prepared = task.prepared(batch)
    versions = {column: values._version for column, values in prepared.items()}

    def look(input: Tensor) -> Tensor:
        inputs.append(input)
        return functional.linear(input, layer.weight, layer.bias)

    layer.forward = look  # type: ignore[method-assign]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            task.output(module, prepared)
    finally:
        del layer.forward
    for column, values in prepared.items():
        changed = values._version != versions[column]
        if inputs and not changed and _is_view(inputs[0], values) and values.dtype == torch.float32:
            return column
    return None


def _is_view(view: Tensor, values: Tensor) -> bool:
    """Whether one is the other with its examples flattened, and no copy."""
    return (
        view.data_ptr() == values.data_ptr()
        and view.shape == values.flatten(1).shape
        and view.is_contiguous()
        and values.is_contiguous()
    )
