"""Overview: what a run's events amount to, for views to show.

Everything is folded in as it comes, in memory that does not grow with a run. Records are
untrusted: whatever is not what it should be is passed over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hubless.errors import HublessError
from hubless.watch.feed import OF_MEMBERS, OF_SIMULATIONS, Feed, Record, time_of
from hubless.watch.fold.federation import FederationFold
from hubless.watch.fold.places import Places
from hubless.watch.fold.run import RunFold, SimulationFold, text

_TROUBLES = 30
_RUNS = 64


@dataclass
class Trouble:
    """Something that went wrong, and how often in a row."""

    time: float
    run: str
    client: str
    kind: str
    text: str
    times: int = 1


class Overview:
    """All runs that were heard of, and what went wrong lately.

    >>> state = Overview()
    >>> state.apply({"event": "started", "client": "a", "round": 0, "settings": {"rounds": 9}})
    >>> state.apply({"event": "trained", "client": "a", "round": 1, "metrics": {"loss": 0.5}})
    >>> run = state.to_json()["runs"][0]
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
        self._runs: dict[tuple[str, str], RunFold] = {}
        self._places: dict[str, Places] = {}
        self._numbers = 0

    @property
    def runs(self) -> list[RunFold]:
        """All runs, in the order in which they were first heard of."""
        return list(self._runs.values())

    @property
    def is_over(self) -> bool:
        """Whether there was something, and all of it has ended."""
        return bool(self._runs) and all(run.is_over for run in self._runs.values())

    def apply(self, record: Record, source: str = "") -> None:
        """Fold in one record; `source` keeps apart what comes from several places."""
        kind, client = record.get("event"), text(record.get("client"))
        if kind in OF_SIMULATIONS:
            run = self._run(source, client or "simulation", SimulationFold)
        elif kind in OF_MEMBERS:
            place = self._places.setdefault(source, Places()).of(record)
            run = self._run(
                source, f"federation {place + 1}" if place else "federation", FederationFold
            )
        else:
            return
        when = time_of(record)
        run.hear(when)
        for who, trouble in run.apply(str(kind), client, when, record):
            self._note(Trouble(when, run.name, who, str(kind), text(trouble, 400)))

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
        }

    def _run(self, source: str, name: str, kind: type[RunFold]) -> RunFold:
        key = source, f"{kind.__name__} {name}"
        if key not in self._runs:
            sources = {at for at, _ in self._runs}
            # several places may each have a run of that name
            titled = f"{source}: {name}" if source and sources - {source} else name
            self._runs[key] = kind(text(titled, 1000), self._numbers)
            self._numbers += 1
            if len(self._runs) > _RUNS:
                over = [k for k, run in self._runs.items() if run.is_over] or list(self._runs)
                del self._runs[over[0]]
        return self._runs[key]

    def _note(self, trouble: Trouble) -> None:
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


def look(state: Overview, feeds: Sequence[Feed]) -> bool:
    """Fold in what is new in the feeds; whether there was anything.

    A feed that cannot be read at the moment is no end: the state says so until it can be again.
    """
    troubles, heard = [], False
    for feed in feeds:
        try:
            records = feed.poll()
        except HublessError as error:
            troubles.append(str(error))
            continue
        heard = heard or bool(records)
        for record in records:
            state.apply(record, feed.name)
    said = text("; ".join(troubles), 2000)
    changed = state.feed_trouble != said
    state.feed_trouble = said
    return heard or changed
