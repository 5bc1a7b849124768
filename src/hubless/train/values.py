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
        """Every client's number.

        Args:
            losses: One per example.
            targets: The task's target columns, one row per example.
            owner: The client of each example, by its place among these clients.
            sizes: How many examples each client has.
        """
        ...


@dataclass(frozen=True)
class LossOverRoot:
    """The sum of losses over the root of their number: Σ loss / √n.

    It grows with how badly the model does and, as a root, with how many examples a client has.

    >>> import torch
    >>> losses, owner = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
    >>> LossOverRoot()(losses, {}, owner, torch.tensor([2, 1]))
    tensor([2.8284, 5.0000])

    Reference:
        Goetz et al., "Active Federated Learning", 2019, section 4.1.
    """

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed(losses, owner, sizes) / sizes.clamp(min=1).sqrt()


@dataclass(frozen=True)
class MeanLoss:
    """How badly the model does on an example of the client: Σ loss / n, whatever n is."""

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed(losses, owner, sizes) / sizes.clamp(min=1)


@dataclass(frozen=True)
class HighLosses:
    """How many examples the model does badly on.

    One example more or less changes it by one at most, which is what `Count` hides with little
    noise.

    Args:
        above: The loss above which an example counts. It should be one that some examples exceed
            and others do not, also late in training.

    Reference:
        Goetz et al., "Active Federated Learning", 2019, section 4.2.
    """

    above: float = 1.0

    def __call__(
        self, losses: Tensor, targets: Mapping[str, Tensor], owner: Tensor, sizes: Tensor
    ) -> Tensor:
        return _summed((losses > self.above).to(losses.dtype), owner, sizes)


@dataclass(frozen=True)
class LabelCount:
    """How many examples have this label, such as the rare one; it does not depend on the model.

    Args:
        label: The label that is counted.
        column: The column of the task's targets that holds labels.

    Reference:
        Goetz et al., "Active Federated Learning", 2019, section 5.
    """

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
