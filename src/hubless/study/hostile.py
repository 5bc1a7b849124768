"""What is left of a model where some clients are hostile: each strategy against each attack.

20 clients with MNIST digits, dealt by a Dirichlet distribution of 0.5, all of them in each round;
four of them are hostile. Every run is one line of a file of results, and is never run again. The
table has the mean accuracy over the last rounds and over all seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hubless.data import dirichlet
from hubless.data.population import Population
from hubless.data.sources import mnist
from hubless.errors import Diverged
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import EngineChoice, Simulation
from hubless.strategy import (
    Bulyan,
    CentredClipping,
    FedAvg,
    FedMedian,
    FedTrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBound,
    Strategy,
)
from hubless.study.attacks import ATTACKS, Attacked, draw_hostile
from hubless.study.fedavg import module
from hubless.study.results import STOPS, add_line, agree, lines, why, write
from hubless.study.side_by_side import side_by_side
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Batch, Task

CLIENTS, HOSTILE, ALPHA = 20, 0.2, 0.5
STRATEGIES: dict[str, Strategy] = {
    "FedAvg": FedAvg(),
    "median": FedMedian(),
    "trimmed mean": FedTrimmedMean(HOSTILE),
    "Krum": Krum(HOSTILE),
    "MultiKrum": MultiKrum(HOSTILE),
    "Bulyan": Bulyan(HOSTILE),
    "geometric median": GeometricMedian(),
    "norm bound": NormBound(),
    "centred clipping": CentredClipping(),
}
NONE, LABELS = "no attack", "label flip"
AGAINST = (NONE, *ATTACKS, LABELS)
_LAST = 3
"""So many evaluations at the end are averaged: single ones go up and down."""


def play(
    strategy: str, attack: str, seed: int, rounds: int, data: Path | None
) -> dict[str, float | str]:
    """One run: the accuracy on the test digits, by what was asked for."""
    split = mnist.load(data)
    labels = split.train.columns["y"]
    people = split.train.partition(dirichlet(labels, CLIENTS, ALPHA, seed=seed, least=50))
    hostile = draw_hostile(CLIENTS, HOSTILE, seed)
    if attack == LABELS:
        people = mislabelled(people, hostile)
    engine: EngineChoice = Local(lanes=10, compiled=False, processes=1)
    if attack in ATTACKS:
        engine = Attacked(engine, hostile, ATTACKS[attack])
    simulation = Simulation(
        Task(module("2nn"), metrics={"accuracy": accuracy}, prepare=_prepare),
        people,
        recipe=Recipe(SGD(0.1), batch=100),
        strategy=STRATEGIES[strategy],
        cohort=CLIENTS,
        seed=seed,
        engine=engine,
        test=split.test,
        evaluate_every=2,
    )
    began, diverged = time.monotonic(), False
    with simulation:
        try:
            simulation.run(rounds)
        except Diverged:
            diverged = True
    reached = [row["accuracy"] for row in simulation.rows if "accuracy" in row]
    result = 0.1 if diverged or not reached else fmean(reached[-_LAST:])
    seconds = time.monotonic() - began
    asked: dict[str, float | str] = {"strategy": strategy, "attack": attack, "seed": seed}
    return {**asked, "accuracy": round(result, 4), "seconds": round(seconds, 1)}


def mislabelled(people: Population, hostile: Sequence[int]) -> Population:
    """The same people, with every digit of a hostile client called nine less itself."""
    owner = np.repeat(np.arange(len(people)), people.sizes)
    wrong = np.isin(owner, hostile)
    rows = people.rows if people.rows is not None else np.arange(people.examples)
    labels = people.columns["y"].copy()
    labels[rows[wrong]] = 9 - labels[rows[wrong]]
    return replace(people, columns={**people.columns, "y": labels})


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A row per strategy and a column per attack: mean accuracy in percent."""
    out = [f"| | {' | '.join(AGAINST)} | worst |", "|---" * (len(AGAINST) + 2) + "|"]
    for strategy in STRATEGIES:
        means = []
        for attack in AGAINST:
            those = [r for r in results if (r["strategy"], r["attack"]) == (strategy, attack)]
            means.append(fmean(r["accuracy"] for r in those) if those else math.nan)
        shown = [f"{mean:.1%}" if mean == mean else "" for mean in (*means, min(means))]
        out.append(f"| {strategy} | {' | '.join(shown)} |")
    return "\n".join(out)


def _piece(rounds: int, data: Path | None, out: Path, name: str, left: float) -> bool:
    strategy, attack, seed = name.split("/")
    add_line(out / "results.jsonl", play(strategy, attack, int(seed), rounds, data))
    return True


def _prepare(batch: Batch) -> Batch:
    return {**batch, "x": batch["x"].unsqueeze(1) / 255}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not finished, and print the table; 0 when all is finished, 3 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.hostile", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="the folder that holds mnist/ (HUBLESS_DATA if not given)")
    add("--out", type=Path, required=True, help="where results and the table are kept")
    add("--rounds", type=int, default=30)
    add("--seeds", type=int, default=3)
    add("--workers", type=int, default=2, help="runs side by side")
    add("--minutes", type=float, default=math.inf, help="stop after so long, with all saved")
    add("--table", action="store_true", help="only make the table of what there is")
    asked = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * asked.minutes
    found = asked.out / "results.jsonl"
    pieces = [f"{s}/{a}/{n}" for n in range(asked.seeds) for a in AGAINST for s in STRATEGIES]
    try:
        agree(asked.out / "settings.json", {"rounds": asked.rounds})
        there = {f"{r['strategy']}/{r['attack']}/{r['seed']}" for r in lines(found)}
        left = [] if asked.table else [piece for piece in pieces if piece not in there]
        work = partial(_piece, asked.rounds, asked.data, asked.out)
        for done, (piece, _) in enumerate(side_by_side(work, left, deadline, asked.workers), 1):
            print(f"{done} of {len(left)}: {piece}", file=sys.stderr)
    except STOPS as stop:
        parser.exit(1, f"{why(stop)}\n")
    results = lines(found)
    write(asked.out / "table.md", table(results))
    print(table(results))
    return 0 if len(results) >= len(pieces) else 3


if __name__ == "__main__":
    sys.exit(main())
