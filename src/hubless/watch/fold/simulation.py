"""A simulated run, as `started`, `trained` and `ended` tell of it."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hubless.watch.fold.run import HeardEvent, RunFold, handles
from hubless.watch.fold.series import CurvePoint, DecilePoint
from hubless.watch.fold.strip import TRAINED, Strip
from hubless.watch.fold.tally import Allowance, Tally
from hubless.watch.values import (
    MOST_METRICS,
    Record,
    count,
    finite,
    items,
    mapping,
    numbers,
    positive,
    text,
    whole,
)

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
_LARGEST_CLIENT = 1 << 40
_ROUNDS_KEPT = 10_000
_PICKS_KEPT = 1_000_000
_PHASES = 20
_STALENESS = 10_000


@dataclass
class _Done:
    """What one round added, so that it can be taken back when the run goes back to before it."""

    cohort: array[int]
    staleness: Counter[int]
    phases: Mapping[str, float]
    down: int
    up: int
    dropped: int
    skipped: int
    elapsed: float = 0.0


class SimulationFold(RunFold):
    """A simulation: its rounds added up, and which clients trained in them.

    A run that was killed does the rounds after its last checkpoint again: what they added before is
    taken back. Time does not count what passed between the two.
    """

    kind = "simulation"

    def __init__(
        self,
        name: str,
        number: int = 0,
        allowance: Allowance | None = None,
        client: str = "simulation",
    ) -> None:
        super().__init__(name, number)
        self.client = client
        """What its events call it, whatever it is called here."""
        self.settings: Mapping[str, Any] = {}
        self.tally = Tally(allowance or Allowance())
        self.dropped = self.skipped = 0
        self.elapsed = 0.0
        """Seconds of the run so far."""
        self._since: float | None = None
        self._last = {"trained": 0, "late": 0, "skipped": 0}
        self._strip = Strip("round")
        self._done: OrderedDict[int, _Done] = OrderedDict()
        self._picks_kept = 0

    def is_over(self, now: float) -> bool:
        return bool(self.reason)

    def start(self, event: HeardEvent) -> None:
        """The run starts, or somebody goes on with it."""
        number = count(event.record.get("round"))
        self.settings = mapping(event.record.get("settings"))
        self.reason = ""
        self.rounds = count(self.settings.get("rounds")) or None
        self._paces.clear()
        for later in [n for n in self._done if n > number]:
            self._take_back(later)
        self.curves.forget_after(number)
        self.deciles.forget_after(number)
        self._strip.forget_after(number)
        self.round = number
        last = next(reversed(self._done.values()), None)
        self.elapsed = last.elapsed if last else 0.0
        self._since = event.time - self.elapsed if event.time else None

    def train(self, event: HeardEvent) -> None:
        """A round is over."""
        number = whole(event.record.get("round"))
        if number is None or number < 0:
            return
        self._take_back(number)
        done = self._add(event.record)
        self.round, self.reason = max(self.round, number), ""
        self.elapsed = done.elapsed = self._elapsed(event)
        self._done[number] = done
        self._picks_kept += len(done.cohort)
        while len(self._done) > _ROUNDS_KEPT or self._picks_kept > _PICKS_KEPT:
            _, oldest = self._done.popitem(last=False)
            self._picks_kept -= len(oldest.cohort)
        self.pace(event.time)
        self._draw(number, event)
        self._last = {"trained": len(done.cohort), "late": done.dropped, "skipped": done.skipped}
        for client in done.cohort:
            self._strip.mark(str(client), number, TRAINED)

    def end(self, event: HeardEvent) -> None:
        """The run is over, for this time."""
        self.reason = text(event.record.get("reason"), 40) or "complete"
        self.round = max(self.round, count(event.record.get("round")))
        if self.reason not in ("complete", "stopped"):
            self.note("", event.kind, f"{self.reason} after {self.round} rounds", event.time)

    def give_way(self) -> None:
        """A run of the same name starts: this one will not go on."""
        self.reason = self.reason or "begun anew"

    def check(self, now: float) -> None:
        """Nothing: that it is silent shows in its status, and it may only be slow."""

    def counts(self, now: float) -> dict[str, int]:
        """Of the last round: who trained, came too late or had nothing, and all the others."""
        idle = max(0, self.clients - sum(self._last.values()))
        return {**{state: n for state, n in self._last.items() if n}, "idle": idle}

    def strip(self, now: float) -> dict[str, Any]:
        """Who trained in which rounds."""
        return self._strip.to_json(self.clients)

    def facts(self) -> dict[str, str]:
        """The settings that matter, and how many of the clients ever trained."""
        settings = {name: self.settings.get(name) for name in _SETTINGS}
        facts = {name: text(value, 200) for name, value in settings.items() if value is not None}
        if self.tally.clients and self.clients:
            facts["ever trained"] = f"{self.tally.clients:,} of {self.clients:,} clients"
        return facts

    def progress(self) -> int:
        """How many rounds are done."""
        return self.round

    def seconds(self) -> float:
        """Seconds so far, without the time between a run that was killed and one that went on."""
        return self.elapsed

    def ended(self, now: float) -> str:
        """Why it ended, or that it has not."""
        return self.reason or "not ended"

    def seconds_in_all(self) -> float:
        """Seconds of the run so far."""
        return self.elapsed

    def shortfalls(self) -> Iterator[tuple[str, str, int]]:
        """Clients that were picked for nothing."""
        if self.skipped:
            yield "skipped", "clients that were picked had no examples", self.skipped
        if self.dropped:
            what = "clients that were picked came too late for their round"
            yield "dropped", what, self.dropped

    @property
    def clients(self) -> int:
        """How many there are, as far as it shows."""
        return max(count(self.settings.get("clients")), self.tally.clients)

    def _add(self, record: Record) -> _Done:
        cohort = [
            c for c in items(record.get("cohort")) if type(c) is int and 0 <= c < _LARGEST_CLIENT
        ]
        examples = [size if type(size) is int else -1 for size in items(record.get("examples"))]
        behind = Counter(b for b in map(whole, items(record.get("staleness"))) if b is not None)
        spent = list(mapping(record.get("phases")).items())[:_PHASES]
        phases = {text(name, 40): positive(seconds) for name, seconds in spent}
        done = _Done(
            array("q", cohort),
            Counter(dict(list(behind.items())[:_STALENESS])),
            phases,
            count(record.get("bytes_down")),
            count(record.get("bytes_up")),
            count(record.get("dropped")),
            count(record.get("skipped")),
        )
        self.tally.add(cohort, examples if len(examples) == len(cohort) else ())
        if len(self.staleness) < _STALENESS:
            self.staleness.update(done.staleness)
        self._sum(done, 1)
        return done

    def _take_back(self, number: int) -> None:
        done = self._done.pop(number, None)
        if done is None:
            return
        self._picks_kept -= len(done.cohort)
        self.tally.take_back(done.cohort)
        self.staleness.subtract(done.staleness)
        self._sum(done, -1)

    def _sum(self, done: _Done, sign: int) -> None:
        self.bytes_down += sign * done.down
        self.bytes_up += sign * done.up
        self.dropped += sign * done.dropped
        self.skipped += sign * done.skipped
        for name, seconds in done.phases.items():
            if name in self.phases or len(self.phases) < _PHASES:
                self.phases[name] += sign * seconds

    def _elapsed(self, event: HeardEvent) -> float:
        seconds = positive(event.record.get("seconds"))
        if not event.time:
            return self.elapsed + seconds
        if self._since is None:
            self._since = event.time - seconds
        return max(0.0, event.time - self._since)

    def _draw(self, number: int, event: HeardEvent) -> None:
        moved, clock = self.bytes_down + self.bytes_up, finite(event.record.get("virtual"))
        for metric, value in numbers(event.record.get("metrics")).items():
            if value is None:
                what = f"{metric} is no finite number in round {number}"
                self.note("", event.kind, what, event.time)
                continue
            if metric in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[metric] = value
            point = CurvePoint(number, self.elapsed, moved, value, clock)
            self.curves.put(metric, "", point)
        for metric, values in list(mapping(event.record.get("deciles")).items())[:MOST_METRICS]:
            tenths = tuple(finite(value) for value in items(values)[:10])
            if any(value is not None for value in tenths):
                self.deciles.put(text(metric), "", DecilePoint(number, tenths))


@handles("started")
def _started(run: SimulationFold, event: HeardEvent) -> None:
    run.start(event)


@handles("trained")
def _trained(run: SimulationFold, event: HeardEvent) -> None:
    run.train(event)


@handles("ended")
def _ended(run: SimulationFold, event: HeardEvent) -> None:
    run.end(event)
