"""What a report is made from: sources folded into simulations, federations and studies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hubless.errors import DataError
from hubless.watch.feed import FilesFeed, open_feed
from hubless.watch.fold.federation import FederationFold
from hubless.watch.fold.overview import Overview
from hubless.watch.fold.simulation import SimulationFold
from hubless.watch.values import Record, text

_ROWS = 20_000
_LINE = 16 << 20


@dataclass
class Studied:
    """One study: the rows of its finished cells, and the figures that were drawn of them."""

    name: str
    rows: list[dict[str, Any]]
    figures: list[Path]
    page: Path | None


@dataclass
class Material:
    """All that the sources of a report hold."""

    simulations: list[SimulationFold] = field(default_factory=list)
    federations: list[FederationFold] = field(default_factory=list)
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
) -> Material:
    """Read files of events, folders of them, studies and federations; names are made unique."""
    material = Material()
    for source in sources:
        address = str(source)
        scheme, separator, _ = address.partition("://")
        if not separator or scheme == "file":
            path = Path(unquote(urlsplit(address).path) if separator else address).expanduser()
            if path.is_file():
                _take(FilesFeed(path).poll(), _name_of(path), material)
                continue
            if path.is_dir() and not (path / "federation.json").is_file():
                if (study := _study(path)) is not None:
                    material.studies.append(study)
                if paths := FilesFeed(path).paths():
                    _of_folder(path, paths, material)
                    continue
        feed = open_feed(source, endpoint=endpoint, options=options)
        _take(feed.poll(), _last_part(address), material)
    _make_unique([*material.simulations, *material.federations])
    if not (material.simulations or material.federations or material.studies):
        names = ", ".join(str(source) for source in sources) or "nothing"
        raise DataError(
            f"there is nothing to report in {names}: no line in it is an event of a simulation or "
            "of a federation's member, as hubless.events.to_file and Simulation(events=...) "
            "write them"
        )
    return material


def _of_folder(folder: Path, paths: Sequence[Path], material: Material) -> None:
    """Each file has simulations of its own, but members that meet write a file each."""
    for path in paths:
        apart = Material()
        _take(FilesFeed(path).poll(), _name_of(path, alone=len(paths) == 1), apart)
        material.simulations += apart.simulations
    together = Material()
    _take(FilesFeed(folder).poll(), text(folder.resolve().name, 80), together)
    material.federations += together.federations


def _take(records: Iterable[Record], name: str, material: Material) -> None:
    """Fold records into runs; those without a name of their own are called by their source."""
    overview = Overview()
    for record in records:
        overview.apply(record)
    for run in overview.simulations:
        # an unnamed run is better known by its file
        is_unnamed = run.client == "simulation"
        run.name = name if is_unnamed else run.client
    for meeting in overview.federations:
        meeting.name = name
    material.simulations += overview.simulations
    material.federations += overview.federations


def _study(folder: Path) -> Studied | None:
    """What a study has kept in a folder: cells with rows, or arms with a curve."""
    rows: list[dict[str, Any]] = []
    for line in _lines(folder / "results.jsonl"):
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
        if len(rows) > _ROWS:
            break
    if not rows:
        return None
    page = folder / "figures.html"
    figures = sorted(folder.glob("figure-*.svg"))
    return Studied(folder.resolve().name, rows[:_ROWS], figures, page if page.is_file() else None)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        return
    with open(path, "rb") as file:
        while line := file.readline(_LINE):
            yield line


def _make_unique(items: Sequence[SimulationFold | FederationFold]) -> None:
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
    return text(folder if folder and (alone or path.stem == "events") else path.stem, 80)


def _last_part(source: str) -> str:
    """A short name for a source: the last part of its path.

    >>> _last_part("s3://bucket/run1/"), _last_part("runs/a.jsonl")
    ('run1', 'a.jsonl')
    """
    return text(source.rstrip("/").rpartition("/")[2] or source, 80)
