"""Figures from made-up results: of a whole study, of one under way, and of too little."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hubless.errors import DataError
from hubless.measure.rcp import relative_change
from hubless.study.figures.comparison import ELEVEN, REFERENCE, SELECTORS, SIX, missing
from hubless.study.figures.page import FIGURES, draw

NAMES = list(FIGURES)
SETTINGS = {"data": "made up <at home>", "clients per round": "800"}


def study(sets: Sequence[str] = ("0", "1", "2"), selectors: Sequence[str] = ()) -> pl.DataFrame:
    """A row for every cell of the paper's grid, period and decile."""
    rng = np.random.default_rng(0)
    rows = []
    for algorithm, selector, horizon, one in product(
        ("fedavg", "fedopt"), selectors or SELECTORS, ("3", "6", "11", "3x2"), sets
    ):
        for period in (1, 2, 3) if "x" in horizon else (1,):
            for decile in (None, *range(1, 11)):
                level = 40 + 10 * int(one) - (decile or 5) - period + rng.normal()
                row: dict[str, object] = {
                    "algorithm": algorithm,
                    "selector": selector,
                    "horizon": horizon,
                }
                row |= {"set": one, "period": period, "decile": decile, "perplexity": level}
                rows.append(row | {"tokens": 90, "examples": 9, "clients": 3, "accuracy": 0.3})
    return pl.DataFrame(rows, infer_schema_length=None)


def novelty(sets: Sequence[str] = ("0", "1", "2")) -> pl.DataFrame:
    rows = []
    for one, horizon, period, decile in product(sets, ("3x2", "3x1"), (2, 3), range(1, 11)):
        # what other segments hold is another matter
        own = 0.1 * (period - 1) if horizon == "3x2" else 0.0
        new = 0.1 + 0.05 * decile
        row: dict[str, object] = {"horizon": horizon, "set": one, "period": period}
        row["decile"] = decile
        rows.append(row | {"own_share": own, "other_share": 1 - own - new, "new_share": new})
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cells, drawn once."""
    out = tmp_path_factory.mktemp("whole") / "figures"
    return draw(study(), novelty(), out, title="Months & deciles", settings=SETTINGS)


class Reader(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")


def test_every_figure_comes_as_png_and_as_svg(page: Path) -> None:
    for name in NAMES:
        png = (page.parent / f"figure-{name}.png").read_bytes()
        svg = (page.parent / f"figure-{name}.svg").read_text(encoding="utf-8")
        assert png.startswith(b"\x89PNG")
        assert "<svg" in svg and html.escape(FIGURES[name].title) in svg
    assert page.name == "figures.html"


def test_the_page_stands_alone_and_is_small(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    read = Reader(text)
    assert not re.search(r"https?://", text)
    assert not {"script", "link", "img", "iframe"} & set(read.tags) and not read.links
    assert "@import" not in text
    # wide and narrow
    assert read.tags.count("svg") == 2 * len(NAMES)
    assert len(set(read.ids)) == len(read.ids)
    assert all(one in read.ids for one in re.findall(r"url\(#([^)]+)\)", text))
    assert page.stat().st_size < 3e6


def test_the_page_says_what_it_shows_and_against_what(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<h1>Months &amp; deciles</h1>" in text
    assert "made up &lt;at home&gt;" in text
    assert text.count("one-shot FedAvg on 11 months with f(x) = 1.") == 3
    assert text.count("one-shot FedAvg on 6 months with f(x) = log(x+1).") == 3
    assert text.count("over 3 sets of clients") == len(NAMES)
    assert "cells are finished" not in text and "Not drawn" not in text


def test_numbers_are_those_of_the_measure() -> None:
    results = study()
    change = relative_change(results, ELEVEN).filter(
        pl.col("decile").is_null(), algorithm="fedopt", selector="heavy", horizon="6"
    )["rcp"]
    row = next(
        row
        for row in FIGURES["1a"].numbers(results)
        if (row["panel"], row["algorithm"], row["selection"]) == ("6 months", "FedOpt", "heavy")
    )
    assert row["mean"] == pytest.approx(change.mean())
    assert row["std"] == pytest.approx(change.std())
    assert (row["low"], row["high"]) == (row["mean"] - row["std"], row["mean"] + row["std"])


def test_a_baseline_is_at_zero_in_its_figure() -> None:
    first = FIGURES["1a"].numbers(study())
    assert next(r["mean"] for r in first if r["panel"] == "11 months") == 0
    assert list(dict.fromkeys(r["panel"] for r in first)) == ["3 months", "6 months", "11 months"]
    assert list(dict.fromkeys(r["selection"] for r in first)) == list(SELECTORS.values())


@pytest.mark.parametrize(("name", "algorithm"), [("2b", "FedAvg"), ("3b", "FedOpt")])
def test_continual_deciles_are_of_the_last_segment_beside_one_shot_ones(
    name: str, algorithm: str
) -> None:
    results = study()
    rows = FIGURES[name].numbers(results)
    assert {(row["panel"], row["algorithm"]) for row in rows} == {("after P3", algorithm)}
    once = [row["mean"] for row in rows if row["selection"] == REFERENCE]
    cell = {**SIX, "algorithm": algorithm.lower()}
    change = relative_change(results, SIX).filter(pl.col("decile").is_not_null(), **cell)
    means = change.group_by("decile").agg(pl.col("rcp").mean()).sort("decile")["rcp"]
    assert once == pytest.approx(means.to_list())


def test_shares_are_averaged_over_periods_and_sets_and_add_up() -> None:
    rows = FIGURES["4"].numbers(novelty())
    own = [row["mean"] for row in rows if row["kind"] == "said before by this client"]
    assert own == pytest.approx([15.0] * 10)
    for decile in range(1, 11):
        assert sum(r["mean"] for r in rows if r["decile"] == decile) == pytest.approx(100)


def test_every_figure_is_a_chart_wide_and_narrow() -> None:
    for name in NAMES:
        frame = novelty(["0"]) if name == "4" else study(["0"])
        for narrow in (False, True):
            made = FIGURES[name].chart(frame, narrow=narrow).to_dict()
            assert made["title"]["text"] == FIGURES[name].title


def test_a_selection_looks_the_same_wherever_it_is_drawn() -> None:
    results = study(["0"], [*SELECTORS, "active"])
    partly = results.filter(~((pl.col("horizon") == "3x2") & (pl.col("selector") == "heavy")))
    looks: dict[str, set[int]] = {}
    for name in ("1a", "1b", "2a", "3b"):
        for row in FIGURES[name].numbers(partly):
            looks.setdefault(row["selection"], set()).add(row["place"])
    assert all(len(places) == 1 for places in looks.values())
    assert looks["active"] == {7} and looks["light"] == {6} and looks[REFERENCE] == {-1}


def test_a_study_under_way_is_drawn_and_what_is_missing_is_said(tmp_path: Path) -> None:
    fedopt, late = pl.col("algorithm") == "fedopt", pl.col("horizon").is_in(["11", "3x2"])
    light = (pl.col("selector") == "light") & (pl.col("set") == "2")
    results = study().filter(~(fedopt & late), ~light)
    page = draw(results, novelty().clear(), tmp_path, title="Under way", settings={})
    text = page.read_text(encoding="utf-8")
    # two horizons of FedOpt with 7 selections on 3 sets, and light on a set of the other six
    assert "120 of 168 cells are finished" in text
    assert "<li>one-shot FedOpt on 11 months: every selection</li>" in text
    assert "<li>one-shot FedAvg on 3 months: light (set 2)</li>" in text
    assert "their number is in brackets" in text
    assert text.count("Not drawn: nothing of what it shows is finished.") == 2
    assert (tmp_path / "figure-3a.svg").exists()
    assert not (tmp_path / "figure-3b.svg").exists() and not (tmp_path / "figure-4.png").exists()


def test_missing_cells_are_those_of_the_grid_where_it_is_given() -> None:
    results = study(["0"], ["heavy", "light"])
    axes = {"algorithm": ["fedavg"], "selector": ["heavy"], "horizon": ["3"], "set": ["0", "1"]}
    assert missing(results, axes) == (["one-shot FedAvg on 3 months: heavy (set 1)"], 1, 2)


def test_one_set_has_no_standard_deviation(tmp_path: Path) -> None:
    page = draw(study(["1"]), novelty(["1"]), tmp_path, title="One set", settings=SETTINGS)
    text = page.read_text(encoding="utf-8")
    assert text.count("Of one set of clients, so without a standard deviation.") == len(NAMES)
    assert "±" not in text
    rows = FIGURES["2a"].numbers(study(["1"]))
    assert all(row["std"] is None and row["low"] == row["mean"] for row in rows)


def test_sets_without_the_baseline_are_left_out() -> None:
    lacking = (pl.col("set") == "2") & (pl.col("selector") == "activity:1")
    rows = FIGURES["1a"].numbers(study().filter(~lacking))
    assert {row["sets"] for row in rows} == {2}


def test_a_model_that_diverged_is_left_out_and_told() -> None:
    gone = (pl.col("selector") == "activity:n") & (pl.col("set") == "0")
    worse = pl.when(gone).then(float("inf")).otherwise("perplexity").alias("perplexity")
    results = study().with_columns(worse)
    rows = FIGURES["1a"].numbers(results)
    assert {row["sets"] for row in rows if row["selection"] == "f(x) = x"} == {2}
    assert missing(results)[1:] == (8, 168)


def test_figures_without_their_baseline_are_not_drawn(tmp_path: Path) -> None:
    results = study(["0", "1"]).filter(pl.col("horizon") != "11")
    page = draw(results, novelty(["0"]), tmp_path, title="No year yet", settings={})
    text = page.read_text(encoding="utf-8")
    why = "Not drawn: the baseline, one-shot FedAvg on 11 months with f(x) = 1, is not finished"
    assert text.count(why) == 3
    there = sorted(path.stem for path in tmp_path.glob("*.svg"))
    assert there == ["figure-1b", "figure-2b", "figure-3b", "figure-4"]


def test_without_any_baseline_there_is_nothing_to_draw(tmp_path: Path) -> None:
    results = study(["0"]).filter(pl.col("horizon") == "3")
    with pytest.raises(DataError, match="neither one-shot FedAvg on 11 months .* no baseline"):
        draw(results, novelty(), tmp_path / "out", title="Nothing", settings={})
    assert not (tmp_path / "out").exists()


def test_a_frame_without_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="results have no column 'period'"):
        draw(study(["0"]).drop("period"), novelty(), tmp_path, title="Wrong", settings={})
