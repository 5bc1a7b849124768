"""A year of a voice assistant's clients: train once on six months, or every two as they pass.

The fleet is made up: who speaks how much is spread over orders of magnitude, what they ask for
drifts, and some of it is new. The last month is the test, for light and heavy clients apart.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

import hubless
from hubless.data import Timeline
from hubless.data.sources import fleet
from hubless.measure import Outcome, by_decile
from hubless.select import Activity, AtMost
from hubless.train import accuracy

WORDS, ROUNDS = 256, 30


def timeline() -> Timeline:
    """Twelve months of utterances as bags of hashed words; the label is what was asked for."""
    people = fleet.generate(clients=300, seed=0, habits=fleet.Habits(utterances=30, most=400))
    texts = people.columns["text"]
    x = np.zeros((len(texts), WORDS), np.float32)
    for row, text in enumerate(texts.tolist()):
        for word in text.split():
            x[row, zlib.crc32(word.encode()) % WORDS] = 1.0
    columns = {"x": x, "y": people.columns["intent"], "time": people.columns["time"]}
    return Timeline.of(hubless.Population(columns, people.offsets))


def train(
    window: hubless.Population, rounds: int, earlier: hubless.Simulation | None
) -> hubless.Simulation:
    """Train on a window of time, from where an earlier one ended."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WORDS, len(fleet.INTENTS))
    simulation = hubless.Simulation(
        hubless.Task(model, metrics={"accuracy": accuracy}),
        window,
        recipe=hubless.Recipe(hubless.SGD(1.0), batch=16),
        selector=AtMost(Activity("log")),
        cohort=30,
        engine=hubless.Local(lanes=10, compiled=False, processes=1),
    )
    if earlier is not None:
        simulation.go_on_from(earlier)
    simulation.run(rounds)
    return simulation


if __name__ == "__main__":
    line = timeline()
    one_shot = train(line.last(6), ROUNDS, None)
    continual = None
    for window in line.segments(months_each=2, count=3):
        continual = train(window, ROUNDS // 3, continual)
    for name, simulation in {"one-shot": one_shot, "continual": continual}.items():
        outcome = Outcome.of(line.test, simulation.evaluate_by_example(line.test))
        deciles = by_decile(outcome)["accuracy"]
        mean = float(outcome.means["accuracy"].mean())
        print(
            f"{name:10} {mean:.1%} of the last month; lightest tenth of clients "
            f"{deciles[0]:.1%}, heaviest {deciles[-1]:.1%}"
        )
