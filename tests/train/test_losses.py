"""Losses and metrics: one number per example, also over sequences with ends."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hubless.train.losses import (
    IGNORED,
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
)


def test_cross_entropy_gives_what_torch_gives_before_it_takes_the_mean() -> None:
    output, target = torch.randn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    losses = cross_entropy(output, target)
    assert losses.shape == (5,)
    assert losses.mean().item() == pytest.approx(functional.cross_entropy(output, target).item())


def test_targets_may_be_of_any_integer_type() -> None:
    output, target = torch.randn(3, 4), torch.tensor([0, 3, 1])
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(cross_entropy(output, target.to(kind)), cross_entropy(output, target))


def test_over_a_sequence_only_positions_that_count_are_averaged() -> None:
    output = torch.randn(3, 4, 6)
    target = torch.randint(6, (3, 4))
    target[0, 2:] = IGNORED
    target[2] = IGNORED
    losses = cross_entropy(output, target)
    assert losses.shape == (3,)
    expected = functional.cross_entropy(output[0, :2], target[0, :2])
    assert losses[0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert losses[2] == 0


def test_accuracy_over_a_sequence_leaves_out_what_does_not_count() -> None:
    output = functional.one_hot(torch.tensor([[1, 2, 0], [0, 0, 0]]), 3).float()
    target = torch.tensor([[1, 0, IGNORED], [0, 0, 0]])
    assert accuracy(output, target).tolist() == [0.5, 1.0]


def test_binary_cross_entropy_takes_one_logit_per_example_in_either_shape() -> None:
    logits, target = torch.randn(6), torch.tensor([0, 1, 1, 0, 1, 0])
    flat = binary_cross_entropy(logits, target)
    assert flat.shape == (6,)
    assert torch.equal(binary_cross_entropy(logits[:, None], target), flat)


def test_the_squared_error_is_meaned_over_all_but_examples() -> None:
    output, target = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    expected = (output - target).square().mean((1, 2))
    assert torch.allclose(squared_error(output, target), expected)


def test_the_squared_error_of_one_number_per_example_has_a_loss_each() -> None:
    output, target = torch.randn(5, 1), torch.randn(5)
    assert torch.allclose(squared_error(output, target), (output[:, 0] - target).square())
