"""The relative change in perplexity is against the baseline on the entire test set, set by set."""

from __future__ import annotations

import math
from itertools import product
from statistics import mean, stdev
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubless.errors import DataError
from hubless.measure.rcp import over_sets, rcp_over_sets, relative_change

BASELINE = {"algorithm": "fedavg", "selector": "uniform", "horizon": 11}


def _grid(perplexities: list[float], deciles: list[int | None]) -> pl.DataFrame:
    cells = product(["fedavg", "fedopt"], ["uniform", "log"], [3, 11], [0, 1, 2], deciles)
    names = ["algorithm", "selector", "horizon", "set", "decile"]
    rows = [dict(zip(names, cell, strict=True)) for cell in cells]
    for place, row in enumerate(rows):
        row["perplexity"] = perplexities[place % len(perplexities)]
    return pl.DataFrame(rows, infer_schema_length=None)


@settings(max_examples=15)
@given(st.lists(st.floats(1, 1e4), min_size=7, max_size=40), st.permutations([None, 1, 2, 10]))
def test_it_is_what_a_loop_over_cells_gives(
    perplexities: list[float], deciles: list[int | None]
) -> None:
    results = _grid(perplexities, deciles)
    rows = results.rows(named=True)

    def whole(wanted: int) -> float:
        (row,) = (
            row
            for row in rows
            if all(row[name] == value for name, value in BASELINE.items())
            and row["set"] == wanted
            and row["decile"] is None
        )
        return float(row["perplexity"])

    changes = [100 * (row["perplexity"] / whole(row["set"]) - 1) for row in rows]
    got = relative_change(results, BASELINE)
    assert got.drop("rcp").equals(results)
    assert got["rcp"].to_list() == pytest.approx(changes, abs=1e-9)
    for row in rcp_over_sets(results, BASELINE).rows(named=True):
        mine = [
            change
            for change, other in zip(changes, rows, strict=True)
            if all(other[name] == row[name] for name in (*BASELINE, "decile"))
        ]
        assert row["sets"] == len(mine) == 3
        assert row["rcp_mean"] == pytest.approx(mean(mine), abs=1e-6)
        assert row["rcp_std"] == pytest.approx(stdev(mine), abs=1e-6)


def test_a_lower_perplexity_is_below_zero_and_deciles_compare_with_the_entire_test_set() -> None:
    # by hand, baseline 20: 18 is 10 % lower; its decile 1 at 22 is 10 % worse than the whole
    results = pl.DataFrame(
        {
            "selector": ["uniform", "uniform", "log", "log"],
            "set": [0, 0, 0, 0],
            "decile": [None, 1, None, 1],
            "perplexity": [20.0, 30.0, 18.0, 22.0],
        }
    )
    got = relative_change(results, {"selector": "uniform"})
    assert got["rcp"].to_list() == [0, 50, -10, 10]


def test_every_set_has_its_own_baseline() -> None:
    results = pl.DataFrame(
        {
            "selector": ["uniform", "log"] * 3,
            "set": [0, 0, 1, 1, 2, 2],
            "perplexity": [10.0, 11.0, 20.0, 24.0, 40.0, 52.0],
        }
    )
    # 10 %, 20 % and 30 %: mean 20, standard deviation of the sample 10
    _, log = rcp_over_sets(results, {"selector": "uniform"}).rows()
    assert log == ("log", 3, pytest.approx(20), pytest.approx(10))


def test_a_single_set_has_no_standard_deviation() -> None:
    results = pl.DataFrame({"selector": ["u", "l"], "set": [0, 0], "perplexity": [2.0, 3.0]})
    assert rcp_over_sets(results, {"selector": "u"}).rows()[1] == ("l", 1, 50.0, None)
    alone = relative_change(results.drop("set"), {"selector": "u"}, over=None)
    assert alone["rcp"].to_list() == [0, 50]


def test_what_is_missing_or_infinite_stays_so() -> None:
    results = pl.DataFrame(
        {"s": ["u", "l", "h"], "set": [0] * 3, "perplexity": [2.0, None, math.inf]}
    )
    assert relative_change(results, {"s": "u"})["rcp"].to_list() == [0, None, math.inf]


def test_a_baseline_may_be_named_by_a_null_and_sets_too() -> None:
    results = pl.DataFrame({"months": [None, 3], "set": [None, None], "perplexity": [2.0, 3.0]})
    assert relative_change(results, {"months": None})["rcp"].to_list() == [0, 50]


def test_more_columns_may_name_a_cell_than_the_baseline() -> None:
    results = pl.DataFrame(
        {
            "selector": ["u", "l", "l"],
            "period": ["all", "P1", "P2"],
            "set": [0, 0, 0],
            "perplexity": [2.0, 3.0, 4.0],
        }
    )
    with pytest.raises(
        DataError, match="2 rows for selector='l', set=0 that differ in period: nam"
    ):
        rcp_over_sets(results, {"selector": "u"})
    got = rcp_over_sets(results, {"selector": "u"}, by=["selector", "period"])
    assert got["rcp_mean"].to_list() == [0, 50, 100]


def test_other_columns_have_means_over_sets_as_well() -> None:
    results = pl.DataFrame({"set": [0, 1], "accuracy": [0.5, 0.7], "auc": [0.8, None]})
    row = over_sets(results, [], ["accuracy", "auc"]).row(0, named=True)
    assert row["sets"] == 2
    assert row["accuracy_mean"] == pytest.approx(0.6)
    assert row["accuracy_std"] == pytest.approx(math.sqrt(0.02))
    assert row["auc_mean"] == 0.8 and row["auc_std"] is None


FULL = _grid([7.0], [None, 1])
IN_SET_1 = (pl.col("set") == 1) & (pl.col("horizon") == 11) & (pl.col("selector") == "uniform")
REFUSED: list[tuple[pl.DataFrame, dict[str, Any], str]] = [
    (FULL.filter(~IN_SET_1), BASELINE, "horizon=11 has no row with a null decile .* in set=1$"),
    (
        FULL.filter(~(IN_SET_1 & pl.col("decile").is_null())),
        BASELINE,
        r"selector='uniform', horizon=11 has no row with a null decile .* in set=1$",
    ),
    (FULL.filter(pl.col("decile") == 1), BASELINE, "in set=0; set=1; set=2$"),
    (FULL.drop("decile"), BASELINE, "horizon=11 has 2 rows in set=0: name one"),
    (FULL, {"algorithm": "fedavg", "horizon": 3}, "has 2 rows in set=0 that differ in selector"),
    (FULL, {**BASELINE, "selector": "sqrt"}, "selector='sqrt'; the results have 'uniform', 'log'"),
    (FULL, {**BASELINE, "horizon": "11"}, "horizon='11', but that column holds Int64"),
    (FULL, {"months": 11}, "no column 'months'; there are algorithm, "),
    (FULL.drop("perplexity"), BASELINE, "no column 'perplexity'"),
    (FULL.drop("set"), BASELINE, "no column 'set'"),
    (FULL.with_columns(perplexity=pl.lit("7")), BASELINE, "'perplexity' holds String"),
    (FULL.with_columns(rcp=1), BASELINE, "a column 'rcp' already"),
    (FULL.clear(), BASELINE, "the baseline has algorithm='fedavg'; the results have no rows"),
    *(
        (
            FULL.with_columns(pl.when(IN_SET_1).then(bad).otherwise(7.0).alias("perplexity")),
            BASELINE,
            f"has a perplexity of {said} in set=1",
        )
        for bad, said in ((None, "None"), (math.nan, "nan"), (math.inf, "inf"), (0.0, "0.0"))
    ),
]


@pytest.mark.parametrize(("results", "baseline", "message"), REFUSED)
def test_a_baseline_that_is_not_there_exactly_once_is_refused_by_name(
    results: pl.DataFrame, baseline: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        relative_change(results, baseline)
