"""What runs said, as tables: rounds, participation, deciles, staleness, time, labels, troubles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hubless.data.index import tenths
from hubless.watch.feed import Record, finite
from hubless.watch.report.meetings import Meeting
from hubless.watch.report.sources import Federated, Simulated, mapping, said, sequence, whole

if TYPE_CHECKING:
    import polars

_MOST_METRICS = 24
_MOST_LABELS = 100
_BASE = [
    "run",
    "client",
    "round",
    "time",
    "elapsed",
    "virtual",
    "bytes",
    "clients",
    "skipped",
    "dropped",
    "seconds",
]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Tables:
    """Frames, each with a column `run`; those with nothing in them have no rows.

    `rounds` has a row for each round of a simulation, and for each update of a member (`client`);
    its metrics are the columns named in `metrics`. `bytes` adds up as rounds go by, and `elapsed`
    is seconds since the run's start. `picks` sets how often each tenth of clients trained against
    what uniform selection would give.
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
    simulations: Sequence[Simulated] = (), federations: Sequence[Federated] = ()
) -> Tables:
    """All tables of these runs."""
    meetings = [Meeting.of(federation.name, federation.records) for federation in federations]
    names = _metrics(simulations, meetings)
    rows = [row for run in simulations for row in _rounds(run, names)]
    for meeting in meetings:
        rows += [
            {**row, "metrics": _renamed(row["metrics"], names)} for row in meeting.updates.values()
        ]
    seen = {run.name: _Seen(run) for run in simulations}
    participation: Rows = [row for one in seen.values() for row in one.rows()]
    for meeting in meetings:
        participation += meeting.participation()
    return Tables(
        rounds=_frame([_flat(row, names) for row in rows], [*_BASE, *names.values()], _TEXTS),
        metrics=list(names.values()),
        participation=_frame(participation, ["run", "client", "times", "examples"], _TEXTS),
        picks=_frame(
            [row for one in seen.values() for row in one.picks()],
            ["run", "decile", "times", "uniform", "ratio"],
        ),
        deciles=_frame(
            [row for run in simulations for row in _deciles(run, names)],
            ["run", "metric", "round", "decile", "value"],
            ("run", "metric"),
        ),
        staleness=_frame(
            [*_staleness(simulations), *(row for m in meetings for row in m.staleness())],
            ["run", "staleness", "times"],
        ),
        phases=_frame(
            [*_phases(simulations), *(row for m in meetings for row in m.phases())],
            ["run", "phase", "seconds"],
            ("run", "phase"),
        ),
        labels=_frame(
            [row for run in simulations for row in _labels(run)],
            ["run", "decile", "label", "examples", "share"],
            ("run", "label"),
        ),
        troubles=_frame(
            [*_troubles(simulations), *(row for m in meetings for row in m.troubles())],
            ["run", "client", "kind", "what", "times"],
            ("run", "client", "kind", "what"),
        ),
        members=_frame(
            [row for m in meetings for row in m.members()],
            ["run", "client", *Meeting.COLUMNS],
            _TEXTS,
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


def _metrics(simulations: Sequence[Simulated], meetings: Sequence[Meeting]) -> dict[str, str]:
    """The metrics that were said most often, and the columns they go to."""
    counts: Counter[str] = Counter()
    for run in simulations:
        for record in run.rounds.values():
            counts.update(mapping(record.get("metrics")).keys())
    for meeting in meetings:
        for update in meeting.updates.values():
            counts.update(update["metrics"].keys())
    columns: dict[str, str] = {}
    for name, _ in counts.most_common(_MOST_METRICS):
        column = _shown(name)
        while column in _BASE or column in columns.values() or _is_pattern(column):
            column += " (metric)"
        columns[name] = column
    return columns


def _shown(name: str) -> str:
    """A metric's name in one line of bounded length."""
    return "".join(c if c.isprintable() else " " for c in said(name, 60))


def _is_pattern(column: str) -> bool:
    """Whether polars would take a column's name for a pattern of names."""
    return column == "*" or (column.startswith("^") and column.endswith("$"))


def _renamed(metrics: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float | None]:
    return {names[name]: finite(value) for name, value in metrics.items() if name in names}


def _flat(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {**{key: value for key, value in row.items() if key != "metrics"}, **row["metrics"]}


def _rounds(run: Simulated, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    total = 0.0
    for number in sorted(run.rounds):
        record = run.rounds[number]
        total += (finite(record.get("bytes_down")) or 0.0) + (finite(record.get("bytes_up")) or 0.0)
        yield {
            "run": run.name,
            "round": number,
            "time": finite(record.get("time")),
            "elapsed": run.elapsed[number],
            "virtual": finite(record.get("virtual")),
            "bytes": total,
            "clients": len(sequence(record.get("cohort"))),
            "skipped": whole(record.get("skipped")),
            "dropped": whole(record.get("dropped")),
            "seconds": finite(record.get("seconds")),
            "metrics": _renamed(mapping(record.get("metrics")), names),
        }


class _Seen:
    """Which clients of a simulation trained how often, and on how many examples."""

    def __init__(self, run: Simulated) -> None:
        self.run = run
        pairs = [_pair(record) for record in run.rounds.values()]
        nobody = np.zeros(0, np.int64)
        cohorts = np.concatenate([nobody, *(cohort for cohort, _ in pairs)])
        examples = np.concatenate([nobody, *(each for _, each in pairs)])
        self.clients, place, self.times = np.unique(
            cohorts, return_inverse=True, return_counts=True
        )
        self.examples = np.full(len(self.clients), -1, np.int64)
        np.maximum.at(self.examples, place, examples)

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
        for client, counts in enumerate(sequence(mapping(settings.get("labels")).get("by_client"))):
            sizes[client] = sum(whole(count) or 0 for count in sequence(counts))
        if not sizes:
            known = self.examples >= 0
            sizes = dict(zip(self.clients[known].tolist(), self.examples[known], strict=True))
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
        edges = [finite(edge) for edge in sequence(self.run.settings.get("activity"))]
        if len(edges) != 11 or None in edges or (self.examples < 0).all():
            return None
        low, high = np.array(edges[:-1], float), np.array(edges[1:], float)
        size = self.examples[:, None]
        members = ((low <= size) & (size <= high)).astype(float)
        count = members.sum(1, keepdims=True)
        if (self.times[count[:, 0] == 0]).any():
            return None
        return members / np.maximum(count, 1), np.full(10, 0.1)


def _pair(record: Record) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    cohort = _whole_numbers(record.get("cohort"))
    examples = _whole_numbers(record.get("examples"))
    if len(examples) != len(cohort):
        examples = np.full(len(cohort), -1, np.int64)
    return cohort, examples


def _whole_numbers(value: object) -> NDArray[np.int64]:
    try:
        found = np.array(sequence(value))
    except (ValueError, OverflowError):
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind != "i":
        return np.zeros(0, np.int64)
    return found.astype(np.int64)


def _deciles(run: Simulated, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for number in sorted(run.rounds):
        curves = mapping(run.rounds[number].get("deciles"))
        for name in list(curves)[:_MOST_METRICS]:
            metric = names.get(name) or _shown(name)
            for decile, value in enumerate(sequence(curves[name])[:10], 1):
                if (figure := finite(value)) is not None:
                    found = {"run": run.name, "metric": metric, "round": number}
                    yield {**found, "decile": decile, "value": figure}


def _staleness(simulations: Sequence[Simulated]) -> Iterator[dict[str, Any]]:
    for run in simulations:
        counts: Counter[int] = Counter()
        for record in run.rounds.values():
            counts.update(_whole_numbers(record.get("staleness")).tolist())
        for staleness, times in sorted(counts.items()):
            yield {"run": run.name, "staleness": staleness, "times": times}


def _phases(simulations: Sequence[Simulated]) -> Iterator[dict[str, Any]]:
    for run in simulations:
        totals: defaultdict[str, float] = defaultdict(float)
        for record in run.rounds.values():
            for name, value in list(mapping(record.get("phases")).items())[:20]:
                totals[said(name, 40)] += finite(value) or 0.0
        if not totals:
            continue
        between = max(run.elapsed.values(), default=0.0) - sum(totals.values())
        totals["everything else"] = max(0.0, between)
        for name, seconds in totals.items():
            yield {"run": run.name, "phase": name, "seconds": seconds}


def _labels(run: Simulated) -> Iterator[dict[str, Any]]:
    """Examples of each label in each tenth of clients, and their share of that tenth."""
    labels = mapping(run.settings.get("labels"))
    names = [said(name, 40) for name in sequence(labels.get("names"))[:_MOST_LABELS]]
    for decile, counts in enumerate(sequence(labels.get("by_decile"))[:10], 1):
        known = [max(0, whole(count) or 0) for count in sequence(counts)[: len(names)]]
        total = sum(known)
        for name, count in zip(names, known, strict=False):
            if total:
                row = {"run": run.name, "decile": decile, "label": name, "examples": count}
                yield {**row, "share": count / total}


def _troubles(simulations: Sequence[Simulated]) -> Iterator[dict[str, Any]]:
    for run in simulations:
        for kind, what in (
            ("skipped", "clients that were picked had no examples"),
            ("dropped", "clients that were picked came too late for their round"),
        ):
            total = sum(max(0, whole(r.get(kind)) or 0) for r in run.rounds.values())
            if total:
                yield {"run": run.name, "client": "", "kind": kind, "what": what, "times": total}
        if run.ended not in (None, "complete", "stopped"):
            what = f"the run ended after round {max(run.rounds, default=0)}"
            yield {"run": run.name, "client": "", "kind": run.ended, "what": what, "times": 1}
