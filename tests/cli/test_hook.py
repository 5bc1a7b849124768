"""What is federated of a script that says nothing about it: the right tensors, by their names."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import hubless
from hubless import events
from hubless.errors import ParamsError, SignatureMismatch
from hubless.federate.federation import Federation
from hubless.federate.script.batches import Batches
from hubless.federate.script.hook import FirstOptimizer, after_steps
from hubless.federate.script.trained import trained_by
from hubless.params import is_tensor


def names_of(*params: nn.Parameter) -> tuple[str, ...]:
    return trained_by(torch.optim.SGD(params, lr=0.1)).names


def step(optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.ones_like(param)
        optimizer.step()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with hubless.join(tmp_path / "meeting", "a") as joined:
        yield joined


def test_names_are_those_of_the_outermost_module_with_exactly_these_params() -> None:
    inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    outer = nn.ModuleDict({"body": inner, "norm": nn.BatchNorm1d(3, affine=False)})
    names = names_of(*outer.parameters())
    assert names == tuple(outer.state_dict())
    assert {"body.0.weight", "body.1.running_mean", "norm.running_var"} <= set(names)


def test_what_another_optimizer_trains_is_left_out() -> None:
    both = nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)})
    assert names_of(*both["left"].parameters()) == ("weight", "bias")


def test_frozen_params_stay_but_buffers_around_them_go_along() -> None:
    model = nn.ModuleDict(
        {"body": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "a": nn.Linear(2, 2)}
    )
    model["b"] = nn.Linear(2, 2)
    trained = [*model["a"].parameters(), *model["b"].parameters()]
    assert names_of(*trained) == (
        "body.1.running_mean",
        "body.1.running_var",
        "body.1.num_batches_tracked",
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
    )


def test_a_wrapper_around_a_model_does_not_change_its_names() -> None:
    model = nn.Linear(2, 2)
    wrapped = nn.DataParallel(model)
    assert names_of(*wrapped.parameters()) == ("weight", "bias")


def test_tied_params_are_shared_once() -> None:
    model = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "out": nn.Linear(2, 2, bias=False)})
    model["out"].weight = model["in"].weight
    assert names_of(*model.parameters()) == ("in.weight",)


def test_params_that_no_module_owns_are_named_by_their_places() -> None:
    loose = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": loose[:2]}, {"params": loose[2:]}], lr=0.1)
    model = trained_by(optimizer)
    assert model.names == ("group0.0", "group0.1", "group1.0")
    assert all(is_tensor(tensor) for tensor in model.state_dict().values())


def test_a_buffer_that_is_replaced_is_still_the_one_that_is_shared() -> None:
    model = nn.BatchNorm1d(2)
    found = trained_by(torch.optim.SGD(model.parameters(), lr=0.1))
    model.running_mean = torch.full((2,), 7.0)
    assert float(found.state_dict()["running_mean"][0]) == 7.0


def test_it_shares_at_every_nth_step_and_once_more_at_the_end(federation: Federation) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=4, examples=9)
    with after_steps(hook):
        step(optimizer, 10)
        assert federation.member.sequence == 2
        hook.finish()
        assert federation.member.sequence == 3
        hook.finish()
        assert federation.member.sequence == 3
    step(optimizer, 10)
    assert hook.steps == 10


def test_other_optimizers_are_said_once_and_left_alone(federation: Federation) -> None:
    said: list[str] = []
    first, second = nn.Linear(2, 1), nn.Linear(3, 1)
    mine = torch.optim.SGD(first.parameters(), lr=0.1)
    other = torch.optim.Adam(second.parameters(), lr=0.1)
    with after_steps(FirstOptimizer(federation, every=1, say=said.append)):
        step(mine)
        step(other, 5)
    assert federation.member.sequence == 0
    assert len(said) == 2
    assert "another optimizer (Adam)" in said[1]


def test_an_optimizer_made_anew_for_the_same_model_goes_on_sharing(federation: Federation) -> None:
    said: list[str] = []
    model = nn.Linear(2, 1)
    hook = FirstOptimizer(federation, every=4, examples=1, say=said.append)
    with after_steps(hook):
        step(torch.optim.SGD(model.parameters(), lr=0.1), 4)
        assert federation.member.sequence == 1
        step(torch.optim.Adam(model.parameters()), 5)
        # such as for the last layers alone
        step(torch.optim.SGD([model.bias], lr=0.1))
    assert (hook.steps, federation.member.sequence) == (10, 2)
    hook.finish()
    assert federation.member.sequence == 3
    assert len(said) == 1


def test_the_one_step_of_a_short_script_is_shared_at_its_end(federation: Federation) -> None:
    model = nn.Linear(2, 1)
    hook = FirstOptimizer(federation, every=4)
    with after_steps(hook):
        step(torch.optim.SGD(model.parameters(), lr=0.1))
    hook.finish()
    assert (hook.steps, federation.member.sequence) == (1, 1)


def test_an_error_is_raised_once_and_then_the_script_goes_on_alone(
    federation: Federation, tmp_path: Path
) -> None:
    with hubless.join(tmp_path / "meeting", "b") as other:
        other.start(nn.Linear(7, 7))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=1)
    with after_steps(hook):
        with pytest.raises(SignatureMismatch):
            step(optimizer)
        step(optimizer, 3)
        with pytest.raises(SignatureMismatch):
            hook.finish()


def test_a_fork_of_a_script_is_not_the_member(federation: Federation) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=1)
    with after_steps(hook):
        step(optimizer)
        child = os.fork()
        if not child:
            try:
                step(optimizer, 3)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        step(optimizer)
    assert [path.name.partition("-")[0] for path in updates(federation)] == ["a=00000000"]


def updates(federation: Federation) -> list[Path]:
    folder = Path(federation.store.url.removeprefix("file://"))
    return sorted((folder / "updates").iterdir())


def test_examples_are_those_of_the_batches_that_a_model_trains_on() -> None:
    compiled = functools.partial(torch.compile, backend="eager")
    for around in (lambda model: model, nn.DataParallel, compiled):
        model = nn.Linear(2, 1)
        called = around(model)
        batches = Batches(called)
        assert batches.take() is None
        for size in (8, 8, 3):
            called(torch.ones(size, 2))
        model.eval()
        called(torch.ones(50, 2))
        model.train()
        assert batches.take() == 19
        called(torch.ones(5, 2))
        # a stretch that was cut short
        assert batches.take() == 19
        batches.remove()
        called(torch.ones(100, 2))
        assert batches.take() == 19


def test_counting_is_no_part_of_what_is_compiled() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    batches = Batches(model)

    @torch.compile(backend="eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    loss(torch.ones(6, 2))
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(20):
            loss(torch.ones(6, 2))
    assert batches.take() is None
    model(torch.ones(6, 2))
    assert batches.take() == 6


def test_where_only_parts_are_called_the_part_that_saw_most_counts() -> None:
    model = nn.ModuleDict({"net": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    batches = Batches(model)
    for size in (8, 5):
        model["head"](model["net"](torch.ones(size, 2))[:2])
    assert batches.take() == 13


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *given: object, **named: object) -> torch.Tensor:
        return self.weight


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {"input_ids": torch.ones(7, 3)}),
        ((None, torch.ones(7, 3)), {}),
        (([torch.ones(3, 2)] * 7,), {}),
        (({"image": torch.ones(7, 3), "weight": torch.ones(1)},), {}),
        (((torch.ones(7, 3), torch.ones(7)),), {}),
    ],
)
def test_batches_come_in_many_ways(given: tuple[object, ...], named: dict[str, object]) -> None:
    model = Listing()
    batches = Batches(model)
    model(*given, **named)
    assert batches.take() == 7


def test_what_cannot_be_counted_has_to_be_said(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    heard: list[events.Event] = []
    with hubless.join(
        tmp_path, "a", model=model, optimizer=optimizer, every=2, events=heard.append
    ) as federation:
        step(optimizer)
        with pytest.raises(ParamsError, match="examples="):
            step(optimizer)
        model(torch.ones(6, 2))
        federation.finish(model)
    assert [e.examples for e in heard if isinstance(e, events.Pushed)] == [6]


def test_a_script_of_which_nothing_can_be_counted_is_told(federation: Federation) -> None:
    said: list[str] = []
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with after_steps(FirstOptimizer(federation, every=2, say=said.append)):
        step(optimizer, 6)
    assert len(said) == 2
    assert "--examples" in said[1]
