"""Figures 1 to 4 of Dupuy et al. (2022) from the results of a study, as pictures and on one page.

Needs altair and vl-convert-python, the extra `report`.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubless.errors import DataError
from hubless.study.figures.charts import bars, lines, stacks, styled
from hubless.study.figures.comparison import (
    ALGORITHMS,
    ELEVEN,
    MINUS,
    SIX,
    Model,
    Rows,
    compared,
    continual,
    last,
    missing,
    one_shot,
    shares,
    spelt,
)

if TYPE_CHECKING:
    import altair
    import polars

    from hubless.study.figures.charts import Drawn


@dataclass(frozen=True)
class Figure:
    """What a figure shows, from which numbers, and how these are drawn and put in a table."""

    title: str
    shows: str
    baseline: Model | None
    numbers: Callable[[polars.DataFrame], Rows]
    drawn: Callable[[Rows, bool], Drawn]
    columns: Sequence[str]
    """The labels that name a column of the table; the others name its rows."""

    def chart(self, frame: polars.DataFrame, *, narrow: bool = False) -> altair.TopLevelMixin:
        """The picture, from results, or from novelty if it has no baseline."""
        return self.picture(self.numbers(frame), narrow=narrow)

    def picture(
        self, numbers: Rows, *, narrow: bool = False, titled: bool = True
    ) -> altair.TopLevelMixin:
        """The same from its numbers: panels are one below the other where it is narrow."""
        if not numbers:
            raise DataError(f"nothing is finished of what this figure shows: {self.title}")
        try:
            import altair
        except ImportError as error:
            raise DataError("figures need altair: pip install 'hubless[report]'") from error
        chart = self.drawn(numbers, narrow)
        if titled:
            against = "in a period after the first, against all that was said before it"
            if self.baseline:
                against = f"0 is the baseline: {spelt(self.baseline)}"
            title = altair.Title(self.title, subtitle=against, anchor="start", offset=14)
            chart = chart.properties(title=title)
        return styled(chart)


def draw(
    results: polars.DataFrame,
    novelty: polars.DataFrame,
    out: Path,
    *,
    title: str,
    settings: Mapping[str, str],
    axes: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Every figure that can be drawn as PNG and SVG, and a page with all of them: its path.

    `axes` are those of the grid, to tell which cells are not finished; without, the paper's.
    """
    state = _state(results, axes)
    _refuse_without_baselines(results)
    out.mkdir(parents=True, exist_ok=True)
    sections = []
    for name, figure in FIGURES.items():
        try:
            numbers = figure.numbers(results if figure.baseline else novelty)
            why = "" if numbers else "nothing of what it shows is finished"
        except DataError as error:
            numbers, why = [], str(error)
        if not numbers:
            sections.append(_section(name, figure, f'<p class="note">Not drawn: {_text(why)}.</p>'))
            continue
        whole = figure.picture(numbers)
        whole.save(out / f"figure-{name}.png", scale_factor=2)
        whole.save(out / f"figure-{name}.svg")
        inline = (
            f'<div class="{kind}">{_inlined(name, figure, numbers, kind == "narrow")}</div>'
            for kind in ("wide", "narrow")
        )
        body = f'<div class="card">{"".join(inline)}</div>{_table(figure, numbers)}'
        sections.append(_section(name, figure, body))
    page = out / "figures.html"
    page.write_text(_page(title, settings, state, sections), encoding="utf-8")
    return page


_ON_ALL = (
    "{name}: relative change in perplexity of each decile of clients, one line per selection, for "
    "training once on the last 3, 6 or 11 months."
)
_ON_LAST = (
    "{name}: relative change in perplexity of each decile of clients after the last of three "
    "segments of two months; the dashed black line is {name} trained once on the same six months."
)


def _by_decile(number: str, algorithm: str) -> dict[str, Figure]:
    """The two figures that every algorithm has."""
    name, measure = ALGORITHMS[algorithm], ("decile",)
    return {
        f"{number}a": Figure(
            f"{name}, one-shot training: by decile of clients",
            _ON_ALL.format(name=name),
            ELEVEN,
            partial(one_shot, algorithm=algorithm),
            lines,
            measure,
        ),
        f"{number}b": Figure(
            f"{name}, continual training: by decile of clients, after the last segment",
            _ON_LAST.format(name=name),
            SIX,
            partial(last, algorithm=algorithm),
            lines,
            measure,
        ),
    }


FIGURES = {
    "1a": Figure(
        "One-shot training: the whole test set",
        "Relative change in perplexity on the whole test set, by selection of clients, for "
        "training once on the last 3, 6 or 11 months.",
        ELEVEN,
        one_shot,
        bars,
        ("panel", "algorithm"),
    ),
    "1b": Figure(
        "Continual training: the whole test set",
        "Relative change in perplexity on the whole test set after each of three segments of two "
        "months (P1, P2, P3), each trained from the model of the one before.",
        SIX,
        continual,
        bars,
        ("panel", "algorithm"),
    ),
    **_by_decile("2", "fedavg"),
    **_by_decile("3", "fedopt"),
    "4": Figure(
        "Where utterances come from",
        "Of the distinct utterances of a client in a period, the share it had said before, that "
        "only others had said before, and that nobody had: means over clients of a decile, over "
        "periods P2 and P3 and over sets.",
        None,
        shares,
        stacks,
        ("decile",),
    ),
}

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --quiet: #52606d; --page: #f5f7fa;
  --line: #d9dee4; --raised: #fff; --warn: #fff4dc; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --quiet: #9aa5b1; --page: #14181d;
  --line: #323f4b; --raised: #1f262d; --warn: #3a2f14; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 3rem 0 .3rem }
h2 small { color: var(--quiet); font-weight: normal; font-size: 1rem; margin-right: .5rem }
p { margin: .3rem 0 1rem; max-width: 46rem }
.quiet { color: var(--quiet) }
.note { background: var(--warn); border-radius: .5rem; padding: .7rem 1rem; max-width: none }
.note ul { margin: .5rem 0 0; padding-left: 1.2rem }
.card { background: #fff; border-radius: .6rem; border: 1px solid var(--line); padding: .25rem }
.card svg { display: block; margin: 0 auto; max-width: 100%; height: auto }
.narrow { display: none }
@media (max-width: 760px) { .wide { display: none } .narrow { display: block } }
details { margin-top: .8rem }
summary { cursor: pointer; color: var(--quiet) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; margin: .6rem 0;
  font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
th { font-weight: 600 } tbody th, .settings td { text-align: left; font-weight: normal }
.settings td { white-space: normal }
"""


def _refuse_without_baselines(results: polars.DataFrame) -> None:
    errors = []
    for baseline in (ELEVEN, SIX):
        try:
            compared(results, baseline)
            return
        except DataError as error:
            errors.append(error)
    both = " nor ".join(map(spelt, (ELEVEN, SIX)))
    raise DataError(
        f"neither {both} is finished for any set of clients: there is no baseline to compare with"
    ) from errors[0]


def _inlined(name: str, figure: Figure, numbers: Rows, narrow: bool) -> str:
    """A picture to be put into a page, which names it and has no namespaces."""
    file = io.StringIO()
    figure.picture(numbers, narrow=narrow, titled=False).save(file, format="svg")
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", file.getvalue())
    # several pictures on one page must not share the names of their parts
    own = f"figure-{name}-{'narrow' if narrow else 'wide'}-"
    svg = re.sub(r'\bid="', f'id="{own}', svg).replace("url(#", f"url(#{own}")
    label = html.escape(f"Figure {name}: {figure.title}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _section(name: str, figure: Figure, body: str) -> str:
    against = f" 0 is the baseline: {spelt(figure.baseline)}." if figure.baseline else ""
    return (
        f'<section id="figure-{name}"><h2><small>Figure {name}</small>{_text(figure.title)}</h2>'
        f"<p>{_text(figure.shows + against)}</p>{body}</section>"
    )


def _table(figure: Figure, numbers: Rows) -> str:
    """The numbers of a figure, and over how many sets they are."""
    sets = [row["sets"] for row in numbers]
    most, fewest = max(sets), min(sets)
    over = f"Mean and standard deviation over {most} sets of clients."
    if most == 1:
        over = "Of one set of clients, so without a standard deviation."
    elif fewest < most:
        over += " Where fewer are finished, their number is in brackets."
    columns = list(dict.fromkeys(tuple(row[key] for key in figure.columns) for row in numbers))
    names = ["kind"] if "kind" in numbers[0] else ["panel", "selection"]
    names = [key for key in names if key not in figure.columns]
    names = [key for key in names if key != "panel" or len({row[key] for row in numbers}) > 1]
    grid: dict[tuple[str, ...], dict[tuple[Any, ...], str]] = {}
    for row in numbers:
        text = f"{row['mean']:.1f}" + ("" if row["std"] is None else f" ± {row['std']:.1f}")
        text += f" ({row['sets']})" if row["sets"] < most else ""
        cells = grid.setdefault(tuple(row[key] for key in names), {})
        cells[tuple(row[key] for key in figure.columns)] = text.replace("-", MINUS)
    head = [*("" for _ in names), *(" ".join(map(_column, column)) for column in columns)]
    body = [
        f"<tr>{_cells('th', keys)}{_cells('td', [cells.get(c, '') for c in columns])}</tr>"
        for keys, cells in grid.items()
    ]
    return (
        f'<p class="quiet">{over}</p><details><summary>The numbers, in percent</summary>'
        f'<div class="scroll"><table><thead><tr>{_cells("th", head)}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></details>"
    )


def _cells(tag: str, values: Sequence[str]) -> str:
    return "".join(f"<{tag}>{_text(value)}</{tag}>" for value in values)


def _column(label: str | int) -> str:
    return f"decile {label}" if isinstance(label, int) else label


def _state(results: polars.DataFrame, axes: Mapping[str, Sequence[str]] | None) -> str:
    """What is not finished, if anything."""
    cells, lacking, total = missing(results, axes)
    if not lacking:
        return ""
    return (
        f'<div class="note">{total - lacking} of {total} cells are finished; the figures show what '
        f"there is. <details><summary>The {lacking} that are missing, or have no finite "
        f"perplexity</summary><ul>{''.join(f'<li>{_text(cell)}</li>' for cell in cells)}</ul>"
        "</details></div>"
    )


def _page(title: str, settings: Mapping[str, str], state: str, sections: Sequence[str]) -> str:
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in settings.items()
    )
    listed = (
        "<details><summary>Settings</summary>"
        f'<table class="settings"><tbody>{rows}</tbody></table></details>'
        if rows
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{_text(title)}</h1>{state}"
        '<p class="quiet">After the figures of Dupuy et al., Learnings from Federated Learning in '
        "the Real World (2022). A client with x training examples is selected with a probability "
        "proportional to f(x); heavy and light are the most and the least active 20 % of clients. "
        f"Below 0 is better than the baseline.</p>{listed}"
        f"{''.join(sections)}</body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
