"""A plain torch loop federates in one line, with and without the optimizer's hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hubless
from hubless import events


def network(value: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_module_is_averaged_in_place_in_every_precision(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    mine, other = network(1.0, dtype), network(4.0, dtype)
    mine[1].num_batches_tracked.fill_(10)
    other[1].num_batches_tracked.fill_(31)
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        a.step(mine, examples=1)
        assert b.step(other, examples=1) is other
    for parameter in other.parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, torch.full_like(parameter, 2.5))
    assert other[1].num_batches_tracked.dtype == torch.int64
    assert other[1].num_batches_tracked == 10


def test_sites_start_alike_and_the_optimizer_goes_on_training_the_same_tensors(
    tmp_path: Path,
) -> None:
    torch.manual_seed(1)
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    assert not torch.equal(first.weight, second.weight)
    a = hubless.join(tmp_path, "a", model=first)
    pointer = second.weight.data_ptr()
    b = hubless.join(tmp_path, "b", model=second)
    assert torch.equal(first.weight, second.weight)
    assert second.weight.data_ptr() == pointer
    a.close()
    b.close()


def test_the_optimizers_hook_federates_every_n_steps_and_leaves_the_loop_alone(
    tmp_path: Path,
) -> None:
    said: list[events.Event] = []
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    federation = hubless.join(
        tmp_path, "a", model=model, optimizer=optimizer, every=5, examples=64, events=said.append
    )
    peer = nn.Linear(3, 1)
    with hubless.join(tmp_path, "b", model=peer) as b:
        with torch.no_grad():
            peer.weight.fill_(100.0)
        b.step(peer, examples=64)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).pow(2).mean()
            loss.backward()
            federation.report(loss=loss.item())
            optimizer.step()

    train(4)
    assert model.weight.abs().max() < 10
    train(1)
    assert model.weight.min() > 40
    pushed = [e for e in said if isinstance(e, events.Pushed)]
    assert [p.examples for p in pushed] == [64]
    assert "loss" in pushed[0].metrics
    federation.close()
    train(5)
    assert len([e for e in said if isinstance(e, events.Pushed)]) == 1


def test_a_dict_of_tensors_comes_back_as_tensors(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        a.step({"w": torch.ones(3)}, examples=1)
        mine = {"w": torch.full((3,), 3.0)}
        result = b.step(mine, examples=1)
    assert torch.equal(result["w"], torch.full((3,), 2.0))
    assert torch.equal(mine["w"], torch.full((3,), 3.0))


def test_numpy_and_torch_sites_federate_with_each_other(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        model = nn.Linear(2, 2)
        arrays = {n: np.zeros(p.shape, np.float32) for n, p in model.named_parameters()}
        a.step(arrays, examples=1)
        before = model.weight.detach().clone()
        b.step(model, examples=1)
    assert torch.allclose(model.weight, before / 2)


def test_the_ten_lines_of_the_readme_run(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    assert "hubless.join(" in code
    code = code.replace("s3://bucket/run1", str(tmp_path / "run1"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run1" / "updates").glob("site-a=*"))
    assert done.stdout.count("epoch") == 20
    assert (tmp_path / "model.pt").exists()


def test_the_tensors_in_a_dict_are_loaded_in_place_when_joining(tmp_path: Path) -> None:
    hubless.join(tmp_path, "a", model={"w": torch.ones(3), "bias": np.ones(2)}).close()
    weight = torch.zeros(3, requires_grad=True)
    model = {"w": weight, "bias": np.zeros(2)}
    hubless.join(tmp_path, "b", model=model).close()
    assert model["w"] is weight
    assert torch.equal(weight.detach(), torch.ones(3))
    assert weight.requires_grad
    # arrays are loaded with pull
    assert (model["bias"] == 0).all()


def test_a_dict_of_tensors_can_be_trained_on_after_a_step(tmp_path: Path) -> None:
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        a.step({"w": torch.ones(3), "steps": torch.tensor(2)}, examples=1)
        mine = {"w": torch.zeros(3, requires_grad=True), "steps": torch.tensor(4)}
        result = b.step(mine, examples=1)
    (result["w"] ** 2).sum().backward()
    assert torch.equal(result["w"].grad, torch.ones(3))
    assert not result["steps"].requires_grad
