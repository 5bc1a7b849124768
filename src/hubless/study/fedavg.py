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
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hubless.data import iid, shards
from hubless.data.sources import mnist
from hubless.data.sources.base import Split
from hubless.errors import Diverged, HublessError
from hubless.simulate.callbacks import Checkpoint, EarlyStop, Row
from hubless.simulate.engine import Local
from hubless.simulate.simulation import Simulation
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

CLIENTS, SHARE = 100, 0.1
TARGETS = {"2nn": 0.97, "cnn": 0.99}
SPLITS = ("iid", "shards")
RATES = {
    # epochs, batch: 2nn iid, 2nn shards, cnn iid, cnn shards
    (1, None): (0.5, 0.2, 0.2, 0.1),
    (5, None): (0.5, 0.1, 0.2, 0.1),
    (20, None): (0.5, 0.1, 0.2, 0.05),
    (1, 10): (0.1, 0.05, 0.1, 0.05),
    (5, 10): (0.1, 0.05, 0.1, 0.05),
    (20, 10): (0.1, 0.02, 0.1, 0.02),
}
_say = partial(print, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """A cell of the table at one learning rate, and the accuracy after each round so far."""

    model: str
    split: str
    epochs: int
    batch: int | None
    lr: float
    curve: Sequence[float] = ()
    diverged: bool = False

    @property
    def cell(self) -> str:
        return f"{self.model}-{self.split}-e{self.epochs}-b{self.batch or 'all'}"

    @property
    def steps(self) -> int:
        """Local steps of a client in a round: the u of the paper."""
        return self.epochs * (600 // self.batch if self.batch else 1)

    @property
    def best(self) -> float:
        return max(self.curve, default=0.0)

    def finished(self, target: float, rounds: int) -> bool:
        return self.diverged or self.best >= target or len(self.curve) >= rounds

    def reached(self, target: float) -> float:
        """The round at which the best accuracy so far crosses the target; infinite if none.

        >>> Run("2nn", "iid", 1, 10, lr=0.1, curve=[0.5, 0.25, 1.0]).reached(0.75)
        2.5
        """
        best = [0.0, *accumulate(self.curve, max)]
        at = bisect_left(best, target)
        if at == len(best):
            return math.inf
        return at - (best[at] - target) / (best[at] - best[at - 1])


@dataclass
class Watch:
    """Says how a run goes, and ends it when the time is up."""

    label: str
    rounds: int
    deadline: float
    said: tuple[float, float] | None = None

    def __call__(self, simulation: Simulation, row: Row) -> bool:
        now, at = time.monotonic(), row["round"]
        since, last = self.said or (-math.inf, at)
        if now - since >= 5:
            left = (now - since) / (at - last) * (self.rounds - at) if self.said else math.inf
            estimate = f", at most {left:.0f} s to go" if self.said else ""
            _say(f"{self.label}: round {at}, accuracy {row['accuracy']:.2%}{estimate}")
            self.said = (now, at)
        return now >= self.deadline


@dataclass(frozen=True)
class Study:
    """Takes runs to their end, one after the other, until the time is up."""

    out: Path
    data: Split
    targets: Mapping[str, float]
    rounds: int
    engine: Local
    deadline: float

    def complete(self, runs: Sequence[Run]) -> bool:
        """Run what is not finished; False where there was no time for all."""
        for place, run in enumerate(runs, 1):
            target = self.targets[run.model]
            known = [done for done in finished_runs(self.out) if done.cell == run.cell]
            # a rate need not run for longer than another one took to the target
            others = [done.reached(target) for done in known if done.lr != run.lr]
            rounds = math.ceil(min([self.rounds, *others]))
            if any(done.lr == run.lr and done.finished(target, rounds) for done in known):
                continue
            if time.monotonic() >= self.deadline:
                return False
            folder = self.out / f"{run.cell}-lr{run.lr:g}"
            label = f"run {place} of {len(runs)}, {run.cell} at {run.lr:g}"
            run = self._train(run, folder, Watch(label, rounds, self.deadline))
            if not run.finished(target, rounds):
                return False
            _write(folder / "result.json", json.dumps(asdict(run)))
            _say(f"{label}: done in round {len(run.curve)}, best {run.best:.2%}")
        return True

    def _train(self, run: Run, folder: Path, watch: Watch) -> Run:
        """Go on with a run until it reaches its target, its last round or the deadline."""
        labels, target = self.data.train.columns["y"], self.targets[run.model]
        dealt = iid(len(labels), CLIENTS) if run.split == "iid" else shards(labels, CLIENTS)
        save = Checkpoint(folder, every=max(1, 20 // run.steps))
        simulation = Simulation(
            Task(module(run.model), metrics={"accuracy": accuracy}, prepare=_prepare),
            self.data.train.partition(dealt),
            recipe=Recipe(SGD(run.lr), epochs=run.epochs, batch=run.batch),
            cohort=SHARE,
            engine=self.engine,
            test=self.data.test,
            evaluate_every=1,
            callbacks=[save, EarlyStop("accuracy", target=target, best="high"), watch],
        )
        simulation.resume(folder)
        try:
            if all(row["accuracy"] < target for row in simulation.rows):
                simulation.run(watch.rounds)
        except Diverged as error:
            _say(f"{watch.label}: {error}")
            run = replace(run, diverged=True)
        return replace(run, curve=[row["accuracy"] for row in simulation.rows])


def module(model: str) -> nn.Module:
    """A model of the paper, always with the same initial params.

    >>> [sum(p.numel() for p in module(model).parameters()) for model in TARGETS]
    [199210, 1663370]
    """
    torch.manual_seed(0)
    if model == "2nn":
        hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, 10))
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


def planned(tune: int = 0, rates: Sequence[float] = ()) -> Iterator[Run]:
    """Every cell at these rates, or its usual one and so many to either side (factors of 10^1/3).

    >>> [run.lr for run in planned(tune=1)][:3]
    [0.5, 0.23, 1.1]
    """
    around = sorted(range(-tune, tune + 1), key=abs)
    for (epochs, batch), usual in RATES.items():
        for (model, split), rate in zip(product(TARGETS, SPLITS), usual, strict=True):
            for lr in rates or [float(f"{rate * 10 ** (place / 3):.2g}") for place in around]:
                yield Run(model, split, epochs, batch, lr)


def finished_runs(out: Path) -> list[Run]:
    """The runs of a folder that have a result."""
    return [Run(**json.loads(path.read_text())) for path in sorted(out.glob("*/result.json"))]


def table(out: Path, targets: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each cell with a result: rounds to the target, and the speed-up over FedSGD.

    Where FedSGD did not get there, the rounds it ran give a speed-up that is `at_least` so much.
    """
    ranked = sorted(finished_runs(out), key=lambda r: (-r.reached(targets[r.model]), r.best))
    best, rows = {run.cell: run for run in ranked}, []
    for run in sorted(best.values(), key=lambda run: (run.model, run.split, run.steps)):
        rounds, row = run.reached(targets[run.model]), asdict(run)
        row |= {"steps": run.steps, "best": run.best, "ran": len(row.pop("curve")), "rounds": None}
        if rounds < math.inf:
            row["rounds"] = rounds
            if fedsgd := best.get(replace(run, epochs=1, batch=None).cell):
                base = fedsgd.reached(targets[run.model])
                row["speedup"] = min(base, len(fedsgd.curve)) / rounds
                row["at_least"] = base == math.inf
        rows.append(row)
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table to read."""
    lines = ["| model | split | E | B | u | lr | rounds | speed-up | best |", "|---" * 9 + "|"]
    for row in rows:
        shown = [row["model"], row["split"], row["epochs"], row["batch"] or "all", row["steps"]]
        shown += [row["lr"], f"{row['rounds']:.0f}" if row["rounds"] else f"> {row['ran']}"]
        shown += [f"{'> ' * row['at_least']}{row['speedup']:.1f}x" if "speedup" in row else ""]
        lines.append(f"| {' | '.join(map(str, shown))} | {row['best']:.2%} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not finished, and print the table; 0 when all is finished, 3 when time is up."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.fedavg", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="the folder that holds mnist/ (HUBLESS_DATA if not given)")
    add("--out", type=Path, required=True, help="where runs and the table are kept")
    add("--model", nargs="+", choices=TARGETS, default=TARGETS)
    add("--split", nargs="+", choices=SPLITS, default=SPLITS)
    add("--only", default="*", help="a pattern for cells, such as '*-e5-b10'")
    add("--lr", nargs="+", type=float, help="learning rates to try instead of the usual one")
    add("--tune", type=int, nargs="?", const=1, default=0, help="rates to try to either side")
    add("--rounds", type=int, default=1000)
    add("--target", type=float, help="the accuracy to reach, instead of the paper's")
    add("--device", default="auto")
    add("--minutes", type=float, default=math.inf, help="stop after so long, with all saved")
    add("--table", action="store_true", help="only make the table of what there is")
    asked = parser.parse_args(arguments)
    targets = {model: asked.target or usual for model, usual in TARGETS.items()}
    deadline, done = time.monotonic() + 60 * asked.minutes, True
    runs = [
        run
        for run in planned(asked.tune, asked.lr or ())
        if run.model in asked.model and run.split in asked.split and fnmatch(run.cell, asked.only)
    ]
    # cheap ones first; a step of the CNN takes about as long as ten of the 2NN
    runs.sort(key=lambda run: run.steps * (10 if run.model == "cnn" else 1))
    try:
        if not asked.table:
            data, engine = mnist.load(asked.data), Local(device=asked.device)
            done = Study(asked.out, data, targets, asked.rounds, engine, deadline).complete(runs)
    except HublessError as error:
        _say(error)
        return 1
    except KeyboardInterrupt:
        done = False
    rows = table(asked.out, targets)
    _write(asked.out / "table.json", json.dumps(rows, indent=1))
    _write(asked.out / "table.md", markdown(rows))
    print(markdown(rows))
    return 0 if done else 3


def _prepare(batch: Batch) -> Batch:
    return {**batch, "x": batch["x"].unsqueeze(1) / 255}


def _write(path: Path, text: str) -> None:
    staged = path.with_suffix(".part")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


if __name__ == "__main__":
    sys.exit(main())
