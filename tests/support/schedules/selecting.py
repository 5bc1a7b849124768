"""Schedules of members of whom some are picked for each round, and who all have to know which."""

from __future__ import annotations

import json
from statistics import median_low
from typing import Any

import numpy as np

import hubless
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
        if self.adversary:
            # so nobody leaves before the end
            for member in self.members:
                member.lasts = self.rounds
        else:
            selectors.append(AtMost(Heavy(0.5)))
        self.selector = rng.choice(selectors)
        self.cohort = rng.randint(least, len(self.names))
        self.quorum = self.cohort if rng.random() < 0.4 else rng.randint(least, self.cohort)
        self.named = True
        self.rosters: dict[Version, Roster] = {}
        self.picked: dict[Version, tuple[str, ...]] = {}

    def make(self, number: int) -> SyncMember:
        return SelectingMember(self, number, self.strategy)

    def waited_for(self, life: Life) -> list[tuple[set[str], int]]:
        gone = self.seen_leaving(life) - self.delivered()
        chain = [set(picked) for picked in self.chain(self.open)]
        return [(p, min(self.quorum, len(p))) for p in chain if not p <= gone]

    def hopeless_for(self, life: Life) -> bool:
        coming = {m.name for m in self.members if not m.gone} | self.delivered()
        if self.adversary and not self.misspells:
            coming.add(MALLORY)
        return any(len(picked & coming) < enough for picked, enough in self.waited_for(life))

    def hear(self, life: Life, event: events.Event) -> None:
        super().hear(life, event)
        if isinstance(event, events.Picked):
            chain = self.chain(event.round)
            if tuple(event.cohort) not in chain:
                raise self.fail(
                    f"{life.name} draws {event.cohort} for round {event.round}, not of {chain}"
                )
        elif isinstance(event, events.Pushed):
            posted = parsed(event.key)
            assert posted is not None
            chain = self.chain(int(posted.folder.split("/")[1]))
            if not any(posted.client in picked for picked in chain):
                raise self.fail(f"{life.name} pushes {event.key}, and was not picked")
            if posted.valuation != event.valuation:
                raise self.fail(f"{life.name} pushes {event.key}, and was worth {event.valuation}")

    def landed(self, key: str, body: bytes) -> None:
        super().landed(key, body)
        said = json.loads(body) if "/plan-" in key else {}
        if not said:
            return
        number, attempt = int(key.split("/")[1]), int(key[-9:-5])
        chain, roster = self.chain(number), self.roster(number)
        picked, passed, held = tuple(said["picked"]), said["passed"], said["roster"]
        drawn = {tuple(sorted(set().union(*chain[:i]))): each for i, each in enumerate(chain)}
        if drawn.get(tuple(sorted(passed))) != picked or held["members"] != sorted(self.names):
            raise self.fail(f"{key} says that {picked} were picked after {passed}, not of {chain}")
        self.picked.setdefault((number, attempt), picked)
        for name in ("valued", "selected", "last_selected", "last_seen"):
            if held[name] != getattr(roster, name).tolist():
                raise self.fail(f"{key} has {name} {held[name]}, not {getattr(roster, name)}")
        values = [np.nan if value is None else value for value in held["valuation"]]
        if not np.array_equal(values, roster.valuation, equal_nan=True):
            raise self.fail(f"{key} has valuations {values}, not {roster.valuation}")

    def chain(self, number: int) -> list[tuple[str, ...]]:
        """Who may train in a round: where all who were drawn have left at some time, the next."""
        names, roster, chain = sorted(self.names), self.roster(number), list[tuple[str, ...]]()
        while names and (not chain or set(chain[-1]) <= set(self.departed)):
            places = [sorted(self.names).index(name) for name in names]
            there = Roster(roster.examples[places], round=number)
            for name in ("valuation", "valued", "selected", "last_selected", "last_seen"):
                there.put(name, slice(None), getattr(roster, name)[places])
            rng = stream(self.seed, "pick", number)
            picked = self.selector(there, min(self.cohort, len(names)), rng)
            chain.append(tuple(sorted(names[place] for place in picked)))
            names = [name for name in names if name not in chain[-1]]
        return chain

    def roster(self, number: int) -> Roster:
        """What is known of all before a round, worked out from the plans of all rounds before."""
        final = max((a for r, a in self.plans if r == number - 1), default=0)
        if (number, final) not in self.rosters:
            names = sorted(self.names)
            examples: dict[str, int] = {}
            roster = Roster(np.zeros(len(names)))
            for r in range(number):
                roster.round = r
                attempt = max(a for n, a in self.plans if n == r)
                before = self.picked[r, attempt]
                roster.record_selected(np.array([names.index(name) for name in before]))
                for posted in self.plans[r, attempt].updates:
                    place = np.array([names.index(posted.client)])
                    worth = None if posted.valuation is None else [posted.valuation]
                    roster.record_seen(place, worth)
                    examples[posted.client] = max(1, posted.examples)
            usual = median_low(examples.values()) if examples else 1
            roster.put("examples", slice(None), [examples.get(name, usual) for name in names])
            roster.round = number
            self.rosters[number, final] = roster
        return self.rosters[number, final]


class SelectingMember(SyncMember):
    """Waits or trains on where it is not picked."""

    def __init__(self, world: SyncWorld, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.unpicked = world.rng.choice(("wait", "wait", "train"))

    def terms(self) -> dict[str, Any]:
        world = self.sync
        assert isinstance(world, SelectingWorld)
        who = hubless.Selection(world.selector, world.cohort, world.seed, self.unpicked)
        return {"who": who}

    def says(self) -> dict[str, Any]:
        return {"valuation": self.sync.rng.choice((0.0, 1.0, 2.5, -1.0))}

    def give_up(self, life: Life) -> None:
        if not self.sync.hopeless_for(life):
            raise self.sync.fail(f"{self.name} gave up although a quorum of the picked lives")
        self.gone = True
