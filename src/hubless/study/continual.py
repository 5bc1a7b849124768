"""When clients train, and who: Dupuy et al. (2022), on any messages with clients and times.

A grid of algorithm x selector x horizon x set of clients. A horizon is so many months before the
last, all at once ("6"), or consecutive segments of them ("3x2"), each starting from the model of
the one before. The last month is the test. Settings are a TOML file; data are prepared once, and
cells need nothing but that.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hubless import checks
from hubless.data.population import Population
from hubless.data.timeline import MONTH, Timeline
from hubless.errors import DataError, Diverged
from hubless.measure.deciles import decile_of
from hubless.measure.outcome import Outcome
from hubless.select.atmost import AtMost
from hubless.select.naming import named
from hubless.simulate.callbacks import Checkpoint
from hubless.simulate.engine.machine import Local
from hubless.simulate.simulation import Simulation
from hubless.simulate.ways.schedule import programs
from hubless.strategy.base import Strategy
from hubless.strategy.fedadam import FedAdam
from hubless.strategy.fedavg import FedAvg
from hubless.study.grid import Cell, Grid, Rows
from hubless.study.results import STOPS, Watch, agree, why, write
from hubless.study.settings import RATES, TRIED, Settings, segments_of
from hubless.study.tuning import at_edges
from hubless.train.optimizers import SGD
from hubless.train.recipe import Recipe
from hubless.train.task import Task
from hubless.train.text.language import Size, masked_lm
from hubless.train.text.tokens import Vocabulary


@dataclass(frozen=True)
class ContinualStudy:
    """How a cell is run, on data that lies prepared in a folder."""

    settings: Settings
    prepared: Path
    engine: Local
    tuning: bool = False
    """Everything a month earlier, so that nothing is chosen by the month that is the test."""

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        settings = self.settings
        timeline, vocabulary = _opened(self.prepared)
        if self.tuning:
            timeline = timeline.between(timeline.start, timeline.tested)
        timeline = sets_of(timeline, settings)[int(cell["set"])]
        windows = periods(timeline, cell["horizon"])
        test = timeline.test
        rows: list[dict[str, Any]] = []
        earlier: Simulation | None = None
        for number, window in enumerate(windows, 1):
            simulation = self._simulation(cell, vocabulary, window, folder / f"period-{number}")
            if not simulation.resume(folder / f"period-{number}") and earlier is not None:
                simulation.go_on_from(earlier, optimizer=settings.carry)
            rounds = max(1, settings.rounds // len(windows))
            simulation.callbacks.append(Watch(folder.name, rounds, deadline, "train_loss"))
            try:
                simulation.run(rounds)
            except Diverged as error:
                print(f"{folder.name}: {error}", file=sys.stderr)
                return [*rows, {"period": number, "decile": None, "diverged": True}]
            if simulation.round < rounds:
                return None
            outcome = Outcome.of(test, simulation.evaluate_by_example(test))
            trained = sum(int(row["examples"]) for row in simulation.rows)
            rows += [{**row, "trained": trained} for row in measured(number, outcome)]
            earlier = simulation
        return rows

    def _simulation(
        self, cell: Cell, vocabulary: Vocabulary, window: Population, folder: Path
    ) -> Simulation:
        settings = self.settings
        present = int((window.sizes > 0).sum())
        return Simulation(
            _task(vocabulary, settings.model, settings.seed),
            window,
            recipe=Recipe(
                SGD(settings.rates[cell["algorithm"]]["client"]),
                batch=settings.batch,
                precision=settings.precision,
            ),
            strategy=_strategy(cell["algorithm"], settings.rates[cell["algorithm"]]),
            selector=AtMost(named(cell["selector"])),
            cohort=min(settings.cohort, present),
            seed=settings.seed + int(cell["set"]),
            engine=self.engine,
            callbacks=[Checkpoint(folder, every=settings.save_every)],
        )

    def ahead(self) -> list[Callable[[], None]]:
        """What to compile before cells run side by side: on a GPU, all that tiers may take."""
        engine, lanes = self.engine, self.engine.lanes
        if lanes == "auto" or lanes == 0 or engine.compiled is not True or not engine.on_gpu:
            return []
        return [partial(self.compile_ahead, *kind) for kind in programs(self.settings.batch, lanes)]

    def compile_ahead(self, lanes: int, width: int) -> None:
        """Have the program compiled that so many lanes run on batches of such a width.

        It is kept on disk, from where other processes take it: as many can be compiled at a time.
        Cells would compile it themselves, so that it is no matter if this comes to nothing.
        """
        timeline, vocabulary = _opened(self.prepared)
        people = timeline.population
        # two steps each, as who takes a single one needs no lane
        rows = np.resize(np.arange(people.examples), lanes * 2 * width)
        few = Population(people.columns, np.arange(lanes + 1) * 2 * width, rows)
        settings = replace(self.settings, batch=width, cohort=lanes)
        study = replace(self, settings=settings, engine=replace(self.engine, lanes=lanes))
        cell = {name: choices[0] for name, choices in settings.axes.items()}
        with (
            tempfile.TemporaryDirectory() as folder,
            study._simulation(cell, vocabulary, few, Path(folder)) as simulation,
        ):
            try:
                simulation.run(1)
            except (Diverged, torch.OutOfMemoryError) as error:
                print(f"not compiled ahead: {why(error)}", file=sys.stderr)


@dataclass(frozen=True)
class Trial:
    """How a choice of rates is tried: on the first selector and set, tested on an earlier month."""

    study: ContinualStudy

    def __call__(self, cell: Cell, folder: Path, deadline: float) -> Rows | None:
        settings, algorithm = self.study.settings, cell["algorithm"]
        rates = {name: float(cell[name]) for name in RATES[algorithm]}
        tried = {**settings.rates, algorithm: {**settings.rates[algorithm], **rates}}
        study = replace(self.study, settings=replace(settings, rates=tried), tuning=True)
        where = {"selector": settings.selectors[0], "horizon": settings.tuned_on, "set": "0"}
        return study({"algorithm": algorithm, **where}, folder, deadline)


def tune(study: ContinualStudy, out: Path, deadline: float, workers: int) -> bool:
    """Try all rates of each algorithm, and print which to go on with; False if time was up."""
    done, settings = True, study.settings
    agree(out / "settings.json", settings.about_trials)
    chosen: list[str] = []
    for algorithm in settings.algorithms:
        knobs = {name: settings.tried.get(name, TRIED[name]) for name in RATES[algorithm]}
        axes = {name: [f"{value:g}" for value in values] for name, values in knobs.items()}
        grid = Grid({"algorithm": [algorithm], **axes}, out / algorithm)
        done = grid.complete(Trial(study), deadline=deadline, workers=workers) and done
        tried = [
            (_perplexity(record["rows"]), {name: float(record["cell"][name]) for name in knobs})
            for record in grid.finished().values()
        ]
        tried.sort(key=lambda pair: pair[0])
        for perplexity, rates in tried:
            text = ", ".join(f"{name} {value:g}" for name, value in rates.items())
            print(f"{algorithm} {text}: perplexity {perplexity:.4g}")
        if not tried:
            continue
        best = tried[0][1]
        for edge in at_edges(best, [rates for _, rates in tried]):
            print(f"{algorithm} did best with {edge}: more may be gained beyond")
        every = {**settings.rates[algorithm], **best}.items()
        inner = ", ".join(f"{name} = {value:g}" for name, value in every)
        chosen.append(f"{algorithm} = {{ {inner} }}")
    if chosen:
        print(f"rates = {{ {', '.join(chosen)} }}")
    return done


def _perplexity(rows: Rows) -> float:
    """Of the whole test set after the last period; of a model that diverged it has no bound."""
    whole = [row for row in rows if row["decile"] is None]
    return float(whole[-1].get("perplexity", math.inf))


def measured(period: int, outcome: Outcome) -> list[dict[str, Any]]:
    """Rows for the whole test set (decile None) and for each decile of clients."""
    decile = decile_of(outcome.sizes)
    rows = []
    for number in (None, *range(1, 11)):
        chosen = decile > 0 if number is None else decile == number
        if not chosen.any():
            continue
        group = np.where(chosen, 0, -1)[outcome.owner]
        pooled = outcome.pooled(group, 1)
        figures = {name: float(values[0]) for name, values in pooled.items()}
        rows.append({"period": period, "decile": number, "clients": int(chosen.sum()), **figures})
    return rows


def periods(timeline: Timeline, horizon: str) -> list[Population]:
    """The windows that are trained on one after the other: one, or the segments of "3x2".

    >>> months = np.arange("2020-01", "2021-01", dtype="datetime64[M]").astype("datetime64[us]")
    >>> line = Timeline.of(Population.pooled({"time": months}))
    >>> [window.examples for window in periods(line, "11") + periods(line, "3x2")]
    [11, 2, 2, 2]
    """
    count, months = segments_of(horizon)
    return list(timeline.segments(months, count))


def sets_of(timeline: Timeline, settings: Settings) -> Sequence[Timeline]:
    """The timeline of each resampled set of clients."""
    return timeline.resampled(settings.sets, share=settings.share, seed=settings.seed)


def prepare(settings: Settings, data: Path | None, folder: Path) -> None:
    """Write everything that cells need: encoded messages, vocabulary, novelty of segments.

    Into a new folder, which is there once it is complete.
    """
    from hubless.measure.novelty import Novelty

    people = settings.messages(data)
    timeline = Timeline.of(people)
    if settings.window is not None:
        timeline = timeline.between(*settings.window)
    people, test = timeline.population, timeline.test
    training = timeline.window(timeline.start, timeline.tested)
    texts: NDArray[Any] = people.columns["text"]
    rows = training.rows if training.rows is not None else np.arange(training.examples)
    vocabulary = Vocabulary.trained(texts[rows].tolist(), settings.vocabulary)
    columns = vocabulary.columns(texts, settings.length)
    encoded = {**columns, "time": people.columns["time"]}
    print(f"{training.examples} messages to train on, {test.examples} to test on", file=sys.stderr)
    staged = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    vocabulary.save(staged / "vocabulary.json")
    novelty = []
    for place, line in enumerate(sets_of(timeline, settings)):
        for horizon in settings.horizons:
            count, months = segments_of(horizon)
            first = line.tested - count * months * MONTH
            for number, window in enumerate(periods(line, horizon)[1:], 2):
                earlier = line.window(first, first + (number - 1) * months * MONTH)
                deciles = Novelty.between(earlier, window).by_decile()
                more = {"horizon": horizon, "set": str(place), "period": number}
                novelty += [{**more, **row} for row in deciles.to_dicts()]
    write(staged / "novelty.json", json.dumps(novelty))
    replace(people, columns=encoded).packed().save(staged / "messages")
    span = {"start": str(timeline.start), "stop": str(timeline.stop)}
    write(staged / "span.json", json.dumps(span))
    staged.rename(folder)


@lru_cache(maxsize=1)
def _opened(prepared: Path) -> tuple[Timeline, Vocabulary]:
    people = Population.open(prepared / "messages", mmap=False)
    span = json.loads((prepared / "span.json").read_text())
    start, stop = (np.datetime64(span[end], "M") for end in ("start", "stop"))
    timeline = replace(Timeline.of(people), start=start, stop=stop)
    return timeline, Vocabulary.load(prepared / "vocabulary.json")


@lru_cache(maxsize=1)
def _task(vocabulary: Vocabulary, model: str | Size, seed: int) -> Task:
    return masked_lm(vocabulary, model, seed=seed)


def _strategy(algorithm: str, rates: Mapping[str, float]) -> Strategy:
    if algorithm == "fedavg":
        return FedAvg()
    return FedAdam(rates["server"], tau=rates.get("tau", 1e-3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare, run what is not finished, and draw; 0 when all is finished, 3 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.continual", description=__doc__)
    add = parser.add_argument
    add("settings", type=Path, help="a TOML file, such as those in studies/")
    add("--data", type=Path, help="the folder that holds the data (or HUBLESS_DATA)")
    add("--out", type=Path, required=True, help="where data, results and figures are kept")
    add("--prepare", action="store_true", help="only prepare the data")
    add("--workers", type=int, default=1, help="cells side by side, each in its own process")
    add("--lanes", type=int, help="clients side by side; measured where not given")
    add("--compiled", action="store_true", help="compile what lanes do, for long runs")
    add("--device", default="auto")
    add("--minutes", type=float, default=math.inf, help="stop after so long, with all saved")
    add("--tune", action="store_true", help="only try rates, and say which did best")
    add("--table", action="store_true", help="only draw what there is")
    add("--run-code", action="store_true", help="run the Python files that the settings name")
    asked = parser.parse_args(arguments)
    deadline, done = time.monotonic() + 60 * asked.minutes, True
    try:
        checks.folder_of("--out", asked.out, error=DataError)
        checks.whole("--workers", asked.workers, least=1, error=DataError)
        checks.number("--minutes", asked.minutes, least=0, most=math.inf, error=DataError)
        engine = Local(device=asked.device)
        if asked.lanes is not None:
            engine = replace(engine, lanes=asked.lanes, compiled=False)
        if asked.compiled:
            engine = replace(engine, compiled=True)
        if asked.workers > 1:
            engine = replace(engine, processes=1)
        settings = Settings.read(asked.settings, asked.run_code)
        prepared = asked.out / "data"
        if not prepared.exists():
            prepare(settings, asked.data, prepared)
        elif not (prepared / "span.json").exists():
            raise DataError(f"{prepared} is there, and holds no prepared data: take another --out")
        agree(prepared / "settings.json", settings.about_data)
        if asked.prepare:
            return 0
        grid = Grid(settings.axes, asked.out)
        if not asked.tune:
            agree(asked.out / "settings.json", settings.about_cells)
        if not asked.table:
            study = ContinualStudy(settings, prepared, engine)
            if asked.tune:
                return 0 if tune(study, asked.out / "tuning", deadline, asked.workers) else 3
            first = study.ahead() if asked.workers > 1 else ()
            done = grid.complete(study, deadline=deadline, workers=asked.workers, first=first)
        draw(grid, settings, prepared)
    except STOPS as stop:
        parser.exit(1, f"{why(stop)}\n")
    return 0 if done else 3


def draw(grid: Grid, settings: Settings, prepared: Path) -> None:
    """Write the results as a parquet file, and the figures, of what is finished."""
    try:
        import polars

        from hubless.study.figures.page import draw as draw_page
    except ImportError:
        print("no tables and figures without polars: pip install hubless[report]", file=sys.stderr)
        return
    results = grid.frame()
    if not len(results):
        print("nothing is finished yet", file=sys.stderr)
        return
    results.write_parquet(grid.out / "results.parquet")
    novelty = polars.DataFrame(
        json.loads((prepared / "novelty.json").read_text()), infer_schema_length=None
    )
    try:
        page = draw_page(
            results,
            novelty,
            grid.out,
            title=settings.title,
            settings=settings.shown,
            axes=grid.axes,
        )
    except DataError as error:
        print(f"no figures: {error}", file=sys.stderr)
        return
    print(page)


if __name__ == "__main__":
    sys.exit(main())
