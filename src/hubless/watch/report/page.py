"""A report: one page that says what runs came to, from nothing but what they said.

Needs polars, altair and vl-convert-python, the extra `report`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hubless.errors import DataError, HublessError
from hubless.watch.live.terminal import size, span
from hubless.watch.report import sheet
from hubless.watch.report.comparison import (
    Comparison,
    compare,
    counted,
    differences,
    figure,
    joined,
    quoted,
    sentences,
    settings_of,
)
from hubless.watch.report.sources import Material, Studied, read_sources
from hubless.watch.report.tables import Tables, tables_of
from hubless.watch.values import text
from hubless.whole import write_whole

if TYPE_CHECKING:
    import polars

    from hubless.watch.report.drawing import Drawing

_MOST_CURVES = 6
_MOST_ROWS = 200
_MAYBE = {
    "in rounds": "rounds",
    "received": "received",
    "skipped": "skipped",
    "late": "late",
    "refused": "refused",
    "offline": "offline",
    "other troubles": "other troubles",
    "times joined": "lives",
}
_AXES = {"rounds": "rounds", "time": "time", "bytes": "bytes", "clock": "clients' clock"}


def write_report(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    pictures: bool = True,
    title: str = "",
) -> Path:
    """Write one page about runs, side by side where there are several: its path.

    Args:
        sources: Files of events, folders of such files, folders of studies, federations.
        out: The page to write, or a folder for `report.html`.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for the bucket, such as `{"aws_region": "eu-west-1"}`.
        pictures: Also write every chart as a PNG file, into a folder beside the sheet.
        title: What stands on top; without, the names of the runs.
    """
    try:
        import altair  # noqa: F401
        import polars  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise DataError(
            "a report needs polars, altair and vl-convert-python: pip install 'hubless[report]'"
        ) from error
    out = Path(out)
    if out.is_dir():
        out = out / "report.html"
    material = read_sources(sources, endpoint=endpoint, options=options)
    now = time.time()
    for federation in material.federations:
        federation.check(now)
    tables = tables_of(material.simulations, material.federations, now)
    charts = sheet.Charts()
    sections = _sections(material, tables, charts, now)
    names = material.names
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    title = title or (f"{', '.join(names[:4])}{more}" if more else joined(names))
    # a page without a suffix must not be in its pictures' way
    folder = out.with_suffix("") if out.suffix else out.with_name(f"{out.name}-pictures")
    document = sheet.whole(title, sections, charts, f"{folder.name}/" if pictures else "")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if pictures and charts.drawings:
            charts.save(folder)
        write_whole(out, document)
    except OSError as error:
        raise HublessError(f"cannot write the report to {out}: {error}") from error
    return out


def _sections(material: Material, tables: Tables, charts: sheet.Charts, now: float) -> list[str]:
    sections = []
    if material.simulations or material.federations:
        comparison = compare(tables, material.simulations, material.federations, now)
        sections = [
            _summary(comparison, material),
            _metrics(tables, comparison, charts),
            _deciles(tables, comparison, charts),
            _selection(tables, material, charts),
            _members(tables, material, charts),
            _staleness(tables, charts),
            _labels(tables, charts),
            _time(tables, charts),
            _troubles(tables),
            _settings(material),
        ]
    return [*sections, *(_study(study) for study in material.studies)]


def _summary(comparison: Comparison, material: Material) -> str:
    """What was found, in a sentence and a table."""
    metric = comparison.metric
    others = [name for name in dict.fromkeys(n for run in comparison.runs for n in run.final)]
    others = [name for name in others if name != metric][:3]
    head = ["run", "rounds", "clients"]
    if metric is not None:
        extreme = "lowest" if comparison.lower else "highest"
        head += [f"{metric}, at the end", f"{metric}, {extreme}"]
        head += [f"rounds to {figure(comparison.target)}"] if comparison.target is not None else []
    head += [*others, "time", "bytes", "ended"]
    rows = []
    for run in comparison.runs:
        of = f" of {run.planned:,}" if run.planned and run.planned != run.rounds else ""
        row = [run.run, f"{run.rounds:,}{of}", "" if run.clients is None else f"{run.clients:,}"]
        if metric is not None:
            best = "" if run.best is None else f"{figure(run.best[0])} (round {run.best[1]:,})"
            row += [figure(run.final.get(metric)), best]
            if comparison.target is not None:
                row.append("" if run.reached is None else f"{run.reached:,}")
        row += [figure(run.final.get(name)) for name in others]
        row += [_span(run.seconds), size(run.bytes), run.ended]
        rows.append(row)
    notes = []
    if material.federations:
        notes.append(
            "A federation's metrics are the mean over its members, weighted by their examples, "
            "each of its own newest update; where nobody waits, its rounds are the most updates "
            "of a member. Updates and bytes are all there ever were, as members said or as numbers "
            "in keys tell. A store shows what was sent, and not what was received."
        )
    lead = sheet.paragraph(" ".join(sentences(comparison, material.simulations)), "lead")
    body = sheet.table(head, rows[:_MOST_ROWS], texts=[head.index("ended")])
    return f"<section>{lead}{body}{sheet.paragraph(' '.join(notes), 'quiet')}</section>"


def _metrics(tables: Tables, comparison: Comparison, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import metric_lines

    order = sorted(tables.metrics, key=lambda name: name != comparison.metric)
    lines = (metric_lines(tables.rounds, metric) for metric in order)
    drawings = [drawing for drawing in lines if drawing is not None]
    choices = [axis for axis in _AXES if any(axis in drawing.charts for drawing in drawings)]
    buttons = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (axis == "rounds")}>'
        f"{sheet.text(_AXES[axis])}</label>"
        for axis in choices
    )
    control = f'<fieldset class="axes"><legend>against</legend>{buttons}</fieldset>'
    return sheet.section("Metrics", control if drawings else "", charts.cards(drawings))


def _deciles(tables: Tables, comparison: Comparison, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import decile_curves, decile_ends

    frame = tables.deciles
    metrics = frame["metric"].unique(maintain_order=True).to_list()
    metrics.sort(key=lambda name: name != comparison.metric)
    runs = frame["run"].unique(maintain_order=True).to_list()
    drawings: list[Drawing | None] = [decile_ends(frame, metric) for metric in metrics]
    drawings += [decile_curves(frame, run, metric) for metric in metrics[:1] for run in runs][
        :_MOST_CURVES
    ]
    lead = ""
    if metrics:
        ends = []
        for run in runs[:4]:
            of_run = frame.filter((frame["run"] == run) & (frame["metric"] == metrics[0]))
            last = of_run.filter(of_run["round"] == of_run["round"].max()).sort("decile")
            if len(last) > 1:
                values = last["value"].to_list()
                ends.append(f"{figure(values[0])} to {figure(values[-1])} in {quoted(run)}")
        lead = (
            "Test clients ranked by how many examples they have, in ten equal groups. From the "
            f"lightest to the heaviest, {metrics[0]} at the end goes from {joined(ends)}."
        )
    return sheet.section("By decile of clients", sheet.paragraph(lead), charts.cards(drawings))


def _selection(tables: Tables, material: Material, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import histogram, selection

    counts: dict[str, Counter[int]] = {}
    lines = []
    clients = {run.name: run.settings.get("clients") for run in material.simulations}
    parts = tables.participation.partition_by("run", as_dict=True, maintain_order=True)
    for (name, *_), frame in parts.items():
        if name not in clients:
            continue
        run, total = str(name), clients[str(name)]
        of_run = Counter(int(times) for times in frame["times"])
        if isinstance(total, int) and total > len(frame):
            of_run[0] = total - len(frame)
            lines.append(
                f"In {quoted(run)} {len(frame):,} of {total:,} clients trained at least once."
            )
        elif isinstance(total, int):
            lines.append(f"In {quoted(run)} every one of {total:,} clients trained at least once.")
        counts[run] = of_run
    heaviest = tables.picks.filter(tables.picks["decile"] == 10)
    ratios = [
        f"{ratio:.2f} times as often in {quoted(name)}"
        for name, ratio in zip(heaviest["run"], heaviest["ratio"], strict=True)
    ]
    if ratios:
        than = "Against uniform selection, the heaviest tenth of clients trained "
        lines = [*lines[:4], f"{than}{joined(ratios[:6])}."]
    drawings = [
        selection(tables.picks),
        histogram(counts, "participation", "How often clients trained", "times trained", "clients"),
    ]
    prose = " ".join(lines[:5])
    return sheet.section("Who trained", sheet.paragraph(prose), charts.cards(drawings))


def _members(tables: Tables, material: Material, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import member_updates

    parts = []
    for federation in material.federations:
        of_it = tables.members.filter(tables.members["run"] == federation.name)
        columns = {"now": "status", "updates": "updates", "examples": "examples", "sent": "sent"}
        # a column of nothing says nothing
        columns |= {title: name for title, name in _MAYBE.items() if of_it[name].sum()}
        rows = [
            [row["client"], *(_counted(name, row[name]) for name in columns.values())]
            for row in of_it.iter_rows(named=True)
        ]
        name = f"Members of {federation.name}"
        body = sheet.table(["member", *columns], rows[:_MOST_ROWS], texts=[1])
        drawn = charts.cards([member_updates(tables.members, federation.name)])
        parts.append(sheet.section(name, body, drawn))
    return "".join(parts)


def _counted(name: str, value: object) -> str:
    if isinstance(value, float):
        return size(value) if name in ("sent", "received") else f"{value:,.0f}"
    return text(value)


def _staleness(tables: Tables, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import histogram

    shares: dict[str, dict[int, float]] = {}
    means = []
    for name in tables.staleness["run"].unique(maintain_order=True):
        frame = tables.staleness.filter(tables.staleness["run"] == name)
        counts = {int(s): float(t) for s, t in zip(frame["staleness"], frame["times"], strict=True)}
        total = sum(counts.values())
        shares[name] = {behind: 100 * times / total for behind, times in counts.items()}
        mean = sum(behind * times for behind, times in counts.items()) / total
        means.append(f"{figure(mean)} on average and {max(counts):,} at most in {quoted(name)}")
    drawing = histogram(shares, "staleness", "Staleness", "versions behind", "share of updates (%)")
    what = "How many versions had passed since the params an update started from: "
    lead = sheet.paragraph(f"{what}{joined(means)}." if means else "")
    return sheet.section("Staleness", lead, charts.cards([drawing]))


def _labels(tables: Tables, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import label_shares

    drawings: list[Drawing | None] = []
    frames: list[polars.DataFrame] = []
    for name in tables.labels["run"].unique(maintain_order=True):
        plain = tables.labels.filter(tables.labels["run"] == name).drop("run")
        # runs on the same data have the same labels
        if not any(plain.equals(other) for other in frames) and len(frames) < _MOST_CURVES:
            frames.append(plain)
            drawings.append(label_shares(tables.labels, name))
    return sheet.section("Labels", charts.cards(drawings))


def _time(tables: Tables, charts: sheet.Charts) -> str:
    from hubless.watch.report.charts import time_spent

    return sheet.section("Where the time went", charts.cards([time_spent(tables.phases)]))


def _troubles(tables: Tables) -> str:
    rows = [
        [row["run"], row["kind"], row["client"], row["what"], f"{row['times']:,.0f}"]
        for row in tables.troubles.sort("times", descending=True).iter_rows(named=True)
    ]
    more = f"{len(rows) - _MOST_ROWS:,} more are not shown." if len(rows) > _MOST_ROWS else ""
    body = sheet.table(
        ["run", "kind", "client", "what", "times"], rows[:_MOST_ROWS], texts=(1, 2, 3)
    )
    return sheet.section("Troubles", body, sheet.paragraph(more, "quiet"))


def _settings(material: Material) -> str:
    """What differs between runs, what is the same, and how to repeat each."""
    settings = {run.name: settings_of(run) for run in material.simulations if run.settings}
    if not settings:
        return ""
    names = list(settings)
    differing = differences(settings)
    parts = []
    if len(settings) > 1:
        rows = [[name, *(settings[run].get(name, "") for run in names)] for name in differing]
        columns = range(1, len(names) + 1)
        parts.append(sheet.paragraph("What differs:" if rows else "The settings are the same."))
        parts.append(sheet.table(["setting", *names], rows, texts=columns))
    same = [[name, value] for name, value in settings[names[0]].items() if name not in differing]
    body = sheet.table(["setting", "value"], same, texts=[1])
    alike = "What is the same in all runs"
    parts.append(body if len(settings) == 1 else sheet.folded(alike, body))
    commands: dict[str, list[str]] = {}
    for run in material.simulations:
        if command := text(run.settings.get("command"), 2000):
            commands.setdefault(command, []).append(run.name)
    for command, runs in commands.items():
        again = f"{joined([quoted(run) for run in runs])} again, from the same folder and data:"
        parts.append(sheet.paragraph(again, "quiet") + f"<pre>{sheet.text(command)}</pre>")
    return sheet.section("Settings", *parts)


def _study(study: Studied) -> str:
    """The figures of a study, and its rows."""
    columns = list(dict.fromkeys(name for row in study.rows for name in row))[:20]
    texts = [
        at
        for at, name in enumerate(columns)
        if any(isinstance(row.get(name), str) for row in study.rows)
    ]
    rows = [[_cell(row.get(name)) for name in columns] for row in study.rows[: 5 * _MOST_ROWS]]
    body = sheet.table([text(name, 60) for name in columns], rows, texts=texts)
    figures = "".join(sheet.image(path, path.stem.replace("-", " ")) for path in study.figures)
    length = f"{counted(len(study.rows), 'row')} of results."
    more = f"The study's own page is {study.page.name}, in its folder." if study.page else ""
    cards = f'<div class="charts">{figures}</div>' if figures else ""
    return sheet.section(
        f"Study: {study.name}",
        sheet.paragraph(f"{length} {more}".strip()),
        cards,
        sheet.folded("The results", body),
    )


def _cell(value: object) -> str:
    return figure(value) if isinstance(value, float) else text(value, 200)


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)
