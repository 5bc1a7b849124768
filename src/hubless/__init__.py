"""hubless: federated learning without a hub."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubless.errors import HublessError as HublessError
    from hubless.federate.federation import Federation as Federation
    from hubless.federate.join import join as join
    from hubless.strategy import FedAdagrad as FedAdagrad
    from hubless.strategy import FedAdam as FedAdam
    from hubless.strategy import FedAsync as FedAsync
    from hubless.strategy import FedAvg as FedAvg
    from hubless.strategy import FedAvgM as FedAvgM
    from hubless.strategy import FedMedian as FedMedian
    from hubless.strategy import FedTrimmedMean as FedTrimmedMean
    from hubless.strategy import FedYogi as FedYogi
    from hubless.strategy import Strategy as Strategy
    from hubless.update import Update as Update

__version__ = "0.1.0"

_HOMES = {
    "FedAdagrad": "hubless.strategy.fedadagrad",
    "FedAdam": "hubless.strategy.fedadam",
    "FedAsync": "hubless.strategy.fedasync",
    "FedAvg": "hubless.strategy.fedavg",
    "FedAvgM": "hubless.strategy.fedavgm",
    "FedMedian": "hubless.strategy.fedmedian",
    "FedTrimmedMean": "hubless.strategy.fedtrimmedmean",
    "FedYogi": "hubless.strategy.fedyogi",
    "Federation": "hubless.federate.federation",
    "HublessError": "hubless.errors",
    "Strategy": "hubless.strategy.base",
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
