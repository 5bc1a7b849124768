"""A run: how far it is, how its metrics went, and who did what in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hubless.watch.feed import Record, finite
from hubless.watch.fold.series import CurvePoint, Series
from hubless.watch.fold.strip import TRAINED, Strip

MOST_METRICS = 32
_RECENT = 100
_SILENT_SECONDS = 60.0
_SETTINGS = (
    "model",
    "recipe",
    "strategy",
    "selector",
    "cohort",
    "clients",
    "examples",
    "engine",
    "pace",
    "devices",
    "seed",
)
_MOST_CLIENTS = 50_000_000
_LARGEST = 10**15


class RunFold(ABC):
    """What simulations and federations have in common."""

    kind: str

    def __init__(self, name: str, number: int = 0) -> None:
        self.name = name
        self.number = number
        """Which of the runs that were heard of."""
        self.round = 0
        self.rounds: int | None = None
        self.bytes_down = self.bytes_up = 0
        self.began: float | None = None
        self.updated = 0.0
        self.reason = ""
        self.metrics: dict[str, float] = {}
        self.changes = 0
        """Goes up with everything that is heard, so that views know when to look again."""
        self._lines: dict[tuple[str, str], Series] = {}
        self._paces: deque[tuple[float, int]] = deque(maxlen=_RECENT)

    @abstractmethod
    def apply(
        self, kind: str, client: str, when: float, record: Record
    ) -> Iterator[tuple[str, str]]:
        """Fold in one record; what went wrong, and with which client."""

    @abstractmethod
    def counts(self, now: float) -> dict[str, int]:
        """How many clients are in each state."""

    @abstractmethod
    def strip(self) -> dict[str, Any]:
        """Who did what and when."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing more is to come."""

    def hear(self, when: float) -> None:
        """Something was said at this time."""
        self.changes += 1
        if when > 0:
            self.began = when if self.began is None else self.began
            self.updated = max(self.updated, when)

    def status(self, now: float) -> str:
        """One of `live`, `silent` (for longer than it should be) and `ended`."""
        if self.is_over:
            return "ended"
        patience = max(_SILENT_SECONDS, 10 * (self.seconds_per_round() or 0.0))
        return "silent" if self.updated and now - self.updated > patience else "live"

    def seconds_per_round(self) -> float | None:
        """How long a round has taken lately, all included."""
        if len(self._paces) < 2:
            return None
        (began, first), (ended, last) = self._paces[0], self._paces[-1]
        return (ended - began) / (last - first) if last > first and ended > began else None

    def left(self) -> float | None:
        """Seconds until the last round, counted from when something was last heard."""
        pace = self.seconds_per_round()
        if pace is None or self.rounds is None or self.is_over:
            return None
        return max(0, self.rounds - self.round) * pace

    def lines(self) -> dict[str, dict[str, list[CurvePoint]]]:
        """Points by metric and line: a simulation has one line, a federation one per member."""
        found: dict[str, dict[str, list[CurvePoint]]] = {}
        for (metric, line), series in self._lines.items():
            found.setdefault(metric, {})[line] = series.drawn()
        return found

    def to_json(self, now: float) -> dict[str, Any]:
        """Everything there is to show of it."""
        return {**self.summary(now), "lines": self.lines(), "strip": self.strip()}

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
            "left": self.left(),
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

    def _draw(self, metric: str, line: str, point: CurvePoint) -> None:
        metrics = {known for known, _ in self._lines}
        if metric in metrics or len(metrics) < MOST_METRICS:
            self._lines.setdefault((metric, line), Series()).put(point)


class SimulationFold(RunFold):
    """A simulated run, as `started`, `trained` and `ended` tell of it."""

    kind = "simulation"

    def __init__(self, name: str, number: int = 0) -> None:
        super().__init__(name, number)
        self._settings: Mapping[str, Any] = {}
        self._seconds = 0.0
        self._last = {"trained": 0, "late": 0, "skipped": 0}
        self._seen = bytearray()
        self._ever = 0
        self._strip = Strip("round")
        # where the run was at earlier rounds, for when it goes back to one
        self._so_far = Series()

    @property
    def is_over(self) -> bool:
        return bool(self.reason)

    def apply(
        self, kind: str, client: str, when: float, record: Record
    ) -> Iterator[tuple[str, str]]:
        """Fold in one record; what went wrong."""
        number = whole(record.get("round"))
        if kind == "started":
            self._start(number, record)
        elif kind == "trained":
            yield from self._train(number, when, record)
        else:
            self.reason = text(record.get("reason")) or "complete"
            self.round = max(self.round, number)
            if self.reason in ("failed", "interrupted"):
                yield "", f"the run {self.reason} after {self.round} rounds"

    def _start(self, number: int, record: Record) -> None:
        settings = record.get("settings")
        self._settings = settings if isinstance(settings, Mapping) else {}
        self.reason = ""
        self.rounds = whole(self._settings.get("rounds")) or None
        self._paces.clear()
        # a run that goes on does the rounds after its last checkpoint once more
        for series in self._lines.values():
            series.forget_after(number)
        before = self._so_far.forget_after(number)
        self._seconds, self.bytes_down = (before.seconds, before.bytes) if before else (0.0, 0)
        self.bytes_up = int(before.value) if before else 0
        self._strip.forget_after(number)
        self.round = number
        if number == 0:
            self._strip, self._lines, self._seen, self.metrics = Strip("round"), {}, bytearray(), {}
            self._ever = 0

    def _train(self, number: int, when: float, record: Record) -> Iterator[tuple[str, str]]:
        cohort = [c for c in items(record.get("cohort")) if type(c) is int and c >= 0]
        self.round = max(self.round, number)
        self.reason = ""
        self._seconds += max(0.0, finite(record.get("seconds")) or 0.0)
        self.bytes_down += whole(record.get("bytes_down"))
        self.bytes_up += whole(record.get("bytes_up"))
        self._paces.append((when, number))
        down, up = self.bytes_down, self.bytes_up
        self._so_far.add(CurvePoint(number, self._seconds, down, up))
        for metric, value in numbers(record.get("metrics")).items():
            if value is None:
                yield "", f"{metric} is no finite number in round {number}"
                continue
            if metric in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[metric] = value
            self._draw(
                metric, "", CurvePoint(number, short(self._seconds), down + up, short(value))
            )
        self._last = {
            "trained": len(cohort),
            "late": whole(record.get("dropped")),
            "skipped": whole(record.get("skipped")),
        }
        for client in cohort:
            self._see(client)
            self._strip.mark(str(client), number, TRAINED)

    def _see(self, client: int) -> None:
        """Count those who ever trained, at a byte for each client there is."""
        if client < _MOST_CLIENTS:
            if client >= len(self._seen):
                self._seen.extend(bytes(client + 1 - len(self._seen)))
            self._ever += not self._seen[client]
            self._seen[client] = 1

    def counts(self, now: float) -> dict[str, int]:
        """Of the last round: who trained, came too late or had nothing, and all the others."""
        idle = max(0, self._clients() - sum(self._last.values()))
        return {**{state: n for state, n in self._last.items() if n}, "idle": idle}

    def strip(self) -> dict[str, Any]:
        """Who trained in which rounds."""
        return self._strip.to_json(self._clients())

    def facts(self) -> dict[str, str]:
        """The settings that matter, and how many of the clients ever trained."""
        known = {name: self._settings.get(name) for name in _SETTINGS}
        found = {name: text(value, 200) for name, value in known.items() if value is not None}
        if self._ever and self._clients():
            found["ever trained"] = f"{self._ever:,} of {self._clients():,} clients"
        return found

    def _clients(self) -> int:
        return max(whole(self._settings.get("clients")), self._ever)


def text(value: object, most: int = 100) -> str:
    """Text of bounded length that any page can hold, whatever it was.

    >>> text("site-a"), text(None), text(7), text(chr(0xD800)), len(text("x" * 1000))
    ('site-a', '', '7', '?', 100)
    """
    if value is None:
        return ""
    said = str(value).encode("utf-8", "replace").decode()
    return said if len(said) <= most else f"{said[: most - 1]}…"


def whole(value: object) -> int:
    """A count that is not negative, or 0."""
    number = finite(value)
    return min(_LARGEST, max(0, int(number))) if number is not None else 0


def items(value: object) -> Sequence[Any]:
    """A list, or none."""
    return value if isinstance(value, list) else []


def numbers(value: object) -> dict[str, float | None]:
    """Metrics by name; None where one is no finite number."""
    if not isinstance(value, Mapping):
        return {}
    return {text(name): finite(number) for name, number in list(value.items())[:MOST_METRICS]}


def short(value: float) -> float:
    """A number in as many digits as anybody can see."""
    return float(f"{value:.6g}")
