"""A chart of a report, as the page takes it and as a picture.

A chart has its rows by name and no colours of its own: the page gives it those of its theme, and a
picture the style of all figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hubless.study.figures.charts import LOOKS, styled

if TYPE_CHECKING:
    import altair
    import polars

    Drawn: TypeAlias = altair.Chart | altair.LayerChart | altair.FacetChart

Rows = list[dict[str, Any]]
Spec = dict[str, Any]

COLOURS = [LOOKS[place][0] for place in (1, 4, 3, 5, 6, 2, 7, 8, 9, 0)]
"""By a run's place: those next to each other differ most."""
_ON_DARK = ["#4aa3df", "#ff8a4c", "#2ec79b", "#e79cc2", "#f2b84b"]
_ON_DARK += ["#8fd0f7", "#9d86ff", "#cfae5a", "#35cdd5", "#a7b1bc"]
_RAMP = ["#e6b800", "#f0a030", "#ef8a45", "#e5745b", "#d55c74"]
_RAMP += ["#be4389", "#a12d9b", "#7f1ea4", "#5a149f", "#2f0d8c"]
_RAMP_ON_DARK = ["#8f5bd6", "#a95ad0", "#bf5cc4", "#d360b2", "#e2689c"]
_RAMP_ON_DARK += ["#ee7585", "#f6876d", "#fb9f57", "#fdbb45", "#f6dd3a"]
_UNSEEN = "\u200b"
_TEXTS = ("title", "domain", "sort")
"""Where a spec has names from outside: metrics, runs, members, phases, labels."""
_LIGHT = ("#1f2933", "#52606d", "#e4e7eb", "white")
_DARK = ("#e4e7eb", "#a7b1bc", "#323f4b", "transparent")


@dataclass(frozen=True)
class Drawing:
    """Charts of the same rows, by what is on their horizontal axis if there is a choice of it."""

    name: str
    title: str
    rows: Rows
    charts: Mapping[str, Drawn]

    def specs(self) -> dict[str, Spec]:
        """What the page draws: the charts without their rows."""
        return {choice: _spec(chart) for choice, chart in self.charts.items()}

    def data(self) -> Rows:
        """The rows, as the page draws them."""
        return [{name: _plain(value) for name, value in row.items()} for row in self.rows]

    def pictures(self, name: str, *, all_axes: bool = True) -> dict[str, bytes]:
        """PNG files by their names, which start with this one; or only of the first axis."""
        import vl_convert

        files = {}
        for choice, chart in list(self.charts.items())[: None if all_axes else 1]:
            file = f"{name}-by-{choice}" if choice else name
            spec = {**_spec(chart), "datasets": {"rows": self.data()}, "config": _config()}
            title = {"text": _plain(self.title), "anchor": "start", "offset": 14}
            spec |= {"width": 680, "title": title}
            spec["config"] |= _coloured(COLOURS, _RAMP)
            png = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
            files[f"{file}.png"] = png
        return files


def themes() -> dict[str, Spec]:
    """How charts look on a light page, and on a dark one."""
    themes = {}
    for name, inks, colours, ramp in (
        ("light", _LIGHT, COLOURS, _RAMP),
        ("dark", _DARK, _ON_DARK, _RAMP_ON_DARK),
    ):
        plain = _swapped(_config(), dict(zip(_LIGHT, inks, strict=True)))
        themes[name] = {**plain, "background": None, "padding": 4, **_coloured(colours, ramp)}
    return themes


def _swapped(value: Any, colours: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _swapped(item, colours) for key, item in value.items()}
    return colours.get(value, value) if isinstance(value, str) else value


def _spec(chart: Drawn) -> Spec:
    spec: Spec = chart.to_dict()
    spec.pop("config", None)
    spec = _with_plain_texts(spec)
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _plain(value: Any) -> Any:
    """Text that Vega cannot take for a name of its own: `constructor` is one of every object.

    What stands before it is not seen.
    """
    return f"{_UNSEEN}{value}" if isinstance(value, str) else value


def _with_plain_texts(spec: Any, key: str = "") -> Any:
    """The same spec with plain texts wherever names from outside stand in it."""
    if isinstance(spec, dict):
        return {name: _with_plain_texts(value, name) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_with_plain_texts(value, key) for value in spec]
    return _plain(spec) if key in _TEXTS else spec


def _config() -> Spec:
    import altair as alt

    config: Spec = styled(alt.layer(base().mark_point())).to_dict()["config"]
    config["legend"] |= {"titleColor": _LIGHT[1], "titleFontSize": 12, "titleFontWeight": "normal"}
    config["legend"]["titleLimit"] = 0
    return config


def _coloured(colours: Sequence[str], ramp: Sequence[str]) -> Spec:
    ranges = {"category": list(colours), "ordinal": list(ramp)}
    return {"range": ranges, "mark": {"color": colours[0]}}


def base() -> altair.Chart:
    """A chart of the rows that its drawing has."""
    import altair as alt

    chart: altair.Chart = alt.Chart(alt.NamedData("rows"))
    return chart


def thinned(line: polars.DataFrame, most: int) -> polars.DataFrame:
    """At most about so many rows of a line, the first and the last among them."""
    if len(line) <= most:
        return line
    step = (len(line) - 1) / (most - 1)
    return line[[round(place * step) for place in range(most)]]


def unit_of(seconds: object) -> tuple[float, str]:
    """A unit of time in which so many seconds are easy to read.

    >>> unit_of(90), unit_of(5000)
    ((1.0, 'seconds'), (60.0, 'minutes'))
    """
    longest = float(seconds) if isinstance(seconds, (int, float)) else 0.0
    if longest < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")


def short(value: float) -> float:
    """Five digits are more than anybody sees."""
    return float(f"{value:.5g}")


def titled(name: str) -> str:
    r"""A name as a title: Vega reads titles as code, where a backslash acts on what follows.

    >>> titled(r"a\b")
    'a/b'
    """
    return name.replace("\\", "/")


def slug(text: str) -> str:
    """A name that can be a file's.

    >>> slug("top@5 / loss")
    'top-5-loss'
    """
    kept = "".join(letter if letter.isalnum() and letter.isascii() else " " for letter in text)
    return "-".join(kept.lower().split())[:60] or "chart"
