"""Feeds: what a run or a federation says, as it says it.

A feed is polled and gives what is new. Files of events are followed from where they were read to;
a federation in a folder or bucket, where nobody writes events, is looked at from outside.
"""

from __future__ import annotations

import heapq
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from hubless.errors import FederationError
from hubless.events import logger
from hubless.watch.values import Record, time_of

_CHUNK = 1 << 20
_LONGEST_LINE = 32 << 20
_LONGEST_OF_MEMBERS = 1 << 20
_LARGEST_OF_MEMBERS = 256 << 20
_FILES = 500
_FEDERATION = "federation.json"
_START = b'{"event":'


class Awaited(FederationError):
    """There is nothing to watch yet; the text says what is missing."""


class Feed(Protocol):
    """Where records come from."""

    name: str
    """The path or address, for titles."""

    def poll(self) -> Iterable[Record]:
        """What is new since the last call, in order, as it is read.

        A StoreError where nothing can be read, and `Awaited` where there is nothing yet.
        """
        ...


def open_feed(
    source: str | Path,
    *,
    endpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    wait: bool = False,
) -> Feed:
    """Follow a file of events, a folder of such files, or a federation's folder or bucket.

    A folder with a federation in it is a federation; of the files of events at its top, each is
    believed about the member that it is called by. Nothing is ever written to what is watched.

    Args:
        source: A path, `file://...`, `s3://bucket/run`, `gs://...`, `az://...`.
        endpoint: Where an S3, GCS or Azure server of your own answers.
        options: Settings for the bucket, such as `{"aws_region": "eu-west-1"}`.
        wait: Where there is nothing yet, give a feed that looks for it each time it is polled.
    """

    def opened() -> Feed:
        return _open(str(source), endpoint, options)

    try:
        return opened()
    except Awaited:
        if not wait:
            raise
        return _AwaitedFeed(str(source), opened)


def _open(text: str, endpoint: str | None, options: Mapping[str, str] | None) -> Feed:
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "file":
        from hubless.watch.listing import FederationFeed

        return FederationFeed(text, endpoint=endpoint, options=options)
    path = Path(unquote(urlsplit(text).path) if separator else text).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise Awaited(
            f"there is no {path}: give a file of events, a folder of such files, or the folder or "
            "bucket of a federation"
        )
    return FilesFeed(path)


def _open_folder(folder: Path) -> Feed:
    from hubless.watch.listing import FederationFeed

    if (folder / _FEDERATION).is_file():
        return Feeds([FederationFeed(folder), FilesFeed(folder, of_members=True)], name=str(folder))
    files = FilesFeed(folder)
    if files.paths():
        return files
    try:
        # its members may have joined already, and shared nothing yet
        return FederationFeed(folder)
    except Awaited:
        raise Awaited(
            f"there is nothing to watch in {folder}: neither files of events (*.jsonl, as "
            f"hubless.events.to_file writes them) nor a federation ({_FEDERATION})"
        ) from None


class _AwaitedFeed:
    """A feed that is opened once there is something."""

    def __init__(self, name: str, opened: Callable[[], Feed]) -> None:
        self.name = name
        self._opened = opened
        self._feed: Feed | None = None

    def poll(self) -> Iterable[Record]:
        """What is new, once it is there."""
        if self._feed is None:
            self._feed = self._opened()
        return self._feed.poll()


class Feeds:
    """Several feeds as one, in the order of their records' times."""

    def __init__(self, feeds: Sequence[Feed], *, name: str = "") -> None:
        self.feeds = list(feeds)
        self.name = name or ", ".join(feed.name for feed in self.feeds)

    def poll(self) -> Iterator[Record]:
        """What is new in any of them."""
        return heapq.merge(*(feed.poll() for feed in self.feeds), key=time_of)


class FilesFeed:
    """A file of events, or all files `*.jsonl` at the top of a folder: new ones as they appear.

    Where members share the folder (`of_members`), anybody may have written any of them: NAME.jsonl
    is believed about the client NAME alone, no link is followed, and huge files are passed over.
    """

    def __init__(self, path: str | Path, *, of_members: bool = False) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._of_members = of_members
        self._tails: dict[Path, _Tail] = {}

    def paths(self) -> list[Path]:
        """The files there are now."""
        if not self.path.is_dir():
            return [self.path]
        paths = sorted(
            path
            for path in self.path.glob("*.jsonl")
            if path.is_file() and not (self._of_members and path.is_symlink())
        )
        if len(paths) > _FILES:
            logger.warning("only %d of the %d files in %s are read", _FILES, len(paths), self.path)
        return paths[:_FILES]

    def poll(self) -> Iterator[Record]:
        """What was appended since the last call; files are merged by their records' times."""
        paths = self.paths()
        if len(self._tails) > 2 * _FILES:
            # somebody makes up names without end
            self._tails = {path: t for path, t in self._tails.items() if path in paths}
        for path in paths:
            if path not in self._tails:
                self._tails[path] = _Tail(path, path.stem if self._of_members else "")
        return heapq.merge(*(tail.poll() for tail in self._tails.values()), key=time_of)


class _Tail:
    """One file, read on from where it was read to; a file that was replaced starts over.

    With a `writer`, only what it tells of the client of that name is read.
    """

    def __init__(self, path: Path, writer: str = "") -> None:
        self.path, self.writer = path, writer
        self._longest = _LONGEST_OF_MEMBERS if writer else _LONGEST_LINE
        self._offset = 0
        self._file = -1
        self._rest = b""
        self._is_skipping = False

    def poll(self) -> Iterator[Record]:
        # what is appended meanwhile is for the next time
        end: int | None = None
        while end is None or self._offset < end:
            try:
                chunk, size = self._read(end)
            except OSError:
                # not there at the moment; what was read of it stays read
                return
            end = size if end is None else end
            if not chunk:
                return
            for record in self._parsed(chunk):
                if self.writer:
                    if record.get("client") != self.writer:
                        continue
                    record["believed_about"] = self.writer
                yield record

    def _read(self, end: int | None) -> tuple[bytes, int]:
        """The next piece, and how much there is; the file is open for no longer than that."""
        # a name that has become a pipe meanwhile must not be waited for
        flags = os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if self.writer else 0)
        with open(os.open(self.path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return b"", 0
            if self.writer and status.st_size > _LARGEST_OF_MEMBERS:
                return b"", 0
            if status.st_ino != self._file or status.st_size < self._offset:
                self._file, self._offset = status.st_ino, 0
                self._rest, self._is_skipping = b"", False
            file.seek(self._offset)
            most = _CHUNK if end is None else min(_CHUNK, end - self._offset)
            chunk = file.read(most)
        self._offset += len(chunk)
        return chunk, status.st_size

    def _parsed(self, chunk: bytes) -> Iterator[Record]:
        head, newline, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest
        if newline:
            lines = head.split(b"\n")
            was_skipping, self._is_skipping = self._is_skipping, False
            yield from parse_lines(lines[1:] if was_skipping else lines)
        if len(self._rest) > self._longest:
            self._rest, self._is_skipping = b"", True


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
        # who a record is believed about is not for the record to say
        record.pop("believed_about", None)
        return record
    return None


def _nothing(_: str) -> None:
    """What is not finite is nothing, as in `hubless.events`."""
