"""Feeds: what a run or a federation says, as it says it.

A feed is polled and gives what is new. Files of events are followed from where they were read to;
a federation in a folder or bucket, where nobody writes events, is looked at from outside.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from hubless.errors import FederationError, HublessError

Record: TypeAlias = dict[str, Any]
"""An event as its JSON line has it; `record["event"]` is its kind."""

OF_SIMULATIONS = frozenset(["started", "trained", "ended"])
OF_MEMBERS = frozenset(
    [
        "joined",
        "pushed",
        "pulled",
        "nothing",
        "picked",
        "skipped",
        "waiting",
        "late",
        "closed",
        "refused",
        "offline",
        "left",
    ]
)
"""Which kinds of events there are."""

_CHUNK = 1 << 20
_LONGEST_LINE = 64 << 20
_FEDERATION = "federation.json"
_START = b'{"event":'
_LARGEST = 1e100
_LATEST = 1e11
"""More than three thousand years: any clock and any browser can show it."""


class Feed(Protocol):
    """Where records come from."""

    name: str
    """The path or address, for titles."""

    def poll(self) -> list[Record]:
        """What is new since the last call, in order; a StoreError where nothing can be read."""
        ...


def open_feed(
    source: str | Path,
    *,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Feed:
    """Follow a file of events, a folder of such files, or a federation's folder or bucket.

    A folder with a federation in it is a federation; files of events at its top are read as well.
    Nothing is ever written to what is watched.

    Args:
        source: A path, `file://...`, `s3://bucket/run`, `gs://...`, `az://...`.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for the bucket, such as `{"aws_region": "eu-west-1"}`.
    """
    text = str(source)
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "file":
        from hubless.watch.listing import FederationFeed

        return FederationFeed(text, endpoint=endpoint, options=options)
    path = Path(unquote(urlsplit(text).path) if separator else text).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise HublessError(
            f"there is no {path}: give a file of events, a folder of such files, or the folder or "
            "bucket of a federation"
        )
    return FilesFeed(path)


def _open_folder(folder: Path) -> Feed:
    from hubless.watch.listing import FederationFeed

    files = FilesFeed(folder)
    if (folder / _FEDERATION).is_file():
        return Feeds([FederationFeed(folder), files], name=str(folder))
    if files.paths():
        return files
    try:
        # its members may have joined already, and shared nothing yet
        return FederationFeed(folder)
    except FederationError:
        raise FederationError(
            f"there is nothing to watch in {folder}: neither files of events (*.jsonl, as "
            f"hubless.events.to_file writes them) nor a federation ({_FEDERATION})"
        ) from None


class Feeds:
    """Several feeds as one, in the order of their records' times."""

    def __init__(self, feeds: Sequence[Feed], *, name: str = "") -> None:
        self.feeds = list(feeds)
        self.name = name or ", ".join(feed.name for feed in self.feeds)

    def poll(self) -> list[Record]:
        """What is new in any of them."""
        return list(heapq.merge(*(feed.poll() for feed in self.feeds), key=time_of))


class FilesFeed:
    """A file of events, or all files `*.jsonl` at the top of a folder: new ones as they appear."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._tails: dict[Path, _Tail] = {}

    def paths(self) -> list[Path]:
        """The files there are now."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(path for path in self.path.glob("*.jsonl") if path.is_file())

    def poll(self) -> list[Record]:
        """What was appended since the last call; files are merged by their records' times."""
        for path in self.paths():
            if path not in self._tails:
                self._tails[path] = _Tail(path)
        return list(heapq.merge(*(tail.poll() for tail in self._tails.values()), key=time_of))


class _Tail:
    """One file, read on from where it was read to; a file that was replaced starts over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._file = -1
        self._rest = b""
        self._skipping = False

    def poll(self) -> list[Record]:
        try:
            with open(self.path, "rb") as file:
                return list(self._read(file))
        except OSError:
            # not there at the moment; what was read of it stays read
            return []

    def _read(self, file: BinaryIO) -> Iterator[Record]:
        status = os.fstat(file.fileno())
        if status.st_ino != self._file or status.st_size < self._offset:
            self._file, self._offset, self._rest, self._skipping = status.st_ino, 0, b"", False
        file.seek(self._offset)
        while chunk := file.read(_CHUNK):
            self._offset += len(chunk)
            head, newline, rest = (self._rest + chunk).rpartition(b"\n")
            self._rest = rest
            if newline:
                lines = head.split(b"\n")
                yield from parse_lines(lines[1:] if self._skipping else lines)
                self._skipping = False
            if len(self._rest) > _LONGEST_LINE:
                self._rest, self._skipping = b"", True


def parse_lines(lines: Sequence[bytes]) -> Iterator[Record]:
    """The records in lines of JSON; whatever else stands there is passed over.

    >>> [record["event"] for record in parse_lines([b'{"event": "left"}', b"[1]", b"no JSON"])]
    ['left']
    """
    for line in lines:
        record = _parse(line)
        # who was killed in the middle of a line and went on left two records in one
        if record is None and (at := line.rfind(_START)) > 0:
            record = _parse(line[at:])
        if record is not None:
            yield record


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line, parse_constant=_nothing)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and isinstance(record.get("event"), str):
        return record
    return None


def _nothing(_: str) -> None:
    """What is not finite is nothing, as in `hubless.events`."""


def time_of(record: Record) -> float:
    """When something was said, in seconds since the epoch, or 0 where no clock can show it.

    >>> time_of({"time": 1e9}), time_of({"time": 1e50}), time_of({})
    (1000000000.0, 0.0, 0.0)
    """
    said = finite(record.get("time")) or 0.0
    return said if 0 <= said < _LATEST else 0.0


def finite(value: object) -> float | None:
    """A number that sums stay finite with, or None for whatever else an untrusted record may hold.

    >>> finite(3), finite("3"), finite(float("inf")), finite(1e300), finite(10**400)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # no NaN is less than anything
    return float(value) if abs(value) < _LARGEST else None
