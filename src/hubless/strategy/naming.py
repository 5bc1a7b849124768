"""Strategies by name: what the command line calls them, and what agreements write down."""

from __future__ import annotations

import ast
import importlib
import pkgutil

import hubless.strategy
from hubless.errors import StrategyError
from hubless.strategy.base import Strategy


def kinds() -> dict[str, type[Strategy]]:
    """Every named strategy there is, found by looking at the files of this package.

    >>> "FedAvg" in kinds()
    True
    """
    strategies: dict[str, type[Strategy]] = {}
    for module in pkgutil.iter_modules(hubless.strategy.__path__):
        home = importlib.import_module(f"{hubless.strategy.__name__}.{module.name}")
        for item in vars(home).values():
            if isinstance(item, type) and issubclass(item, Strategy) and item is not Strategy:
                strategies[item.__name__] = item
    return strategies


def parse(text: str) -> Strategy | None:
    """A strategy of this package by its own text, as agreements have it; None for any other.

    Nothing is evaluated: names are looked up in this package, and values are plain constants.

    >>> from hubless.strategy import FedAvg
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
    if (kind := kinds().get(node.func.id)) is not None:
        # a named strategy takes its own settings, and its text shows its three parts
        fields = {"weighting", "reducer", "optimizer"}
        if set(values) != fields:
            raise ValueError("a strategy has a weighting, a reducer and an optimizer")
        strategy = object.__new__(kind)
        for field, value in values.items():
            object.__setattr__(strategy, field, value)
        return strategy
    for module in pkgutil.iter_modules(hubless.strategy.__path__):
        home = f"{hubless.strategy.__name__}.{module.name}"
        part = getattr(importlib.import_module(home), node.func.id, None)
        if isinstance(part, type) and part.__module__ == home:
            return part(**values)
    raise ValueError(f"there is no {node.func.id} in this package")
