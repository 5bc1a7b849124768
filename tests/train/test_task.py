"""Tasks: how modules are called, and what is wrong with one that cannot be trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hubless.errors import TaskError
from hubless.train.losses import accuracy
from hubless.train.task import Task

BATCH = {"x": torch.randn(4, 3), "y": torch.tensor([0, 1, 1, 0])}


class Says(nn.Module):
    """Returns whatever it is told to, of a linear layer's output."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(3, 2), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.linear(x))


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.linear(first - second)


def test_inputs_are_given_in_order_or_by_keyword() -> None:
    batch = {"a": torch.randn(4, 3), "b": torch.randn(4, 3), "y": BATCH["y"]}
    module = Between()
    in_order = Task(module, inputs=("a", "b"))
    turned = Task(module, inputs=("b", "a"))
    named = Task(module, inputs={"second": "b", "first": "a"})
    assert torch.equal(in_order.losses(module, batch), named.losses(module, batch))
    assert not torch.equal(in_order.losses(module, batch), turned.losses(module, batch))


def test_columns_are_named_once_each() -> None:
    assert Task(nn.Linear(3, 3), inputs=("x",), targets=("x",)).columns == ("x",)
    assert Task(nn.Linear(3, 3), inputs={"a": "u", "b": "v"}).columns == ("u", "v", "y")


def test_logits_are_taken_from_what_a_hugging_face_model_returns() -> None:
    module = Says(lambda out: SimpleNamespace(logits=out, hidden=None))
    assert Task(module).losses(module, BATCH).shape == (4,)


def test_prepare_turns_stored_columns_into_inputs() -> None:
    stored = {"x": torch.randint(255, (4, 3), dtype=torch.uint8), "y": BATCH["y"]}
    task = Task(nn.Linear(3, 2), prepare=lambda b: {**b, "x": b["x"].float() / 255})
    task.check(stored)
    assert task.losses(task.module, stored).shape == (4,)


BAD: dict[str, tuple[Task, str]] = {
    "a scalar loss": (
        Task(nn.Linear(3, 2), nn.functional.cross_entropy),
        r"'loss' returns one number for 4 examples.*reduction=\"none\"",
    ),
    "a loss of the wrong shape": (
        Task(nn.Linear(3, 2), lambda out, y: out),
        r"'loss' returns shape \(4, 2\) for 4 examples, where \(4,\) is needed",
    ),
    "a loss that is no tensor": (
        Task(nn.Linear(3, 2), lambda out, y: 0.5),  # type: ignore[arg-type,return-value]
        "'loss' must return a tensor, not a float",
    ),
    "a scalar metric": (
        Task(nn.Linear(3, 2), metrics={"hits": lambda out, y: accuracy(out, y).mean()}),
        "'hits' returns one number for 4 examples",
    ),
    "a module that returns a dict": (
        Task(Says(lambda out: {"scores": out})),
        r"'loss' cannot be computed from the module's output \(dict\)",
    ),
    "a module that returns a pair": (
        Task(Says(lambda out: (out, out))),
        r"'loss' cannot be computed from the module's output \(tuple\)",
    ),
    "too few classes": (
        Task(nn.Linear(3, 1)),
        r"'loss' cannot be computed.*\(4, 1\)",
    ),
    "an input of the wrong width": (
        Task(nn.Linear(5, 2)),
        r"cannot be called on a batch.*\(4, 3\)",
    ),
    "a module that raises": (
        Task(Says(lambda out: 1 / 0)),
        "cannot be called on a batch of the data: division by zero",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_trained_is_refused_in_words(what: str) -> None:
    task, message = BAD[what]
    with pytest.raises(TaskError, match=f"(?s){message}"):
        task.check(BATCH)


def test_the_original_error_is_kept_as_the_cause() -> None:
    with pytest.raises(TaskError) as caught:
        BAD["a module that raises"][0].check(BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_checking_leaves_no_trace() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    Task(module).check(BATCH)
    assert torch.equal(torch.rand(3), expected)
    assert not module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
