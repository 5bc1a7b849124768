"""Strategies: how updates become the next version. Each named one is a file of its own."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import TYPE_CHECKING

from hubless.errors import StrategyError
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

__all__ = ["State", "Strategy", "named", "parse"]


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


def parse(text: str) -> Strategy | None:
    """A strategy of this package by its own text, as agreements have it; None for any other.

    Nothing is evaluated: names are looked up in this package, and values are plain constants.

    >>> from hubless.strategy.fedavg import FedAvg
    >>> parse(repr(FedAvg())) == FedAvg()
    True
    """
    try:
        strategy = _build(ast.parse(text, mode="eval").body)
    except (StrategyError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return strategy if isinstance(strategy, Strategy) and repr(strategy) == text else None


def _build(node: ast.expr) -> object:
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("only a name with named values is built")
    values = {str(keyword.arg): _build(keyword.value) for keyword in node.keywords}
    if (kind := named().get(node.func.id)) is not None:
        # a named strategy takes its own settings, and its text shows its three parts
        fields = {"weighting", "reducer", "optimizer"}
        if set(values) != fields:
            raise ValueError("a strategy has a weighting, a reducer and an optimizer")
        strategy = object.__new__(kind)
        for field, value in values.items():
            object.__setattr__(strategy, field, value)
        return strategy
    for module in ("weighting", "reducers", "optimizers"):
        part = getattr(importlib.import_module(f"{__name__}.{module}"), node.func.id, None)
        if isinstance(part, type) and part.__module__ == f"{__name__}.{module}":
            return part(**values)
    raise ValueError(f"there is no {node.func.id} in this package")


def __getattr__(name: str) -> type[Strategy]:
    if name.startswith("Fed") and name in (strategies := named()):
        return strategies[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
