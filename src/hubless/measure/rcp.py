"""Relative change in perplexity (RCP), and means over repeated sets of clients.

As in Dupuy et al. (2022): the change in percent against the perplexity of a baseline model on the
entire test set, of a decile too. Above 0 is worse than the baseline. Each set of clients has a
baseline of its own; means and standard deviations are taken over the sets afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hubless.errors import DataError

if TYPE_CHECKING:
    import polars

Cell = Mapping[str, Any]
RCP, DECILE, SET = "rcp", "decile", "set"


def relative_change(
    results: polars.DataFrame,
    baseline: Cell,
    *,
    value: str = "perplexity",
    over: str | None = SET,
    decile: str = DECILE,
    name: str = RCP,
) -> polars.DataFrame:
    """The results with a column more: the change against a baseline, in percent.

        rcp = 100 · (value - baseline) / baseline

    Above 0 is worse than the baseline, for a perplexity. The baseline is always that on the entire
    test set, for a decile too.

    Args:
        results: One row per model, set of clients and decile.
        baseline: Names the rows to compare with by the values of some columns. Of these the one
            whose decile is null counts, or any where there is no such column. There has to be
            exactly one in each set.
        value: The column that is compared.
        over: The column that says which set of clients a row is of; None for a single set.
        decile: The column of deciles.
        name: What the new column is called.

    >>> import polars
    >>> results = polars.DataFrame({
    ...     "selector": ["uniform", "uniform", "log", "log"], "set": [0, 0, 0, 0],
    ...     "decile": [None, 1, None, 1], "perplexity": [20.0, 25.0, 18.0, 21.0]})
    >>> relative_change(results, {"selector": "uniform"})["rcp"].to_list()
    [0.0, 25.0, -10.0, 5.0]

    Reference:
        Dupuy et al., "Learnings from Federated Learning in the Real World", 2022, section 4.
    """
    import polars as pl

    keys = [] if over is None else [over]
    _refuse_missing(results, [value, *keys, *baseline])
    _refuse_values(results, baseline, value)
    if name in results.columns:
        raise DataError(f"there is a column {name!r} already: give another name=")
    whole = pl.col(decile).is_null() if decile in results.columns else pl.lit(True)
    matches = results.filter(whole, _is(baseline))
    _refuse_cells(results, matches, baseline, keys, decile)
    _refuse_unfit(matches, baseline, keys, value)
    base = "its baseline"
    reference = matches.select(*keys, pl.col(value).cast(pl.Float64).alias(base))
    if keys:
        joined = results.join(
            reference, on=keys, how="left", nulls_equal=True, maintain_order="left"
        )
    else:
        joined = results.join(reference, how="cross", maintain_order="left")
    change = 100 * (pl.col(value) - pl.col(base)) / pl.col(base)
    return joined.with_columns(change.alias(name)).drop(base)


def over_sets(
    results: polars.DataFrame,
    by: Sequence[str],
    values: Sequence[str] = (RCP,),
    *,
    over: str = SET,
) -> polars.DataFrame:
    """Mean and standard deviation of some columns over sets, one row per cell, in order of sight.

    `sets` is how many sets a cell has; a null counts nowhere. The standard deviation is that of a
    sample (n - 1), null for a single set.

    Args:
        results: One row per cell and set.
        by: The columns that name a cell.
        values: The columns that are averaged.
        over: The column that says which set a row is of.

    >>> import polars
    >>> results = polars.DataFrame({"selector": ["log"] * 3, "set": [0, 1, 2],
    ...                             "rcp": [1.0, 2.0, 6.0]})
    >>> over_sets(results, ["selector"]).rows()
    [('log', 3, 3.0, 2.6457513110645907)]
    """
    import polars as pl

    _refuse_missing(results, [*by, over, *values])
    cells = [*by, over]
    twice = results.filter(results.select(cells).is_duplicated()).head(1)
    if twice.height:
        row = twice.row(0, named=True)
        again = results.filter(_is({column: row[column] for column in cells}))
        raise DataError(
            f"there are {again.height} rows for {_words({c: row[c] for c in cells})}"
            f"{_apart(again, [*cells, *values])}: name what tells them apart in by="
        )
    summaries = [
        summary.alias(f"{name}_{kind}")
        for name in values
        for kind, summary in (("mean", pl.col(name).mean()), ("std", pl.col(name).std()))
    ]
    sets = pl.any_horizontal(pl.col(values).is_not_null()).sum().cast(pl.UInt32).alias("sets")
    if not by:
        return results.select(sets, *summaries)
    return results.group_by(by, maintain_order=True).agg(sets, *summaries)


def rcp_over_sets(
    results: polars.DataFrame,
    baseline: Cell,
    *,
    by: Sequence[str] | None = None,
    value: str = "perplexity",
    over: str = SET,
    decile: str = DECILE,
) -> polars.DataFrame:
    """Mean and standard deviation of the RCP over sets, for each cell and each of its deciles.

    Where results have deciles, the row of the entire test set has a null one.

    Args:
        results: One row per model, set of clients and decile.
        baseline: As in `relative_change`.
        by: The columns that name a cell; those of the baseline if not given.
        value: The column that is compared.
        over: The column that says which set of clients a row is of.
        decile: The column of deciles.

    >>> import polars
    >>> results = polars.DataFrame({"selector": ["uniform", "log"] * 2, "set": [0, 0, 1, 1],
    ...                             "perplexity": [20.0, 18.0, 10.0, 8.0]})
    >>> rcp_over_sets(results, {"selector": "uniform"}).select("selector", "rcp_mean").rows()
    [('uniform', 0.0), ('log', -15.0)]
    """
    changed = relative_change(results, baseline, value=value, over=over, decile=decile)
    cells = list(baseline if by is None else by)
    if decile in results.columns and decile not in cells:
        cells.append(decile)
    return over_sets(changed, cells, over=over)


def _is(cell: Cell) -> polars.Expr:
    import polars as pl

    return pl.all_horizontal(
        pl.lit(True), *(pl.col(name).eq_missing(pl.lit(wanted)) for name, wanted in cell.items())
    )


def _refuse_missing(results: polars.DataFrame, wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in results.columns:
            there = ", ".join(results.columns)
            raise DataError(f"the results have no column {name!r}; there are {there}")


def _refuse_values(results: polars.DataFrame, baseline: Cell, value: str) -> None:
    import polars as pl

    if not results.schema[value].is_numeric():
        raise DataError(f"column {value!r} holds {results.schema[value]}, not numbers")
    for name, wanted in baseline.items():
        try:
            there = results.filter(_is({name: wanted})).height
        except pl.exceptions.PolarsError as error:
            kind = results.schema[name]
            raise DataError(
                f"the baseline has {name}={wanted!r}, but that column holds {kind}"
            ) from error
        if not there:
            choices = ", ".join(map(repr, results[name].unique(maintain_order=True).to_list()))
            raise DataError(
                f"the baseline has {name}={wanted!r}; the results have {choices or 'no rows'}"
            )


def _refuse_cells(
    results: polars.DataFrame,
    matches: polars.DataFrame,
    baseline: Cell,
    keys: Sequence[str],
    decile: str,
) -> None:
    """Every set needs one row of the baseline on the entire test set, and one only."""
    wanted = results.select(keys).unique(maintain_order=True).rows() if keys else [()]
    have: dict[tuple[Any, ...], int] = {}
    for cell in matches.select(keys).rows() if keys else [()] * matches.height:
        have[cell] = have.get(cell, 0) + 1
    whole = f" with a null {decile} (the entire test set)" if decile in results.columns else ""
    missing = [dict(zip(keys, cell, strict=True)) for cell in wanted if cell not in have]
    if missing:
        where = f" in {'; '.join(map(_words, missing))}" if keys else ""
        raise DataError(f"the baseline {_words(baseline)} has no row{whole}{where}")
    for cell, count in have.items():
        if count > 1:
            names = dict(zip(keys, cell, strict=True))
            rows = matches.filter(_is(names))
            raise DataError(
                f"the baseline {_words(baseline)} has {count} rows"
                f"{f' in {_words(names)}' if keys else ''}{_apart(rows, [*baseline, *keys])}: "
                "name one of them"
            )


def _refuse_unfit(
    matches: polars.DataFrame, baseline: Cell, keys: Sequence[str], value: str
) -> None:
    import polars as pl

    column = pl.col(value).cast(pl.Float64)
    wrong = matches.filter(~(column.is_finite() & (column > 0)).fill_null(False))
    if wrong.height:
        row = wrong.row(0, named=True)
        where = f" in {_words({key: row[key] for key in keys})}" if keys else ""
        raise DataError(
            f"the baseline {_words(baseline)} has a {value} of {row[value]}{where}: nothing can "
            "be compared with that"
        )


def _apart(rows: polars.DataFrame, by: Sequence[str]) -> str:
    """In which columns rows differ, in words."""
    others = [name for name in rows.columns if name not in by and rows[name].n_unique() > 1]
    # measures differ between any two rows, and hardly ever tell what a row is
    names = [name for name in others if not rows.schema[name].is_float()] or others
    return f" that differ in {', '.join(names)}" if names else ""


def _words(cell: Cell) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in cell.items())
