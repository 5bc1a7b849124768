"""Layouts: a module's arrays as one flat vector and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hubless.errors import TaskError
from hubless.train.layout import Layout


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_what_is_flattened_and_loaded_again_is_the_same() -> None:
    one = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    one(torch.randn(8, 3))
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    layout = Layout.of(one)
    layout.load(other, layout.flatten(one))
    for name, value in one.state_dict().items():
        if name != "1.num_batches_tracked":
            assert torch.equal(value, other.state_dict()[name]), name


def test_trained_arrays_come_first_and_leave_no_gaps() -> None:
    layout = Layout.of(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    assert layout.places[0].start == 0
    for before, after in zip(layout.places, layout.places[1:], strict=False):
        assert before.stop == after.start
        assert before.trained >= after.trained
    assert layout.size == 4 + 4 + 8 + 2 + 4 + 4
    assert [p.name for p in layout.places if not p.trained] == ["0.running_mean", "0.running_var"]
    assert layout.has_buffers


def test_frozen_params_and_passing_buffers_are_not_shared() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    module.register_buffer("table", torch.zeros(5), persistent=False)
    module.register_buffer("count", torch.zeros(5, dtype=torch.int64))
    layout = Layout.of(module)
    assert [place.name for place in layout.places] == ["1.weight", "1.bias"]
    assert not layout.has_buffers


def test_tied_weights_are_there_once() -> None:
    assert [place.name for place in Layout.of(Tied()).places] == ["embedding.weight"]


def test_named_arrays_are_views() -> None:
    layout = Layout.of(nn.Linear(3, 2))
    flat = torch.arange(8.0)
    named = layout.named(flat)
    assert named["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    named["bias"].zero_()
    assert flat[6:].tolist() == [0, 0]


def test_flattening_copies() -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    Layout.of(module).flatten(module).zero_()
    assert torch.equal(module.weight, before)


def test_a_module_without_anything_to_train_is_refused() -> None:
    with pytest.raises(TaskError, match="no parameters that require a gradient"):
        Layout.of(nn.Linear(3, 2).requires_grad_(False))
    with pytest.raises(TaskError, match="no parameters that require a gradient"):
        Layout.of(nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_params_in_another_precision_are_refused_with_what_to_do(dtype: torch.dtype) -> None:
    with pytest.raises(TaskError, match=r"'weight' is torch\.\w+.*module\.float\(\).*precision"):
        Layout.of(nn.Linear(3, 2).to(dtype))
