"""A federation of processes, some of them hostile: what it ends with, beside one without them.

    python benchmarks/hostile.py --data DIR [--mode sync] [--strategy MultiKrum]

Each process trains on its part of MNIST, dealt by a Dirichlet distribution of 0.5, and meets the
others in a folder. Hostile ones go five times as far back as they have come. Prints the accuracy of
every setting, and one JSON line at the end: the mean over honest members of what they end with.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hubless
from hubless.data import dirichlet
from hubless.data.sources import mnist
from hubless.errors import ParamsError
from hubless.strategy import kinds
from hubless.study.fedavg import module

BATCH, RATE = 100, 0.1


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(x).argmax(1) == y).double().mean().item()


def member(args: argparse.Namespace) -> None:
    """Train, share and take in so many rounds; print what the model is worth in the end."""
    torch.set_num_threads(1)
    data = mnist.load(args.data)
    dealt = dirichlet(data.train.columns["y"], args.members, 0.5, seed=args.seed, least=50)
    people = data.train.partition(dealt)
    rows = np.asarray(people.rows)[people.offsets[args.index] : people.offsets[args.index + 1]]
    x, y = (torch.from_numpy(people.columns[name][rows].copy()) for name in ("x", "y"))
    x, y = x.unsqueeze(1) / 255, y.long()
    test = {name: torch.from_numpy(data.test.columns[name].copy()) for name in ("x", "y")}
    model = module("2nn")
    optimizer, loss = torch.optim.SGD(model.parameters(), RATE), nn.CrossEntropyLoss()
    # of those few that are new, most may be hostile
    pace: hubless.Anytime | hubless.Rounds = hubless.Anytime(peers="all")
    if args.mode == "sync":
        pace = hubless.Rounds(members=args.members)
    strategy = kinds()[args.strategy]()
    rng = np.random.default_rng([args.seed, args.index])
    with hubless.join(
        args.folder, f"site-{args.index}", pace=pace, strategy=strategy, model=model
    ) as federation:
        for _ in range(args.rounds):
            before = [param.detach().clone() for param in model.parameters()]
            for some in np.array_split(rng.permutation(len(y)), max(1, len(y) // BATCH)):
                optimizer.zero_grad()
                loss(model(x[some]), y[some]).backward()
                optimizer.step()
            if args.index < args.hostile:
                with torch.no_grad():
                    for param, start in zip(model.parameters(), before, strict=True):
                        param.copy_(start - 5 * (param - start))
            try:
                federation.step(model, examples=len(y))
            except ParamsError:
                # taken so far that nobody would take it in
                break
        federation.close()
    print(accuracy(model, test["x"].unsqueeze(1) / 255, test["y"]), flush=True)


def played(args: argparse.Namespace, mode: str, strategy: str, hostile: int) -> float:
    """A whole federation: the mean accuracy of honest members."""
    with tempfile.TemporaryDirectory(prefix="hubless-hostile-") as folder:
        same = ["--data", args.data, "--rounds", args.rounds, "--members", args.members]
        same += ["--seed", args.seed, "--mode", mode, "--strategy", strategy]
        same += ["--hostile", hostile, "--folder", folder]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, *map(str, same), "--index", str(index)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(args.members)
        ]
        ended = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "a member failed"
    return statistics.fmean(float(out) for out in ended[hostile:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True)
    add("--mode", nargs="+", default=["async", "sync"])
    add("--strategy", nargs="+", default=["MultiKrum"])
    add("--members", type=int, default=10)
    add("--hostile", type=int, default=2)
    add("--rounds", type=int, default=15)
    add("--seed", type=int, default=0)
    add("--folder", help=argparse.SUPPRESS)
    add("--index", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.index is not None:
        args.mode, args.strategy = args.mode[0], args.strategy[0]
        member(args)
        return
    results: dict[str, float] = {}
    for mode in args.mode:
        for strategy, hostile in [
            ("FedAvg", 0),
            ("FedAvg", args.hostile),
            *((strategy, args.hostile) for strategy in args.strategy),
        ]:
            name = f"{mode}, {strategy}, {hostile} hostile"
            results[name] = round(played(args, mode, strategy, hostile), 4)
            print(f"{name}: {results[name]:.2%}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
