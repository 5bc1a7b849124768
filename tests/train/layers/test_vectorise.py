"""Vectorised modules: the same params and results as torch's own layers, also under vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hubless.train.layers import vectorise
from hubless.train.layers.vectorise import vectorised

CPU = torch.device("cpu")

LSTMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True},
    "two layers both ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
    "dropout of nothing": {"num_layers": 2, "dropout": 0.0},
}
every_lstm = pytest.mark.parametrize("kind", LSTMS)


def _lstm(kind: str) -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(3, 5, **LSTMS[kind])


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-6)


@every_lstm
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("given", [True, False], ids=["given state", "no state"])
def test_an_lstm_written_out_is_the_same_lstm(kind: str, batched: bool, given: bool) -> None:
    lstm = _lstm(kind)
    x = torch.randn(4, 7, 3) if batched else torch.randn(7, 3)
    batch = (x.shape[0] if lstm.batch_first else x.shape[1],) if batched else ()
    depth = lstm.num_layers * (2 if lstm.bidirectional else 1)
    state = (torch.randn(depth, *batch, 5), torch.randn(depth, *batch, 5)) if given else None
    ours, (h, c) = vectorised(lstm, CPU)(x, state)
    theirs, (h_expected, c_expected) = lstm(x, state)
    assert _close(ours, theirs)
    assert _close(h, h_expected)
    assert _close(c, c_expected)


@every_lstm
def test_an_lstm_written_out_has_the_same_gradients(kind: str) -> None:
    lstm = _lstm(kind)
    twin = vectorised(lstm, CPU)
    x = torch.randn(4, 7, 3)
    for module in (lstm, twin):
        module(x)[0].square().sum().backward()
    theirs = dict(lstm.named_parameters())
    for name, param in twin.named_parameters():
        assert param.grad is not None
        assert torch.allclose(param.grad, theirs[name].grad, atol=1e-5), name  # type: ignore[arg-type]


def test_an_lstm_between_layers_vectorises_over_stacked_params() -> None:
    lstm = _lstm("two layers")
    twin = vectorised(lstm, CPU)
    stacked = {n: torch.stack([p.detach(), 2 * p.detach()]) for n, p in lstm.named_parameters()}
    x = torch.randn(2, 4, 7, 3)
    both = vmap(lambda params, x: functional_call(twin, params, (x,))[0])(stacked, x)
    for i in range(2):
        alone = functional_call(lstm, {n: p[i] for n, p in stacked.items()}, (x[i],))[0]
        assert _close(both[i], alone)


def test_an_lstm_with_projections_is_left_alone() -> None:
    twin = vectorised(nn.LSTM(3, 5, proj_size=2), CPU)
    assert type(twin) is nn.LSTM


def test_the_module_itself_stays_what_it_was() -> None:
    module = nn.Sequential(nn.LSTM(3, 5))
    twin = vectorised(module, CPU)
    assert type(module[0]) is nn.LSTM
    with torch.no_grad():
        for param in twin.parameters():
            param.zero_()
    assert module[0].weight_ih_l0.abs().sum() > 0


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": 1},
    "padded unevenly": {"kernel_size": (3, 2), "padding": (2, 1)},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "strided unevenly": {"kernel_size": (2, 3), "stride": (3, 2)},
    "dilated": {"kernel_size": 3, "dilation": 2},
    "one by one": {"kernel_size": 1},
    "no bias": {"kernel_size": 2, "bias": False},
}


def _patched(kind: str) -> tuple[nn.Conv2d, nn.Conv2d]:
    """A convolution and its twin as a GPU runs it."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 4, **CONVOLUTIONS[kind])
    twin = nn.Conv2d(2, 4, **CONVOLUTIONS[kind])
    twin.load_state_dict(convolution.state_dict())
    twin.__class__ = vectorise._Conv2d
    return convolution, twin


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_as_patches_is_the_same_convolution(kind: str) -> None:
    convolution, twin = _patched(kind)
    x = torch.randn(3, 2, 9, 8)
    results = []
    for module in (convolution, twin):
        given = x.clone().requires_grad_()
        output = module(given)
        output.square().sum().backward()
        results.append([output.detach(), given.grad, *(p.grad for p in module.parameters())])
    for theirs, ours in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("kind", ["padded", "strided", "dilated"])
def test_a_convolution_as_patches_vectorises_over_stacked_params(kind: str) -> None:
    convolution, twin = _patched(kind)
    stacked = {n: torch.stack([p.detach(), -p.detach()]) for n, p in convolution.named_parameters()}
    x = torch.randn(2, 3, 2, 9, 8)

    def loss(module: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, params, (x,)).relu().sum()

    both = vmap(grad(lambda p, x: loss(twin, p, x)))(stacked, x)
    for i in range(2):
        alone = {n: p[i] for n, p in stacked.items()}
        expected = grad(lambda p, x: loss(convolution, p, x))(alone, x[i])
        for name in expected:
            assert torch.allclose(both[name][i], expected[name], atol=1e-4), name


def test_on_a_cpu_convolutions_stay_what_they_are() -> None:
    assert type(vectorised(nn.Conv2d(2, 4, 3), CPU)) is nn.Conv2d
