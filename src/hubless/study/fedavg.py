"""How many rounds FedAvg saves over FedSGD on MNIST: McMahan et al. (2017), table 2.

100 clients of 600 digits each, of all kinds (iid) or mostly of two (shards); a tenth of them
trains in a round. Every run has its own folder: a finished one is never run again, any other goes
on where it stopped. Where several learning rates were run, the table takes each cell's best.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import nn

from hubless.data import iid, shards
from hubless.data.sources import mnist
from hubless.data.sources.base import Split
from hubless.errors import Diverged
from hubless.select.naming import named
from hubless.simulate.callbacks import Checkpoint, EarlyStop
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import Simulation
from hubless.study.results import STOPS, Watch, sole, why, write
from hubless.study.side_by_side import side_by_side
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

TARGETS = {"2nn": 0.97, "cnn": 0.99}
RECIPES = ((1, None), (5, None), (20, None), (1, 10), (5, 10), (20, 10))  # epochs, batch
RATES = {
    ("2nn", "iid"): (0.5, 0.5, 0.5, 0.2, 0.1, 0.1),
    ("2nn", "shards"): (0.3, 0.1, 0.1, 0.1, 0.05, 0.02),
    ("cnn", "iid"): (0.2, 0.2, 0.2, 0.1, 0.1, 0.1),
    ("cnn", "shards"): (0.1, 0.1, 0.05, 0.05, 0.05, 0.02),
}


@dataclass(frozen=True)
class TableRun:
    """A cell of the table at one learning rate, and the accuracy after each round so far."""

    model: str
    split: str
    epochs: int
    batch: int | None
    lr: float
    curve: Sequence[float] = ()
    diverged: bool = False
    selector: str = "uniform"

    @property
    def cell(self) -> str:
        cell = f"{self.model}-{self.split}-e{self.epochs}-b{self.batch or 'all'}"
        if self.selector == "uniform":
            return cell
        return f"{cell}-{quote(self.selector, safe='')}"

    @property
    def steps(self) -> int:
        """Local steps of a client in a round: the u of the paper."""
        return self.epochs * (600 // self.batch if self.batch else 1)

    @property
    def best(self) -> float:
        return max(self.curve, default=0.0)

    @property
    def rounds(self) -> float:
        """Where the best accuracy so far crosses the target, between rounds; infinite if not."""
        best, target = [0.0, *accumulate(self.curve, max)], TARGETS[self.model]
        if (at := bisect_left(best, target)) == len(best):
            return math.inf
        return round(at - (best[at] - target) / (best[at] - best[at - 1]), 3)

    def finished(self, rounds: int) -> bool:
        return self.diverged or len(self.curve) >= rounds or self.rounds < math.inf


def complete(
    runs: Sequence[TableRun], data: Split, out: Path, rounds: int, engine: Local, deadline: float
) -> bool:
    """Run what is not finished, each in its folder; False where there was no time for all."""
    for place, run in enumerate(runs, 1):
        earlier = [done for done in _results(out) if done.cell == run.cell]
        # a rate need not run for longer than another one took to the target
        most = math.ceil(min([rounds, *(done.rounds for done in earlier if done.lr != run.lr)]))
        if any(done.lr == run.lr and done.finished(most) for done in earlier):
            continue
        if time.monotonic() >= deadline:
            return False
        folder = out / f"{run.cell}-lr{run.lr:g}"
        folder.mkdir(parents=True, exist_ok=True)
        label = f"run {place} of {len(runs)}, {run.cell} at {run.lr:g}"
        print(f"{label}: up to {most} rounds", file=sys.stderr)
        watch = Watch(label, most, deadline, "accuracy")
        with sole(folder):
            run = train(run, data, folder, engine, watch)
            if not run.finished(most):
                return False
            write(folder / "result.json", json.dumps(asdict(run)))
        print(f"{label}: {len(run.curve)} rounds, best {run.best:.2%}", file=sys.stderr)
    return True


def complete_side_by_side(
    runs: Sequence[TableRun],
    data: Path | None,
    out: Path,
    rounds: int,
    engine: Local,
    deadline: float,
    workers: int,
) -> bool:
    """The same with so many cells at a time, each in a process of its own.

    The rates of a cell are tried one after another, as what one took bounds the next.
    """
    cells: dict[str, list[TableRun]] = {}
    for run in runs:
        cells.setdefault(run.cell, []).append(run)
    work = partial(_complete_cell, cells, data, out, rounds, replace(engine, processes=1))
    ended = list(side_by_side(work, list(cells), deadline, workers))
    return all(finished for _, finished in ended)


def _complete_cell(
    cells: Mapping[str, Sequence[TableRun]],
    data: Path | None,
    out: Path,
    rounds: int,
    engine: Local,
    cell: str,
    left: float,
) -> bool:
    deadline = time.monotonic() + left
    return complete(cells[cell], mnist.load(data), out, rounds, engine, deadline)


def train(run: TableRun, data: Split, folder: Path, engine: Local, watch: Watch) -> TableRun:
    """Go on with a run until it reaches its target, its last round or the deadline."""
    labels, target = data.train.columns["y"], TARGETS[run.model]
    dealt = shards(labels, clients=100) if run.split == "shards" else iid(len(labels), 100)
    save = Checkpoint(folder, every=max(1, 20 // run.steps))
    simulation = Simulation(
        Task(module(run.model), metrics={"accuracy": accuracy}, prepare=_prepare),
        data.train.partition(dealt),
        recipe=Recipe(SGD(run.lr), epochs=run.epochs, batch=run.batch),
        selector=named(run.selector),
        cohort=0.1,
        engine=engine,
        test=data.test,
        evaluate_every=1,
        callbacks=[save, EarlyStop("accuracy", target=target, best="high"), watch],
    )
    simulation.resume(folder)
    try:
        if all(row["accuracy"] < target for row in simulation.rows):
            simulation.run(watch.rounds)
    except Diverged as error:
        print(f"{watch.label}: {error}", file=sys.stderr)
        run = replace(run, diverged=True)
    return replace(run, curve=[row["accuracy"] for row in simulation.rows])


def module(model: str) -> nn.Module:
    """A model of the paper, always with the same initial params."""
    torch.manual_seed(0)
    if model == "2nn":
        hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, 10))
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


def planned(
    tune: int = 0, rates: Sequence[float] = (), selector: str = "uniform"
) -> Iterator[TableRun]:
    """Every cell at these rates, or at its usual one and so many to either side of it."""
    around = sorted(range(-tune, tune + 1), key=abs)
    for (model, split), usual in RATES.items():
        for (epochs, batch), rate in zip(RECIPES, usual, strict=True):
            for lr in rates or [float(f"{rate * 10 ** (place / 3):.2g}") for place in around]:
                yield TableRun(model, split, epochs, batch, lr, selector=selector)


def _results(out: Path) -> list[TableRun]:
    return [TableRun(**json.loads(path.read_text())) for path in sorted(out.glob("*/result.json"))]


def table(out: Path) -> list[dict[str, Any]]:
    """A row for each cell with a result: rounds to the target, and the speed-up over FedSGD."""
    ranked = sorted(_results(out), key=lambda run: (-run.rounds, run.best))
    best, rows = {run.cell: run for run in ranked}, []
    for run in sorted(best.values(), key=lambda run: (run.model, run.split, run.steps)):
        row = {**asdict(run), "steps": run.steps, "best": run.best, "ran": len(run.curve)}
        del row["curve"]
        if run.rounds < math.inf:
            row["rounds"] = run.rounds
            if fedsgd := best.get(replace(run, epochs=1, batch=None).cell):
                # a FedSGD that did not get there would take longer than it ran
                row["speedup"] = min(fedsgd.rounds, len(fedsgd.curve)) / run.rounds
                row["at_least"] = fedsgd.rounds == math.inf
        rows.append(row)
    return rows


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| model | split | E | B | u | lr | rounds | speed-up | best |", "|---" * 9 + "|"]
    for row in rows:
        split = row["split"]
        if row["selector"] != "uniform":
            split += f", {row['selector']}"
        shown = [row["model"], split, row["epochs"], row["batch"] or "all", row["steps"]]
        shown += [row["lr"], f"{row['rounds']:.0f}" if "rounds" in row else f"> {row['ran']}"]
        shown += [f"{'> ' * row['at_least']}{row['speedup']:.1f}x" if "speedup" in row else ""]
        lines.append(f"| {' | '.join(map(str, shown))} | {row['best']:.2%} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not finished, and print the table; 0 when all is finished, 3 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.fedavg", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="the folder that holds mnist/ (HUBLESS_DATA if not given)")
    add("--out", type=Path, required=True, help="where runs and the table are kept")
    add("--model", nargs="+", choices=("2nn", "cnn"), default=("2nn", "cnn"))
    add("--split", nargs="+", choices=("iid", "shards"), default=("iid", "shards"))
    add("--only", default="*", help="a pattern for cells, such as '*-e5-b10'")
    add("--lr", nargs="+", type=float, help="learning rates to try instead of the usual one")
    add("--tune", type=int, nargs="?", const=1, default=0, help="rates to try to either side")
    add("--selector", default="uniform", help="who trains: activity:n, file.py:name, ...")
    add("--rounds", type=int, default=1000)
    add("--workers", type=int, default=1, help="cells side by side, which pays on a GPU")
    add("--device", default="auto")
    add("--minutes", type=float, default=math.inf, help="stop after so long, with all saved")
    add("--table", action="store_true", help="only make the table of what there is")
    asked = parser.parse_args(arguments)
    deadline, done = time.monotonic() + 60 * asked.minutes, asked.table
    planning = planned(asked.tune, asked.lr or (), asked.selector)
    runs = [run for run in planning if fnmatch(run.cell, asked.only)]
    runs = [run for run in runs if run.model in asked.model and run.split in asked.split]
    # cheap ones first; a step of the CNN takes about as long as ten of the 2NN
    runs.sort(key=lambda run: run.steps * (10 if run.model == "cnn" else 1))
    try:
        named(asked.selector)
        if not asked.table:
            data, engine = mnist.load(asked.data), Local(device=asked.device)
            if asked.workers == 1:
                done = complete(runs, data, asked.out, asked.rounds, engine, deadline)
            else:
                shared = (asked.data, asked.out, asked.rounds, engine, deadline)
                done = complete_side_by_side(runs, *shared, asked.workers)
    except STOPS as stop:
        parser.exit(1, f"{why(stop)}\n")
    rows = table(asked.out)
    write(asked.out / "table.json", json.dumps(rows, indent=1))
    write(asked.out / "table.md", _markdown(rows))
    print(_markdown(rows))
    return 0 if done else 3


def _prepare(batch: Batch) -> Batch:
    return {**batch, "x": batch["x"].unsqueeze(1) / 255}


if __name__ == "__main__":
    sys.exit(main())
