"""Whether clients picked by their loss save epochs: Goetz et al. (2019), section 5.

Messages with a rare label, and 200 of some 7,400 users training in a round. Every arm of the study
is tuned first, within the training messages, and then repeated on random splits. What is finished
stands in one file of results and is never run again; what was under way goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from hubless.data.population import Population
from hubless.errors import DataError, Diverged
from hubless.select.active import Active
from hubless.select.roster import Selector
from hubless.select.uniform import Uniform
from hubless.simulate.callbacks import Checkpoint, Row
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import Simulation
from hubless.strategy.fedadam import FedAdam
from hubless.study.figures import savings
from hubless.study.messages import Scorer, Sizes, held_out, prepared, reading
from hubless.study.pooled import Model, Pool
from hubless.study.results import STOPS, Watch, add_line, agree, lines, why, write
from hubless.study.tuning import at_edges
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.values import LabelCount, LossOverRoot, Value

CLIENT, SERVER = (0.1, 0.3, 1.0), (0.001, 0.003, 0.01)
GRIDS: dict[str, dict[str, Sequence[float]]] = {
    "uniform": {"client": CLIENT, "server": SERVER},
    "active": {"client": CLIENT, "server": SERVER},
    "positives": {"client": CLIENT[1:], "server": SERVER[1:], "alpha2": (0.01, 0.1, 1.0)},
    "pooled": {"lr": (3e-4, 1e-3, 3e-3)},
    "oversampled": {"lr": (3e-4, 1e-3, 3e-3), "level": (3, 10, 30)},
}
"""What each arm is tuned over. The last two train on pooled data, for comparison."""
USUAL = {"client": 0.3, "server": 0.003, "alpha2": 0.1, "lr": 1e-3, "level": 10}
POOLED = ("pooled", "oversampled")
ALPHA2 = 0.01
TAU = 1e-8
"""As in Adam itself: updates here are far below the 1e-3 of Reddi et al., and would not adapt."""


@dataclass(frozen=True)
class ArmRun:
    """One arm with one choice of its knobs on one random split, and its AUC after each epoch."""

    arm: str
    knobs: Mapping[str, float]
    repetition: int
    tuning: bool = False
    curve: Sequence[float] = ()
    diverged: bool = False

    @property
    def label(self) -> str:
        knobs = [f"{name}{value:g}" for name, value in self.knobs.items()]
        stage = "tune" if self.tuning else "main"
        return "-".join([stage, self.arm, *knobs, f"r{self.repetition}"])

    def finished(self, epochs: int) -> bool:
        return self.diverged or len(self.curve) >= epochs

    def padded(self, epochs: int) -> list[float]:
        """The AUC after each epoch; a model that diverged is worth as much as chance."""
        return [*self.curve, *[savings.CHANCE] * (epochs - len(self.curve))][:epochs]


@dataclass(frozen=True)
class ActiveStudy:
    """The data, where results are kept, and how large everything is."""

    people: Population
    out: Path
    cohort: int = 200
    sizes: Sizes = (64, 32, 64)
    engine: Local = field(default_factory=lambda: Local(device="cpu"))
    deadline: float = math.inf

    def __post_init__(self) -> None:
        x, clients = self.people.columns["x"], len(self.people)
        data = {"clients": clients, "messages": len(x), "length": x.shape[1]}
        more = {"cohort": self.cohort, "sizes": list(self.sizes)}
        agree(self.out / "settings.json", {**data, **more})

    @property
    def rounds(self) -> int:
        """Rounds to an epoch: those in which uniform selection expects to meet everybody once."""
        return -(-len(self.people) // self.cohort)

    def results(self) -> dict[str, ArmRun]:
        """What is finished, by label."""
        runs = (ArmRun(**record) for record in lines(self.out / "results.jsonl"))
        return {run.label: run for run in runs}

    def complete(self, runs: Sequence[ArmRun], epochs: int) -> bool:
        """Run what is not finished; False where there was no time for all."""
        done = self.results()
        todo = [run for run in runs if not done.get(run.label, run).finished(epochs)]
        federated = [run for run in todo if run.arm not in POOLED]
        for place, run in enumerate(federated):
            label = f"run {place + 1} of {len(federated)}, {run.label}"
            after = (len(federated) - place - 1) * self.rounds * epochs
            watch = Watch(label, self.rounds * epochs, self.deadline, "auc", after)
            if time.monotonic() >= self.deadline:
                return False
            run = self.train(run, epochs, watch)
            if not run.finished(epochs):
                return False
            self._keep([run])
            shutil.rmtree(self.out / run.label, ignore_errors=True)
        side_by_side = [run for run in todo if run.arm in POOLED]
        return not side_by_side or self.train_pooled(side_by_side, epochs)

    def train(self, run: ArmRun, epochs: int, watch: Watch) -> ArmRun:
        """Go on with a federated run until its last epoch or the deadline."""
        folder, share = self.out / run.label, float(self.people.columns["y"].mean())
        task = reading(self.sizes, run.repetition, share)
        train, test = held_out(self.people, run.repetition, tuning=run.tuning)
        measure = EpochEnd(task, test, self.rounds)
        selector, value = selection(run)
        simulation = Simulation(
            task,
            train,
            recipe=Recipe(SGD(run.knobs["client"]), epochs=2, batch=128, precision="tf32"),
            strategy=FedAdam(run.knobs["server"], tau=TAU),
            selector=selector,
            value=value,
            cohort=self.cohort,
            seed=run.repetition,
            engine=self.engine,
            test=test,
            evaluate_every=self.rounds,
            callbacks=[measure, Checkpoint(folder, every=self.rounds), watch],
        )
        try:
            if simulation.resume(folder) and simulation.rows:
                # whoever was interrupted at an epoch's end may not have measured it
                measure(simulation, simulation.rows[-1])
            simulation.run(watch.rounds)
        except Diverged as error:
            print(f"{watch.label}: {error}", file=sys.stderr)
            run = replace(run, diverged=True)
        return replace(run, curve=[row["auc"] for row in simulation.rows if "auc" in row])

    def train_pooled(self, runs: Sequence[ArmRun], epochs: int) -> bool:
        """Train the models that see pooled data, all of them side by side."""
        models = []
        for run in runs:
            train, test = held_out(self.people, run.repetition, tuning=run.tuning)
            level = run.knobs.get("level", 1.0)
            models.append(Model(run.label, train, test, run.knobs["lr"], level, run.repetition))
        # other parts of the study may have others under way
        which = hashlib.blake2b("".join(run.label for run in runs).encode(), digest_size=6)
        folder = self.out / f"pooled-{which.hexdigest()}"
        pool = Pool(models, self.sizes, torch.device(self.engine.device), folder)
        while pool.epoch < epochs:
            if (started := time.monotonic()) >= self.deadline:
                return False
            pool.advance()
            left = (time.monotonic() - started) * (epochs - pool.epoch)
            aucs = [curve[-1] for curve in pool.curves if curve]
            status = f"{len(models)} models on pooled data: epoch {pool.epoch} of {epochs}"
            best = f", best auc {max(aucs):.4f}" if aucs else ""
            print(f"{status}{best}, about {left:.0f} s to go", file=sys.stderr)
        for run, curve in zip(runs, pool.curves, strict=True):
            self._keep([replace(run, curve=curve, diverged=len(curve) < epochs)])
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _keep(self, runs: Iterable[ArmRun]) -> None:
        for run in runs:
            add_line(self.out / "results.jsonl", asdict(run))
            ended = "diverged" if run.diverged else f"final auc {run.curve[-1]:.4f}"
            print(f"{run.label}: {len(run.curve)} epochs, {ended}", file=sys.stderr)


class EpochEnd:
    """Adds to the last round of each epoch the AUC on all test messages together."""

    def __init__(self, task: Task, test: Population, every: int) -> None:
        self.task, self.test, self.every = task, test, every
        self._score: Scorer | None = None

    def __call__(self, simulation: Simulation, row: Row) -> None:
        if row["round"] % self.every or row["round"] != simulation.round or "auc" in row:
            return
        if self._score is None:
            self._score = Scorer(self.task, self.test, simulation.flat.device)
        simulation.rows[-1]["auc"] = self._score(simulation.flat, simulation.round)


def selection(run: ArmRun) -> tuple[Selector, Value | None]:
    """Who picks clients in this arm, and by what they say of themselves."""
    if run.arm == "uniform":
        return Uniform(), None
    value: Value = LabelCount(1) if run.arm == "positives" else LossOverRoot()
    return Active(alpha1=0.75, alpha2=run.knobs.get("alpha2", ALPHA2), alpha3=0.1), value


def grid(arm: str, given: Mapping[str, Sequence[float]]) -> Iterator[dict[str, float]]:
    """Every choice of an arm's knobs, over the values given or else the usual ones."""
    knobs = {name: given.get(name, values) for name, values in GRIDS[arm].items()}
    for values in product(*knobs.values()):
        yield dict(zip(knobs, values, strict=True))


def choice(runs: Iterable[ArmRun], arm: str) -> dict[str, float]:
    """The knobs that did best over the second half of their epochs; the usual ones if untuned.

    Among those that were tried on the most splits: a good split or two would win otherwise.
    """
    tried: dict[str, list[ArmRun]] = {}
    for run in runs:
        if run.arm == arm and run.tuning:
            tried.setdefault(json.dumps(run.knobs), []).append(run)
    if not tried:
        return {name: USUAL[name] for name in GRIDS[arm]}
    most = max(map(len, tried.values()))

    def worth(knobs: str) -> float:
        # a run that diverged is no choice, however it began
        curves = [[0.0] if run.diverged else run.curve for run in tried[knobs]]
        return float(np.mean([np.mean(curve[len(curve) // 2 :]) for curve in curves]))

    finalists = [knobs for knobs, times in tried.items() if len(times) == most]
    best: dict[str, float] = json.loads(max(finalists, key=worth))
    return best


def edges(runs: Sequence[ArmRun], arm: str) -> list[str]:
    """Where an arm did best at an edge of what was tried for it."""
    tried = [run.knobs for run in runs if run.arm == arm and run.tuning]
    return [f"{arm} did best with {edge}" for edge in at_edges(choice(runs, arm), tried)]


def report(study: ActiveStudy, title: str) -> str:
    """Write tables, numbers and the figure of what is finished; the tables are also returned."""
    runs = list(study.results().values())
    knobs = {arm: choice(runs, arm) for arm in GRIDS}
    main = [run for run in runs if not run.tuning and run.knobs == knobs[run.arm]]
    epochs = min((len(run.curve) for run in main if not run.diverged), default=0)
    if not epochs:
        return "nothing is finished yet"
    arms = {
        arm: {run.repetition: run.padded(epochs) for run in main if run.arm == arm} for arm in GRIDS
    }
    numbers = savings.summary({arm: curves for arm, curves in arms.items() if curves})
    diverged = [run.label for run in runs if run.diverged]
    tuned = {arm: any(run.tuning and run.arm == arm for run in runs) for arm in GRIDS}
    untuned = [edge for arm in GRIDS for edge in edges(runs, arm)]
    facts = {"epochs": epochs, "rounds": study.rounds, "knobs": knobs, "tuned": tuned}
    facts |= {"edges": untuned, "diverged": diverged}
    write(study.out / "table.json", json.dumps({**facts, **numbers}, indent=1))
    text = savings.markdown(numbers, knobs)
    if untuned:
        text += "\n\nNot tuned to the end: " + "; ".join(untuned) + "."
    write(study.out / "table.md", text + "\n")
    try:
        savings.draw(numbers, title, study.out / "auc")
    except DataError as error:
        print(error, file=sys.stderr)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not finished, and print the tables; 0 when all is finished, 3 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.active", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="the folder that holds git/ and chat/ (or HUBLESS_DATA)")
    add("--prepare", type=Path, help="only write the data set, ready to train on, into this folder")
    add("--prepared", type=Path, help="read the data set from where --prepare wrote it")
    add("--out", type=Path, help="where results are kept, in a folder for each data set")
    add("--dataset", default="git", help="git, or chat- with a room, such as chat-php")
    add("--arms", nargs="+", choices=tuple(GRIDS), default=tuple(GRIDS))
    add("--tune", action="store_true", help="run the grids that the other runs' knobs come from")
    add("--try", dest="tried", nargs="+", default=(), metavar="KNOB=A,B", type=_values)
    add("--repetitions", type=int, help="10, or 1 where it tunes")
    add("--epochs", type=int, help="20, or 6 where it tunes")
    add("--cohort", type=int, default=200)
    add("--length", type=int, default=64, help="characters that are read of a message")
    add("--sizes", type=int, nargs=3, default=(64, 32, 64), help="embedding, LSTM, hidden layer")
    add("--lanes", type=int, help="clients side by side; measured where not given")
    add("--device", default="auto")
    add("--minutes", type=float, default=math.inf, help="stop after so long, with all saved")
    add("--part", type=_part, default=(0, 1), metavar="I/N", help="only the I-th of N equal parts")
    add("--table", action="store_true", help="only make the tables of what there is")
    asked = parser.parse_args(arguments)
    deadline, done = time.monotonic() + 60 * asked.minutes, True
    if (asked.out is None) == (asked.prepare is None):
        parser.error("say where results are kept with --out, or where data goes with --prepare")
    try:
        if asked.prepare is not None:
            prepared(asked.dataset, asked.data, asked.length).save(asked.prepare / asked.dataset)
            return 0
        study = _study(asked, deadline)
        if not asked.table:
            part, parts = asked.part
            runs = _planned(asked, list(study.results().values()))[part::parts]
            done = study.complete(runs, asked.epochs or (6 if asked.tune else 20))
    except STOPS as stop:
        parser.exit(1, f"{why(stop)}\n")
    print(report(study, f"{asked.dataset}: {study.cohort} clients per round"))
    return 0 if done else 3


def _study(asked: argparse.Namespace, deadline: float) -> ActiveStudy:
    if asked.prepared is None:
        people = prepared(asked.dataset, asked.data, asked.length)
    else:
        people = Population.open(asked.prepared / asked.dataset)
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = Local(device=device)
    if asked.lanes is not None:
        engine = Local(lanes=asked.lanes, compiled=False, device=device)
    out, cohort = asked.out / asked.dataset, min(asked.cohort, len(people))
    return ActiveStudy(people, out, cohort, tuple(asked.sizes), engine, deadline)


def _planned(asked: argparse.Namespace, runs: Sequence[ArmRun]) -> list[ArmRun]:
    """All runs that were asked for, an arm after the other within a repetition."""
    repetitions = range(asked.repetitions or (1 if asked.tune else 10))
    given = dict(asked.tried)
    if asked.tune:
        arms = [(arm, knobs) for arm in asked.arms for knobs in grid(arm, given)]
    else:
        arms = [(arm, choice(runs, arm)) for arm in asked.arms]
    return [ArmRun(arm, knobs, r, asked.tune) for r in repetitions for arm, knobs in arms]


def _values(text: str) -> tuple[str, list[float]]:
    name, _, values = text.partition("=")
    if name not in USUAL:
        raise argparse.ArgumentTypeError(f"there is no knob {name!r}: there are {', '.join(USUAL)}")
    return name, [float(value) for value in values.split(",")]


def _part(text: str) -> tuple[int, int]:
    """One of several processes that share the work, each counted from 1."""
    one, _, all_of_them = text.partition("/")
    if not (one.isdigit() and all_of_them.isdigit() and 1 <= int(one) <= int(all_of_them)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part such as 2/8")
    return int(one) - 1, int(all_of_them)


if __name__ == "__main__":
    sys.exit(main())
