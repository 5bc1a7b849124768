"""What is simulated: seeded synthetic data and plain torch models, the same for every framework.

Needs numpy and torch and nothing else. Round number r of a workload always trains the clients
`cohort_of(r)`, so that frameworks can be compared round by round even when clients are unequal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

SEED = 2026
CLASSES = 10
VOCABULARY = 90
SEQUENCE = 80

Data = dict[str, NDArray[np.generic]]
Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    name: str
    module: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, int], Data]
    clients: int
    mean: int
    cohort: int
    batch: int = 10
    lr: float = 0.1
    # of the logarithm of a client's size; 0: all alike
    spread: float = 0.0

    def make_model(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.module()

    @cached_property
    def sizes(self) -> Offsets:
        """How many examples every client has."""
        rng = np.random.default_rng(SEED)
        logs = rng.normal(np.log(self.mean) - self.spread**2 / 2, self.spread, self.clients)
        return np.maximum(1, np.rint(np.exp(logs))).astype(np.int64)

    def make_data(self) -> tuple[Data, Offsets]:
        """Arrays "x" and "y" sorted by client, and where each client begins, then the end."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        return self.draw(np.random.default_rng(SEED + 1), int(offsets[-1])), offsets

    @cached_property
    def order(self) -> Offsets:
        return np.random.default_rng(SEED + 2).permutation(self.clients)

    def cohort_of(self, number: int) -> Offsets:
        """The clients of round `number`, from 0: everyone's turn comes before anyone's second."""
        places = np.arange(number * self.cohort, (number + 1) * self.cohort) % self.clients
        return self.order[places]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # for text, every position of every sequence counts as one example to classify
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def points(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> Data:
    """Noise around one centre per class."""
    centres = rng.standard_normal((CLASSES, *shape), dtype=np.float32) / 4
    y = rng.integers(CLASSES, size=count)
    x = rng.standard_normal((count, *shape), dtype=np.float32)
    for label in range(CLASSES):
        x[y == label] += centres[label]
    return {"x": x, "y": y}


def digits(rng: np.random.Generator, count: int) -> Data:
    return points(rng, count, (784,))


def images(rng: np.random.Generator, count: int) -> Data:
    return points(rng, count, (3, 32, 32))


def text(rng: np.random.Generator, count: int) -> Data:
    """Sequences that move on by 0 to 3 letters at a time; y is x one position later."""
    start = rng.integers(VOCABULARY, size=(count, 1))
    moves = rng.integers(4, size=(count, SEQUENCE))
    whole = np.concatenate([start, start + np.cumsum(moves, axis=1)], axis=1) % VOCABULARY
    return {"x": whole[:, :-1].copy(), "y": whole[:, 1:].copy()}


def linear() -> nn.Module:
    return nn.Linear(784, CLASSES)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, CLASSES),
    )


class Characters(nn.Module):
    """Scores for the next letter at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.scores = nn.Linear(256, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(self.embedding(x))[0])


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("logreg", linear, digits, clients=1000, mean=60, cohort=100),
        Workload("mlp", perceptron, digits, clients=1000, mean=60, cohort=100),
        Workload("cnn", convolutions, images, clients=1000, mean=50, cohort=50),
        Workload("lstm", Characters, text, clients=200, mean=20, cohort=10, spread=0.75),
        Workload("logreg_unequal", linear, digits, clients=1000, mean=60, cohort=100, spread=1.0),
        Workload("logreg_small", linear, digits, clients=10_000, mean=3, cohort=500, spread=0.75),
    )
}
