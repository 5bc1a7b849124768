"""What is shared of a model is the same, whichever way it comes into a federation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import hubless
from hubless import events
from hubless.federate.model import own_tensors, shared_names
from tests.cli.commands import COMMAND, ENVIRONMENT, PATIENCE, events_in
from tests.cli.commands import hubless as command

MODELS = """
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.body(self.embedding(x.abs().long() % 11)).relu()).mean(1)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 11).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, 6))
        self.b = nn.Parameter(torch.zeros(11, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class Headed(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).requires_grad_(False)
        self.head = nn.Linear(6, 11)

    def forward(self, x):
        return self.head(self.backbone(x))


def batches(model, optimizer, times):
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).logsumexp(1).sum().backward()
        optimizer.step()
        yield
"""
SCRIPT = """
import sys
import torch
import models

model = getattr(models, sys.argv[1])()
# some give an optimizer everything, and others what is trained
params = list(model.parameters())
if sys.argv[1] != "Tied":
    params = [p for p in params if p.requires_grad]
for _ in models.batches(model, torch.optim.SGD(params, lr=0.1), 6):
    pass
"""
LINES = """
import sys
import torch
import hubless
import models
from hubless.events import to_file

for kind in ("Tied", "Adapted", "Headed"):
    model = getattr(models, kind)()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    note = to_file(f"{kind}-{sys.argv[1]}")
    if sys.argv[1] == "optimizer":
        around = torch.nn.DataParallel(model)
        with hubless.join(kind, "b", model=around, optimizer=optimizer, every=3, events=note):
            for _ in models.batches(model, optimizer, 6):
                pass
    else:
        with hubless.join(kind, "c", events=note) as federation:
            for _ in models.batches(model, optimizer, 6):
                federation.step(model, examples=5)
"""
SHARED = {
    "Tied": {"embedding.weight", "body.weight", "body.bias"},
    "Adapted": {"a", "b"},
    "Headed": {
        "head.weight",
        "head.bias",
        "backbone.1.running_mean",
        "backbone.1.running_var",
        "backbone.1.num_batches_tracked",
    },
}


def test_all_ways_in_meet_in_one_federation(tmp_path: Path) -> None:
    for name, code in {"models": MODELS, "script": SCRIPT, "lines": LINES}.items():
        (tmp_path / f"{name}.py").write_text(code)
    ways = [[sys.executable, "lines.py", way] for way in ("optimizer", "step")]
    for kind in SHARED:
        to = ["--client", "a", "--every", "3", "--events", f"{kind}-join"]
        ways.append([*COMMAND, "join", kind, "script.py", *to, kind])
    processes = [
        subprocess.Popen(way, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        for way in ways
    ]
    for process in processes:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
    for kind, names in SHARED.items():
        told = [events_in(tmp_path / f"{kind}-{way}") for way in ("join", "optimizer", "step")]
        sharing = [[e for e in way if e["event"] == "sharing"] for way in told]
        assert {len(each) for each in sharing} == {1}
        assert {(e["arrays"], e["bytes"]) for [e] in sharing} == {
            (sharing[0][0]["arrays"], sharing[0][0]["bytes"])
        }
        assert {e["examples"] for e in told[0] + told[1] if e["event"] == "pushed"} <= {10, 15}
        assert command("pull", kind, "-o", f"{kind}.st", cwd=tmp_path).returncode == 0
        assert set(load_file(tmp_path / f"{kind}.st")) == names
        updates = (tmp_path / kind / "updates").iterdir()
        assert {path.name[0] for path in updates} == {"a", "b", "c"}


def test_names_are_those_of_the_model_whatever_is_around_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    plain = shared_names(model)
    assert plain == shared_names(nn.DataParallel(torch.compile(model, backend="eager")))
    within = nn.Sequential(
        torch.compile(model[0], backend="eager"), nn.Sequential(nn.DataParallel(model[1][0]))
    )
    assert plain == shared_names(within)
    assert set(own_tensors(within)) == set(plain)


def test_params_are_tied_by_memory_and_not_by_values() -> None:
    model = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "out": nn.Linear(2, 2, bias=False)})
    with torch.no_grad():
        model["out"].weight.copy_(model["in"].weight)
    assert shared_names(model) == ("in.weight", "out.weight")
    model["out"].weight.data = model["in"].weight.data
    assert shared_names(model) == ("in.weight",)


def test_a_model_of_which_nothing_is_trained_is_shared_as_it_is(tmp_path: Path) -> None:
    trained, judged = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)
    with hubless.join(tmp_path, "a") as a, hubless.join(tmp_path, "b") as b:
        a.step(trained, examples=1)
        b.pull(judged)
    assert torch.equal(judged.weight, trained.weight)


def test_what_is_frozen_later_is_still_shared(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    said: list[events.Event] = []
    with hubless.join(tmp_path, "a", events=said.append) as federation:
        federation.step(model, examples=1)
        model[0].requires_grad_(False)
        federation.step(model, examples=1)
    sharing = [e for e in said if isinstance(e, events.Sharing)]
    assert [(e.arrays, e.bytes, e.left_out) for e in sharing] == [(4, 36, 0)]
