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
    return _mean_that_counts(_of_positions(output, target), target)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest output is the target, else 0; over a sequence, the mean.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
    tensor([1.])
    """
    hits = (output.argmax(-1) == target).float()
    return hits if hits.ndim == 1 else _mean_that_counts(hits, target)


def nll(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of all positions that count, summed: of perplexity, the one half.

    >>> import torch
    >>> target = torch.tensor([[1, 0, 3], [IGNORED, 2, IGNORED], [IGNORED] * 3])
    >>> nll(torch.zeros(3, 3, 4), target)
    tensor([4.1589, 1.3863, 0.0000])
    """
    return _of_positions(output, target).flatten(1).sum(1)


def tokens(output: Tensor, target: Tensor) -> Tensor:
    """How many positions count: of perplexity, the other half."""
    return (target != IGNORED).flatten(1).sum(1).float()


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of one logit per example."""
    logits = output.reshape(target.shape)
    return functional.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared error, meaned over all but the first dimension."""
    return (output.reshape(target.shape) - target).square().reshape(len(target), -1).mean(1)


def _of_positions(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at each position of a sequence; 0 where it does not count."""
    flat, wanted = output.flatten(0, -2), target.long().flatten()
    each = functional.cross_entropy(flat, wanted, reduction="none", ignore_index=IGNORED)
    return each.reshape(target.shape)


def _mean_that_counts(each: Tensor, target: Tensor) -> Tensor:
    counts = (target != IGNORED).flatten(1)
    return (each.flatten(1) * counts).sum(1) / counts.sum(1).clamp(min=1)
