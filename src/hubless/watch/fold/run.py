"""What simulations and federations have in common, and how events come to be folded into them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from hubless import events
from hubless.watch.fold.series import CurvePoint, Curves, DecilePoint
from hubless.watch.values import Record, short, text

_RECENT = 100
_SILENT_SECONDS = 60.0
_TROUBLES = 2000
_DECILES = 5000


@dataclass(frozen=True)
class HeardEvent:
    """An event's record: whose it is, when it was, and when whoever looks on saw it arrive.

    One that stands `alone` is believed about its own client and about nobody else.
    """

    kind: str
    client: str
    time: float
    record: Record
    arrival: float = 0.0
    alone: bool = False


@dataclass
class Trouble:
    """Something that went wrong, and how often in a row."""

    time: float
    run: str
    client: str
    kind: str
    text: str
    times: int = 1


class RunFold(ABC):
    """A run: how far it is, how its metrics went, who did what in it, and what went wrong."""

    kind: str
    rest = "everything else"
    """What takes the time that no phase tells of."""

    def __init__(self, name: str, number: int = 0) -> None:
        self.name = name
        self.number = number
        """Which of the runs that were heard of."""
        self.round = 0
        self.rounds: int | None = None
        self.bytes_down = self.bytes_up = 0
        self.began: float | None = None
        self.updated = 0.0
        """When it was last heard of, by the clock of whoever looks on if that saw it happen."""
        self.reason = ""
        self.metrics: dict[str, float] = {}
        self.changes = 0
        """Goes up with everything that is heard, so that views know when to look again."""
        self.curves: Curves[CurvePoint] = Curves()
        self.deciles: Curves[DecilePoint] = Curves(_DECILES)
        self.phases: defaultdict[str, float] = defaultdict(float)
        """Where the seconds went."""
        self.staleness: Counter[int] = Counter()
        self.troubles: Counter[tuple[str, str, str]] = Counter()
        """How often something went wrong: its kind, whose it was, and what."""
        self._news: list[Trouble] = []
        self._paces: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    @abstractmethod
    def counts(self, now: float) -> dict[str, int]:
        """How many clients are in each state."""

    @abstractmethod
    def strip(self, now: float) -> dict[str, Any]:
        """Who did what and when, and how each stands."""

    @abstractmethod
    def is_over(self, now: float) -> bool:
        """Whether nothing more is to come."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Note what goes wrong by not happening."""

    def hear(self, event: HeardEvent) -> None:
        """Something was said of it."""
        self.changes += 1
        if event.time > 0:
            self.began = event.time if self.began is None else min(self.began, event.time)
        self.updated = max(self.updated, event.arrival or event.time)

    def note(self, client: str, kind: str, what: str, time: float) -> None:
        """Something went wrong."""
        what = text(what, 400)
        if (kind, client, what) in self.troubles or len(self.troubles) < _TROUBLES:
            self.troubles[kind, client, what] += 1
        self._news.append(Trouble(time, self.name, client, kind, what))

    def news(self) -> Iterator[Trouble]:
        """What went wrong since this was asked for last."""
        while self._news:
            yield self._news.pop(0)

    def status(self, now: float) -> str:
        """One of `live`, `silent` (for longer than it should be) and `ended`."""
        if self.is_over(now):
            return "ended"
        patience = max(_SILENT_SECONDS, 10 * (self.seconds_per_round() or 0.0))
        return "silent" if self.updated and now - self.updated > patience else "live"

    def seconds_per_round(self) -> float | None:
        """How long a round has taken lately, all included."""
        if len(self._paces) < 2:
            return None
        (began, first), (ended, last) = self._paces[0], self._paces[-1]
        return (ended - began) / (last - first) if last > first and ended > began else None

    def left(self, now: float) -> float | None:
        """Seconds until the last round, counted from when something was last heard."""
        pace = self.seconds_per_round()
        if pace is None or self.rounds is None or self.is_over(now):
            return None
        return max(0, self.rounds - self.round) * pace

    def lines(self) -> dict[str, dict[str, list[CurvePoint]]]:
        """What a page draws, by metric and line."""
        return {
            metric: {name: shown(series.drawn()) for name, series in lines.items()}
            for metric, lines in self.curves.lines().items()
        }

    def to_json(self, now: float) -> dict[str, Any]:
        """Everything there is to show of it."""
        return {**self.summary(now), "lines": self.lines(), "strip": self.strip(now)}

    def summary(self, now: float) -> dict[str, Any]:
        """The figures that fit into a line or two."""
        return {
            "number": self.number,
            "name": self.name,
            "kind": self.kind,
            "status": self.status(now),
            "reason": self.reason,
            "round": self.round,
            "rounds": self.rounds,
            "left": self.left(now),
            "began": self.began,
            "updated": self.updated,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "metrics": dict(self.metrics),
            "counts": self.counts(now),
            "facts": self.facts(),
        }

    def facts(self) -> dict[str, str]:
        """What the run is made of, in a word each."""
        return {}

    def time_spent(self) -> Iterator[tuple[str, float]]:
        """Where the seconds went, by phase; what no phase tells of comes last."""
        if self.phases:
            yield from self.phases.items()
            yield self.rest, max(0.0, self.seconds_in_all() - sum(self.phases.values()))

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many there are, as far as it shows."""

    @abstractmethod
    def progress(self) -> int:
        """How many rounds are done, or updates shared by whoever shared most."""

    @abstractmethod
    def seconds(self) -> float:
        """How long it has gone on."""

    @abstractmethod
    def ended(self, now: float) -> str:
        """How it ended, in a word or two, or that it has not."""

    def seconds_in_all(self) -> float:
        """Seconds that all of it took so far."""
        return 0.0

    def shortfalls(self) -> Iterator[tuple[str, str, int]]:
        """What went wrong without an event of its own: its kind, what it was, how often."""
        yield from ()

    def pace(self, time: float) -> None:
        """Another round is done."""
        self._paces.append((time, self.round))


def shown(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Points with as many digits as anybody can see."""
    return [p._replace(seconds=short(p.seconds), value=short(p.value)) for p in points]


_Fold = TypeVar("_Fold", bound=RunFold)
_Handler: TypeAlias = Callable[[_Fold, HeardEvent], None]
_HANDLERS: dict[str, _Handler[Any]] = {}


def handles(kind: str) -> Callable[[_Handler[_Fold]], _Handler[_Fold]]:
    """Have a function fold in the events of one kind. That is all that a new kind needs.

    An event without one is heard of all the same, and one of level WARNING is shown as what went
    wrong, by its `reason` or by what its class says of itself.
    """

    def register(handler: _Handler[_Fold]) -> _Handler[_Fold]:
        _HANDLERS[kind] = handler
        return handler

    return register


def handler_of(kind: str) -> _Handler[Any] | None:
    """What folds in events of this kind, if they need something of their own."""
    return _HANDLERS.get(kind)


def kinds() -> dict[str, type[events.Event]]:
    """All kinds of events there are, found by looking.

    >>> kinds()["refused"].__name__
    'RefusedUpdate'
    """
    by_kind: dict[str, type[events.Event]] = {}
    classes = list(events.Event.__subclasses__())
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        by_kind[object.__new__(kind).kind] = kind
    return by_kind


def is_of_simulation(kind: type[events.Event]) -> bool:
    """Whether an event is of a run of its own, and not of a member: such have a default name."""
    return kind.__dataclass_fields__["client"].default == "simulation"
