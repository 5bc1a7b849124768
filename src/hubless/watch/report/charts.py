"""The charts of a report, from the tables of its runs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hubless.watch.fold.federation import ALL
from hubless.watch.report.drawing import Drawing, Rows, base, short, slug, thinned, titled, unit_of

if TYPE_CHECKING:
    import altair
    import polars

    from hubless.watch.report.drawing import Drawn

_POINTS = 12_000
"""So many points of all lines together are drawn."""
_LINES = 10
"""More lines than this cannot be told apart by colour."""
_LEGEND_WIDTH, _SYMBOL_WIDTH, _LETTER_WIDTH = 440, 32, 6.0
_BARS = 24
_DECILES = "decile of clients, from the lightest to the heaviest"


def metric_lines(rounds: polars.DataFrame, metric: str) -> Drawing | None:
    """A metric against rounds, time, bytes and the clients' clock: a line for each run."""
    import polars as pl

    frame = rounds.filter(pl.col(metric).is_not_null())
    if frame.is_empty():
        return None
    several = frame["run"].n_unique() > 1
    if several:
        # of federations that are compared, what their members come to together
        with_all = frame.filter(pl.col("client") == ALL)["run"].unique()
        is_other = pl.col("run").is_in(with_all.to_list()) & (pl.col("client") != ALL)
        frame = frame.filter(~is_other.fill_null(False))
    lines = frame.partition_by("run", "client", maintain_order=True)
    scale, unit = unit_of(frame["elapsed"].max())
    most = max(30, _POINTS // len(lines))
    rows: Rows = []
    for line in lines:
        for row in thinned(line, most).iter_rows(named=True):
            who = row["client"] or row["run"]
            rows.append(
                {
                    "who": row["run"] if several else who,
                    "line": f"{row['run']}: {who}" if row["client"] and several else who,
                    "value": short(row[metric]),
                    "round": row["round"],
                    "time": short(row["elapsed"] / scale),
                    "bytes": row["bytes"],
                    "clock": row["virtual"],
                }
            )
    counted = "updates of a member" if frame["client"].is_not_null().all() else "rounds"
    axes = {"rounds": ("round", counted), "time": ("time", f"{unit} since the start")}
    if any(row["bytes"] for row in rows):
        axes["bytes"] = ("bytes", "bytes sent and received")
    if any(row["clock"] for row in rows):
        axes["clock"] = ("clock", "seconds on the clients' clock")
    charts = {choice: _lines(rows, metric, *axis) for choice, axis in axes.items()}
    return Drawing(slug(metric), metric, rows, charts)


def _lines(rows: Rows, metric: str, x: str, title: str) -> Drawn:
    import altair as alt

    whose = {row["who"] for row in rows}
    axis = alt.Axis(grid=False, tickCount=6)
    if x == "bytes":
        axis.labelExpr = "format(datum.value, '~s') + 'B'"
    plain = base().encode(
        x=alt.X(f"{x}:Q", title=title, axis=axis),
        y=alt.Y("value:Q", title=titled(metric), scale=alt.Scale(zero=False), axis=_ticks()),
        detail="line:N",
        tooltip=[
            alt.Tooltip("line:N", title="run"),
            alt.Tooltip("value:Q", title=titled(metric), format=".5~g"),
            alt.Tooltip("round:Q", title="round"),
            alt.Tooltip(f"{x}:Q", title=title, format=".4~s"),
        ],
    )
    if 1 < len(whose) <= _LINES:
        plain = plain.encode(color=_colour("who", _distinct(rows, "who")))
    many = len({row["line"] for row in rows}) > _LINES
    line = plain.mark_line(strokeWidth=1 if many else 1.8, opacity=0.45 if many else 1)
    single = Counter(row["line"] for row in rows)
    shown = max(single.values()) <= 40 and not many
    # points that are not seen still say what they are to whoever points at them
    points = plain.mark_point(filled=True, size=26 if shown else 90, opacity=1 if shown else 0)
    return alt.layer(line, points).properties(height=260)


def decile_curves(deciles: polars.DataFrame, run: str, metric: str) -> Drawing | None:
    """A metric over rounds, a line for each tenth of clients."""
    import altair as alt
    import polars as pl

    frame = deciles.filter((pl.col("run") == run) & (pl.col("metric") == metric)).sort("round")
    if frame["round"].n_unique() < 2:
        return None
    rows: Rows = []
    for line in frame.partition_by("decile"):
        for row in thinned(line, _POINTS // 20).iter_rows(named=True):
            rows.append(
                {"round": row["round"], "decile": row["decile"], "value": short(row["value"])}
            )
    chart = (
        base()
        .mark_line(strokeWidth=1.5, point={"size": 40, "opacity": 0})
        .encode(
            x=alt.X("round:Q", title="rounds", axis=alt.Axis(grid=False, tickCount=6)),
            y=alt.Y("value:Q", title=titled(metric), scale=alt.Scale(zero=False), axis=_ticks()),
            color=alt.Color(
                "decile:O",
                title="decile, 10 the heaviest",
                scale=alt.Scale(domain=list(range(1, 11))),
                legend=alt.Legend(symbolType="stroke", columns=5),
            ),
            tooltip=[
                "decile:O",
                "round:Q",
                alt.Tooltip("value:Q", title=titled(metric), format=".5~g"),
            ],
        )
    )
    name = slug(f"deciles {metric} {run}")
    return Drawing(name, f"{metric} by decile: {run}", rows, {"": chart.properties(height=260)})


def decile_ends(deciles: polars.DataFrame, metric: str) -> Drawing | None:
    """A metric at the end of each run, over tenths of clients."""
    import polars as pl

    frame = deciles.filter(pl.col("metric") == metric)
    last = frame.filter(pl.col("round") == pl.col("round").max().over("run"))
    if last.is_empty():
        return None
    rows = [
        {"who": row["run"], "decile": row["decile"], "value": short(row["value"])}
        for row in last.iter_rows(named=True)
    ]
    chart = _over_deciles(rows, metric, zero=False)
    return Drawing(slug(f"deciles {metric}"), f"{metric} at the end", rows, {"": chart})


def selection(picks: polars.DataFrame) -> Drawing | None:
    """How often each tenth of clients trained, against uniform selection."""
    import altair as alt

    if picks.is_empty():
        return None
    rows = [
        {
            "who": row["run"],
            "decile": row["decile"],
            "value": short(row["ratio"]),
            "times": short(row["times"]),
            "uniform": short(row["uniform"]),
        }
        for row in picks.iter_rows(named=True)
    ]
    title = "ratio to uniform selection"
    more = [
        alt.Tooltip("times:Q", title="times trained", format=".4~g"),
        alt.Tooltip("uniform:Q", title="under uniform selection", format=".4~g"),
    ]
    level = base().transform_aggregate(rows="count()").mark_rule(strokeDash=[6, 4], color="#888888")
    lines = _over_deciles(rows, title, zero=True, more=more)
    chart = alt.layer(lines, level.encode(y=alt.datum(1)))
    title = "Who trained, by activity"
    return Drawing("selection", title, rows, {"": chart.properties(height=260)})


def _over_deciles(
    rows: Rows, title: str, *, zero: bool, more: Sequence[altair.Tooltip] = ()
) -> Drawn:
    import altair as alt

    runs, title = _distinct(rows, "who"), titled(title)
    plain = base().encode(
        x=alt.X("decile:O", title=_DECILES, axis=alt.Axis(labelAngle=0, grid=False, format="d")),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero), axis=_ticks()),
        tooltip=[
            alt.Tooltip("who:N", title="run"),
            alt.Tooltip("decile:O", format="d"),
            alt.Tooltip("value:Q", title=title, format=".4~g"),
            *more,
        ],
    )
    if len(runs) == 1 and zero:
        bars: altair.Chart = plain.mark_bar(width={"band": 0.8}).properties(height=260)
        return bars
    if 1 < len(runs) <= _LINES:
        plain = plain.encode(color=_colour("who", runs))
    else:
        plain = plain.encode(detail="who:N")
    points = plain.mark_point(filled=True, size=50, opacity=1)
    return alt.layer(plain.mark_line(strokeWidth=1.8), points).properties(height=260)


def histogram(
    counts: Mapping[str, Mapping[int, float]], name: str, title: str, x: str, y: str
) -> Drawing | None:
    """How often each whole number occurred in each run: bars, or lines where there are several."""
    import altair as alt

    values = [value for of_run in counts.values() for value in of_run]
    if not values:
        return None
    width = math.ceil((max(values) - min(values) + 1) / _BARS)
    rows: Rows = []
    for run, of_run in counts.items():
        binned: defaultdict[int, float] = defaultdict(float)
        for value, times in of_run.items():
            binned[value - (value - min(values)) % width] += times
        for start in range(min(values), max(values) + 1, width):
            span = f"{start}" if width == 1 else f"{start} to {start + width - 1}"
            rows.append({"who": run, "span": span, "times": short(binned[start])})
    plain = base().encode(
        x=alt.X(
            "span:O",
            title=x,
            sort=_distinct(rows, "span"),
            axis=alt.Axis(labelAngle=0, grid=False, labelOverlap=True),
        ),
        y=alt.Y("times:Q", title=y, axis=_ticks()),
        tooltip=[
            alt.Tooltip("who:N", title="run"),
            alt.Tooltip("span:N", title=x),
            alt.Tooltip("times:Q", title=y, format=".4~g"),
        ],
    )
    runs = list(counts)
    if len(runs) == 1:
        chart = plain.mark_bar(width={"band": 0.85})
    else:
        chart = plain.mark_line(strokeWidth=1.8, point={"size": 40}).encode(detail="who:N")
        if len(runs) <= _LINES:
            chart = chart.encode(color=_colour("who", runs))
    return Drawing(name, title, rows, {"": chart.properties(height=220)})


def time_spent(phases: polars.DataFrame) -> Drawing | None:
    """Where the time of each run went."""
    import altair as alt

    if phases.is_empty():
        return None
    total = phases.group_by("run").agg(seconds=phases["seconds"].sum())["seconds"].max()
    scale, unit = unit_of(total)
    rows = [
        {"who": row["run"], "phase": row["phase"], "value": short(row["seconds"] / scale)}
        for row in phases.iter_rows(named=True)
    ]
    runs, kinds = _distinct(rows, "who"), _distinct(rows, "phase")
    chart = (
        base()
        .mark_bar(height={"band": 0.7})
        .encode(
            y=alt.Y("who:N", title=None, sort=runs, axis=alt.Axis(labelLimit=130, grid=False)),
            x=alt.X("value:Q", title=unit, stack="zero", axis=alt.Axis(tickCount=6)),
            color=_colour("phase", kinds),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("who:N", title="run"),
                "phase:N",
                alt.Tooltip("value:Q", title=unit, format=".4~g"),
            ],
        )
    )
    for row in rows:
        row["order"] = kinds.index(row["phase"])
    height = 44 + 30 * len(runs)
    return Drawing("time", "Where the time went", rows, {"": chart.properties(height=height)})


def label_shares(labels: polars.DataFrame, run: str) -> Drawing | None:
    """The share of each label among the examples of each tenth of clients."""
    import altair as alt
    import polars as pl

    frame = labels.filter(pl.col("run") == run)
    if frame.is_empty():
        return None
    rows = [
        {
            "decile": row["decile"],
            "label": row["label"],
            "share": short(100 * row["share"]),
            "examples": row["examples"],
        }
        for row in frame.iter_rows(named=True)
    ]
    names = _distinct(rows, "label")
    chart = (
        base()
        .mark_rect()
        .encode(
            x=alt.X("decile:O", title=_DECILES, axis=alt.Axis(labelAngle=0, format="d")),
            y=alt.Y("label:N", title="label", sort=names, axis=alt.Axis(labelLimit=110)),
            color=alt.Color(
                "share:Q",
                title="share of the decile's examples (%)",
                scale=alt.Scale(scheme="viridis"),
            ),
            tooltip=[
                alt.Tooltip("decile:O", format="d"),
                "label:N",
                alt.Tooltip("share:Q", title="share (%)", format=".3~g"),
                alt.Tooltip("examples:Q", format=","),
            ],
        )
    )
    height = min(620, 60 + 20 * len(names))
    name, title = slug(f"labels {run}"), f"Labels: {run}"
    return Drawing(name, title, rows, {"": chart.properties(height=height)})


def member_updates(members: polars.DataFrame, run: str) -> Drawing | None:
    """How many updates each member of a federation shared."""
    import altair as alt
    import polars as pl

    frame = members.filter(pl.col("run") == run)
    if not 1 < len(frame) <= 60:
        return None
    rows = [
        {"client": row["client"], "updates": row["updates"], "examples": row["examples"]}
        for row in frame.iter_rows(named=True)
    ]
    chart = (
        base()
        .mark_bar(height={"band": 0.75})
        .encode(
            y=alt.Y("client:N", title=None, axis=alt.Axis(labelLimit=130, grid=False)),
            x=alt.X("updates:Q", title="updates shared", axis=alt.Axis(tickCount=6)),
            tooltip=["client:N", "updates:Q", alt.Tooltip("examples:Q", format=",")],
        )
    )
    height = 24 + 22 * len(rows)
    return Drawing(
        slug(f"members {run}"), f"Updates: {run}", rows, {"": chart.properties(height=height)}
    )


def _colour(field: str, names: Sequence[str]) -> altair.Color:
    import altair as alt

    # as many beside each other as fit above the narrowest chart of a page, which cuts off others
    longest = max(map(len, names), default=0)
    legend = alt.Legend(
        symbolType="stroke" if field == "who" else "square",
        symbolStrokeWidth=3,
        columns=min(4, max(1, int(_LEGEND_WIDTH / (_SYMBOL_WIDTH + _LETTER_WIDTH * longest)))),
    )
    colour: altair.Color = alt.Color(
        f"{field}:N", title=None, scale=alt.Scale(domain=list(names)), legend=legend
    )
    return colour


def _ticks() -> altair.Axis:
    import altair as alt

    axis: altair.Axis = alt.Axis(tickCount=6)
    return axis


def _distinct(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))
