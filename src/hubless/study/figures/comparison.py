"""The numbers behind the figures: models against a baseline, labelled, in the paper's order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from hubless.errors import DataError
from hubless.measure.novelty import KINDS
from hubless.measure.rcp import over_sets, rcp_over_sets

if TYPE_CHECKING:
    import polars

Rows = list[dict[str, Any]]
"""What a figure draws: labels, and a mean with its standard deviation over sets."""
Model = Mapping[str, Any]
"""One model of a study, by the columns that name it."""

SELECTORS = {
    "activity:1": "f(x) = 1",
    "activity:log": "f(x) = log(x+1)",
    "activity:sqrt": "f(x) = √x",
    "activity:n": "f(x) = x",
    "activity:1/log": "f(x) = 1/log(x+1)",
    "heavy": "heavy",
    "light": "light",
}
ALGORITHMS = {"fedavg": "FedAvg", "fedopt": "FedOpt"}
HORIZONS, CONTINUAL = ("3", "6", "11"), "3x2"
ELEVEN: Model = {"algorithm": "fedavg", "selector": "activity:1", "horizon": "11", "period": 1}
"""The baseline of what is trained on all months at once."""
SIX: Model = {"algorithm": "fedavg", "selector": "activity:log", "horizon": "6", "period": 1}
"""The baseline of what is trained segment by segment."""
REFERENCE = f"one-shot, {SELECTORS['activity:log']}"
KIND_LABELS = dict(
    zip(
        KINDS,
        ("said before by this client", "said before by others only", "completely new"),
        strict=True,
    )
)

MINUS = "\N{MINUS SIGN}"

_AXES = ("algorithm", "horizon", "selector", "set")


def compared(results: polars.DataFrame, baseline: Model) -> polars.DataFrame:
    """The relative change in perplexity of every model against a baseline, over sets.

    Sets of clients in which the baseline is not finished are left out. `place` is a selector's in
    the paper's order, the same in every figure.
    """
    import polars as pl

    sound = _sound(results)
    sets = sound.filter(pl.col("decile").is_null(), **baseline)["set"].unique().to_list()
    if not sets:
        raise DataError(
            f"the baseline, {spelt(baseline)}, is not finished for any set of clients: there is "
            "nothing to compare with"
        )
    by = ["algorithm", "selector", "horizon", "period"]
    changes = rcp_over_sets(sound.filter(pl.col("set").is_in(sets)), baseline, by=by)
    places = {name: place for place, name in enumerate(in_order(sound["selector"], SELECTORS))}
    return changes.with_columns(
        pl.col("selector").replace_strict(places, return_dtype=pl.Int64).alias("place")
    )


def one_shot(results: polars.DataFrame, algorithm: str | None = None) -> Rows:
    """Trained on all months at once: the whole test set, or the deciles under one algorithm."""
    import polars as pl

    whole = pl.col("decile").is_null()
    changes = compared(results, ELEVEN).filter(
        ~pl.col("horizon").str.contains("x"),
        whole if algorithm is None else ~whole & (pl.col("algorithm") == algorithm),
    )
    return _rows(changes, lambda row: _months(row["horizon"]))


def continual(results: polars.DataFrame) -> Rows:
    """Trained segment by segment: the whole test set, after each of them."""
    import polars as pl

    changes = compared(results, SIX)
    changes = changes.filter(pl.col("horizon") == CONTINUAL, pl.col("decile").is_null())
    return _rows(changes, _after)


def last(results: polars.DataFrame, algorithm: str) -> Rows:
    """The deciles after the last segment, and those of a model trained on all months at once."""
    import polars as pl

    changes = compared(results, SIX)
    changes = changes.filter(pl.col("decile").is_not_null(), pl.col("algorithm") == algorithm)
    segments = changes.filter(pl.col("horizon") == CONTINUAL)
    rows = _rows(segments.filter(pl.col("period") == pl.col("period").max()), _after)
    if not rows:
        return rows
    panel = rows[0]["panel"]
    once = changes.filter(horizon=SIX["horizon"], selector=SIX["selector"])
    reference = {"selection": REFERENCE, "place": -1}
    return rows + [row | reference for row in _rows(once, lambda _: panel)]


def shares(novelty: polars.DataFrame) -> Rows:
    """Where utterances come from in percent, averaged over periods and then over sets."""
    import polars as pl

    names = [f"{kind}_share" for kind in KINDS]
    _refuse_missing("novelty", novelty, ["horizon", "set", "decile", *names])
    segments = novelty.filter(pl.col("decile").is_not_null(), horizon=CONTINUAL)
    each = segments.group_by("set", "decile")
    means = each.agg(pl.col(names).mean() * 100).drop_nulls()
    rows = over_sets(means, ["decile"], names).sort("decile").rows(named=True)
    return [
        {
            "panel": "",
            "kind": label,
            "decile": row["decile"],
            "mean": row[f"{kind}_share_mean"],
            "std": row[f"{kind}_share_std"],
            "sets": row["sets"],
        }
        for kind, label in KIND_LABELS.items()
        for row in rows
    ]


def missing(
    results: polars.DataFrame, axes: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], int, int]:
    """Which cells have no results in words, how many these are, and how many cells there are.

    `axes` are those of the grid; without, they are the paper's and whatever else the results have,
    on the sets that there are.
    """
    sound = _sound(results)
    there = set(sound.select(_AXES).unique().rows())
    paper: dict[str, Collection[str]] = {
        "algorithm": ALGORITHMS,
        "horizon": (*HORIZONS, CONTINUAL),
        "selector": SELECTORS,
    }
    wanted = {name: in_order(sound[name], paper.get(name, ())) for name in _AXES}
    wanted |= {name: list(axes[name]) for name in _AXES if axes and name in axes}
    lines, lacking = [], 0
    for algorithm, horizon in product(wanted["algorithm"], wanted["horizon"]):
        without: dict[str, list[str]] = {}
        for selector, one in product(wanted["selector"], wanted["set"]):
            if (algorithm, horizon, selector, one) not in there:
                without.setdefault(selector, []).append(one)
        lacking += sum(map(len, without.values()))
        if without:
            lines.append(f"{_trained(algorithm, horizon)}: {_listed(without, wanted)}")
    return lines, lacking, prod(map(len, wanted.values()))


def in_order(names: Iterable[str], order: Collection[str]) -> list[str]:
    """All of an order, and then the other names, by name.

    >>> in_order(["b", "light", "a", "b"], ["heavy", "light"])
    ['heavy', 'light', 'a', 'b']
    """
    return [*order, *sorted(set(names) - set(order))]


def spelt(model: Model) -> str:
    """A model in words.

    >>> spelt(ELEVEN)
    'one-shot FedAvg on 11 months with f(x) = 1'
    """
    selector = model["selector"]
    trained = _trained(model["algorithm"], model["horizon"])
    return f"{trained} with {SELECTORS.get(selector, selector)}"


def _trained(algorithm: str, horizon: str) -> str:
    name = ALGORITHMS.get(algorithm, algorithm)
    segments, x, months = horizon.partition("x")
    if x:
        return f"continual {name} on {segments} times {_months(months)}"
    return f"one-shot {name} on {_months(horizon)}"


def _months(number: str) -> str:
    return f"{number} month{'' if number == '1' else 's'}"


def _after(row: Model) -> str:
    return f"after P{row['period']}"


def _listed(without: Mapping[str, list[str]], wanted: Mapping[str, list[str]]) -> str:
    everywhere = all(len(sets) == len(wanted["set"]) for sets in without.values())
    if everywhere and len(without) == len(wanted["selector"]):
        return "every selection"
    return ", ".join(
        SELECTORS.get(selector, selector)
        + (f" (set {', '.join(sets)})" if len(sets) < len(wanted["set"]) else "")
        for selector, sets in without.items()
    )


def _rows(changes: polars.DataFrame, panel: Callable[[Model], str]) -> Rows:
    """Numbers with their labels, in the paper's order."""
    algorithms = in_order(changes["algorithm"], ALGORITHMS)
    ordered = sorted(
        changes.iter_rows(named=True),
        key=lambda row: (
            int(row["horizon"].partition("x")[0]),
            row["period"],
            row["place"],
            algorithms.index(row["algorithm"]),
            row["decile"] or 0,
        ),
    )
    return [
        {
            "panel": panel(row),
            "place": row["place"],
            "selection": SELECTORS.get(row["selector"], row["selector"]),
            "algorithm": ALGORITHMS.get(row["algorithm"], row["algorithm"]),
            "decile": row["decile"],
            "mean": row["rcp_mean"],
            "std": row["rcp_std"],
            "low": row["rcp_mean"] - (row["rcp_std"] or 0),
            "high": row["rcp_mean"] + (row["rcp_std"] or 0),
            "sets": row["sets"],
        }
        for row in ordered
    ]


def _sound(results: polars.DataFrame) -> polars.DataFrame:
    """Rows with a perplexity that can be drawn: a model that diverged has none."""
    import polars as pl

    _refuse_missing("results", results, [*_AXES, "period", "decile", "perplexity"])
    return results.filter(pl.col("perplexity").is_finite(), pl.col("perplexity") > 0)


def _refuse_missing(what: str, frame: polars.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            there = ", ".join(frame.columns) or "none"
            raise DataError(f"the {what} have no column {name!r}; there are {there}")
