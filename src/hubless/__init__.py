"""hubless: federated learning without a hub."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubless.data.population import Population as Population
    from hubless.errors import HublessError as HublessError
    from hubless.federate.federation import Federation as Federation
    from hubless.federate.join import join as join
    from hubless.simulate.callbacks import BestModel as BestModel
    from hubless.simulate.callbacks import Checkpoint as Checkpoint
    from hubless.simulate.callbacks import EarlyStop as EarlyStop
    from hubless.simulate.engine.machine import Local as Local
    from hubless.simulate.engine.ray import Ray as Ray
    from hubless.simulate.simulation import Simulation as Simulation
    from hubless.simulate.times import Buffered as Buffered
    from hubless.simulate.times import Devices as Devices
    from hubless.simulate.times import Pace as Pace
    from hubless.strategy.base import Strategy as Strategy
    from hubless.strategy.fedadagrad import FedAdagrad as FedAdagrad
    from hubless.strategy.fedadam import FedAdam as FedAdam
    from hubless.strategy.fedasync import FedAsync as FedAsync
    from hubless.strategy.fedavg import FedAvg as FedAvg
    from hubless.strategy.fedavgm import FedAvgM as FedAvgM
    from hubless.strategy.fedbuff import FedBuff as FedBuff
    from hubless.strategy.fedmedian import FedMedian as FedMedian
    from hubless.strategy.fedtrimmedmean import FedTrimmedMean as FedTrimmedMean
    from hubless.strategy.fedyogi import FedYogi as FedYogi
    from hubless.train.optimizers import SGD as SGD
    from hubless.train.optimizers import Adam as Adam
    from hubless.train.optimizers import AdamW as AdamW
    from hubless.train.recipe import Recipe as Recipe
    from hubless.train.task import Task as Task
    from hubless.update import Update as Update

__version__ = "0.1.0"

_HOMES = {
    "Adam": "hubless.train.optimizers",
    "AdamW": "hubless.train.optimizers",
    "BestModel": "hubless.simulate.callbacks",
    "Buffered": "hubless.simulate.times",
    "Checkpoint": "hubless.simulate.callbacks",
    "Devices": "hubless.simulate.times",
    "EarlyStop": "hubless.simulate.callbacks",
    "FedAdagrad": "hubless.strategy.fedadagrad",
    "FedAdam": "hubless.strategy.fedadam",
    "FedAsync": "hubless.strategy.fedasync",
    "FedAvg": "hubless.strategy.fedavg",
    "FedAvgM": "hubless.strategy.fedavgm",
    "FedBuff": "hubless.strategy.fedbuff",
    "FedMedian": "hubless.strategy.fedmedian",
    "FedTrimmedMean": "hubless.strategy.fedtrimmedmean",
    "FedYogi": "hubless.strategy.fedyogi",
    "Federation": "hubless.federate.federation",
    "HublessError": "hubless.errors",
    "Local": "hubless.simulate.engine.machine",
    "Pace": "hubless.simulate.times",
    "Population": "hubless.data.population",
    "Ray": "hubless.simulate.engine.ray",
    "Recipe": "hubless.train.recipe",
    "SGD": "hubless.train.optimizers",
    "Simulation": "hubless.simulate.simulation",
    "Strategy": "hubless.strategy.base",
    "Task": "hubless.train.task",
    "Update": "hubless.update",
    "join": "hubless.federate.join",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
