"""Whatever way a script saves its model, the file holds what the federation has arrived at."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import hubless
from hubless.errors import QuorumMissed
from hubless.federate.script.hook import FirstOptimizer, watching


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()


def plainly(model: nn.Module, folder: Path) -> dict[str, Any]:
    torch.save(model.state_dict(), folder / "file")
    return torch.load(folder / "file")


def within_a_checkpoint(model: nn.Module, folder: Path) -> dict[str, Any]:
    with (folder / "file").open("wb") as file:
        torch.save({"epoch": 3, "nets": [{"model": nn.DataParallel(model).state_dict()}]}, file)
    saved = torch.load(folder / "file")["nets"][0]["model"]
    return {name.removeprefix("module."): tensor for name, tensor in saved.items()}


def as_a_module(model: nn.Module, folder: Path) -> dict[str, Any]:
    torch.save(obj=model, f=str(folder / "file"))
    return torch.load(folder / "file", weights_only=False).state_dict()


def as_safetensors(model: nn.Module, folder: Path) -> dict[str, Any]:
    safetensors.torch.save_model(model, str(folder / "file"))
    return safetensors.torch.load_file(folder / "file")


def into_a_stream(model: nn.Module, folder: Path) -> dict[str, Any]:
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    return torch.load(io.BytesIO(stream.getvalue()))


def copied(model: nn.Module, folder: Path) -> dict[str, Any]:
    torch.save({n: t.clone() for n, t in model.state_dict().items()}, folder / "file")
    return torch.load(folder / "file")


def arrived_at(meeting: Path, model: nn.Module) -> dict[str, Any]:
    with hubless.join(meeting, "looking") as federation:
        return federation.pull(copy.deepcopy(model)).state_dict()


def same(saved: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(saved[name], tensor) for name, tensor in other.items())


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    with hubless.join(tmp_path / "meeting", "b") as other:
        other.step(nn.Linear(2, 1), examples=40)
    return tmp_path / "meeting"


@pytest.mark.parametrize(
    "save", [plainly, within_a_checkpoint, as_a_module, as_safetensors, into_a_stream, copied]
)
def test_a_file_holds_the_federations_model(
    save: Callable[[nn.Module, Path], dict[str, Any]], meeting: Path, tmp_path: Path
) -> None:
    model, federation = nn.Linear(2, 1), hubless.join(meeting, "a")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=10)
    with federation, watching(hook):
        train(model, optimizer, 5)
        trained = copy.deepcopy(model.state_dict())
        saved = save(model, tmp_path)
        assert not same(saved, trained)
        assert same(saved, arrived_at(meeting, model))
        # met once for all that is saved before training goes on
        save(model, tmp_path)
        assert federation.member.sequence == 1
        train(model, optimizer, 8)
        assert federation.member.sequence == 2
        assert same(save(model, tmp_path), arrived_at(meeting, model))
        assert federation.member.sequence == 3
    assert set(hook.files.values()) == {True}


def test_what_is_not_the_model_as_it_is_now_is_left_alone(meeting: Path, tmp_path: Path) -> None:
    model, federation = nn.Linear(2, 1), hubless.join(meeting, "a")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=100)
    with federation, watching(hook):
        train(model, optimizer, 3)
        best = copy.deepcopy(model.state_dict())
        train(model, optimizer, 3)
        torch.save(optimizer.state_dict(), tmp_path / "optimizer")
        torch.save(optimizer, tmp_path / "optimizer")
        torch.save({"scores": torch.ones(2)}, tmp_path / "scores")
        torch.save(best, tmp_path / "best")
        beside = threading.Thread(target=plainly, args=(model, tmp_path))
        beside.start()
        beside.join()
        assert federation.member.sequence == 0
    assert same(torch.load(tmp_path / "best"), best)
    assert {Path(file).name: met for file, met in hook.files.items()} == {
        "best": False,
        "file": False,
    }


def test_a_file_is_written_although_the_others_are_out_of_reach(tmp_path: Path) -> None:
    model, said = nn.Linear(2, 1), []
    federation = hubless.join(
        tmp_path / "meeting", "a", pace=hubless.Rounds(members=2, deadline=0.3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FirstOptimizer(federation, every=100, say=said.append)
    with watching(hook):
        train(model, optimizer, 3)
        trained = copy.deepcopy(model.state_dict())
        assert same(plainly(model, tmp_path), trained)
        with pytest.raises(QuorumMissed):
            hook.finish()
    federation.close()
    assert hook.files == {str(tmp_path / "file"): False}
    assert "this site's own model" in said[-1]


def test_a_pretrained_model_is_saved_as_the_federation_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    shape = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    words = torch.arange(8)[None]
    models = [transformers.GPT2LMHeadModel(shape) for _ in range(2)]
    with hubless.join(tmp_path / "meeting", "b") as other:
        other.step(models[1], examples=1)
    model, federation = models[0], hubless.join(tmp_path / "meeting", "a")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with federation, watching(FirstOptimizer(federation, every=100)):
        for _ in range(3):
            optimizer.zero_grad()
            model(input_ids=words, labels=words).loss.backward()
            optimizer.step()
        # a script imports it under watch, which here another test may have done long ago
        late = "transformers.modeling_utils.safe_save_file"
        monkeypatch.setattr(late, safetensors.torch.save_file)
        model.save_pretrained(tmp_path / "saved")
        assert federation.member.sequence == 1
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved").state_dict()
    assert same(saved, arrived_at(tmp_path / "meeting", model))
