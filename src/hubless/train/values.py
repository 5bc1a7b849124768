"""What training a client is worth: functions of its own data and the round's starting params.

Those of losses work on many clients' examples at once: `losses` and `targets` have one entry per
example, `owner` says whose it is, and `sizes` how many each client has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor


class ValueOfLosses(Protocol):
    """One number per client, from the losses of its examples."""

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        """Every client's number."""
        ...


@dataclass(frozen=True)
class LossOverRoot:
    """The sum of losses over the root of their number, as Goetz et al. (2019) have it.

    >>> import torch
    >>> losses, owner = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
    >>> LossOverRoot()(losses, {}, owner, torch.tensor([2, 1]))
    tensor([2.8284, 5.0000])
    """

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed(losses, owner, sizes) / sizes.clamp(min=1).sqrt()


@dataclass(frozen=True)
class MeanLoss:
    """How badly the model does on an example of the client."""

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed(losses, owner, sizes) / sizes.clamp(min=1)


@dataclass(frozen=True)
class HighLosses:
    """How many examples the model does badly on: one example more or less changes it by one."""

    above: float = 1.0

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed((losses > self.above).to(losses.dtype), owner, sizes)


@dataclass(frozen=True)
class LabelCount:
    """How many examples have this label in a column of targets."""

    label: int = 1
    column: str = "y"

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed((targets[self.column] == self.label).to(losses.dtype), owner, sizes)


@dataclass(frozen=True)
class GradientNorm:
    """The length of the gradient of the client's mean loss: one backward pass more per client."""


@dataclass(frozen=True)
class UpdateNorm:
    """How far training moved the client's params; they have to be kept one by one for it."""


Value: TypeAlias = ValueOfLosses | GradientNorm | UpdateNorm


def _summed(numbers: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    return numbers.new_zeros(len(sizes)).index_add_(0, owner, numbers)
