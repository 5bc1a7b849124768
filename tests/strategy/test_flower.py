"""Our strategies give the numbers that Flower's gave for the same three rounds of five clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hubless.params import Array, to_numpy
from hubless.strategy import Strategy
from hubless.strategy.bulyan import Bulyan
from hubless.strategy.fedadagrad import FedAdagrad
from hubless.strategy.fedadam import FedAdam
from hubless.strategy.fedavg import FedAvg
from hubless.strategy.fedavgm import FedAvgM
from hubless.strategy.fedmedian import FedMedian
from hubless.strategy.fedtrimmedmean import FedTrimmedMean
from hubless.strategy.fedyogi import FedYogi
from hubless.strategy.krum import Krum
from hubless.strategy.multikrum import MultiKrum
from hubless.strategy.weighting import ByExamples
from hubless.testing import Update, aggregate

FLOWER: dict[str, Any] = json.loads(Path(__file__).with_name("flower.json").read_text())
OURS: dict[str, Strategy] = {
    "FedAvg": FedAvg(),
    "FedAvgM": FedAvgM(lr=0.7, momentum=0.9),
    "FedAdam": FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3),
    "FedYogi": FedYogi(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3),
    "FedAdagrad": FedAdagrad(lr=0.1, tau=1e-3),
    "FedMedian": FedMedian(),
    "FedTrimmedAvg": FedTrimmedMean(cut=0.2),
}
TWO = 2 / 11
ROBUST: dict[str, Strategy] = {
    "Krum": Krum(hostile=TWO),
    "MultiKrum": MultiKrum(hostile=TWO, keep=5, weighting=ByExamples()),
    "Bulyan": Bulyan(hostile=TWO),
}


def _numpy(params: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {name: np.array(values, np.float32) for name, values in params.items()}


def _torch(params: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in params.items()}


def test_every_strategy_that_flower_was_asked_for_is_compared() -> None:
    assert OURS.keys() == FLOWER["strategies"].keys()
    assert ROBUST.keys() == FLOWER["crowd"]["strategies"].keys()


@pytest.mark.parametrize("convert", [_numpy, _torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", [*OURS, *ROBUST])
def test_it_gives_the_numbers_of_flower(name: str, convert: Any) -> None:
    strategy, played = (OURS[name], FLOWER) if name in OURS else (ROBUST[name], FLOWER["crowd"])
    expected = played["strategies"][name]["rounds"]
    current: dict[str, Array] = convert(FLOWER["initial"])
    state = None
    for number, sent in enumerate(played["rounds"]):
        updates = [
            Update(f"client {i}", convert(update["params"]), update["num_examples"])
            for i, update in enumerate(sent)
        ]
        current, state = aggregate(strategy, updates, current, state)
        assert current.keys() == expected[number].keys()
        for key, values in expected[number].items():
            got = to_numpy(key, current[key])
            assert got.dtype == np.float32
            assert np.allclose(got, values, rtol=0, atol=1e-6), (number, key)
