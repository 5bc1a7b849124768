"""Events: everything a run says. Terminals, pages, reports and trackers only ever read these."""

from __future__ import annotations

import io
import json
import logging
import math
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hubless.checks import fitting
from hubless.errors import HublessError

logger = logging.getLogger("hubless")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to one client at one time (seconds since the epoch)."""

    client: str
    time: float = field(default_factory=time.time)
    level = logging.INFO

    @property
    def kind(self) -> str:
        """The event's name in files: `pushed`, `refused`..."""
        return type(self).__name__.lower()

    def to_json(self) -> str:
        """One line that says everything there is to say: what is None is left out."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"event": self.kind, **plain(fields)}, allow_nan=False)


Listener: TypeAlias = Callable[[Event], None]
Listeners: TypeAlias = "Listener | str | Path | Iterable[Listener | str | Path]"
"""A listener, a file for events as JSON lines, or several of these."""


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """A member joined; `resumed` when its name had been here before."""

    url: str
    mode: str
    incarnation: str
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Sharing(Event):
    """What of its model the member shares: so many arrays, of so many bytes.

    Those `left_out` are frozen, or tied to others, or named by no pattern of `share`.
    """

    arrays: int
    bytes: int
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Pushed(Event):
    """The member's update is in the store, acknowledged.

    `valuation` is what was published of it, with its noise if it is private; `epsilon` then is
    what this member has given away so far.
    """

    key: str
    sequence: int
    examples: int
    bytes: int
    metrics: Mapping[str, float]
    valuation: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pulled(Event):
    """Peers' updates were averaged in: who, which of theirs, with what weight, how stale."""

    peers: Mapping[str, int]
    weights: Mapping[str, float]
    version: int
    bytes: int
    seconds: float
    staleness: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Nothing(Event):
    """No peer had anything new; the member trains on."""

    version: int


@dataclass(frozen=True, kw_only=True)
class Picked(Event):
    """These are to train in a round; in asynchronous mode, in this turn of the member's own."""

    round: int
    cohort: list[str]


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """The member sat this one out: by its participation, or as it was not picked for a `round`."""

    step: int
    round: int | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """A synchronous round waits for these."""

    round: int
    present: int
    missing: list[str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Late(Event):
    """A round was closed without this member, which delivers in the next one it has a part in.

    Of several rounds that went by since its last call, it is the last one.
    """

    round: int
    level = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Closed(Event):
    """A synchronous round is complete; `missing` are those it was to include, and went without."""

    round: int
    included: list[str]
    seconds: float
    missing: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedUpdate(Event):
    """A peer's update was not let in."""

    peer: str
    key: str
    reason: str
    level = logging.WARNING

    @property
    def kind(self) -> str:
        return "refused"


@dataclass(frozen=True, kw_only=True)
class Impostor(Event):
    """Something lies under this member's own name that this member did not write."""

    key: str
    reason: str
    level = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Forged(Event):
    """A slice of a round's result that comes out otherwise when this member computes it."""

    peer: str
    key: str
    reason: str
    level = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Offline(Event):
    """The store could not be reached; the member trains on alone and tries again next time."""

    reason: str
    level = logging.WARNING


@dataclass(frozen=True, kw_only=True)
class Left(Event):
    """The member closed its federation."""

    steps: int


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A simulation starts, or goes on after `round` rounds; what it is made of is in `settings`."""

    client: str = "simulation"
    round: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trained(Event):
    """A simulated round is over: who trained, how it went, what it would have cost.

    `skipped` had no data and `dropped` came too late; `virtual` is the clients' clock in seconds.
    For each of the cohort, `examples` is what it trained on, `valuations` what it said training it
    is worth, and `staleness` how many versions had passed since it started; `phases` is where the
    seconds went. `deciles` has the metrics of each tenth of the test's clients, lightest first.
    """

    client: str = "simulation"
    round: int
    cohort: list[int]
    skipped: int
    dropped: int
    metrics: Mapping[str, float]
    bytes_down: int
    bytes_up: int
    seconds: float
    virtual: float
    examples: list[int] | None = None
    valuations: list[float] | None = None
    staleness: list[int] | None = None
    phases: Mapping[str, float] | None = None
    deciles: Mapping[str, list[float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """A simulation is over: complete, stopped by a callback, interrupted or failed."""

    client: str = "simulation"
    round: int
    reason: str


class Events:
    """Hands every event to the log and to each listener; a listener that fails is only logged.

    >>> events = Events([lambda event: print(event.kind)])
    >>> events.emit(Nothing(client="site-a", version=3))
    nothing
    """

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self.listeners: list[Listener] = list(listeners)

    def emit(self, event: Event) -> None:
        """Tell everyone."""
        logger.log(event.level, "%s", event)
        for listener in (*self.listeners, *_everywhere):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed on %s", event.kind)


_everywhere: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear every event of every run in this process, while the block lasts.

    >>> with listening(lambda event: print(event.kind)):
    ...     Events().emit(Nothing(client="site-a", version=3))
    nothing
    """
    _everywhere.append(listener)
    try:
        yield
    finally:
        _everywhere.remove(listener)


def listeners_of(events: Listeners) -> list[Listener]:
    """What a run is told with `events=`, as a list: listeners, and files that they are to write."""
    each: list[Any] = [events]
    if isinstance(events, Iterable) and not isinstance(events, str | Path | Mapping | io.IOBase):
        each = list(events)
    takes = "a function that is called with each event, a file for them, or a list of these"
    for one in each:
        fits = callable(one) or isinstance(one, str | Path)
        fitting("events", one, fits, takes, error=HublessError)
    return [_writing(Path(one)) if isinstance(one, str | Path) else one for one in each]


def _writing(path: Path) -> Listener:
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else "lies in no folder that there is"
        raise HublessError(f"events= takes a file to append to, and {str(path)!r} {why}")
    return to_file(path)


def to_file(path: str | Path) -> Listener:
    """A listener that appends each event to a file as one JSON line."""

    def write(event: Event) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(event.to_json() + "\n")

    return write


def plain(value: Any) -> Any:
    """As JSON can say it: numpy's numbers as Python's, and what is not finite as nothing.

    >>> plain({"loss": float("nan"), "of": (1, 2.5)})
    {'loss': None, 'of': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return value
