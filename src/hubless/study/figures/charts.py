"""How results are drawn: bars by selection, lines over deciles, and shares, in panels.

Colours are after Okabe and Ito (2008), and every line has a shape of its own besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hubless.study.figures.comparison import KIND_LABELS, MINUS, REFERENCE, Rows

if TYPE_CHECKING:
    import altair

    Drawn = altair.LayerChart | altair.FacetChart

LOOKS = (
    ("#5b6169", "circle"),
    ("#0072b2", "square"),
    ("#56b4e9", "diamond"),
    ("#009e73", "triangle-up"),
    ("#d55e00", "triangle-down"),
    ("#cc79a7", "cross"),
    ("#e69f00", "triangle-right"),
    # what the paper does not have
    ("#5d3fd3", "circle"),
    ("#8c6d1f", "square"),
    ("#00a0a8", "diamond"),
)
"""Colour and shape by a selector's place."""
_BLACK = ("#000000", "stroke")
_NOVELTY = ("#1d4e79", "#7fb8da", "#f2a541")
_INK, _QUIET, _FAINT = "#1f2933", "#52606d", "#e4e7eb"
_RCP = "change in perplexity (%)"


def bars(rows: Rows, narrow: bool) -> Drawn:
    """A bar for every selection and algorithm, with its value at the tip."""
    import altair as alt

    low, high = min(0, *(r["low"] for r in rows)), max(0, *(r["high"] for r in rows))
    # room for the values
    room = 0.2 * (high - low or 1)
    domain = [low - room * any(r["mean"] < 0 for r in rows), high + room]
    data = [{**row, "value": _signed(row["mean"])} for row in rows]
    order, algorithms = _distinct(rows, "selection"), sorted(_distinct(rows, "algorithm"))
    along = alt.Scale(domain=domain, nice=False)
    base = alt.Chart().encode(
        y=alt.Y("selection:N", sort=order, title=None, axis=alt.Axis(labelLimit=0, grid=False)),
        yOffset=alt.YOffset("algorithm:N", sort=algorithms),
    )
    colour = alt.Scale(domain=order, range=[look[0] for look in _looks(rows)])
    mean = alt.X("mean:Q", scale=along, title=_RCP, axis=alt.Axis(tickCount=5))
    fills = base.mark_bar(height={"band": 0.86}).encode(
        x=mean,
        fill=alt.Fill("selection:N", scale=colour, legend=None),
        opacity=alt.Opacity(
            "algorithm:N",
            title=None,
            scale=alt.Scale(domain=algorithms, range=[1, 0.25, 0.6][: len(algorithms)]),
            legend=alt.Legend(symbolFillColor=_QUIET, symbolType="square"),
        ),
    )
    # outlines are not as pale as what they enclose
    outlines = base.mark_bar(filled=False, strokeWidth=1.2, height={"band": 0.86}).encode(
        x=mean, stroke=alt.Stroke("selection:N", scale=colour, legend=None)
    )
    spread = base.mark_rule(color=_INK, strokeWidth=1.4).encode(
        x=alt.X("low:Q", scale=along, title=_RCP), x2="high:Q"
    )
    values = [
        base.transform_filter(f"datum.mean {'>=' if above else '<'} 0")
        .mark_text(
            align="left" if above else "right", dx=4 if above else -4, fontSize=10.5, color=_INK
        )
        .encode(x=alt.X("high:Q" if above else "low:Q", scale=along, title=_RCP), text="value:N")
        for above in (True, False)
    ]
    layers = [fills, outlines, _zero().encode(x=alt.datum(0)), spread, *values]
    size = 190 if narrow else 240, 17 * len(order) * len(algorithms)
    return _panels(layers, data, size, narrow)


def lines(rows: Rows, narrow: bool) -> Drawn:
    """A line for every selection over the deciles, with its spread."""
    import altair as alt

    order = _distinct(rows, "selection")
    step = 0.07
    data = [
        {**row, "at": row["decile"] + step * (order.index(row["selection"]) - (len(order) - 1) / 2)}
        for row in rows
    ]
    looks = _looks(rows)
    colour = alt.Color(
        "selection:N",
        title=None,
        scale=alt.Scale(domain=order, range=[look[0] for look in looks]),
        legend=alt.Legend(columns=2 if narrow else 0, symbolOpacity=1),
    )
    base = alt.Chart().encode(
        x=alt.X(
            "at:Q",
            title="decile of clients, from the lightest to the heaviest",
            scale=alt.Scale(domain=[0.6, 10.4], nice=False),
            axis=alt.Axis(values=list(range(1, 11)), format="d", grid=False),
        ),
        color=colour,
    )
    up = alt.Y(
        "mean:Q", title=_RCP, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=7, grid=True)
    )
    lines = base.mark_line(strokeWidth=1.8).encode(
        y=up,
        strokeDash=alt.condition(
            alt.datum.selection == REFERENCE, alt.value([6, 4]), alt.value([1, 0])
        ),
    )
    spread = base.mark_rule(strokeWidth=1.2, opacity=0.6).encode(
        y=alt.Y("low:Q", title=_RCP), y2="high:Q"
    )
    points = base.mark_point(filled=True, opacity=1, size=38).encode(
        y=up,
        shape=alt.Shape(
            "selection:N", title=None, scale=alt.Scale(domain=order, range=[k[1] for k in looks])
        ),
    )
    single = len(_distinct(rows, "panel")) == 1
    size = 290 if narrow else 680 if single else 300, 320
    return _panels([_zero().encode(y=alt.datum(0)), spread, lines, points], data, size, narrow)


def stacks(rows: Rows, narrow: bool) -> Drawn:
    """A bar for every decile, in three parts."""
    import altair as alt

    kinds = list(KIND_LABELS.values())
    data = [{**row, "order": kinds.index(row["kind"])} for row in rows]
    base = alt.Chart().encode(
        x=alt.X(
            "decile:O",
            title="decile of clients, from the lightest to the heaviest",
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("mean:Q", stack="zero", title="share of a client's utterances (%)").scale(
            domain=[0, 100]
        ),
        order=alt.Order("order:Q"),
    )
    bars = base.mark_bar(width={"band": 0.82}).encode(
        color=alt.Color(
            "kind:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=list(_NOVELTY)),
            legend=alt.Legend(columns=1 if narrow else 0, symbolType="square"),
        )
    )
    # a part too thin for its number goes without
    values = (
        base.transform_filter("datum.mean >= 5")
        .mark_text(fontSize=10.5)
        .encode(
            y=alt.Y("mean:Q", stack="zero", bandPosition=0.5),
            text=alt.Text("mean:Q", format=".0f"),
            color=alt.condition(alt.datum.order == 0, alt.value("white"), alt.value(_INK)),
        )
    )
    return _panels([bars, values], data, (290 if narrow else 680, 320), narrow)


def _zero() -> altair.Chart:
    """Where the baseline is: one line in a panel, not one for each of its rows."""
    import altair as alt

    line: alt.Chart = alt.Chart().transform_aggregate(rows="count()").mark_rule(color=_INK)
    return line


def _signed(value: float) -> str:
    """A number of percent, with its sign unless it is none.

    >>> _signed(3.14), _signed(-0.01)
    ('+3.1', '0.0')
    """
    return f"{value:+.1f}".replace("-", MINUS) if abs(value) >= 0.05 else "0.0"


def _panels(
    layers: Sequence[altair.Chart], data: Rows, size: tuple[int, int], narrow: bool
) -> Drawn:
    import altair as alt

    names = _distinct(data, "panel")
    width, height = size
    panel = alt.layer(*layers, data={"values": data}, width=width, height=height)
    if len(names) == 1:
        return panel
    header = alt.Header(
        labelPadding=0,
        labelAnchor="start",
        labelOrient="top",
        labelAngle=0,
        labelFontSize=13,
        labelFontWeight="bold",
        labelColor=_INK,
    )
    if narrow:
        row = alt.Row("panel:N", sort=names, title=None, header=header)
        return panel.facet(row=row, spacing=26)
    column = alt.Column("panel:N", sort=names, title=None, header=header)
    return panel.facet(column=column, spacing=26)


def _distinct(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def _looks(rows: Rows) -> list[tuple[str, str]]:
    places = dict.fromkeys(row["place"] for row in rows)
    return [_BLACK if place < 0 else LOOKS[place % len(LOOKS)] for place in places]


def styled(chart: Drawn) -> altair.TopLevelMixin:
    """The same in the style of all figures."""
    finished: altair.TopLevelMixin = (
        # with room for a viewer's wider font
        chart.configure(
            font="Helvetica, Arial, sans-serif",
            background="white",
            padding={"left": 32, "top": 14, "right": 40, "bottom": 14},
        )
        .configure_title(
            fontSize=17, color=_INK, subtitleFontSize=13, subtitleColor=_QUIET, subtitlePadding=6
        )
        .configure_axis(
            domain=False,
            ticks=False,
            gridColor=_FAINT,
            labelColor=_INK,
            labelFontSize=12,
            labelPadding=6,
            titleColor=_QUIET,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=10,
        )
        .configure_view(stroke=None)
        .configure_legend(
            orient="top",
            labelFontSize=12,
            labelColor=_INK,
            labelLimit=0,
            symbolSize=90,
            columnPadding=22,
        )
    )
    return finished
