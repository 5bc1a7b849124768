"""Print, as JSON, what Flower's strategies make of seeded rounds of five and of eleven clients."""

# Not a test: run it by hand where flwr is installed, and keep what it prints as flower.json.
#   FLWR_TELEMETRY_ENABLED=0 python benchmarks/peers/flower_numbers.py > tests/strategy/flower.json

import json
import logging
from dataclasses import dataclass, field
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.server.strategy.aggregate import aggregate_bulyan, aggregate_krum
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

Params = dict[str, NDArray[Any]]

SEED = 7
ROUNDS = 3
CLIENTS = 5
SHAPES = {"w": (3, 4), "b": (5,)}

ADAPTIVE = {"eta": 1e-1, "eta_l": 1e-1, "tau": 1e-3}
MOMENTS = {"beta_1": 0.9, "beta_2": 0.99}
OPTIONS: dict[str, dict[str, float]] = {
    "FedAvg": {},
    "FedAvgM": {"server_learning_rate": 0.7, "server_momentum": 0.9},
    "FedAdam": ADAPTIVE | MOMENTS,
    "FedYogi": ADAPTIVE | MOMENTS,
    # FedAdagrad accepts no betas: it fixes both at zero.
    "FedAdagrad": ADAPTIVE,
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.2},
}
CROWD = 11
"""So many clients are needed for a proof that two hostile ones are withstood."""
ROBUST: dict[str, dict[str, float]] = {
    "Krum": {"num_malicious_nodes": 2},
    "MultiKrum": {"num_malicious_nodes": 2, "num_nodes_to_select": 5},
}
"""Bulyan is taken from the older interface, which chooses one after another as the paper does."""


@dataclass(frozen=True)
class Update:
    """One client's parameters after local training, and how many examples it trained on."""

    params: Params
    num_examples: int


@dataclass(frozen=True)
class Reply:
    """The part of a Flower message that aggregation looks at."""

    content: RecordDict
    metadata: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(src_node_id=0))

    def has_error(self) -> bool:
        return False


def draw(rng: np.random.Generator) -> Params:
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}


def record(params: Params) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in params.items()})


def reply(update: Update, node: int) -> Reply:
    # A fresh record for every use: the median and the trimmed mean empty the ones they are given.
    content = RecordDict(
        {
            "arrays": record(update.params),
            "metrics": MetricRecord({"num-examples": update.num_examples}),
        }
    )
    return Reply(content, SimpleNamespace(src_node_id=node))


def run(
    name: str, options: dict[str, float], initial: Params, rounds: list[list[Update]]
) -> list[Params]:
    """Drive one strategy the way its own `start` does: configure, aggregate, hand on."""
    # With no nodes to sample, configuring needs no grid and does nothing but note the arrays,
    # which is what the server optimisers start from; aggregation never looks at the fraction.
    strategy = getattr(flower, name)(fraction_train=0.0, **options)
    arrays = record(initial)
    results = []
    for number, updates in enumerate(rounds, start=1):
        strategy.configure_train(number, arrays, ConfigRecord(), grid=None)
        replies = [reply(update, node) for node, update in enumerate(updates, start=1)]
        arrays, _ = strategy.aggregate_train(number, replies)
        results.append({key: array.numpy() for key, array in arrays.items()})
    return results


def run_bulyan(rounds: list[list[Update]], hostile: int) -> list[Params]:
    results = []
    for updates in rounds:
        sent = [([*update.params.values()], update.num_examples) for update in updates]
        arrays = aggregate_bulyan(sent, hostile, aggregate_krum, to_keep=0)
        results.append(dict(zip(updates[0].params, arrays, strict=True)))
    return results


def plain(params: Params) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in params.items()}


def draw_rounds(rng: np.random.Generator, clients: int) -> list[list[Update]]:
    return [
        [Update(draw(rng), int(rng.integers(10, 500))) for _ in range(clients)]
        for _ in range(ROUNDS)
    ]


def played(
    strategies: dict[str, dict[str, float]], initial: Params, rounds: list[list[Update]]
) -> dict[str, Any]:
    results = {name: run(name, options, initial, rounds) for name, options in strategies.items()}
    if strategies is ROBUST:
        results["Bulyan"] = run_bulyan(rounds, hostile=2)
    return {
        "rounds": [
            [{"num_examples": each.num_examples, "params": plain(each.params)} for each in updates]
            for updates in rounds
        ],
        "strategies": {
            name: {
                "options": strategies.get(name, {"num_malicious": 2}),
                # FedAdam widens to float64, so what a result was computed in is on record
                "dtypes": [str(params["w"].dtype) for params in each],
                "rounds": [plain(params) for params in each],
            }
            for name, each in results.items()
        },
    }


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rng = np.random.default_rng(SEED)
    initial = draw(rng)
    few, many = draw_rounds(rng, CLIENTS), draw_rounds(rng, CROWD)
    document = {
        "flwr": version("flwr"),
        "numpy": version("numpy"),
        "seed": SEED,
        "initial": plain(initial),
        **played(OPTIONS, initial, few),
        "crowd": played(ROBUST, initial, many),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
