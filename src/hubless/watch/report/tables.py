"""What runs came to, as tables of rounds, participation, deciles, staleness, time and so on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import tenths
from hubless.watch.fold.federation import FederationFold
from hubless.watch.fold.run import RunFold
from hubless.watch.fold.series import CurvePoint, Curves
from hubless.watch.fold.simulation import SimulationFold
from hubless.watch.values import finite, items, mapping, text, whole

if TYPE_CHECKING:
    import polars

_MOST_METRICS = 24
_MOST_LABELS = 100
_BASE = ["run", "client", "round", "elapsed", "virtual", "bytes"]
_COLUMNS = [
    "updates",
    "rounds",
    "examples",
    "sent",
    "received",
    "skipped",
    "late",
    "refused",
    "offline",
    "other troubles",
    "lives",
]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Tables:
    """Frames, each with a column `run`; those with nothing in them have no rows.

    `rounds` has a row for each round of a simulation, and for each update of a member (`client`,
    which is `all members` for what their newest come to together); its metrics are the columns
    named in `metrics`. `bytes` adds up as rounds go by, and `elapsed` is seconds since the run's
    start. `picks` sets how often each tenth of clients trained against what uniform selection
    would give.
    """

    rounds: polars.DataFrame
    metrics: list[str]
    participation: polars.DataFrame
    picks: polars.DataFrame
    deciles: polars.DataFrame
    staleness: polars.DataFrame
    phases: polars.DataFrame
    labels: polars.DataFrame
    troubles: polars.DataFrame
    members: polars.DataFrame


def tables_of(
    simulations: Sequence[SimulationFold] = (),
    federations: Sequence[FederationFold] = (),
    now: float = 0.0,
) -> Tables:
    """All tables of these runs, as things stand at this time."""
    runs: list[RunFold] = [*simulations, *federations]
    names = _metrics([run.curves for run in runs])
    participants = [_Participants(run) for run in simulations]
    return Tables(
        rounds=_frame(
            [row for run in runs for row in _rounds(run, names)],
            [*_BASE, *names.values()],
            _TEXTS,
        ),
        metrics=list(names.values()),
        participation=_frame(
            [
                *(row for of_run in participants for row in of_run.rows()),
                *(row for meeting in federations for row in _participation(meeting)),
            ],
            ["run", "client", "times", "examples"],
            _TEXTS,
        ),
        picks=_frame(
            [row for of_run in participants for row in of_run.picks()],
            ["run", "decile", "times", "uniform", "ratio"],
        ),
        deciles=_frame(
            [row for run in simulations for row in _deciles(run, names)],
            ["run", "metric", "round", "decile", "value"],
            ("run", "metric"),
        ),
        staleness=_frame(
            [row for run in runs for row in _staleness(run)], ["run", "staleness", "times"]
        ),
        phases=_frame(
            [row for run in runs for row in _phases(run)],
            ["run", "phase", "seconds"],
            ("run", "phase"),
        ),
        labels=_frame(
            [row for run in simulations for row in _labels(run)],
            ["run", "decile", "label", "examples", "share"],
            ("run", "label"),
        ),
        troubles=_frame(
            [row for run in runs for row in _troubles(run)],
            ["run", "client", "kind", "what", "times"],
            ("run", "client", "kind", "what"),
        ),
        members=_frame(
            [row for meeting in federations for row in _members(meeting, now)],
            ["run", "client", *_COLUMNS, "status"],
            (*_TEXTS, "status"),
        ),
    )


_TEXTS = ("run", "client")


def _frame(rows: Rows, columns: Sequence[str], texts: Sequence[str] = ("run",)) -> polars.DataFrame:
    """Rows as columns: texts, and numbers for the rest."""
    import polars

    return polars.DataFrame(
        {
            name: polars.Series(
                name,
                [row.get(name) for row in rows],
                polars.String if name in texts else polars.Float64,
                strict=False,
            )
            for name in columns
        }
    )


def _metrics(curves: Sequence[Curves[CurvePoint]]) -> dict[str, str]:
    """The metrics that were said most often, and the columns they go to."""
    counts: Counter[str] = Counter()
    for of_run in curves:
        for metric, lines in of_run.lines().items():
            counts[metric] += sum(len(series.points) for series in lines.values())
    columns: dict[str, str] = {}
    for name, _ in counts.most_common(_MOST_METRICS):
        column = _shown(name)
        while column in _BASE or column in columns.values() or _is_pattern(column):
            column += " (metric)"
        columns[name] = column
    return columns


def _shown(name: str) -> str:
    """A metric's name in one line of bounded length."""
    return "".join(c if c.isprintable() else " " for c in text(name, 60))


def _is_pattern(column: str) -> bool:
    """Whether polars would take a column's name for a pattern of names."""
    return column == "*" or (column.startswith("^") and column.endswith("$"))


def _rounds(run: RunFold, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A row for each line and round, with all metrics that have a point there."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for metric, lines in run.curves.lines().items():
        if metric not in names:
            continue
        for line, series in lines.items():
            for point in series.points:
                row = rows.setdefault(
                    (line, point.round),
                    {
                        "run": run.name,
                        "client": line or None,
                        "round": point.round,
                        "elapsed": point.seconds,
                        "virtual": point.clock,
                        "bytes": point.bytes,
                    },
                )
                row[names[metric]] = point.value
    yield from (rows[at] for at in sorted(rows))


def _participation(meeting: FederationFold) -> Iterator[dict[str, Any]]:
    """How often each member shared an update."""
    for client, m in meeting.members.items():
        row = {"run": meeting.name, "client": client}
        yield {**row, "times": m.updates, "examples": m.examples}


def _members(meeting: FederationFold, now: float) -> Iterator[dict[str, Any]]:
    """A row for each member, by name."""
    apart = ("late", "refused", "offline")
    for client in sorted(meeting.members):
        m = meeting.members[client]
        yield {
            "run": meeting.name,
            "client": client,
            "updates": m.updates,
            "rounds": m.rounds,
            "examples": m.examples,
            "sent": m.sent,
            "received": m.received,
            "skipped": m.skipped,
            **{kind: m.troubles[kind] for kind in apart},
            "other troubles": sum(n for kind, n in m.troubles.items() if kind not in apart),
            "lives": m.lives,
            "status": m.standing(now),
        }


class _Participants:
    """Which clients of a simulation trained how often, and on how many examples."""

    def __init__(self, run: SimulationFold) -> None:
        self.run = run
        rows = np.array(list(run.tally.rows()), np.int64).reshape(-1, 3)
        self.clients, self.times, self.examples = rows[:, 0], rows[:, 1], rows[:, 2]

    def rows(self) -> Rows:
        """A row for each client that trained."""
        columns = (self.clients.tolist(), self.times.tolist(), self.examples.tolist())
        return [
            {
                "run": self.run.name,
                "client": str(client),
                "times": times,
                "examples": None if examples < 0 else examples,
            }
            for client, times, examples in zip(*columns, strict=True)
        ]

    def picks(self) -> Rows:
        """How often each tenth of clients by activity trained, and would have by chance."""
        shares = self._exact()
        if shares is None:
            shares = self._by_quantiles()
        if shares is None or not self.times.sum():
            return []
        members, uniform = shares
        times, total = self.times @ members, float(self.times.sum())
        return [
            {
                "run": self.run.name,
                "decile": decile + 1,
                "times": float(times[decile]),
                "uniform": total * float(uniform[decile]),
                "ratio": float(times[decile] / (total * uniform[decile])),
            }
            for decile in range(10)
            if uniform[decile] > 0
        ]

    def _exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Who is in which tenth, where the size of every client is known."""
        settings = self.run.settings
        sizes: dict[int, int] = {}
        for client, counts in enumerate(items(mapping(settings.get("labels")).get("by_client"))):
            sizes[client] = sum(whole(count) or 0 for count in items(counts))
        if not sizes:
            sized = self.examples >= 0
            sizes = dict(zip(self.clients[sized].tolist(), self.examples[sized], strict=True))
            if len(sizes) != whole(settings.get("clients")):
                return None
        if not set(self.clients.tolist()) <= set(sizes) or sum(s > 0 for s in sizes.values()) < 10:
            return None
        tenth = tenths(np.array(list(sizes.values()), np.int64))
        of = dict(zip(sizes, tenth.tolist(), strict=True))
        members = np.zeros((len(self.clients), 10))
        for place, client in enumerate(self.clients.tolist()):
            if of[client]:
                members[place, of[client] - 1] = 1
        there = tenth[tenth > 0]
        return members, np.bincount(there - 1, minlength=10) / len(there)

    def _by_quantiles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The same by the quantiles of all sizes; who stands on a border is in all it touches."""
        edges = [finite(edge) for edge in items(self.run.settings.get("activity"))]
        if len(edges) != 11 or None in edges or (self.examples < 0).all():
            return None
        low, high = np.array(edges[:-1], float), np.array(edges[1:], float)
        size = self.examples[:, None]
        members = ((low <= size) & (size <= high)).astype(float)
        count = members.sum(1, keepdims=True)
        if (self.times[count[:, 0] == 0]).any():
            return None
        return members / np.maximum(count, 1), np.full(10, 0.1)


def _deciles(run: SimulationFold, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for metric, lines in run.deciles.lines().items():
        for series in lines.values():
            for point in series.points:
                for decile, value in enumerate(point.values, 1):
                    row = {"run": run.name, "metric": names.get(metric, _shown(metric))}
                    yield {**row, "round": point.round, "decile": decile, "value": value}


def _staleness(run: RunFold) -> Iterator[dict[str, Any]]:
    """How many versions behind updates were."""
    for behind, times in sorted(run.staleness.items()):
        if times > 0:
            yield {"run": run.name, "staleness": behind, "times": times}


def _phases(run: RunFold) -> Iterator[dict[str, Any]]:
    """Where the time went."""
    for phase, seconds in run.time_spent():
        yield {"run": run.name, "phase": phase, "seconds": seconds}


def _labels(run: SimulationFold) -> Iterator[dict[str, Any]]:
    """Examples of each label in each tenth of clients, and their share of that tenth."""
    labels = mapping(run.settings.get("labels"))
    names = [text(name, 40) for name in items(labels.get("names"))[:_MOST_LABELS]]
    for decile, counts in enumerate(items(labels.get("by_decile"))[:10], 1):
        sizes = [max(0, whole(count) or 0) for count in items(counts)[: len(names)]]
        total = sum(sizes)
        for name, count in zip(names, sizes, strict=False):
            if total:
                row = {"run": run.name, "decile": decile, "label": name, "examples": count}
                yield {**row, "share": count / total}


def _troubles(run: RunFold) -> Iterator[dict[str, Any]]:
    """What went wrong: the kind, whose it was, and how often."""
    for (kind, client, what), times in run.troubles.most_common():
        yield {"run": run.name, "client": client, "kind": kind, "what": what, "times": times}
    for kind, what, times in run.shortfalls():
        yield {"run": run.name, "client": "", "kind": kind, "what": what, "times": times}
