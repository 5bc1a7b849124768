"""The first part: a made-up fleet over twelve months, to see who should train and on what stretch.

A model that tells from an utterance what is wanted is trained for the last month, by clients picked
in three ways, each on the six months before: all at once, or two months at a time, as devices
that cannot keep more would.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hubless
from hubless import events
from hubless.data.sources.fleet import INTENTS, Habits, generate
from hubless.data.timeline import Timeline
from hubless.demo.bar import Bar
from hubless.events import Listener, to_file
from hubless.measure.deciles import by_decile
from hubless.measure.outcome import Outcome
from hubless.select.active import Active
from hubless.select.activity import Activity
from hubless.select.atmost import AtMost
from hubless.select.roster import Selector
from hubless.train.losses import accuracy

SELECTORS: dict[str, Selector] = {
    # of those who said something in a window: who did not is not there
    "uniform": Activity("1"),
    "activity": Activity("sqrt"),
    "active": Active(),
}
HORIZONS = {"one-shot": (1, 6), "continual": (3, 2)}
"""How many segments there are, and the months of each."""
COHORT, WORDS, LENGTH, WIDTH = 50, 600, 10, 32


@dataclass(frozen=True)
class Score:
    """What a simulation came to on the last month."""

    selector: str
    horizon: str
    accuracy: float
    lightest: float
    heaviest: float
    uploaded: int


class Bag(nn.Module):
    """The words of an utterance in any order, and from them what is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, WIDTH)
        self.wanted = nn.Linear(WIDTH, len(INTENTS))

    def forward(self, words: Tensor) -> Tensor:
        there = (words > 0).unsqueeze(-1)
        summed = (self.words(words.long()) * there).sum(1)
        scores: Tensor = self.wanted(torch.relu(summed))
        return scores


def run(folder: Path, *, clients: int, rounds: int) -> Path:
    """Six simulations with their events in one folder; prints what was learned."""
    folder.mkdir(parents=True, exist_ok=True)
    line = Timeline.of(_fleet(clients))
    print(f"1. A fleet of {clients:,} devices that said {line.population.examples:,} things in a")
    print(
        f"   year; {COHORT} of them train in each of {rounds} rounds, tested on the last month.\n"
    )
    scores = [
        _simulate(line, selector, horizon, rounds, folder / "events.jsonl")
        for selector in SELECTORS
        for horizon in HORIZONS
    ]
    print(
        f"\n{'who trains':12}{'on what':12}{'accuracy':>10}{'lightest':>11}{'heaviest':>11}", end=""
    )
    print(f"{'uploaded':>12}\n{'':24}{'(all)':>10}{'tenth':>11}{'tenth':>11}")
    for one in scores:
        shares = f"{one.accuracy:>10.1%}{one.lightest:>11.1%}{one.heaviest:>11.1%}"
        print(f"{one.selector:12}{one.horizon:12}{shares}{one.uploaded / 1e6:>9.0f} MB")
    print("\n" + "\n".join(_learned(scores)) + "\n")
    return folder


def _simulate(line: Timeline, selector: str, horizon: str, rounds: int, log: Path) -> Score:
    count, months = HORIZONS[horizon]
    each, name = max(1, rounds // count), f"{selector}, {horizon}"
    bar, earlier, uploaded = Bar(name, each * count), None, 0
    write = to_file(log)
    for number, window in enumerate(line.segments(months, count)):
        torch.manual_seed(0)
        simulation = hubless.Simulation(
            hubless.Task(Bag(), metrics={"accuracy": accuracy}),
            window,
            recipe=hubless.Recipe(hubless.SGD(0.5), batch=16),
            selector=AtMost(SELECTORS[selector]),
            cohort=min(COHORT, len(window)),
            engine=hubless.Local(lanes=0, compiled=False, processes=1),
            test=line.test,
            evaluate_every=5,
            events=[_continued(write, number, each, count), _shown(bar, number * each)],
            name=name,
        )
        if earlier is not None:
            simulation.go_on_from(earlier)
        simulation.run(each)
        uploaded += sum(int(row["bytes_up"]) for row in simulation.rows)
        earlier = simulation
    outcome = Outcome.of(line.test, simulation.evaluate_by_example())
    tenths = by_decile(outcome)["accuracy"]
    overall = simulation.evaluate()["accuracy"]
    return Score(selector, horizon, overall, tenths[0], tenths[-1], uploaded)


def _continued(listener: Listener, segment: int, rounds: int, segments: int) -> Listener:
    """Rounds counted over all segments, so that they read as one run."""

    def tell(event: events.Event) -> None:
        match event:
            case events.Started():
                settings = {**event.settings, "rounds": rounds * segments}
                listener(replace(event, round=segment * rounds, settings=settings))
            case events.Trained():
                listener(replace(event, round=segment * rounds + event.round))
            case events.Ended() if segment == segments - 1 or event.reason != "complete":
                listener(replace(event, round=segment * rounds + event.round))

    return tell


def _shown(bar: Bar, before: int) -> Listener:
    status = ""

    def show(event: events.Event) -> None:
        nonlocal status
        if isinstance(event, events.Trained):
            if "accuracy" in event.metrics:
                status = f"accuracy {event.metrics['accuracy']:.1%}"
            bar.show(before + event.round, status)

    return show


def _learned(scores: list[Score]) -> list[str]:
    """What the table comes to, in words."""

    def mean(**which: str) -> float:
        chosen = [f for f in scores if all(getattr(f, k) == v for k, v in which.items())]
        return float(np.mean([f.accuracy for f in chosen]))

    ranked = sorted(SELECTORS, key=lambda name: mean(selector=name), reverse=True)
    best, last = ranked[0], ranked[-1]
    gained = 100 * (mean(selector=best) - mean(selector=last))
    once, continual = (100 * mean(horizon=horizon) for horizon in HORIZONS)
    more, less = ("once on six months", "two months at a time")
    if continual > once:
        more, less = less, more
    gap = max(scores, key=lambda f: f.heaviest - f.lightest)
    return [
        f"Picked by {best}, clients teach {gained:.1f} points more than by {last} at equal upload.",
        f"Training {more} gives {abs(once - continual):.1f} points more than {less}.",
        f"The lightest tenth of devices is {100 * (gap.heaviest - gap.lightest):.1f} points behind "
        f"the heaviest where it is worst off ({gap.selector}, {gap.horizon}).",
    ]


def _fleet(clients: int) -> hubless.Population:
    """The fleet with its words as numbers, the commonest first and 0 for none."""
    people = generate(clients, habits=Habits(utterances=40, most=2000))
    texts = [text.split()[:LENGTH] for text in people.columns["text"].tolist()]
    common = Counter(word for text in texts for word in text).most_common(WORDS)
    number = {word: place for place, (word, _) in enumerate(common, 1)}
    words: NDArray[Any] = np.zeros((len(texts), LENGTH), np.int16)
    for row, text in zip(words, texts, strict=True):
        row[: len(text)] = [number.get(word, 0) for word in text]
    columns = {"x": words, "y": people.columns["intent"].astype(np.int64)}
    return replace(people, columns={**columns, "time": people.columns["time"]})
