"""Whom selection by activity picks: the activity of selected clients, against its expectation.

Authors of commits are clients, 200 are picked in a round: by each f of Dupuy et al. (2022), and
from the heavy and the light ones only. Needs altair and vl-convert-python, the extra `report`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hubless.data.sources.base import source_folder
from hubless.errors import DataError, HublessError
from hubless.rng import stream
from hubless.select.activity import Activity
from hubless.select.roster import Floats, Ints, Roster, Selector
from hubless.select.share import Heavy, Light, heaviest, lightest

if TYPE_CHECKING:
    import altair

FILE = "git_active_fl_2014_2019.parquet"
SELECTORS: dict[str, Selector] = {
    "f(n) = 1": Activity("1"),
    "f(n) = log(n + 1)": Activity("log"),
    "f(n) = √n": Activity("sqrt"),
    "f(n) = n": Activity("n"),
    "f(n) = 1 / log(n + 1)": Activity("1/log"),
    "f(n) = n, exact probabilities": Activity("n", "exact"),
    "light: the least active 20 %": Light(),
    "heavy: the most active 20 %": Heavy(),
}
PICKED, EXPECTED, EVERYBODY = "picked", "expected", "all clients"


@dataclass(frozen=True)
class Panel:
    """Shares of a cohort by activity: `lowest` is where each bin starts, and the next one ends."""

    selector: str
    lowest: list[int]
    picked: list[float]
    expected: list[float]
    everybody: list[float]
    off: float
    """The largest difference of picked and expected, in standard errors."""
    clients: int
    """How many different clients were picked at least once."""


def examples_of(data: str | Path | None) -> Ints:
    """How many commits each author has, fewest first."""
    import polars

    path = source_folder("git", data) / FILE
    if not path.exists():
        raise DataError(f"there is no {path}: name the folder that holds git/ with --data")
    users = polars.read_parquet(path, columns=["user"])["user"]
    return np.sort(users.value_counts()["count"].to_numpy()).astype(np.int64)


def chances(selector: Selector, examples: Ints, k: int) -> Floats:
    """Everybody's probability to be among `k`.

    In the exact design it is known. In the successive one it is that of an exponential race,
    1 - exp(-w t), with the t at which `k` are expected to have arrived (Rosén 1972): off by about
    one part in k.

    >>> chances(Activity("1"), np.array([3, 9, 0, 1, 2]), 2).round(6)
    array([0.5, 0.5, 0. , 0.5, 0.5])
    """
    if not isinstance(selector, Activity):
        share = selector.share if isinstance(selector, (Heavy, Light)) else 1.0
        group = (heaviest if isinstance(selector, Heavy) else lightest)(examples, share)
        result = np.zeros(len(examples))
        result[group] = k / len(group)
        return result
    if selector.design == "exact":
        return selector.inclusion(Roster(examples), k)
    weights = selector.weights(Roster(examples))
    weights = weights / weights.max()
    low, high = 0.0, 1.0
    while -np.expm1(-weights * high).sum() < k:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        early = -np.expm1(-weights * middle).sum() < k
        low, high = (middle, high) if early else (low, middle)
    return np.asarray(-np.expm1(-weights * low))


def panel(name: str, selector: Selector, examples: Ints, k: int, rounds: int) -> Panel:
    """Pick for many rounds, and sort who was picked into bins that double."""
    roster, rng = Roster(examples), stream(0, "activity", name)
    times = np.zeros(len(examples))
    for _ in range(rounds):
        times[selector(roster, k, rng)] += 1
    # bin b holds activities from 2^b to 2^(b + 1) - 1
    bins = np.frexp(examples)[1] - 1
    count = int(bins.max()) + 1
    probable = chances(selector, examples, k)
    picked = np.bincount(bins, times, count) / (k * rounds)
    expected = np.bincount(bins, probable, count) / k
    spread = np.sqrt(np.bincount(bins, probable * (1 - probable), count) / rounds) / k
    off = np.abs(picked - expected)[spread > 0] / spread[spread > 0]
    return Panel(
        name,
        [2**b for b in range(count)],
        picked.tolist(),
        expected.tolist(),
        (np.bincount(bins, minlength=count) / len(examples)).tolist(),
        float(off.max(initial=0.0)),
        int(np.count_nonzero(times)),
    )


def drawn(panels: Sequence[Panel], clients: int, k: int, rounds: int) -> altair.TopLevelMixin:
    """The picture: one small histogram for each selector."""
    import altair
    import polars

    lowest = max((each.lowest for each in panels), key=len)
    labels = [f"{low} to {2 * low - 1}" if low > 1 else "1" for low in lowest]
    rows = [
        {
            "selector": each.selector,
            "activity": labels[place],
            PICKED: each.picked[place],
            EXPECTED: each.expected[place],
            EVERYBODY: each.everybody[place],
        }
        for each in panels
        for place in range(len(each.lowest))
    ]
    ink, quiet, accent = "#1f2933", "#9aa5b1", "#4c8dae"
    colors = altair.Color(
        "what:N",
        title=None,
        scale=altair.Scale(domain=[PICKED, EXPECTED, EVERYBODY], range=[accent, ink, quiet]),
        legend=altair.Legend(orient="top", direction="horizontal", symbolType="circle"),
    )
    base = altair.Chart(polars.DataFrame(rows)).encode(
        altair.X(
            "activity:O",
            sort=labels,
            title="commits of an author, n",
            axis=altair.Axis(labelAngle=-45, ticks=False, domainColor=quiet),
        )
    )

    def shares(name: str) -> altair.Y:
        percent = altair.Axis(format="%", tickCount=4, domain=False, ticks=False)
        return altair.Y(f"{name}:Q", title="share of the cohort", axis=percent)

    def what(name: str) -> altair.Chart:
        return base.transform_calculate(what=f"'{name}'")

    layers = altair.layer(
        what(PICKED).mark_bar(opacity=0.85, cornerRadiusEnd=2).encode(shares(PICKED), colors),
        what(EVERYBODY)
        .mark_tick(orient="horizontal", thickness=2, size=17, opacity=0.9)
        .encode(shares(f"['{EVERYBODY}']"), colors),
        what(EXPECTED).mark_point(filled=True, size=30, opacity=1).encode(shares(EXPECTED), colors),
    ).properties(width=225, height=165)
    chart: altair.TopLevelMixin = (
        layers.facet(
            facet=altair.Facet(
                "selector:N",
                sort=[each.selector for each in panels],
                title=None,
                header=altair.Header(
                    labelFontSize=13, labelFontWeight="bold", labelColor=ink, labelAnchor="start"
                ),
            ),
            columns=4,
        )
        .properties(
            title=altair.Title(
                "Who trains when clients are selected by activity",
                subtitle=f"{k} of {clients:,d} commit authors a round, {rounds:,d} rounds; "
                "bars: who was picked, dots: what the probabilities promise, dashes: everybody",
                anchor="start",
                fontSize=18,
                subtitleFontSize=13,
                subtitleColor="#52606d",
                offset=12,
            )
        )
        .configure(font="Helvetica, Arial, sans-serif", background="white")
        .configure_axis(gridColor="#e4e7eb", labelColor="#52606d", titleColor="#52606d")
        .configure_view(stroke=None)
        .configure_legend(labelFontSize=13, labelColor=ink)
    )
    return chart


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture, and print how far what was picked is from what was expected."""
    parser = argparse.ArgumentParser(prog="python -m hubless.study.activity", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="the folder that holds git/ (HUBLESS_DATA if not given)")
    add("--out", type=Path, required=True, help="where activity.png, .svg and .json are put")
    add("--cohort", type=int, default=200)
    add("--rounds", type=int, default=1000)
    asked = parser.parse_args(arguments)
    k, rounds = asked.cohort, asked.rounds
    try:
        examples = examples_of(asked.data)
        panels = [panel(*named, examples, k, rounds) for named in SELECTORS.items()]
        picture = drawn(panels, len(examples), k, rounds)
    except HublessError as error:
        parser.exit(1, f"{error}\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    picture.save(asked.out / "activity.png", scale_factor=2)
    picture.save(asked.out / "activity.svg")
    records = [asdict(each) for each in panels]
    (asked.out / "activity.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    for each in panels:
        print(f"{each.selector:30s} {each.clients:6d} clients, off by {each.off:.1f} errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
