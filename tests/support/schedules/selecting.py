"""Schedules of members of whom some are picked for each round, and who all have to know which."""

from __future__ import annotations

import json
from statistics import median_low
from typing import Any

import numpy as np

from hubless import events
from hubless.rng import stream
from hubless.select import Active, Activity, AtMost, Heavy, Refreshed, RoundRobin, Uniform
from hubless.select.roster import Roster, Selector
from hubless.strategy.base import Strategy
from tests.support.schedules.basics import MALLORY, Version, parsed
from tests.support.schedules.life import Life
from tests.support.schedules.synchronous import SyncMember, SyncWorld


class SelectingWorld(SyncWorld):
    """Members of whom some are picked for each round, and who all have to know which."""

    mode = "select"

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        rng = self.rng
        selectors: list[Selector] = [Uniform(), Activity("n"), Activity("sqrt", "exact")]
        selectors += [Active(alpha1=0.5, alpha2=1.0), RoundRobin(), Refreshed(Uniform(), 3)]
        # with one bad update in a cohort there has to be another, or nothing is left of the round
        least = 2 if self.adversary else 1
        if not self.adversary:
            selectors.append(AtMost(Heavy(0.5)))
        self.selector = rng.choice(selectors)
        self.cohort = rng.randint(least, len(self.names))
        self.quorum = self.cohort if rng.random() < 0.4 else rng.randint(least, self.cohort)
        self.named = True
        self.drawn: dict[Version, tuple[tuple[str, ...], Roster]] = {}

    def make(self, number: int) -> SyncMember:
        return SelectingMember(self, number, self.strategy)

    def waited_for(self) -> tuple[set[str], int]:
        picked = self.pick(self.open)[0]
        return set(picked), min(self.quorum, len(picked))

    @property
    def hopeless(self) -> bool:
        picked, enough = self.waited_for()
        coming = {m.name for m in self.members if not m.gone} | self.delivered()
        if self.adversary and not self.misspells:
            coming.add(MALLORY)
        return len(picked & coming) < enough

    def hear(self, life: Life, event: events.Event) -> None:
        if isinstance(event, events.Picked):
            picked = self.pick(event.round)[0]
            if tuple(event.cohort) != picked:
                raise self.fail(
                    f"{life.name} draws {event.cohort} for round {event.round}, not {picked}"
                )
        elif isinstance(event, events.Pushed):
            posted = parsed(event.key)
            assert posted is not None
            if posted.client not in self.pick(int(posted.folder.split("/")[1]))[0]:
                raise self.fail(f"{life.name} pushes {event.key}, and was not picked")
            if posted.valuation != event.valuation:
                raise self.fail(f"{life.name} pushes {event.key}, and was worth {event.valuation}")

    def landed(self, key: str, body: bytes) -> None:
        super().landed(key, body)
        said = json.loads(body) if "/plan-" in key else {}
        if not said:
            return
        number = int(key.split("/")[1])
        picked, roster = self.pick(number)
        held = said["roster"]
        if tuple(said["picked"]) != picked or held["members"] != sorted(self.names):
            raise self.fail(f"{key} says that {said['picked']} were picked, not {picked}")
        for name in ("valued", "selected", "last_selected", "last_seen"):
            if held[name] != getattr(roster, name).tolist():
                raise self.fail(f"{key} has {name} {held[name]}, not {getattr(roster, name)}")
        values = [np.nan if value is None else value for value in held["valuation"]]
        if not np.array_equal(values, roster.valuation, equal_nan=True):
            raise self.fail(f"{key} has valuations {values}, not {roster.valuation}")

    def pick(self, number: int) -> tuple[tuple[str, ...], Roster]:
        """Who trains in a round, worked out from the plans of all rounds before."""
        final = max((a for r, a in self.plans if r == number - 1), default=0)
        if (number, final) not in self.drawn:
            names = sorted(self.names)
            examples: dict[str, int] = {}
            roster = Roster(np.zeros(len(names)))
            for r in range(number):
                roster.round = r
                before = self.pick(r)[0]
                roster.record_selected(np.array([names.index(name) for name in before]))
                attempt = max(a for n, a in self.plans if n == r)
                for posted in self.plans[r, attempt].updates:
                    place = np.array([names.index(posted.client)])
                    worth = None if posted.valuation is None else [posted.valuation]
                    roster.record_seen(place, worth)
                    examples[posted.client] = max(1, posted.examples)
            usual = median_low(examples.values()) if examples else 1
            roster.put("examples", slice(None), [examples.get(name, usual) for name in names])
            roster.round = number
            places = self.selector(roster, self.cohort, stream(self.seed, "pick", number))
            picked = tuple(sorted(names[place] for place in places))
            self.drawn[number, final] = picked, roster
        return self.drawn[number, final]


class SelectingMember(SyncMember):
    """Waits or trains on where it is not picked."""

    def __init__(self, world: SyncWorld, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.unpicked = world.rng.choice(("wait", "wait", "train"))

    def terms(self) -> dict[str, Any]:
        world = self.sync
        assert isinstance(world, SelectingWorld)
        return {
            "selector": world.selector,
            "cohort": world.cohort,
            "seed": world.seed,
            "unpicked": self.unpicked,
        }

    def says(self) -> dict[str, Any]:
        return {"valuation": self.sync.rng.choice((0.0, 1.0, 2.5, -1.0))}

    def give_up(self) -> None:
        if not self.sync.hopeless:
            raise self.sync.fail(f"{self.name} gave up although a quorum of the picked lives")
        self.gone = True
