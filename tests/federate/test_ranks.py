"""Several processes of one site are one member: rank 0 federates, and every rank gets what came."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.cli.commands import COMMAND, ENVIRONMENT, PATIENCE, events_in, hubless

LOOPBACK = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = ["--standalone", "--nproc-per-node", "2"]
DATA = """
import os
import sys
import torch

rank, target = int(os.environ["RANK"]), float(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
data = torch.randn(20, 8, 3, generator=torch.Generator().manual_seed(rank))
"""
SCRIPT = (
    DATA
    + """
torch.distributed.init_process_group("gloo")
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, x in enumerate(data):
    optimizer.zero_grad()
    (parallel(x) - target).pow(2).sum().backward()
    optimizer.step()
    if rank == 0 and step in (7, 13):
        torch.save(parallel.state_dict(), "checkpoint.pt")
torch.save(model.state_dict(), f"{target}-{rank}.pt")
torch.distributed.destroy_process_group()
"""
)
LINES = (
    DATA
    + """
import hubless

with hubless.join(
    "meeting", "a" if target > 0 else "b", pace=hubless.Rounds(members=2), events=sys.argv[2]
) as federation:
    model = federation.start(model)
    for x in data[:4]:
        with torch.no_grad():
            model[0].weight += target + rank
        arrays = {name: t.numpy() for name, t in model.state_dict().items()}
        loaded = federation.step(arrays, examples=8 + rank)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in loaded.items()})
    try:
        federation.step({"other": torch.ones(1).numpy()}, examples=1)
    except hubless.HublessError as error:
        print(type(error).__name__, flush=True)
    model = federation.finish(model, examples=8)
torch.save(model.state_dict(), f"{target}-{rank}.pt")
"""
)


def ended(*commands: list[str], folder: Path) -> list[tuple[str, str]]:
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=LOOPBACK,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def the_same_everywhere(folder: Path) -> bool:
    assert hubless("pull", "meeting", cwd=folder).returncode == 0
    model = load_file(folder / "model.safetensors")
    saved = [torch.load(path) for path in folder.glob("*-[01].pt")]
    assert len(saved) == 4
    return all(torch.equal(each[name], array) for each in saved for name, array in model.items())


def test_scripts_of_two_ranks_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--members", "2", "--every", "5"]
    a = [*COMMAND, "join", "meeting", *options, "--client", "a", "--events", "a.jsonl"]
    b = ["join", "meeting", *options, "--client", "b", "train.py", "-1"]
    (_, said), _ = ended(
        [*a, "--", "torchrun", *TWO, "train.py", "1"],
        [*TORCHRUN, *TWO, "-m", "hubless.cli", *b],
        folder=tmp_path,
    )
    told = events_in(tmp_path / "a.jsonl")
    assert sum(e["event"] == "joined" for e in told) == 1
    # both ranks train on eight at a time; the first of them counts anew after a save
    examples = [e["examples"] for e in told if e["event"] == "pushed"]
    assert set(examples) <= {64, 72, 80}
    assert said.count("federates what SGD trains") == 1
    assert the_same_everywhere(tmp_path)


def test_lines_of_ones_own_in_two_ranks_each(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LINES)
    sites = [[*TORCHRUN, *TWO, "train.py", to, f"{to}.jsonl"] for to in ("1", "-1")]
    for out, _ in ended(*sites, folder=tmp_path):
        # two processes write there, and their lines may come in one
        assert out.count("SignatureMismatch") == 2
    pushed = [e["examples"] for e in events_in(tmp_path / "1.jsonl") if e["event"] == "pushed"]
    assert pushed[:4] == [17] * 4
    assert the_same_everywhere(tmp_path)
