"""Measures client by client: how they spread, and how the worst off fare."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hubless.errors import DataError
from hubless.measure.deciles import by_decile, checked
from hubless.measure.groups import Floats
from hubless.measure.outcome import Outcome, framed

if TYPE_CHECKING:
    import polars

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
LOWER = ("loss", "perplexity")
"""Measures of which less is better."""
WORST = 0.1


def by_client(outcome: Outcome, decile: ArrayLike | None = None) -> polars.DataFrame:
    """One row per client with test examples: its decile, examples and every measure.

    `client` is its place in the population.

    Args:
        outcome: What the model made of the test examples.
        decile: For each client 1 to 10, or 0 to leave it out; by its examples if not given.

    >>> outcome = Outcome([1, 0, 2], {"loss": [3, 1, 2]})
    >>> by_client(outcome).rows()
    [(0, 3, 1, 3.0), (2, 8, 2, 1.5)]
    """
    deciles = checked(outcome.sizes, decile)
    measures = outcome.pooled(outcome.owner, len(outcome.sizes))
    there = (outcome.sizes > 0) & (deciles > 0)
    columns = {"client": np.arange(len(there)), "decile": deciles, **measures}
    return framed({name: values[there] for name, values in columns.items()})


def spread(
    outcome: Outcome,
    decile: ArrayLike | None = None,
    *,
    quantiles: Sequence[float] = QUANTILES,
    lower: Collection[str] = LOWER,
) -> polars.DataFrame:
    """One row per measure: how it spreads over clients, and how the worst off fare.

    Every client counts once, if it has the measure at all. `std` is over all of them (n, not n -
    1). `q50` and the like are values of a client: the smallest that at least that share of clients
    does not exceed. `worst_tenth` is the mean over the worst tenth of clients, rounded up.
    `worst_decile` has the worst pooled value, `worst_decile_value`.

    Args:
        outcome: What the model made of the test examples.
        decile: For each client 1 to 10, or 0 to leave it out; by its examples if not given.
        quantiles: Shares of clients, in [0, 1].
        lower: The measures of which less is better.

    >>> outcome = Outcome([1, 1, 2], {"loss": [1, 5, 3, 3], "accuracy": [1, 0, 1, 0]})
    >>> spread(outcome, quantiles=[0.5]).select("measure", "mean", "q50", "worst_tenth").rows()
    [('loss', 3.0, 3.0, 5.0), ('accuracy', 0.5, 0.5, 0.0)]
    """
    wrong = [q for q in quantiles if not 0 <= q <= 1]
    if wrong:
        raise DataError(f"a quantile lies between 0 and 1, not at {wrong[0]}")
    each, pooled = by_client(outcome, decile), by_decile(outcome, decile)
    rows = []
    for measure in outcome.measures:
        values = np.sort(each[measure].drop_nulls().to_numpy())
        row: dict[str, object] = {"measure": measure, "clients": len(values)}
        if len(values):
            row |= _spread(values, quantiles, measure in lower)
            # of deciles that tie, the lightest
            worst = pooled.drop_nulls(measure).sort(
                measure, descending=measure in lower, maintain_order=True
            )
            if worst.height:
                row |= {"worst_decile": worst["decile"][0], "worst_decile_value": worst[measure][0]}
        rows.append(row)
    return _frame(rows, quantiles)


def _spread(ordered: Floats, quantiles: Sequence[float], less_is_better: bool) -> dict[str, float]:
    clients = len(ordered)
    tenth = math.ceil(clients * WORST * (1 - 1e-12))
    worst = ordered[-tenth:] if less_is_better else ordered[:tenth]
    # infinite perplexities have a mean and no standard deviation; others may add up to infinity
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mean": float(ordered.mean()),
            "std": float(ordered.std()),
            **{_label(q): float(ordered[_place(q, clients)]) for q in quantiles},
            "worst_tenth": float(worst.mean()),
        }


def _place(q: float, clients: int) -> int:
    # 0.07 of 100 is 7.000000000000001 in floating point, and means 7
    return max(math.ceil(q * clients * (1 - 1e-12)) - 1, 0)


def _label(q: float) -> str:
    return f"q{100 * q:g}"


def _frame(rows: Sequence[dict[str, object]], quantiles: Sequence[float]) -> polars.DataFrame:
    import polars as pl

    schema: dict[str, type[pl.DataType]] = {"measure": pl.String, "clients": pl.Int64}
    floats = ["mean", "std", *map(_label, quantiles), "worst_tenth"]
    schema |= {name: pl.Float64 for name in floats}
    schema |= {"worst_decile": pl.Int64, "worst_decile_value": pl.Float64}
    return pl.DataFrame(rows, schema).with_columns(pl.col(floats).fill_nan(None))
