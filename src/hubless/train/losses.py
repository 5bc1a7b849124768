"""Losses and metrics that give one number per example, as simulations need them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Targets that do not count, such as positions after the end of a text."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy per example; over a sequence, the mean of the positions that count.

    `output` ends in classes: [examples, classes] or [examples, positions, classes].

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).shape
    torch.Size([2])
    """
    if output.ndim == 2:
        return functional.cross_entropy(output, target.long(), reduction="none")
    flat, wanted = output.flatten(0, -2), target.long().flatten()
    each = functional.cross_entropy(flat, wanted, reduction="none", ignore_index=IGNORED)
    return _mean_that_counts(each.reshape(target.shape), target)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest output is the target, else 0; over a sequence, the mean.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
    tensor([1.])
    """
    hits = (output.argmax(-1) == target).float()
    return hits if hits.ndim == 1 else _mean_that_counts(hits, target)


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of one logit per example."""
    logits = output.reshape(target.shape)
    return functional.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared error, meaned over all but the first dimension."""
    return (output.reshape(target.shape) - target).square().reshape(len(target), -1).mean(1)


def _mean_that_counts(each: Tensor, target: Tensor) -> Tensor:
    counts = (target != IGNORED).flatten(1)
    return (each.flatten(1) * counts).sum(1) / counts.sum(1).clamp(min=1)
