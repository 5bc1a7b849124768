"""Losses and metrics that give one number per example, as simulations need them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Targets that do not count, such as positions after the end of a text."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy per example: -ln of the probability given to the target.

    Over a sequence it is the mean of the positions that count, those whose target is not `IGNORED`.

    Args:
        output: Scores before softmax, [examples, classes] or [examples, positions, classes].
        target: The number of the right class, [examples] or [examples, positions].

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    if output.ndim == 2:
        return functional.cross_entropy(output, target.long(), reduction="none")
    return _mean_that_counts(_of_positions(output, target), target)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the largest output is the target, else 0; over a sequence, the mean.

    Args:
        output: Scores, [examples, classes] or [examples, positions, classes].
        target: The number of the right class, [examples] or [examples, positions].

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))
    tensor([1.])
    """
    hits = (output.argmax(-1) == target).float()
    return hits if hits.ndim == 1 else _mean_that_counts(hits, target)


def nll(output: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of all positions that count, summed: one half of a perplexity.

    Args:
        output: Scores before softmax, [examples, positions, classes].
        target: The number of the right class, [examples, positions]; `IGNORED` where none counts.

    >>> import torch
    >>> target = torch.tensor([[1, 0, 3], [IGNORED, 2, IGNORED], [IGNORED] * 3])
    >>> nll(torch.zeros(3, 3, 4), target)
    tensor([4.1589, 1.3863, 0.0000])
    """
    return _of_positions(output, target).flatten(1).sum(1)


def tokens(output: Tensor, target: Tensor) -> Tensor:
    """How many positions count: the other half of a perplexity.

    Args:
        output: Not looked at; metrics get it.
        target: [examples, positions]; `IGNORED` where none counts.
    """
    return (target != IGNORED).flatten(1).sum(1).float()


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of a yes or no per example.

    Args:
        output: One score per example before the sigmoid.
        target: 0 or 1 per example.

    >>> import torch
    >>> binary_cross_entropy(torch.zeros(2, 1), torch.tensor([0, 1]))
    tensor([0.6931, 0.6931])
    """
    logits = output.reshape(target.shape)
    return functional.binary_cross_entropy_with_logits(logits, target.float(), reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared error per example, its mean where an example has several numbers.

    Args:
        output: As many numbers as the target has, in any shape.
        target: [examples], or more numbers per example.

    >>> import torch
    >>> squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 3.0]))
    tensor([1., 0.])
    """
    return (output.reshape(target.shape) - target).square().reshape(len(target), -1).mean(1)


def _of_positions(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at each position of a sequence; 0 where it does not count."""
    flat, wanted = output.flatten(0, -2), target.long().flatten()
    each = functional.cross_entropy(flat, wanted, reduction="none", ignore_index=IGNORED)
    return each.reshape(target.shape)


def _mean_that_counts(each: Tensor, target: Tensor) -> Tensor:
    counts = (target != IGNORED).flatten(1)
    return (each.flatten(1) * counts).sum(1) / counts.sum(1).clamp(min=1)
