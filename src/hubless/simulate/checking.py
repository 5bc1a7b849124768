"""What is wrong with a simulation's task, data or selection, found out before any training."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from hubless.data.population import Population
from hubless.errors import DataError, SelectionError
from hubless.select.roster import Selector
from hubless.simulate.job import to_tensors
from hubless.simulate.rounds import is_unbiased
from hubless.strategy.base import Strategy
from hubless.train.task import Task


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
