"""Schedules of members that wait for each other, some of them under a quorum."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import hubless
from hubless import events
from hubless.errors import FederationError, QuorumMissed, TooLate
from hubless.federate import keys
from hubless.federate.federation import Federation
from hubless.federate.fold import OUTWEIGH, capped
from hubless.federate.keys import Incarnation, Posted
from hubless.federate.rounds.completing import KEPT_ROUNDS
from hubless.federate.rounds.plans import Plan
from hubless.store.base import Entry
from hubless.strategy.base import Strategy
from hubless.strategy.krum import Nearest
from hubless.strategy.look import Seen
from hubless.strategy.optimizers import Replace, ServerAdam
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import ByExamples
from hubless.testing import State, Update, aggregate
from tests.support.schedules.basics import MALLORY, Content, Params, Version, packed
from tests.support.schedules.life import Life
from tests.support.schedules.world import Member, World

_SLACK = 45.0


@dataclass(frozen=True)
class Shorter:
    """All but the update that goes the furthest, to the last digit whoever works it out."""

    look = "norms"

    def __call__(self, seen: Seen) -> Any:
        return np.where(np.arange(len(seen)) == np.argmax(seen.norms), 0.0, 1.0) + 1e-3


LOOK = 0.25
"""In so many worlds members look at whole updates."""
LOOKING = (
    hubless.MultiKrum(),
    Strategy(Nearest(0.2, None, ByExamples()), Mean(), ServerAdam()),
    Strategy(Shorter(), Mean(), Replace()),
)


class SyncWorld(World):
    """Members that wait for each other, some of them under a quorum."""

    mode = "sync"
    patience = 400.0
    """After so many seconds without a new round a member may give up."""

    def __init__(self, seed: int, sabotage: str = "", keep: int | None = 60) -> None:
        super().__init__(seed, sabotage, keep)
        rng = self.rng
        makers = (hubless.FedAvg, hubless.FedAvgM, hubless.FedAdam, hubless.FedMedian)
        self.strategy: Strategy = rng.choice(makers)()
        honest = rng.choice((2, 3, 3, 4, 5))
        self.rounds = rng.choice((2, 3, 3, 4, 5))
        self.members = [self.make(number) for number in range(honest)]
        self.names = [m.name for m in self.members] + [MALLORY] * self.adversary
        self.quorum = len(self.names)
        if rng.random() < 0.6:
            self.quorum = rng.randint(1, len(self.names))
            if rng.random() < 0.4:
                rng.choice(self.members).slowness = 150.0
        self.named = rng.random() < 0.7
        self.deadline = rng.uniform(2.0, 6.0)
        if self.quorum < len(self.names) and rng.random() < 0.5:
            # short rounds, and one who may sleep through several: they are collected meanwhile
            self.deadline, self.rounds = rng.uniform(0.5, 2.5), rng.randint(4, 6)
            for member in self.members:
                member.slowness = min(member.slowness, 20.0)
            sleeper = rng.choice(self.members)
            sleeper.naps_left, sleeper.longest_nap = rng.randint(1, 6), 6 * self.deadline
        self.initial: Content | None = None
        self.plans: dict[Version, Plan] = {}
        self.known: dict[Version, tuple[Params, State]] = {}
        self.results: dict[int, tuple[bytes, Version, str]] = {}
        self.counted: dict[tuple[str, int], int] = {}
        # some leave before the others: nobody has to wait for them any more
        self.departed: list[str] = []
        self.joined: dict[Life, int] = {}
        leaving = random.Random(f"leaving {seed}")
        for member in self.members:
            if leaving.random() < 0.15:
                member.lasts = leaving.randint(0, self.rounds)
        # some wait no longer than rounds usually take
        self.adapts = self.quorum < len(self.names) and leaving.random() < 0.2
        if leaving.random() < LOOK:
            # they look at whole updates before they weigh them
            self.strategy = leaving.choice(LOOKING)
            for member in self.members:
                member.strategy = self.strategy
        self.misspells = self.adversary and self.quorum < len(self.names) and rng.random() < 0.3
        for member in self.members:
            self.spawn(member, rng.choice((0.0, 0.0, 1.0)))
        if self.adversary:
            self.at(rng.random(), lambda: self.attack(0, set()))

    def make(self, number: int) -> SyncMember:
        return SyncMember(self, number, self.strategy)

    @property
    def open(self) -> int:
        """The round that takes updates now."""
        return max((r for r, _ in self.plans), default=-1) + 1

    def waited_for(self, life: Life) -> list[tuple[set[str], int]]:
        """Whom the open round may be for, as this one sees it, and how many of them are enough."""
        return [(set(self.names), self.quorum)]

    def hopeless_for(self, life: Life) -> bool:
        """Whether a member may give up: too few are left who deliver anything."""
        return self.posters < self.quorum

    @property
    def posters(self) -> int:
        """How many will still deliver something that looks like an update."""
        delivering = self.adversary and not self.misspells
        return sum(not m.gone for m in self.members) + delivering

    def attack(self, sequence: int, done: set[int]) -> None:
        """Deliver into whichever round is open, as long as there are rounds."""
        number = self.open
        if number not in done:
            done.add(number)
            digest = "0123456789ab" if self.misspells else self.signature.digest
            folder = f"{keys.round_folder(number)}updates/"
            nonce = Incarnation(1, "badbadba")
            self.put_bad(Posted(folder, MALLORY, sequence, nonce, 3, number, digest))
            if self.sabotage == "slices" and self.rng.random() < 0.2:
                # in the place of a slice of the result: nobody but a signature could stop that
                attempt, index = self.rng.randint(0, 1), self.rng.randint(0, 1)
                digest = self.rng.randbytes(16).hex()
                key = keys.slice_key("slices", number, attempt, index, MALLORY, nonce, digest)
                if key not in self.backing._objects:
                    self.backing.put(key, [self.rng.randbytes(200)])
                    self.bad.add(key)
                    self.note(MALLORY, "put", key, "garbage")
        if any(life.alive for life in self.lives) and number < self.rounds:
            again = self.now + self.rng.uniform(0.05, 0.6)
            self.at(again, lambda: self.attack(sequence + 1, done))

    def landed(self, key: str, body: bytes) -> None:
        if key == keys.INITIAL:
            self.initial = self.contents[key]
        if key.endswith(".left.json"):
            self.departed.append(key.split("/")[1].split("=")[0])
        rounds = keys.parse_listing([Entry(key, 0, 0.0)]).rounds if "/plan-" in key else {}
        for number, round_ in rounds.items():
            for attempt in round_.plans:
                said = json.loads(body)
                before = tuple(said["before"]) if said["before"] else None
                plan = Plan(tuple(said["included"]), attempt, before)
                plan = self.plans.setdefault((number, attempt), plan)
                folder = keys.round_folder(number)
                if not all(k.startswith(folder) for k in plan.included):
                    raise self.fail(f"{key} includes updates of another round")

    def expected(self, version: Version) -> tuple[Params, State]:
        """What a round comes to, by the plan that was there first."""
        if version not in self.known:
            plan = self.plans[version]
            current, state = None, State()
            if plan.before is not None and plan.before[0] < 0:
                assert self.initial is not None
                current = self.initial.flat
            elif plan.before is not None:
                current, state = self.expected(plan.before)
            state = State(version[0], state.slots)
            posted = plan.updates
            examples = capped([p.examples for p in posted], OUTWEIGH)
            updates = [
                Update(p.client, self.contents[p.key].flat, count, p.version)
                for p, count in zip(posted, examples, strict=True)
            ]
            self.known[version] = aggregate(self.strategy, updates, current, state, version[0])
        return self.known[version]

    def check(self, life: Life, federation: Federation, result: Mapping[str, Any]) -> None:
        """A member has arrived at a version: is it the one that all others have?"""
        version = reached(federation)
        assert version is not None
        number, body = version[0], packed(result)
        before = self.results.setdefault(number, (body, version, life.name))
        if before[0] != body:
            raise self.fail(
                f"{life.name} ends round {version} with other bytes than {before[2]}, {before[1]}"
            )
        plan = self.plans[version]
        if any(key in self.bad for key in plan.included):
            raise self.fail(f"{life.name} ends round {version} with a bad update included")
        if body != packed(self.expected(version)[0]):
            raise self.fail(f"{life.name} ends round {version} with something else than planned")
        for key in plan.included:
            content = self.contents[key]
            first = self.counted.setdefault((content.client, content.serial), number)
            if first != number:
                raise self.fail(f"{content.client}'s {content.serial} counts in {first}, {number}")

    def check_missed(self, life: Life, missed: QuorumMissed, waited: float, lates: int) -> None:
        """A quorum that was missed must have been missed, in time, and with the right names."""
        self.counts["quorum missed"] += 1
        wrong = [self.not_missed(missed, life, *each) for each in self.waited_for(life)]
        if all(wrong):
            raise self.fail(f"{life.name} {wrong[-1]}")
        if waited > (lates + 1) * self.deadline * 1.1 + _SLACK:
            raise self.fail(f"{life.name} waited {waited:.0f} s with {self.deadline:.0f} to go")

    def seen_leaving(self, life: Life) -> set[str]:
        """Who has left since a process joined, and is not back: whoever left before may be."""
        left = keys.parse_listing(self.backing.list("")).left
        return set(self.departed[self.joined.get(life, 0) :]) & left.keys()

    def hear(self, life: Life, event: events.Event) -> None:
        if isinstance(event, events.Joined):
            self.joined[life] = len(self.departed)

    def not_missed(self, missed: QuorumMissed, life: Life, wanted: set[str], enough: int) -> str:
        """What is wrong with missing this quorum, if anything."""
        there, missing = self.delivered() & wanted, set(missed.missing)
        awaited = wanted - (self.seen_leaving(life) - there)
        if self.named:
            # without names nobody knows whether who left was one of those that count
            enough = min(enough, len(awaited))
        if len(there) >= enough:
            return f"misses a quorum that is there ({self.signature.digest}): {missed}"
        right = awaited - set(self.departed) <= missing | there and missing <= awaited
        if there & missing or not missing or (self.named and not right):
            return f"misses {missed.missing}, there are {sorted(there)}"
        return ""

    def late(self, life: Life, error: TooLate) -> None:
        """A call ended because it was too late for every round, or for all of one."""
        self.counts["too late"] += 1

    def delivered(self) -> set[str]:
        """Whose update lies in the open round and looks like one."""
        folder = keys.round_folder(self.open)
        there = {p.client for p in self.listed() if p.folder.startswith(folder)}
        return there - {MALLORY} if self.misspells else there

    def finally_wrong(self) -> str:
        finished = [life for life in self.lives if life.finished]
        for life in finished:
            assert isinstance(life.member, SyncMember)
            if life.member.gave_up and self.posters >= self.quorum:
                return f"{life.name} gave up although a quorum lives"
            last = [e.round for e in life.heard if isinstance(e, events.Closed)]
            if last and last[-1] == self.rounds - 1:
                old = [p for p in self.listed() if p.client == life.name]
                limit = keys.round_folder(last[-1] - KEPT_ROUNDS)
                # what a former process wrote is replaced by what this one wrote, not by itself
                own = [e.key for e in life.heard if isinstance(e, events.Pushed)]
                newest = max((p.rank for p in old if p.key in own), default=None)
                leftover = [
                    p for p in old if newest and p.folder[: len(limit)] <= limit and p.rank < newest
                ]
                if wrong := self.crowded(life, len(leftover) if last[-1] >= KEPT_ROUNDS else 0):
                    return wrong
        planned = {key for version in self.results for key in self.plans[version, 0].included}
        refused = {key for life in self.lives for key in life.refused}
        if unnamed := (planned & self.bad) - refused:
            return f"nobody refused {sorted(unnamed)} by name"
        return ""


class SyncMember(Member):
    """Takes part until the last round is over."""

    def __init__(self, world: SyncWorld, number: int, strategy: Strategy) -> None:
        super().__init__(world, number, strategy)
        self.gave_up = False
        self.lasts = world.rounds
        """It leaves after so many rounds."""
        self.starts = world.rng.random() < 0.4
        self.sync = world

    def live(self, life: Life) -> None:
        world = self.sync
        life.content = self.trained()
        try:
            federation = self.join(life, life.content.params if self.starts else None)
        except FederationError as error:
            world.excuse(life, error)
            self.give_up(life)
            return
        self.catch_up(life, federation)
        arrived = world.now
        while not self.done(federation):
            life.clock.sleep(world.rng.choice((0.0, 0.1, 2.0)) * world.rng.random())
            life.content = self.trained()
            began, stalled, told = life.clock.now(), life.stalled, len(life.heard)
            params, examples = life.content.params, world.rng.choice((0, 1, 2, 3, 5, 8))

            def step(params: Params = params, examples: int = examples) -> Params:
                return federation.step(params, examples=examples, **self.says())

            try:
                result = world.call(life, federation, step)
            except QuorumMissed as missed:
                waited = life.clock.now() - began - (life.stalled - stalled) * 1.1
                lates = sum(isinstance(e, events.Late) for e in life.heard[told:])
                world.check_missed(life, missed, waited, lates)
            except TooLate as error:
                world.late(life, error)
            except FederationError as error:
                world.excuse(life, error)
            else:
                if result is not life.content.params:
                    arrived = world.now
                    world.check(life, federation, result)
                    continue
            before = reached(federation) or (-1, 0)
            self.catch_up(life, federation)
            if before < (reached(federation) or (-1, 0)):
                arrived = world.now
            hopeless = world.now - arrived > world.patience or world.hopeless_for(life)
            if hopeless and not self.done(federation):
                self.give_up(life)
                return
        federation.close()
        self.gone = True

    def join(self, life: Life, params: Params | None) -> Federation:
        world = self.sync
        deadline: float | hubless.Adaptive = world.deadline
        if world.adapts and world.quorum < len(world.names):
            deadline = hubless.Adaptive(3.0, deadline)
        members = world.names if world.named else len(world.names)
        return hubless.join(
            life.view,
            self.name,
            pace=hubless.Rounds(members, world.quorum, deadline),
            strategy=self.strategy,
            model=params,
            clock=life.clock,
            events=life.hear,
            **self.terms(),
        )

    def terms(self) -> dict[str, Any]:
        """What else this member joins with."""
        return {}

    def says(self) -> dict[str, Any]:
        """What else it says at a step."""
        return {}

    def give_up(self, life: Life) -> None:
        self.gave_up = True

    def done(self, federation: Federation) -> bool:
        version = reached(federation)
        return (version[0] + 1 if version else 0) >= min(self.sync.rounds, self.lasts)

    def catch_up(self, life: Life, federation: Federation) -> None:
        assert life.content is not None
        params = life.content.params
        try:
            result = self.sync.call(life, federation, lambda: federation.pull(params))
        except FederationError as error:
            self.sync.excuse(life, error)
            return
        if reached(federation) is not None:
            self.sync.check(life, federation, result)


def reached(federation: Federation) -> Version | None:
    """The version that a synchronous member is at."""
    version: Version | None = federation._mode.reached  # type: ignore[attr-defined]
    return version
