"""Clients' optimizers do what torch.optim does, for one client and for stacked ones alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hubless.train.optimizers import SGD, Adam, AdamW, Optimizer, per_lane

Theirs = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

PAIRS: dict[str, tuple[Optimizer, Theirs]] = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd with weight decay": (
        SGD(0.1, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2),
    ),
    "momentum": (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov with weight decay": (
        SGD(0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (Adam(0.02), lambda p: torch.optim.Adam(p, 0.02)),
    "adam with everything": (
        Adam(0.02, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "adamw": (AdamW(0.02), lambda p: torch.optim.AdamW(p, 0.02)),
    "adamw with more decay": (
        AdamW(0.02, weight_decay=0.5),
        lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.5),
    ),
}
every_optimizer = pytest.mark.parametrize("name", PAIRS)


def _gradients(steps: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(steps, *shape, generator=generator)


def _walk(optimizer: Optimizer, start: Tensor, gradients: Tensor) -> Tensor:
    values = start.clone()
    slots = tuple(torch.zeros_like(values) for _ in range(optimizer.slots))
    for i, gradient in enumerate(gradients):
        step, lr = torch.tensor(i + 1.0), torch.tensor(optimizer.lr)
        optimizer.apply(values, gradient.clone(), slots, step, lr)
    return values


@every_optimizer
def test_ten_steps_are_those_of_torch(name: str) -> None:
    ours, theirs = PAIRS[name]
    start = torch.linspace(-1, 1, 12).reshape(3, 4)
    gradients = _gradients(10, 3, 4)
    param = nn.Parameter(start.clone())
    reference = theirs([param])
    for gradient in gradients:
        param.grad = gradient.clone()
        reference.step()
    assert torch.allclose(_walk(ours, start, gradients), param.detach(), rtol=1e-5, atol=1e-6)


@every_optimizer
def test_stacked_lanes_step_as_each_of_them_alone(name: str) -> None:
    """Also where lanes are at different steps, as clients that began at different ticks are."""
    optimizer, _ = PAIRS[name]
    lanes = 3
    gradients = _gradients(4, lanes, 2, 5)
    values = torch.ones(lanes, 2, 5)
    slots = tuple(torch.zeros_like(values) for _ in range(optimizer.slots))
    lr = torch.tensor(optimizer.lr)
    alone = [torch.ones(2, 5) for _ in range(lanes)]
    held: list[tuple[Tensor, ...]] = [
        tuple(torch.zeros(2, 5) for _ in range(optimizer.slots)) for _ in range(lanes)
    ]
    for tick in range(4):
        steps = torch.tensor([1.0 + tick, 3.0 + tick, 7.0])
        for lane in range(lanes):
            gradient = gradients[tick, lane].clone()
            optimizer.apply(alone[lane], gradient, held[lane], steps[lane], lr)
        optimizer.apply(values, gradients[tick].clone(), slots, per_lane(steps, values), lr)
    assert torch.allclose(values, torch.stack(alone), atol=1e-7)


def test_a_number_per_lane_spreads_over_any_array() -> None:
    scale = torch.tensor([1.0, 2.0])
    for shape in [(2,), (2, 3), (2, 3, 4, 5)]:
        spread: Any = per_lane(scale, torch.zeros(shape)) * torch.ones(shape)
        assert spread.shape == shape
        assert (spread[1] == 2).all()
    assert per_lane(torch.tensor(3.0), torch.zeros(4, 5)).shape == (1, 1)
