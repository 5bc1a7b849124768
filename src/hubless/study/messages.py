"""Messages with a rare label, and the model that reads them: Goetz et al. (2019), section 5."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hubless.data.population import Population
from hubless.data.sources import chat, git
from hubless.data.text import CODES, PAD, characters
from hubless.errors import DataError, Diverged
from hubless.measure.roc import auc
from hubless.simulate.evaluate import Evaluation
from hubless.train.losses import binary_cross_entropy
from hubless.train.task import Task

SHARE = 0.11
"""What is held out of every user's messages: 15,568 of the paper's 140,206 are."""
GIT_FILE = "git_active_fl_2014_2019.parquet"

Sizes = tuple[int, int, int]
"""Of the embedding, of the LSTM in each direction, and of the hidden layer."""


def prepared(name: str, data: Path | None, length: int) -> Population:
    """A data set as it is trained on: columns x (character codes) and y (0 or 1), by user.

    `git` predicts from a commit's subject whether it will be reverted, and `chat-ROOM` from a
    message whether it was written in that room.
    """
    if name == "git":
        people = git.load(data, file=GIT_FILE)
        label = people.columns["reverted"]
    elif name.startswith("chat-"):
        people = chat.load(data)
        label = people.columns["room"] == name.removeprefix("chat-")
    else:
        raise DataError(f"there is no data set {name!r}: there are git, and chat- with a room")
    if not label.any():
        raise DataError(f"no message of {name} has the label: is the room spelt as in the data?")
    x = characters(people.columns["text"], length)
    columns = {"x": x, "y": label.astype(np.uint8)}
    return Population(columns, people.offsets, people.rows).packed()


def held_out(
    people: Population, repetition: int, *, tuning: bool = False
) -> tuple[Population, Population]:
    """What a repetition trains on, and what it is tested on: a random share of every user's.

    Rates are tuned within the training part: what its results are told on is never looked at.
    """
    train, test = people.split(SHARE, seed=repetition)
    return train.split(SHARE, seed=repetition) if tuning else (train, test)


class Reader(nn.Module):
    """Characters, an LSTM in both directions, the highest output of each unit, and an MLP.

    Padding never counts among the outputs. The direction that starts at a message's end reads it
    first, and learns to pass over it.

    >>> Reader((64, 32, 64))(torch.zeros(5, 12, dtype=torch.uint8)).shape
    torch.Size([5, 1])
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        embedding, recurrent, hidden = sizes
        self.embedding = nn.Embedding(CODES, embedding)
        self.lstm = nn.LSTM(embedding, recurrent, bidirectional=True, batch_first=True)
        self.hidden = nn.Linear(2 * recurrent, hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, codes: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(codes.long()))
        # an LSTM's outputs lie above -1, so this is what a message of nothing but padding comes to
        highest = outputs.masked_fill((codes == PAD).unsqueeze(-1), -1.0).amax(1)
        return self.output(torch.relu(self.hidden(highest)))  # type: ignore[no-any-return]


def reading(sizes: Sizes, seed: int, share: float) -> Task:
    """The task, with the initial params of a seed.

    At first the model says of every message that it has the label with the probability `share`,
    that of a label 1 in the data. From one half, unlearning that would be all that a rare label's
    first epochs teach, with gradients that Adam then measures later ones by.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Reader(sizes)
    nn.init.constant_(module.output.bias, math.log(share / (1 - share)))
    return Task(module, binary_cross_entropy)


class Scorer:
    """The AUC of any params on a test population."""

    def __init__(self, task: Task, test: Population, device: torch.device) -> None:
        scored = Task(task.module, task.loss, {"score": _score})
        self._evaluation = Evaluation(scored, test, device)
        self._labels = test.packed().columns["y"]

    def __call__(self, params: Tensor, round: int) -> float:
        scores = self._evaluation.values(params)["score"].cpu().numpy()
        if not np.isfinite(scores).all():
            raise Diverged(f"scores are not finite after round {round}", -1, round)
        return auc(scores, self._labels)


def _score(output: Tensor, target: Tensor) -> Tensor:
    return output.reshape(target.shape)
