"""Folding: what events amount to, for every view to show.

Everything is folded in as it comes, in memory that does not grow with a run. Records are
untrusted: whatever is not what it should be is passed over.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from hubless.errors import HublessError
from hubless.watch.feed import Awaited, Feed
from hubless.watch.fold import handlers as handlers
from hubless.watch.fold import strip
from hubless.watch.fold.federation import FederationFold
from hubless.watch.fold.places import Places
from hubless.watch.fold.run import HeardEvent, RunFold, Trouble, handler_of, is_of_simulation, kinds
from hubless.watch.fold.simulation import SimulationFold
from hubless.watch.fold.tally import Allowance
from hubless.watch.values import Record, count, text, time_of

_TROUBLES = 30
_RUNS = 64


class Overview:
    """All runs that were heard of, and what went wrong lately.

    >>> overview = Overview()
    >>> overview.apply({"event": "started", "client": "a", "round": 0, "settings": {"rounds": 9}})
    >>> overview.apply({"event": "trained", "client": "a", "round": 1, "metrics": {"loss": 0.5}})
    >>> run = overview.to_json()["runs"][0]
    >>> run["name"], run["round"], run["rounds"], run["metrics"]
    ('a', 1, 9, {'loss': 0.5})
    """

    def __init__(self, name: str = "") -> None:
        self.name = text(name, 1000)
        self.troubles: deque[Trouble] = deque(maxlen=_TROUBLES)
        self.noted = 0
        """How many troubles there were in all, those that are no longer kept included."""
        self.feed_trouble = ""
        """Why nothing new can be read at the moment, if so."""
        self.awaited = ""
        """What is waited for, where nothing is there yet."""
        self.looked: set[int] = set()
        self._runs: dict[tuple[str, str], RunFold] = {}
        self._places: dict[str, Places] = {}
        self._allowance = Allowance()
        self._kinds = kinds()
        self._numbers = 0

    @property
    def runs(self) -> list[RunFold]:
        """All runs, in the order in which they were first heard of."""
        return list(self._runs.values())

    @property
    def simulations(self) -> list[SimulationFold]:
        """Those of the runs that are simulations."""
        return [run for run in self._runs.values() if isinstance(run, SimulationFold)]

    @property
    def federations(self) -> list[FederationFold]:
        """Those of the runs that are federations."""
        return [run for run in self._runs.values() if isinstance(run, FederationFold)]

    def is_over(self, now: float) -> bool:
        """Whether there was something, and all of it has ended."""
        return bool(self._runs) and all(run.is_over(now) for run in self._runs.values())

    def apply(self, record: Record, source: str = "", arrival: float = 0.0) -> None:
        """Fold in one record; `source` keeps apart what comes from several places.

        `arrival` is when it happened by the clock of whoever looks on, or 0 for its own time.
        """
        kind = record.get("event")
        if not isinstance(kind, str):
            return
        if kind not in self._kinds:
            # whoever uses this package may have kinds of their own
            self._kinds = kinds()
        event_class = self._kinds.get(kind)
        if event_class is None:
            return
        alone = text(record.get("believed_about"))
        client = text(record.get("client"))
        event = HeardEvent(kind, client, time_of(record), record, arrival, bool(alone))
        if is_of_simulation(event_class):
            run = self._simulation(source, client or "simulation", event)
        else:
            place = self._places.setdefault(source, Places()).of(record)
            name = f"federation {place + 1}" if place else "federation"
            run = self._run(source, name, FederationFold)
        run.hear(event)
        if (handler := handler_of(kind)) is not None:
            handler(run, event)
        elif isinstance(run, FederationFold):
            run.own(event)
            if event_class.level >= logging.WARNING:
                run.mark(client, event, strip.WRONG)
                what = text(record.get("reason")) or str(event_class.__doc__).partition("\n")[0]
                run.wrong(client, event, what)
        self._take_news(run)

    def check(self, now: float) -> None:
        """Note what goes wrong by not happening."""
        for run in self._runs.values():
            run.check(now)
            self._take_news(run)

    def to_json(self, now: float | None = None) -> dict[str, Any]:
        """Everything, as the page takes it."""
        now = time.time() if now is None else now
        return {"now": now, **self.summary(), "runs": [run.to_json(now) for run in self.runs]}

    def summary(self) -> dict[str, Any]:
        """What does not belong to any one run; the last trouble comes first."""
        return {
            "name": self.name,
            "trouble": [dict(vars(trouble)) for trouble in reversed(self.troubles)],
            "unreachable": self.feed_trouble,
            "awaited": self.awaited,
        }

    def _simulation(self, source: str, name: str, event: HeardEvent) -> RunFold:
        key = source, f"simulation {name}"
        former = self._runs.get(key)
        begins = event.kind == "started" and not count(event.record.get("round"))
        if begins and isinstance(former, SimulationFold) and former.round:
            former.give_way()
            # it stays to be looked at, under a key that nobody asks for again
            self._runs[source, f"simulation {name}\n{former.number}"] = self._runs.pop(key)
        return self._run(source, name, SimulationFold)

    def _run(
        self, source: str, name: str, kind: type[SimulationFold] | type[FederationFold]
    ) -> RunFold:
        key = source, f"{kind.kind} {name}"
        if key not in self._runs:
            sources = {at for at, _ in self._runs}
            # several places may each have a run of that name
            title = f"{source}: {name}" if source and sources - {source} else name
            taken = {run.name for run in self._runs.values()}
            title, again = text(title, 1000), 1
            while title in taken:
                again += 1
                title = f"{text(name, 1000)} ({again})"
            if kind is SimulationFold:
                self._runs[key] = SimulationFold(title, self._numbers, self._allowance, name)
            else:
                self._runs[key] = FederationFold(title, self._numbers)
            self._numbers += 1
            self._make_room(key)
        return self._runs[key]

    def _make_room(self, new: tuple[str, str]) -> None:
        if len(self._runs) <= _RUNS:
            return
        others = [key for key in self._runs if key != new]
        over = [key for key in others if self._runs[key].is_over(time.time())] or others
        gone = self._runs.pop(over[0])
        if isinstance(gone, SimulationFold):
            gone.tally.forget()

    def _take_news(self, run: RunFold) -> None:
        for trouble in run.news():
            last = self.troubles[-1] if self.troubles else None
            if last and (last.client, last.kind, last.text) == (
                trouble.client,
                trouble.kind,
                trouble.text,
            ):
                last.times, last.time = last.times + 1, trouble.time
            else:
                self.troubles.append(trouble)
                self.noted += 1


def look(overview: Overview, feeds: Sequence[Feed]) -> bool:
    """Fold in what is new in the feeds; whether there was anything.

    A feed that cannot be read at the moment is no end: the overview says so until it can be again.
    """
    troubles, awaited, heard = [], [], False
    for feed in feeds:
        is_first = id(feed) not in overview.looked
        try:
            now = time.time()
            for record in feed.poll():
                # what lay there already happened at its own time, though its clock may be ahead,
                # and all else between two looks
                arrival = min(time_of(record), now) if is_first else now
                overview.apply(record, feed.name, arrival)
                heard = True
            overview.looked.add(id(feed))
        except Awaited as waiting:
            awaited.append(str(waiting))
        except HublessError as error:
            troubles.append(str(error))
    overview.check(time.time())
    unreadable, missing = text("; ".join(troubles), 2000), text("; ".join(awaited), 2000)
    changed = (overview.feed_trouble, overview.awaited) != (unreadable, missing)
    overview.feed_trouble, overview.awaited = unreadable, missing
    return heard or changed
