"""Strategies: how updates become the next version. Each named one is a file of its own."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from hubless.strategy.base import State, Strategy

if TYPE_CHECKING:
    from hubless.strategy.fedadagrad import FedAdagrad as FedAdagrad
    from hubless.strategy.fedadam import FedAdam as FedAdam
    from hubless.strategy.fedasync import FedAsync as FedAsync
    from hubless.strategy.fedavg import FedAvg as FedAvg
    from hubless.strategy.fedavgm import FedAvgM as FedAvgM
    from hubless.strategy.fedbuff import FedBuff as FedBuff
    from hubless.strategy.fedmedian import FedMedian as FedMedian
    from hubless.strategy.fedtrimmedmean import FedTrimmedMean as FedTrimmedMean
    from hubless.strategy.fedyogi import FedYogi as FedYogi

__all__ = ["State", "Strategy", "named"]


def named() -> dict[str, type[Strategy]]:
    """Every named strategy there is, found by looking at the files of this package.

    >>> "FedAvg" in named()
    True
    """
    found: dict[str, type[Strategy]] = {}
    for module in pkgutil.iter_modules(__path__):
        for item in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, Strategy) and item is not Strategy:
                found[item.__name__] = item
    return found


def __getattr__(name: str) -> type[Strategy]:
    if name.startswith("Fed") and name in (strategies := named()):
        return strategies[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
