"""Progress: a line to the error stream now and then, made of events."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hubless import events
from hubless.cli.printing import in_bytes, in_words
from hubless.errors import printable
from hubless.events import Event

_ON_TERMINAL, _ELSEWHERE = 1.0, 5.0
"""Seconds between lines."""

_RARE = (events.Started, events.Ended, events.Joined, events.Sharing, events.Left)
_WARNED = (events.Waiting, events.Late, events.RefusedUpdate, events.Offline)


class Progress:
    """A listener that says how far things are, and at once what starts, ends or goes wrong.

    The same trouble again and again is said only as often as everything else.
    """

    def __init__(self) -> None:
        self.heard = 0
        self._rounds: dict[str, int] = {}
        self._metrics: dict[str, str] = {}
        self._printed_at: dict[str, float] = {}
        self._interval = _ON_TERMINAL if sys.stderr.isatty() else _ELSEWHERE

    def __call__(self, event: Event) -> None:
        self.heard += 1
        if isinstance(event, events.Started):
            self._rounds[event.client] = int(event.settings.get("rounds", 0))
        if isinstance(event, events.Trained) and event.metrics:
            self._metrics[event.client] = in_words(event.metrics)
        line = self._line(event)
        if line is None:
            return
        if not isinstance(event, _RARE):
            # one line now and then for each client; troubles have their own turns
            turn = f"{event.client} {event.kind}" if isinstance(event, _WARNED) else event.client
            now = time.monotonic()
            if now - self._printed_at.get(turn, -1e9) < self._interval:
                return
            self._printed_at[turn] = now
        print(printable(f"{event.client}: {line}"), file=sys.stderr, flush=True)

    def _line(self, event: Event) -> str | None:
        match event:
            case events.Started():
                clients = event.settings.get("clients")
                start = f"from round {event.round} on" if event.round else "starts"
                return start if clients is None else f"{start}, {clients} clients"
            case events.Trained():
                rounds = self._rounds.get(event.client)
                of = f" of {rounds}" if rounds else ""
                return f"round {event.round}{of}  {in_words(event.metrics)}".rstrip()
            case events.Ended():
                last = self._metrics.get(event.client, "")
                return f"{event.reason} after {event.round} rounds  {last}".rstrip()
            case events.Joined():
                again = " again" if event.resumed else ""
                return f"joined {event.url}{again} ({event.mode})"
            case events.Sharing():
                rest = f" ({event.left_out} frozen or tied)" if event.left_out else ""
                return f"shares {event.arrays} arrays, {in_bytes(event.bytes)}{rest}"
            case events.Pulled():
                peers = ", ".join(f"{peer} {number}" for peer, number in event.peers.items())
                return f"version {event.version}, took in {peers}"
            case events.Nothing():
                return f"version {event.version}, nothing new from others"
            case events.Left():
                return "left"
        return _in_rounds(event)


def _in_rounds(event: Event) -> str | None:
    match event:
        case events.Closed():
            without = f", without {', '.join(event.missing)}" if event.missing else ""
            return f"round {event.round} closed with {', '.join(event.included)}{without}"
        case events.Waiting():
            return f"round {event.round} waits for {', '.join(event.missing) or 'others'}"
        case events.Late():
            return f"round {event.round} was closed without it"
        case events.RefusedUpdate():
            return f"refused the update of {event.peer}: {event.reason}"
        case events.Offline():
            return f"trains on alone: {event.reason}"
    return None


@contextmanager
def warnings_apart() -> Iterator[None]:
    """Log warnings that are no events as usual; the events among them are said by `Progress`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not _is_event(record))
    events.logger.addHandler(handler)
    try:
        yield
    finally:
        events.logger.removeHandler(handler)


def _is_event(record: logging.LogRecord) -> bool:
    return isinstance(record.args, tuple) and any(isinstance(a, Event) for a in record.args)
