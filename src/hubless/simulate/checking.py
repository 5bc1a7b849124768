"""What is wrong with a simulation's task, data or selection, found out before any training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from hubless.checks import fitting, meant, shown, takes
from hubless.data.population import Population
from hubless.errors import (
    DataError,
    HublessError,
    PrivacyError,
    SelectionError,
    StrategyError,
    TaskError,
)
from hubless.privacy.ledger import Ledger
from hubless.select.roster import Selector
from hubless.simulate.callbacks import BestModel, Callback, EarlyStop
from hubless.simulate.job import to_tensors
from hubless.simulate.rounds import is_unbiased
from hubless.simulate.times import Buffered, Devices, Pace
from hubless.strategy.base import Strategy
from hubless.train.recipe import Recipe
from hubless.train.task import TAKEN, Task
from hubless.train.values import GradientNorm, UpdateNorm

_NEEDED: dict[str, tuple[Callable[[Any], bool], str, type[HublessError]]] = {
    "task": (
        lambda given: isinstance(given, Task),
        "a task, such as hubless.Task(module)",
        TaskError,
    ),
    "population": (
        lambda given: isinstance(given, Population),
        "a population, such as hubless.Population.by(columns, client_ids)",
        DataError,
    ),
    "name": (
        lambda given: isinstance(given, str) and bool(given.strip()),
        "what the run is called, a text",
        HublessError,
    ),
}
_OPTIONAL: dict[str, tuple[Callable[[Any], bool], str, type[HublessError]]] = {
    "test": (
        lambda given: isinstance(given, Population),
        "a population, such as hubless.Population.pooled(columns)",
        DataError,
    ),
    "recipe": (
        lambda given: isinstance(given, Recipe),
        "a recipe, such as hubless.Recipe(hubless.SGD(0.1))",
        TaskError,
    ),
    "strategy": (
        lambda given: isinstance(given, Strategy),
        "a strategy, such as hubless.FedAvg()",
        StrategyError,
    ),
    "value": (
        lambda given: isinstance(given, GradientNorm | UpdateNorm) or takes(given, 4),
        "what training a client is worth, such as hubless.train.MeanLoss()",
        SelectionError,
    ),
    "private": (
        lambda given: hasattr(given, "report"),
        "a mechanism, such as hubless.privacy.Count(epsilon=1.0)",
        PrivacyError,
    ),
    "ledger": (
        lambda given: isinstance(given, Ledger),
        "a ledger, such as hubless.privacy.Ledger(clients, budget=2.0)",
        PrivacyError,
    ),
    "engine": (
        lambda given: hasattr(given, "start"),
        "an engine, such as hubless.Local() or hubless.Ray()",
        HublessError,
    ),
    "devices": (
        lambda given: isinstance(given, Devices),
        "devices, such as hubless.Devices()",
        SelectionError,
    ),
    "pace": (
        lambda given: isinstance(given, Pace | Buffered),
        "a pace, such as hubless.Pace(over=1.3) or hubless.Buffered()",
        SelectionError,
    ),
}


def check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse parts of a simulation that are something else, such as a text or a class."""
    for name, given in parts.items():
        fits, what, error = {**_NEEDED, **_OPTIONAL}[name]
        if name in _NEEDED or given is not None:
            fitting(name, given, fits(given), what, error=error)


def check_ledger(ledger: Ledger | None, *, private: bool, clients: int) -> None:
    """Refuse a ledger that has nothing to count, or that is of other clients."""
    if ledger is None:
        return
    if not private:
        raise PrivacyError("ledger= counts what private reports give away: give private=, too")
    if len(ledger) != clients:
        raise PrivacyError(f"ledger= is for {len(ledger)} clients, and there are {clients}")


def callbacks_of(given: Any, task: Task, *, tested: bool, private: bool) -> list[Callback]:
    """Callbacks as a list; those that look at a metric find it in the history."""
    fits = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
    what = "a list of callbacks, such as [hubless.EarlyStop(patience=5)]"
    fitting("callbacks", given, fits, what, error=HublessError)
    callbacks: list[Callback] = list(given)
    there = [name for name in TAKEN if private or name != "epsilon"]
    missing = [] if tested else ["loss", *task.metrics]
    there = [name for name in (*there, *task.metrics) if name not in missing]
    for callback in callbacks:
        fits, what = takes(callback, 2), "functions of (simulation, row)"
        fitting("callbacks", callback, fits, what, error=HublessError)
        if isinstance(callback, EarlyStop | BestModel) and callback.metric not in there:
            _refuse_metric(callback.metric, there, missing)
    return callbacks


def _refuse_metric(metric: str, there: list[str], missing: list[str]) -> None:
    if metric in missing:
        raise HublessError(f"a callback looks at {metric!r}, which needs test= data: give some")
    raise HublessError(
        f"a callback looks at {shown(metric)}{meant(metric, there)}, which no round has: there are "
        f"{', '.join(there)}"
    )


def check_people(task: Task, population: Population, test: Population | None) -> None:
    """Refuse populations without examples, and a task that cannot take theirs."""
    if not population.examples:
        raise DataError("the population has no examples")
    if test is not None and not test.examples:
        raise DataError("the test population has no examples")
    device = next(task.module.parameters()).device
    for people in (population, test):
        if people is None:
            continue
        rows = np.arange(min(2, people.examples))
        few = Population.pooled(
            {
                name: column[rows if people.rows is None else people.rows[rows]]
                for name, column in people.columns.items()
            }
        )
        task.check(to_tensors(few, task.columns, device))


def check_selection(selector: Selector, strategy: Strategy, *, waits: bool) -> None:
    """Refuse a selector that wants its choice made up for where nobody can."""
    if not is_unbiased(selector):
        return
    if not strategy.reducer.linear or strategy.look:
        raise SelectionError(
            f"an unbiased selector makes up for its choice in a mean, and {strategy!r} "
            "does not take one of all updates alike"
        )
    if not waits:
        raise SelectionError(
            "an unbiased selector makes up for its choice in a round, and Buffered has none"
        )


def check_cohort(cohort: float, clients: int) -> int:
    """A number of clients, or a share of all, as a number; 7 and 7.0 are not the same.

    >>> check_cohort(0.1, 50), check_cohort(1.0, 50), check_cohort(7, 50)
    (5, 50, 7)
    """
    if isinstance(cohort, Integral) and not isinstance(cohort, bool):
        count = int(cohort)
    elif isinstance(cohort, Real) and 0 < cohort <= 1 and not isinstance(cohort, bool):
        count = max(1, round(float(cohort) * clients))
    else:
        count = 0
    if count < 1:
        raise SelectionError(
            "a cohort is a whole number of clients, such as 10, or a share of all in (0, 1], such "
            f"as 0.1, and not {cohort!r}"
        )
    if count > clients:
        raise SelectionError(f"a cohort of {count} cannot be taken from {clients} clients")
    return count
