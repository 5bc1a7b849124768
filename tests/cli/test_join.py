"""`hubless join` makes a member of a torch script that knows nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from tests.cli.commands import PATIENCE, events_in, hubless, kinds_in, start, wait_until

TRAIN = """
import pathlib, sys, time
import torch

name, target, steps, others = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
torch.manual_seed(len(name))
linear = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(linear.weight)
model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(1, affine=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pathlib.Path(name + ".ready").touch()
for step in range(steps):
    if others and step % 20 == 0:
        # nobody is ahead by more than two exchanges, however the machine shares out its time
        pathlib.Path(f"{name}.{step}").touch()
        while not all(pathlib.Path(f"{other}.{step}").exists() for other in others):
            time.sleep(0.01)
    model(torch.randn(8, 1))
    loss = (model[0].weight - target).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        print("second step", float(model[0].weight), flush=True)
    time.sleep(0.002)
with torch.no_grad():
    model(torch.zeros(8, 1))
torch.save(model.state_dict(), name + ".pt")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    return out, error


def weight(folder: Path, name: str) -> float:
    return float(torch.load(folder / f"{name}.pt")["0.weight"])


def pulled(folder: Path) -> dict[str, torch.Tensor]:
    ran = hubless("pull", "meeting", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return load_file(folder / "model.safetensors")


def test_two_unchanged_scripts_end_nearer_to_each_other_than_alone(folder: Path) -> None:
    common = ["join", "meeting", "train.py", "--every", "10"]
    a = start(*common, "--client", "a", "--events", "a.jsonl", "a", "1", "300", "b", cwd=folder)
    words = ["--", "b", "-1", "300", "a"]
    b = start(*common, "--client", "b", "--events", "b.jsonl", *words, cwd=folder)
    finished(a), finished(b)
    # alone, they end at 1 and -1
    assert abs(weight(folder, "a") - weight(folder, "b")) < 1.2
    for name, other in ("ab", "ba"):
        told = events_in(folder / f"{name}.jsonl")
        assert {peer for e in told if e["event"] == "pulled" for peer in e["peers"]} == {other}
        assert sum(e["event"] == "pushed" for e in told) == 30
    said = json.loads(hubless("ls", "meeting", "--json", cwd=folder).stdout)
    assert [m["client"] for m in said["members"]] == ["a", "b"]
    names = ["0.weight", "1.num_batches_tracked", "1.running_mean", "1.running_var"]
    assert sorted(pulled(folder)) == names


DIGITS = """
import sys
import torch

images, labels = torch.load("digits.pt")
mine = labels < 5 if sys.argv[1] == "low" else labels >= 5
data = torch.utils.data.TensorDataset(images[mine], labels[mine])
torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    if epoch == 3:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
torch.save(model.state_dict(), sys.argv[1] + ".pt")
"""


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_saved_file_is_the_federations_model(folder: Path, mode: str) -> None:
    (folder / "digits.py").write_text(DIGITS)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    torch.save((images.float() / 16, labels), folder / "digits.pt")
    words = ["join", "meeting", "digits.py", "--every", "25"]
    words += ["--members", "2"] if mode == "sync" else []
    last = [*words, "--client", "b", "--events", "b.jsonl"]
    if mode == "sync":
        low = start(*words, "--client", "a", "low", cwd=folder)
        high = start(*last, "high", cwd=folder)
        finished(low)
    else:
        # nobody waits, so that only who ends last has the model at which all have arrived
        finished(start(*words, "--client", "a", "low", cwd=folder))
        high = start(*last, "high", cwd=folder)
    said = finished(high)[1]
    model = pulled(folder)
    saved = {name: torch.load(folder / f"{name}.pt") for name in ("low", "high")}
    assert all(torch.equal(saved["high"][name], array) for name, array in model.items())
    assert all(
        torch.equal(saved["low"][n], array) == (mode == "sync") for n, array in model.items()
    )
    # alone, either knows half of the digits
    right = (images.float() / 16 @ model["weight"].T + model["bias"]).argmax(1) == labels
    assert right.float().mean() > (0.85 if mode == "sync" else 0.52)
    assert "high.pt: the federation's model" in said
    assert "hubless pull meeting -o model.safetensors" in said
    # 15 batches an epoch, the last of which is smaller, and what an update counts for is a stretch
    examples = [e["examples"] for e in events_in(folder / "b.jsonl") if e["event"] == "pushed"]
    assert 24 * 64 - 40 <= examples[0] <= 24 * 64 and max(examples[1:]) <= 25 * 64
    assert examples == sorted(examples)


def test_a_file_that_no_event_can_go_to_is_refused_before_joining(folder: Path) -> None:
    words = ["--events", "nowhere/x.jsonl", "--client", "a"]
    ran = hubless("join", "meeting", "train.py", *words, cwd=folder)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1 and "cannot write events to nowhere/x.jsonl" in ran.stderr
    assert not (folder / "meeting").exists()


def test_in_rounds_both_save_the_same_params(folder: Path) -> None:
    rounds = ["--members", "a,b", "--deadline", "200", "--strategy", "fedavgm"]
    common = ["join", "meeting", "train.py", "--every", "20", *rounds]
    a = start(*common, "--client", "a", "--examples", "1", "a", "1", "90", cwd=folder)
    b = start(*common, "--client", "b", "--examples", "3", "--", "b", "-1", "90", cwd=folder)
    finished(a), finished(b)
    # the steps are no multiple of --every: what is saved is what another round gave
    assert weight(folder, "a") == weight(folder, "b") == pulled(folder)["0.weight"]
    # b weighs three times as much
    assert weight(folder, "a") < -0.1


def test_a_killed_script_comes_back_and_goes_on(folder: Path) -> None:
    words = ["join", "meeting", "train.py", "--client", "a", "--every", "10"]
    first = start(*words, "--events", "1.jsonl", "a", "1", "1000000", cwd=folder)
    events = folder / "1.jsonl"
    wait_until(lambda: events.exists() and events.read_text().count('"pushed"') >= 8, first)
    os.kill(first.pid, signal.SIGKILL)
    out, _ = first.communicate(timeout=PATIENCE)
    assert float(out.split()[-1]) < 0.1
    again = start(*words, "--events", "2.jsonl", "a", "1", "50", cwd=folder)
    out, _ = finished(again)
    # a model that began anew would be near 0
    assert float(out.split()[-1]) > 0.5
    joined = events_in(folder / "2.jsonl")[0]
    assert (joined["event"], joined["resumed"]) == ("joined", True)


def test_an_interrupted_member_leaves_and_what_it_shared_stays(folder: Path) -> None:
    words = ["join", "meeting", "train.py", "--client", "a", "--every", "10"]
    process = start(*words, "--events", "a.jsonl", "a", "1", "1000000", cwd=folder)
    events = folder / "a.jsonl"
    wait_until(lambda: events.exists() and events.read_text().count('"pushed"') >= 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert kinds_in(events)[-1] == "left"
    assert hubless("pull", "meeting", cwd=folder).returncode == 0


def test_a_script_without_torch_is_told_what_to_do_and_torch_is_not_imported_for_it(
    folder: Path,
) -> None:
    (folder / "plain.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    ran = hubless("join", "meeting", "plain.py", "--client", "a", cwd=folder)
    assert ran.returncode == 1
    assert ran.stdout == "False\n"
    assert "never took a step of a torch optimizer" in ran.stderr
    assert "hubless.join('meeting', client='a')" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_script_that_fails_shares_nothing_more(folder: Path) -> None:
    failing = TRAIN.replace("with torch.no_grad():", "raise ValueError('mine')\nif True:")
    (folder / "failing.py").write_text(failing)
    words = [
        "join",
        "meeting",
        "failing.py",
        "--client",
        "a",
        "--events",
        "a.jsonl",
        "--every",
        "4",
    ]
    ran = hubless(*words, "a", "1", "10", cwd=folder)
    assert ran.returncode == 1
    assert "ValueError: mine" in ran.stderr
    assert "runpy" not in ran.stderr
    assert kinds_in(folder / "a.jsonl").count("pushed") == 2
    ran = hubless(*[w.replace("failing", "train") for w in words], "a", "1", "10", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert kinds_in(folder / "a.jsonl").count("pushed") == 2 + 3


def test_the_last_params_that_were_not_taken_in_are_said_and_3(folder: Path) -> None:
    rounds = ["--members", "2", "--deadline", "0.5"]
    words = ["join", "meeting", "train.py", "--client", "a", *rounds, "--every", "1000"]
    ran = hubless(*words, "a", "1", "10", cwd=folder)
    assert ran.returncode == 3, ran.stderr
    assert "what it trained last was not shared" in ran.stderr
    assert (folder / "a.pt").exists()


def test_a_model_of_another_shape_is_refused_by_name(folder: Path) -> None:
    words = ["join", "meeting", "train.py", "--client"]
    assert hubless(*words, "a", "a", "1", "5", cwd=folder).returncode == 0
    other = TRAIN.replace("Linear(1, 1,", "Linear(2, 1,").replace("randn(8, 1)", "randn(8, 2)")
    (folder / "train.py").write_text(other)
    ran = hubless(*words, "b", "b", "1", "5", cwd=folder)
    assert ran.returncode == 1
    assert "0.weight" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategy", "best"], "there is no strategy 'best'"),
        (["--selector", "nobody", "--cohort", "2"], "there is no selector 'nobody'"),
        (["--selector", "uniform"], "--selector and --cohort go together"),
        (["--selector", "active", "--cohort", "1"], "which a script that knows nothing of it"),
        (["--client", "bad/name"], "client name 'bad/name' cannot be used"),
        (["--deadline", "3"], "--deadline goes with --members or --quorum"),
        (["--members", "3", "--deadline", "soon"], "a number of seconds, or adaptive"),
        (["--members", "3", "--deadline", "adaptive"], "an adaptive deadline"),
        (["--members", "3", "--peers", "all"], "--peers goes without rounds"),
        (["--participation", "2"], "probability= is a number above 0 and at most 1, not 2"),
        (["--participation", "0.5", "--selector", "uniform", "--cohort", "1"], "leave one out"),
        (["--option", "region"], "--option takes KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_said_before_the_script_runs(
    words: list[str], said: str, folder: Path
) -> None:
    ran = hubless("join", "meeting", "train.py", *words, "a", "1", "5", cwd=folder)
    assert ran.returncode == 1
    assert said in ran.stderr
    assert not (folder / "a.ready").exists()


def test_a_member_has_a_name_also_if_none_is_given(folder: Path) -> None:
    words = ["join", "meeting", "train.py", "--json", "a", "1", "5"]
    ran = hubless(*words, cwd=folder, HUBLESS_CLIENT="from-outside")
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (said["client"], said["steps"], said["exit"]) == ("from-outside", 5, 0)
    assert "as client from-outside (HUBLESS_CLIENT)" in ran.stderr
    ran = hubless(*words, cwd=folder, HUBLESS_CLIENT="")
    assert ran.returncode == 0, ran.stderr
    assert "the name of this machine" in ran.stderr
