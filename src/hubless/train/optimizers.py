"""What a client's optimizer does to one array, element by element.

The same arithmetic as torch.optim, written so that it works on one client's params and on the
stacked params of many lanes alike. `step` counts from 1, one number or one per lane; like `lr`
it is a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hubless.checks import fitting, flag, number
from hubless.errors import TaskError

Slots = tuple[Tensor, ...]


class Optimizer(Protocol):
    """A rule for the next values of an array, given its gradient and what is remembered.

    A client's optimizer starts from zeros in every round: nothing is remembered from one to the
    next.
    """

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

        Never change the gradient: several params may share one, such as the two biases of an LSTM.

        Args:
            values: One client's array, or the stacked arrays of many lanes.
            gradient: Of the same shape.
            slots: What is remembered, as many arrays as `slots` says.
            step: The number of the step, from 1; one, or one per lane.
            lr: The learning rate of the round.
        """
        ...


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum where asked for.

        g ← g + weight_decay · x
        v ← momentum · v + g
        x ← x - lr · v                       or, with nesterov,  x ← x - lr · (g + momentum · v)

    g is the gradient of the batch's mean loss, and v starts at 0 for every client in every round.

    Args:
        lr: The learning rate, above 0. It is the first thing to tune: a good one for pooled
            training is a fair start, and more local epochs need less.
        momentum: How much of the last step is kept, in [0, 1). It costs one more array per client.
        weight_decay: Pulls params towards 0 through the gradient, at least 0.
        nesterov: Look ahead by one more step of momentum; nothing without momentum.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self)
        number("momentum", self.momentum, least=0, below=1, error=TaskError)
        flag("nesterov", self.nesterov, error=TaskError)
        if self.nesterov and not self.momentum:
            raise TaskError("nesterov=True looks ahead along the momentum: give momentum=, too")

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
    """Adam: steps are divided by how large an element's gradients usually are.

        g ← g + weight_decay · x
        m ← beta1 · m + (1 - beta1) · g
        v ← beta2 · v + (1 - beta2) · g²
        x ← x - lr · (m / (1 - beta1^t)) / (√(v / (1 - beta2^t)) + eps)

    g is the gradient and t the number of the client's step in this round, from 1. m and v start at
    0 for every client in every round, so clients with a few steps are hardly beyond the warm-up.
    The server's Adam, which remembers, is `FedAdam`. Weight decay is not in the paper: it is
    torch's.

    Args:
        lr: The learning rate, above 0: about how far an element moves in a step.
        beta1: How much of the last m is kept, in [0, 1).
        beta2: How much of the last v is kept, in [0, 1).
        eps: Added to the root, above 0, so that nothing is divided by 0.
        weight_decay: Pulls params towards 0 through the gradient, at least 0. In `AdamW` it does
            not pass through m and v, which usually works better.

    Reference:
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, Algorithm 1.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    slots = 2
    takes_half = False

    def __post_init__(self) -> None:
        _check(self)
        _check_moments(self)

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * values
        _adapt(self, values, gradient, slots, step, lr)


@dataclass(frozen=True)
class AdamW:
    """Adam whose weight decay does not pass through m and v.

        x ← x - lr · weight_decay · x, then a step of `Adam` without weight decay

    As in torch, decay is in proportion to `lr`. In the paper it is not.

    Args:
        lr: The learning rate, above 0: about how far an element moves in a step.
        beta1: How much of the last m is kept, in [0, 1).
        beta2: How much of the last v is kept, in [0, 1).
        eps: Added to the root, above 0, so that nothing is divided by 0.
        weight_decay: The share of a param that lr = 1 would take off it in a step, at least 0.

    Reference:
        Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, Algorithm 2.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-2
    slots = 2
    takes_half = False

    def __post_init__(self) -> None:
        _check(self)
        _check_moments(self)

    def apply(
        self, values: Tensor, gradient: Tensor, slots: Slots, step: Tensor, lr: Tensor
    ) -> None:
        values.mul_(1 - lr * self.weight_decay)
        _adapt(self, values, gradient, slots, step, lr)


def _adapt(
    optimizer: Adam | AdamW,
    values: Tensor,
    gradient: Tensor,
    slots: Slots,
    step: Tensor,
    lr: Tensor,
) -> None:
    first, second = slots
    beta1, beta2, step = optimizer.beta1, optimizer.beta2, per_lane(step, values)
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    scale = (second / (1 - beta2**step)).sqrt_().add_(optimizer.eps)
    values.addcmul_(first / scale, lr / (1 - beta1**step), value=-1.0)


def fresh_slots(optimizer: Optimizer, arrays: Sequence[Tensor]) -> list[Slots]:
    """What an optimizer remembers of each array before its first step."""
    return [tuple(torch.zeros_like(a) for _ in range(optimizer.slots)) for a in arrays]


def check_optimizer(optimizer: Any) -> None:
    """Refuse what is no optimizer of clients, such as its class or one of torch.optim."""
    fits = all(hasattr(optimizer, name) for name in ("lr", "slots", "takes_half", "apply"))
    takes = "an optimizer, such as hubless.SGD(0.1)"
    fitting("optimizer", optimizer, fits, takes, error=TaskError)
    number("lr", optimizer.lr, above=0, error=TaskError)


def _check(optimizer: SGD | Adam | AdamW) -> None:
    number("lr", optimizer.lr, above=0, error=TaskError)
    number("weight_decay", optimizer.weight_decay, least=0, error=TaskError)


def _check_moments(optimizer: Adam | AdamW) -> None:
    for name in ("beta1", "beta2"):
        number(name, getattr(optimizer, name), least=0, below=1, error=TaskError)
    number("eps", optimizer.eps, above=0, error=TaskError)


def per_lane(scalars: Tensor, like: Tensor) -> Tensor:
    """One number per lane (or one alone) in a shape that spreads over an array's other axes.

    >>> per_lane(torch.ones(3), torch.zeros(3, 4, 5)).shape
    torch.Size([3, 1, 1])
    """
    return scalars.reshape(scalars.shape + (1,) * (like.ndim - scalars.ndim))
