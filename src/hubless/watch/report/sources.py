"""What a report is made from: records put together into simulations, federations and studies.

Records are untrusted: whatever is not what it should be is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hubless.errors import DataError
from hubless.watch.feed import (
    OF_MEMBERS,
    OF_SIMULATIONS,
    Record,
    finite,
    open_feed,
    parse_lines,
    time_of,
)
from hubless.watch.fold.places import Places

_LARGEST = 2**53


@dataclass
class Simulated:
    """One simulation: its settings, its rounds by number, and how it ended.

    `elapsed` has for each round the seconds since the start, without the time between a run that
    was killed and the one that went on with it.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: dict[int, Record] = field(default_factory=dict)
    elapsed: dict[int, float] = field(default_factory=dict)
    ended: str | None = None
    resumed: int = 0
    _since: float | None = None

    def start(self, record: Record) -> None:
        """Take a `started` record: of the run itself, or of who goes on with it."""
        at = whole(record.get("round")) or 0
        # what was done after the last checkpoint is done again
        self.rounds = {number: row for number, row in self.rounds.items() if number <= at}
        self.elapsed = {number: took for number, took in self.elapsed.items() if number <= at}
        settings = record.get("settings")
        if isinstance(settings, dict):
            self.settings = settings
        began = finite(record.get("time"))
        self._since = None if began is None else began - max(self.elapsed.values(), default=0.0)
        self.resumed += bool(at)
        self.ended = None

    def add(self, record: Record) -> None:
        """Take a `trained` record."""
        number = whole(record.get("round"))
        if number is None or number < 0:
            return
        self.rounds[number] = record
        seconds, now = finite(record.get("seconds")) or 0.0, finite(record.get("time"))
        if self._since is None and now is not None:
            self._since = now - seconds
        before = max(self.elapsed.values(), default=0.0) if now is None else 0.0
        took = before + seconds if now is None else now - (self._since or 0.0)
        self.elapsed[number] = max(took, 0.0)


@dataclass
class Federated:
    """One federation: what its members said, or what its folder shows of them."""

    name: str
    records: list[Record] = field(default_factory=list)


@dataclass
class Studied:
    """One study: the rows of its finished cells, and the figures that were drawn of them."""

    name: str
    rows: list[dict[str, Any]]
    figures: list[Path]
    page: Path | None


@dataclass
class Found:
    """Everything that was found in the sources of a report."""

    simulations: list[Simulated] = field(default_factory=list)
    federations: list[Federated] = field(default_factory=list)
    studies: list[Studied] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """What all of them are called."""
        runs = [run.name for run in self.simulations]
        return runs + [f.name for f in self.federations] + [s.name for s in self.studies]


def read_sources(
    sources: Sequence[str | Path],
    *,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Found:
    """Read files of events, folders of them, studies and federations; names are made unique."""
    found = Found()
    for source in sources:
        text = str(source)
        scheme, separator, _ = text.partition("://")
        if not separator or scheme == "file":
            path = Path(unquote(urlsplit(text).path) if separator else text).expanduser()
            if path.is_file():
                _sort(_lines(path), _name_of(path), found)
                continue
            if path.is_dir() and not (path / "federation.json").is_file():
                if (study := _study(path)) is not None:
                    found.studies.append(study)
                if paths := sorted(path.glob("*.jsonl")):
                    _of_folder(path, paths, found)
                    continue
        feed = open_feed(source, endpoint=endpoint, options=options)
        _sort(feed.poll(), _last_part(text), found)
    _make_unique([*found.simulations, *found.federations])
    if not (found.simulations or found.federations or found.studies):
        told = ", ".join(str(source) for source in sources) or "nothing"
        raise DataError(
            f"there is nothing to report in {told}: no line in it is an event of a simulation or "
            "of a federation's member, as hubless.events.to_file and Simulation(events=...) "
            "write them"
        )
    return found


def _of_folder(folder: Path, paths: Sequence[Path], found: Found) -> None:
    """Each file has simulations of its own, but members that meet write a file each."""
    members: list[Record] = []
    for path in paths:
        apart = Found()
        _sort(_lines(path), _name_of(path, alone=len(paths) == 1), apart)
        found.simulations += apart.simulations
        members += [record for meeting in apart.federations for record in meeting.records]
    if members:
        found.federations += _meetings(sorted(members, key=time_of), folder.resolve().name)


def _lines(path: Path) -> Iterator[Record]:
    with open(path, "rb") as file:
        for line in file:
            yield from parse_lines([line])


def _sort(records: Iterable[Record], name: str, found: Found) -> None:
    """Give every record to the simulation or federation it is of."""
    runs: dict[str, Simulated] = {}
    members: list[Record] = []
    for record in records:
        kind = record.get("event")
        if kind in OF_MEMBERS:
            members.append(record)
        elif kind in OF_SIMULATIONS:
            client = said(record.get("client"), 80) or "simulation"
            run = runs.get(client)
            if run is None or (kind == "started" and not whole(record.get("round"))):
                # an unnamed run is better known by its file
                run = runs[client] = Simulated(name if client == "simulation" else client)
                found.simulations.append(run)
            if kind == "started":
                run.start(record)
            elif kind == "trained":
                run.add(record)
            else:
                run.ended = said(record.get("reason"), 40)
    found.federations += _meetings(members, name)


def _meetings(records: Sequence[Record], name: str) -> list[Federated]:
    """What members said, by the federation it was said in."""
    places, found = Places(), dict[int, Federated]()
    for record in records:
        found.setdefault(places.of(record), Federated(name)).records.append(record)
    return list(found.values())


def _study(folder: Path) -> Studied | None:
    """What a study has kept in a folder: cells with rows, or arms with a curve."""
    path = folder / "results.jsonl"
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or "event" in record:
            continue
        cell, results = record.get("cell"), record.get("rows")
        if isinstance(cell, dict) and isinstance(results, list):
            rows += [{**cell, **row} for row in results if isinstance(row, dict)]
        elif isinstance(curve := record.get("curve"), list) and curve:
            plain = {key: record.get(key) for key in ("arm", "repetition")}
            rows.append({**plain, "last of its curve": curve[-1], "epochs": len(curve)})
    if not rows:
        return None
    page = folder / "figures.html"
    figures = sorted(folder.glob("figure-*.svg"))
    return Studied(folder.resolve().name, rows, figures, page if page.is_file() else None)


def _make_unique(items: Sequence[Simulated | Federated]) -> None:
    taken: set[str] = set()
    for item in items:
        name, number = item.name, 1
        while item.name in taken:
            number += 1
            item.name = f"{name} ({number})"
        taken.add(item.name)


def _name_of(path: Path, *, alone: bool = False) -> str:
    """What a file's runs are called: by its folder where every run's file is called the same.

    >>> _name_of(Path("/runs/a/events.jsonl")), _name_of(Path("/runs/b.jsonl"))
    ('a', 'b')
    """
    folder = path.resolve().parent.name
    return said(folder if folder and (alone or path.stem == "events") else path.stem, 80)


def _last_part(source: str) -> str:
    """A short name for a source: the last part of its path.

    >>> _last_part("s3://bucket/run1/"), _last_part("runs/a.jsonl")
    ('run1', 'a.jsonl')
    """
    return said(source.rstrip("/").rpartition("/")[2] or source, 80)


def said(value: object, most: int = 200) -> str:
    """A value as text of bounded length that any file can hold.

    >>> said("site-a"), said(None), said({"b": 1}), said("x" * 9, 5)
    ('site-a', '', '{"b": 1}', 'xxxx…')
    """
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    text = str(value).encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def whole(value: object) -> int | None:
    """A whole number that a table can hold, or None.

    >>> whole(3), whole(3.0), whole(3.5), whole("3"), whole(10**30)
    (3, 3, None, None, None)
    """
    number = finite(value)
    if number is None or number != int(number) or abs(number) >= _LARGEST:
        return None
    return int(number)


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one for whatever stands in its place."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[Any]:
    """A list, or an empty one for whatever stands in its place."""
    return value if isinstance(value, list) else []
