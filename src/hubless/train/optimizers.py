"""What a client's optimizer does to one array, element by element.

The same arithmetic as torch.optim, written so that it works on one client's params and on the
stacked params of many lanes alike. `step` counts from 1, one number or one per lane; like `lr`
it is a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Slots = tuple[Tensor, ...]


class Optimizer(Protocol):
    """A rule for the next values of an array, given its gradient and what is remembered."""

    @property
    def lr(self) -> float:
        """The learning rate."""
        ...

    @property
    def takes_half(self) -> bool:
        """Whether gradients may come in half precision: its arithmetic is float32 all the same."""
        ...

    @property
    def slots(self) -> int:
        """How many arrays it remembers from step to step; they start as zeros."""
        ...

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        """Change the values, and what is remembered, in place.

        Never the gradient: several params may share one, such as the two biases of an LSTM.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum where asked for."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def takes_half(self) -> bool:
        return not self.weight_decay and not self.nesterov

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * values
        if self.momentum:
            velocity = slots[0].mul_(self.momentum).add_(gradient)
            gradient = gradient + self.momentum * velocity if self.nesterov else velocity
        values.addcmul_(gradient, lr, value=-1.0)


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba (2015); weight decay is added to the gradient."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    slots = 2
    takes_half = False

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        first, second = slots
        step = per_lane(step, values)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * values
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        scale = (second / (1 - self.beta2**step)).sqrt_().add_(self.eps)
        values.addcmul_(first / scale, lr / (1 - self.beta1**step), value=-1.0)


@dataclass(frozen=True)
class AdamW:
    """Loshchilov and Hutter (2019): Adam whose weight decay does not pass through the moments."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-2
    slots = 2
    takes_half = False

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        values.mul_(1 - lr * self.weight_decay)
        plain = Adam(self.lr, self.beta1, self.beta2, self.eps)
        plain.apply(values, gradient, slots, step, lr)


def fresh_slots(optimizer: Optimizer, arrays: Sequence[Tensor]) -> list[Slots]:
    """What an optimizer remembers of each array before its first step."""
    return [tuple(torch.zeros_like(a) for _ in range(optimizer.slots)) for a in arrays]


def per_lane(scalars: Tensor, like: Tensor) -> Tensor:
    """One number per lane (or one alone) in a shape that spreads over an array's other axes.

    >>> per_lane(torch.ones(3), torch.zeros(3, 4, 5)).shape
    torch.Size([3, 1, 1])
    """
    return scalars.reshape(scalars.shape + (1,) * (like.ndim - scalars.ndim))
